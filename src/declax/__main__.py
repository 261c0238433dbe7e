"""``python -m declax``: the command line."""

from __future__ import annotations

import sys

from declax.config._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
