"""The command ``declax``, and `cli` for scripts: show, check, change and build configurations from a shell."""
