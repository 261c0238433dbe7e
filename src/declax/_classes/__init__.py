"""Pytree classes: the dataclass transform, construction and its record."""
