"""Runs of scripts: their folders, locks and states, sweeps of them, and processes that run them."""
