"""Models from configuration: specs, files, the classes that data may name, and the command line."""
