"""Models in functions, partials and declared parts that are static: no State has them, copies keep the originals."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import jax

from declax._fields.bytecode import cells_of
from declax._tree.iterators import is_model_class
from declax._tree.statuses import PLAIN, items_within
from declax.errors import StatusError, describe, type_name, with_article

HOLDERS: Final = frozenset({FunctionType, functools.partial})
"""Classes of static values in which a model may be hidden."""


def check_hidden(owner: object, value: Any, where: str, name: str, *, is_part: bool = False) -> None:
    """Refuses Variables in the closure of a function, and models among its defaults or the arguments of a partial.

    Also where the function is in a container, or a transform has made another one of it.

    In a declared part, which the class body makes by a call, also modules in closures and in plain objects.
    """
    found = _hidden_in(value, owner, is_part=is_part)
    if found is not None:
        model, holder = found
        raise StatusError(
            where,
            f"{holder} hides a model in a static attribute",
            got=describe(model),
            why="no State has it, it is never trained, and a copy of this object computes with the original",
            fix=f"self.part = ...        # the model, and a method in place of the function:\n"
            f"def {name if name.isidentifier() else '__call__'}(self, x): ... self.part ..."
            if holder.startswith(("the closure", "a default", "a functools"))
            else f"{name} = ...        # a call that gives the model itself, or a list or dict of models",
        )


_MAX_OBJECTS: Final = 3
"""How many plain objects are opened within each other."""


def _hidden_in(value: Any, owner: object, *, is_part: bool) -> tuple[Any, str] | None:
    """The first model that the owner does not have, and the function, partial or other object that holds it.

    A closure may know modules: those around the owner, most often, which nobody can tell from others here.
    The call of a declared part knows none of them.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    seen = set[int]()
    while waiting:
        holder, depth = waiting.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if holder.__class__ is FunctionType:
            around, what = [*cells_of(holder).values()], f"the closure of {holder.__qualname__}"
            models = [item for item in around if (_is_model(item) if is_part else hasattr(type(item), "raw_value"))]
            defaults = _within((*(holder.__defaults__ or ()), *(holder.__kwdefaults__ or {}).values()))
            if not models and (models := [item for item in defaults if _is_model(item)]):
                what = f"a default of {holder.__qualname__}"
            found = [*around, *defaults, getattr(holder, "__wrapped__", None)]
        elif holder.__class__ is functools.partial:
            found, what = _within((holder.func, *holder.args, *holder.keywords.values())), "a functools.partial"
            models = [item for item in found if _is_model(item)]
        elif not is_part:
            found, what, models = _held_by_static(holder), "", []
        else:
            found, what, depth = list(_held_by(holder)), with_article(type_name(type(holder))), depth + 1
            models = [item for item in found if _is_model(item)]
        for model in models:
            if not _is_known(model, owner):
                return model, what
        opens = is_part and depth < _MAX_OBJECTS
        waiting += [(item, depth) for item in found if is_holder(item) or (opens and _is_opened(item))]
    return None


def is_of_library(value: Any) -> bool:
    """Whether a value is a function of JAX or declax, such as the default of a layer, which knows no model."""
    return value.__class__ is FunctionType and str(value.__module__).startswith(("jax.", "declax."))


def is_holder(value: Any) -> bool:
    """Whether a value is a function, a partial, or what a transform has made of a function."""
    return value.__class__ in HOLDERS or (callable(value) and "__wrapped__" in getattr(value, "__dict__", ()))


def _held_by_static(value: Any) -> list[Any]:
    """What a container holds, and the function of which a transform has made a value."""
    return [value.__wrapped__] if is_holder(value) else _within((value,))


def may_hide(value: Any) -> bool:
    """Whether a static value is a function or partial, or a container with some."""
    is_container = isinstance(value, (list, tuple, dict, set, frozenset))
    return any(map(is_holder, _within((value,)))) if is_container else is_holder(value)


def _within(values: tuple[Any, ...]) -> list[Any]:
    """The values, and those in containers in place of the containers."""
    found, waiting, seen = [], list(values), set[int]()
    for value in waiting:
        if not isinstance(value, (list, tuple, dict, set, frozenset)):
            found.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            items = value.values() if isinstance(value, dict) else value
            waiting += () if _NUMBERS_AND_TEXTS.issuperset(map(type, items)) else items
    return found


_NUMBERS_AND_TEXTS: Final = PLAIN - {FunctionType}


_CONTAINERS: Final = (list, tuple, dict, set, frozenset, collections.deque)


def _held_by(value: Any) -> Iterable[Any]:
    """What a container, a method or a plain object holds."""
    if isinstance(value, _CONTAINERS):
        return value.values() if isinstance(value, dict) else value
    if value.__class__ is MethodType:
        return (value.__self__,)
    return getattr(value, "__dict__", {}).values()


def _is_opened(value: Any) -> bool:
    cls = type(value)
    if (
        cls in PLAIN
        or issubclass(cls, (type, ModuleType))
        or is_model_class(cls)
        or getattr(cls, "_pytree__draws", False)
    ):
        return False
    return cls is MethodType or isinstance(value, _CONTAINERS) or hasattr(value, "__dict__")


def _is_model(item: Any) -> bool:
    """Whether a value is a module or Variable with arrays, and no random stream."""
    return is_model_class(type(item)) and not getattr(item, "_pytree__draws", False) and _has_leaves(item)


def _has_leaves(model: Any) -> bool:
    try:
        return bool(jax.tree.leaves(model))
    except (AttributeError, KeyError):  # it is not complete yet
        return False


def _is_known(model: Any, owner: object) -> bool:
    """Whether a model is the owner or below it, so that States have it."""
    waiting, seen = [owner], set[int]()
    while waiting:
        each = waiting.pop()
        if each is model:
            return True
        if id(each) not in seen and hasattr(each, "__dict__"):
            seen.add(id(each))
            waiting += items_within(list(vars(each).values()))
    return False
