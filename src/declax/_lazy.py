"""Names of a package that load their module when they are asked for first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from declax import errors
from declax._exports import NAMES


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names `NAMES` tells.

    A name is looked up once: it is in the namespace of the package from then
    on. No name may be that of a module of the package as well, since Python
    puts modules there when they load.

    Args:
      package: the name of the package.
    """
    module_of = {name: module for module, names in NAMES.items() for name in names.split()}
    names = sorted(module_of)

    def load(name: str) -> Any:
        if name not in module_of:
            fix = None if name.startswith("_") else errors.suggest(name, names)  # Python asks for modules so too
            raise errors.MissingAttributeError(f"module {package}", f"it has no attribute {name!r}", fix=fix)
        module = importlib.import_module(f"{package}.{module_of[name] or name}")
        value = getattr(module, name) if module_of[name] else module
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *names}), names
