"""Models on many devices: declared shardings, creation in place, and bytes per device."""
