"""Classes that a command line names: ``module:Class``.

A command line is code, which its user writes, so that importing is fine here; it never is for what files say.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, Final

from declax import errors

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
    module = _import_file(module_name) if module_name.endswith(".py") else _import(module_name, word)
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
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # what the module itself lacks
        here = sorted(path.stem for path in Path().glob("*.py"))
        fix = errors.suggest(name, here)
        raise errors.ConfigError(
            word, f"there is no module {name!r}", expected="module:Class, or file.py:Class", fix=fix
        ) from None


def _import_file(name: str) -> Any:
    path = Path(name)
    if not path.is_file():
        raise errors.ConfigError(name, "there is no such file", expected="module:Class, or file.py:Class")
    module_name = path.stem
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # as for all that ends with .py  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that its classes can be pickled, and their annotations read
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
