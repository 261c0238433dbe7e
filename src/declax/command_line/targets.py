"""Classes that a command line names: ``module:Class``.

A command line is code, which its user writes, so that importing is fine here; it never is for what files say.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Final

from declax import errors

_EXPECTED: Final = "module:Class, or file.py:Class"
_NAME: Final = re.compile(r"[\w./\\-]+:[A-Za-z_][\w.]*")


def is_target(word: str) -> bool:
    """Whether a word of a command line names a class.

    >>> is_target("models.vision:Net"), is_target("models/vision.py:Net"), is_target("net.toml")
    (True, True, False)
    """
    return _NAME.fullmatch(word) is not None and "=" not in word


def load_target(word: str) -> Any:
    """The class, or function, that ``module:Class`` or ``file.py:Class`` names.

    Modules are looked for in the current folder too.

    Raises:
      ConfigError: there is none.

    >>> load_target("declax:Linear").__name__
    'Linear'
    """
    module_name, _, name = word.rpartition(":")
    module = _import(module_name, word)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [n for n in dir(found) if not n.startswith("_")]
            hint = errors.suggest(part, public)
            raise errors.ConfigError(word, f"{module_name} has no {part!r}", fix=hint) from None
    return found


def _import(name: str, word: str) -> Any:
    """The module of a name, or of a file; a file is found by its folder, as a script is."""
    folder = ""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise errors.ConfigError(name, "there is no such file", expected=_EXPECTED)
        folder, name = str(Path(name).parent), Path(name).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # what the module itself lacks
        fix = errors.suggest(name, sorted(path.stem for path in Path().glob("*.py")))
        raise errors.ConfigError(word, f"there is no module {name!r}", expected=_EXPECTED, fix=fix) from None
