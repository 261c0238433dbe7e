"""The command that executes the script of this process again, for one run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from declax.config._cli.output import usage_error

LAUNCHED: Final = "DECLAX_LAUNCHED"
"""The variable of the environment that tells a process which folder it was launched for."""


def script_command() -> list[str]:
    """The interpreter and the script, or ``-m`` and its module, without words.

    Raises:
      DeclaxError: the process has no script, such as a notebook.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    path = Path(sys.argv[0])
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path.resolve():
        return [sys.executable, "-m", spec.name.removesuffix(".__main__")]
    if not path.is_file():
        problem = "each run of a sweep executes the script again, and this process has none"
        raise usage_error(problem, got=repr(sys.argv[0]), fix="save it as a file, and run that")
    return [sys.executable, str(path)]


def command_for(folder: Path) -> list[str]:
    return [*script_command(), "--resume", str(folder)]


def environment_for(folder: Path) -> dict[str, str]:
    return {**os.environ, LAUNCHED: str(folder), "PYTHONUNBUFFERED": "1"}


def check_launched(resumed: str | None, given: Sequence[str]) -> None:
    """Refuses to launch in a process that was launched: a script with words of its own would do so for ever."""
    folder = os.environ.pop(LAUNCHED, None)  # or scripts that this one executes would see it
    if folder is not None and resumed != folder:
        problem = "this process was launched for one run of a sweep, and its script does not pass on its words"
        raise usage_error(problem, expected=f"--resume {folder}", got=" ".join(given), fix="dx.cli(..., argv=None)")
