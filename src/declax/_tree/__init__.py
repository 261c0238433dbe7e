"""Objects as trees: layouts, generated functions, the status of attributes, the epoch, display."""
