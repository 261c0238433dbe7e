"""Models as tables and pictures: parts with their shapes, sizes, outputs and costs."""
