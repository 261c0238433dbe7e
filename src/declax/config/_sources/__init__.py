"""The sources of a configuration: files, alternatives in folders and words, merged into one tree with their places."""
