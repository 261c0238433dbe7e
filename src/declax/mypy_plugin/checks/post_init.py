"""declax-post-init: ``__post_init__`` against the InitVars that it is called with.

mypy itself compares types, and tells of an incompatible supertype; it does not look at what is inherited.
"""

from __future__ import annotations

from mypy.nodes import FuncDef, SymbolTableNode

from declax.mypy_plugin.declared import DeclaredClass
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

POST_INIT = error_code("declax-post-init", "__post_init__ does not take the class's InitVars")

_NAME = "__post_init__"


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.declared_class(POST_INIT, check)


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks the method that the constructor of a class calls."""
    found = cls.info.get(_NAME)
    function = None if found is None or not cls.makes_constructor else _function(found)
    if function is None or not cls.is_complete or function.info.module_name.startswith("declax."):
        return
    passed = [field.name for field in cls.fields.values() if field.is_init_var]
    if function.info is not cls.info:
        _check_inherited(cls, function, passed, report)
    elif not _takes(function, passed):
        report.error(
            f"{cls.name}.{_NAME}: the constructor calls it with {', '.join(passed) or 'nothing'}, in this order",
            function,
            fix=f"def {_NAME}({', '.join(['self', *passed])}) -> None:",
        )


def _function(found: SymbolTableNode) -> FuncDef | None:
    return found.node if isinstance(found.node, FuncDef) and not found.plugin_generated else None


def _positional(function: FuncDef) -> list[str]:
    """The names of the parameters that take an argument by position, less ``self``."""
    kinds = zip(function.arg_names, function.arg_kinds, strict=True)
    return [name or "" for name, kind in kinds if kind.is_positional()][1:]


def _takes(function: FuncDef, passed: list[str]) -> bool:
    """Whether a method takes these arguments by position, and not in another order than it names them."""
    if any(kind.is_star() for kind in function.arg_kinds):
        return True
    kinds = function.arg_kinds[1:]
    least = sum(kind.is_required() for kind in kinds)
    taken = _positional(function)
    is_swapped = taken != passed and sorted(taken) == sorted(passed)
    return least <= len(passed) <= len(taken) and not is_swapped


def _check_inherited(cls: DeclaredClass, function: FuncDef, passed: list[str], report: Report) -> None:
    if _takes(function, passed):
        return
    taken = ", ".join(_positional(function)) or "nothing"
    report.error(
        f"{cls.name}: the constructor calls {function.info.name}.{_NAME} with {', '.join(passed) or 'nothing'},"
        f" and it takes {taken}",
        cls.info.defn,
        fix=f"def {_NAME}({', '.join(['self', *passed])}) -> None:    # in {cls.name}",
    )
