"""Readers: each interprets one annotation, and converts data to values."""
