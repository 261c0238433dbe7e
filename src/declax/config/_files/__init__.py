"""Plain data from TOML, JSON and YAML files, with the line of each value."""
