"""Models on many devices: plans, declared shardings, creation in place, and bytes per device."""
