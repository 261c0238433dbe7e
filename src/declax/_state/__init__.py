"""States: flat lists of values with interned paths, and their views."""
