"""Sows the outputs of methods during captured calls.

While such a call runs, the public methods of the classes of its modules are
wrapped. Only a module whose `Captures` asks for outputs sows them, so calls in
other threads see no difference.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import jax

from declax._attributes import class_attribute
from declax._containers import Dict, List
from declax._nodes import Kind, is_number, kind_of
from declax._pytree import Pytree
from declax._typing import CAPTURES_KEY, MISSING
from declax._variables import Variable

_wrapped: Final[dict[type, tuple[int, dict[str, Any]]]] = {}
"""How many calls have the methods of a class wrapped, and what the class itself had under their names."""
_lock = threading.Lock()


@contextmanager
def sown_outputs(classes: Iterable[type]) -> Generator[None, None, None]:
    """Has the methods of some classes sow their outputs, in modules that ask for it."""
    chosen = set(classes)
    with _lock:
        for cls in chosen:
            count, originals = _wrapped.get(cls) or (0, _wrap_methods(cls))
            _wrapped[cls] = count + 1, originals
    try:
        yield
    finally:
        with _lock:
            for cls in chosen:
                count, originals = _wrapped.pop(cls)
                if count > 1:
                    _wrapped[cls] = count - 1, originals
                else:
                    _unwrap_methods(cls, originals)


def _wrap_methods(cls: type) -> dict[str, Any]:
    methods = list(_methods(cls))
    originals = {name: cls.__dict__.get(name, MISSING) for name, _ in methods}
    for name, method in methods:
        setattr(cls, name, _sowing_method(cls, name, method))
    return originals


def _unwrap_methods(cls: type, originals: dict[str, Any]) -> None:
    for name, original in originals.items():
        if original is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


_OWN = frozenset({*List.__mro__, *Dict.__mro__})
"""Classes whose methods do what Python or declax needs, and compute nothing."""


def _methods(cls: Any) -> Iterator[tuple[str, Any]]:
    """The public methods, and ``__call__``, that users' classes and layers define."""
    fields = getattr(cls, "__dataclass_fields__", {})
    names = {name for owner in cls.__mro__ if owner not in _OWN for name in vars(owner)}
    for name in sorted(names):
        found = class_attribute(cls, name)
        is_method = isinstance(found, FunctionType) or (
            hasattr(type(found), "__get__")
            and callable(found)
            and not isinstance(found, staticmethod | classmethod | type)
        )
        if is_method and name not in fields and (name == "__call__" or not name.startswith("_")):
            yield name, found


def _sowing_method(cls: type, name: str, method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def sowing(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = method.__get__(self)(*args, **kwargs)
        kind = getattr(self.__dict__.get(CAPTURES_KEY), "__method_outputs__", None)
        is_called_by_super = type(self) is not cls
        if kind is not None and not is_called_by_super and _is_sowable(output):
            self.sow(kind, name, jax.tree.map(_value_of, output, is_leaf=_is_variable))
        return output

    return sowing


def _is_variable(value: object) -> bool:
    return isinstance(value, Variable)


def _value_of(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def _is_sowable(output: Any) -> bool:
    """Whether an output is made of arrays and numbers only; a module is no value."""
    leaves = jax.tree.leaves(output, is_leaf=lambda value: isinstance(value, (Variable, Pytree)))
    return all(isinstance(leaf, Variable) or kind_of(leaf) is Kind.LEAF or is_number(leaf) for leaf in leaves)
