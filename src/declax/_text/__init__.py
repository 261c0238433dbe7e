"""Text of what declax shows: `arrays` by shapes and sizes, `objects` with their contents, `tables`, equal parts."""
