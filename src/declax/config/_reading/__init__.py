"""Readers: what an annotation accepts, and the values that they make of data."""
