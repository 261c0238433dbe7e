"""Models from configuration: specs, files, the classes that data may name, and what is wrong with a file."""
