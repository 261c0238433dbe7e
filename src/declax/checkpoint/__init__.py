"""Checkpoints: files of arrays, what is saved with them, and restoring."""
