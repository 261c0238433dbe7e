"""Plain data from TOML, JSON and YAML, with the line of each value."""
