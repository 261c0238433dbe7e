"""The command ``declax``, and `cli` for scripts: configurations are shown, checked, changed and built from a shell."""
