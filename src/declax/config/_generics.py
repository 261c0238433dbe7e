"""What the type variables of generic classes stand for.

Vocabulary
----------
bindings: of a class with arguments, such as ``Wrap[Mlp]``: what each type variable of it, and of its bases, stands for.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from declax.config._parameters import plain_target

Bindings = Mapping[Any, Mapping[Any, Any]]
"""By class, since two classes may use one variable for two things."""


def bindings_of(annotation: Any) -> Bindings:
    """What the type variables of a class and its bases stand for.

    >>> T = typing.TypeVar("T")
    >>> class Wrap(typing.Generic[T]): ...
    >>> class Texts(Wrap[str]): ...
    >>> bindings_of(Wrap[int])[Wrap][T], bindings_of(Texts)[Wrap][T]
    (<class 'int'>, <class 'str'>)
    """
    cls, args = plain_target(annotation), typing.get_args(annotation)
    if not isinstance(cls, type):
        return {}
    found: dict[Any, dict[Any, Any]] = {}
    if args:
        found[cls] = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(generic)
            if not isinstance(origin, type) or origin in (typing.Generic, typing.Protocol):
                continue
            names = getattr(origin, "__parameters__", ())
            inner = [substituted(arg, found.get(base, {})) for arg in typing.get_args(generic)]
            bound = {name: arg for name, arg in zip(names, inner, strict=False) if not isinstance(arg, typing.TypeVar)}
            if bound:
                found.setdefault(origin, bound)
    return found


def substituted(annotation: Any, bound: Mapping[Any, Any]) -> Any:
    """An annotation with what its type variables stand for in their places.

    >>> T = typing.TypeVar("T")
    >>> substituted(list[T] | None, {T: int})
    list[int] | None
    """
    try:
        if annotation in bound:
            return bound[annotation]
    except TypeError:  # an annotation without a hash
        return annotation
    free = getattr(annotation, "__parameters__", ())
    if not bound or not free or (isinstance(annotation, type) and typing.get_origin(annotation) is None):
        return annotation
    if not any(variable in bound for variable in free):
        return annotation
    generic: Any = annotation
    return generic[tuple(bound.get(variable, variable) for variable in free)]
