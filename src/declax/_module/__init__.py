"""Module, the containers, sow and capture, view and summary."""
