"""The public names of the package, each of which loads its module when it is first used."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from opcode import opmap
from types import FrameType
from typing import Any

from declax import errors
from declax._absent import instead_of

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2\b", re.MULTILINE)


def exports(package: str) -> dict[str, str]:
    """Which module has which name of a package, as the stub of the package says.

    >>> exports("declax")["Linear"]
    'declax.nn'
    """
    stub = pkgutil.get_data(package, "__init__.pyi") or b""
    return {name: module for module, name in _EXPORT.findall(stub.decode())}


def lazy_attributes(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    No public name may be that of a module of the package as well, since Python puts modules there when they load.
    """
    module_of = exports(package)
    public = sorted(name for name in module_of if not name.startswith("_"))
    return lazy_names(package, **module_of), lambda: list(public), public


def lazy_names(where: str, /, **module_of: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: names of other modules, and why others are missing.

    A name is looked up once; then it is in the namespace of the module.
    """

    def load(name: str) -> Any:
        if name not in module_of:
            caller = sys._getframe(1)
            if name == "__all__" and where == "declax":
                # For pydoc no name: `help(dx)` would print each class and all data after the topics, 27,000 lines.
                is_help = caller.f_globals.get("__name__") == "pydoc"
                return [] if is_help else sorted(name for name in module_of if not name.startswith("_"))
            raise _missing(where, name, module_of, caller)
        source = module_of[name]
        is_module = source == where
        value = importlib.import_module(f"{where}.{name}" if is_module else source)
        value = value if is_module else getattr(value, name)
        vars(sys.modules[where])[name] = value
        return value

    return load


def _missing(where: str, name: str, known: Iterable[str], caller: FrameType) -> errors.DeclaxError:
    """The error of a missing name: Python replaces an AttributeError by its own in ``from module import name``."""
    instead = instead_of(where.partition(".")[2], name)
    if instead is None:
        public = [other for other in (*known, *vars(sys.modules[where])) if not other.startswith("_")]
        is_probe = name.startswith("_") or caller.f_code.co_filename.startswith("<frozen")  # Python asks for modules
        near = None if is_probe else errors.suggest(name, public)
        inner = (
            None if where == "declax" else "a module of declax has the public names of the one in NNX, not its others"
        )
        return errors.MissingAttributeError(f"module {where}", f"it has no attribute {name!r}", why=inner, fix=near)
    is_import = caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
    error = errors.MissingNameError if is_import else errors.MissingAttributeError
    problem = f"it has no attribute {name!r}, which Flax NNX has"
    why = 'docs/coming_from_nnx.md, "Names", lists the names that declax lacks'
    return error(f"module {where}", problem, why=why, fix=instead)
