"""Module, the containers, sow and capture, views."""
