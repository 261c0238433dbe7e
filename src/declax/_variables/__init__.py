"""Variables, their kinds, their metadata and their operators."""
