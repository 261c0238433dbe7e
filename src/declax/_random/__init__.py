"""Random numbers: named streams of keys, alone and inside of models."""
