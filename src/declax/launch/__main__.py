"""``python -m declax.launch --processes 4 train.py``: a program in several processes of this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from declax.launch.running import run


def main(words: Sequence[str] | None = None) -> int:
    """Reads the command line, and runs the program."""
    parser = argparse.ArgumentParser(
        prog="python -m declax.launch",
        description="Starts a Python program in several processes of this machine, which dx.launch.initialize() "
        "connects. When one fails, all are ended, and its error is printed last.",
        epilog="SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to all. The exit status is that of the "
        "process that fails first, 128 and the number of the signal if one ended it, or 124 if time is up.",
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=_count, required=True, metavar="N", help="how many")
    parser.add_argument("--devices", type=_count, metavar="N", help="virtual devices of the CPU for each process")
    grace = "seconds from the signal that asks processes to end until they are killed (default: %(default)s)"
    parser.add_argument("--grace", type=_seconds, default=30.0, metavar="SECONDS", help=grace)
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="seconds after which all are ended")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", help="a file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    found = parser.parse_args(words)
    if not found.is_module and not Path(found.program).is_file():
        parser.error(f"there is no file {found.program!r}")
    python = [sys.executable, *(f"-W{option}" for option in sys.warnoptions), *(["-m"] if found.is_module else [])]
    return run(
        [*python, found.program, *found.arguments],
        processes=found.processes,
        devices=found.devices,
        grace=found.grace,
        timeout=found.timeout,
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
