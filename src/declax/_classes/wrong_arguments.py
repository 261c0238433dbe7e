"""Errors of constructors that were called with arguments that they do not have."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from declax._fields.annotations import own_annotations
from declax._fields.call import call_of
from declax._fields.class_info import (
    maker_of,
)
from declax._fields.sources import class_text
from declax._tree.statuses import has_data as has_data
from declax._tree.statuses import is_data as is_data
from declax._tree.statuses import register_data_type as register_data_type
from declax.errors import (
    ConstructionError,
    FieldError,
    StatusError,
    describe,
    suggest,
    type_name,
)


def explain_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
    """Raises a better error if a constructor was given arguments that it does not have."""
    if cls.__new__ is not object.__new__:
        return
    if cls.__init__ is object.__init__ and own_annotations(cls):
        name = type_name(cls)
        raise ConstructionError(
            f"{name}(...)",
            f"{name} has annotations but no decorator, and takes no arguments",
            fix=f"@dx.dataclass\nclass {name}(...):",
        ) from None
    signature = cls.__signature__.parameters
    rngs = signature.get("rngs")
    is_keyword = rngs is not None and rngs.kind is rngs.KEYWORD_ONLY and "rngs" not in kwargs
    given = next((arg for arg in args if getattr(type(arg), "_pytree__draws", False)), None) if is_keyword else None
    if given is not None and (_is_refused(given, cls, error) or not _binds(cls.__signature__, args, kwargs)):
        raise ConstructionError(
            f"{type_name(cls)}(...)",
            "the random streams are given by position, and 'rngs' is a keyword",
            expected=", ".join(signature),
            fix=f"{type_name(cls)}(..., rngs=dx.Rngs(0))",
        ) from None
    parameters = signature.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = next((name for name in kwargs if name not in known), None)
    if unknown is None:
        if len(args) == 1 and isinstance(error, TypeError) and getattr(cls, "_pytree__makes_layers", False):
            raise _without_length(cls, args[0]) from None
        return
    fields: Mapping[str, dataclasses.Field[Any]] = getattr(cls, "__dataclass_fields__", {})
    if fields and unknown in own_annotations(cls) and "__dataclass_fields__" not in cls.__dict__:
        raise not_decorated(cls, unknown) from None
    if unknown == "key" and "rngs" in signature:
        raise ConstructionError(
            f"{type_name(cls)}(...)",
            "there is no parameter 'key': random keys come from streams",
            expected=", ".join(known),
            got=describe(kwargs[unknown]),
            fix=f"{type_name(cls)}(..., rngs=dx.Rngs(0))        # or dx.Rngs(key)",
        ) from None
    is_made = unknown in fields and not fields[unknown].init
    hint = suggest(unknown, known)
    raise ConstructionError(
        f"{type_name(cls)}(...)",
        f"there is no parameter {unknown!r}" + (f"; {hint}" if hint else ""),
        expected=", ".join(known) or "no parameters",
        got=f"{unknown}=...",
        why=f"{unknown} is made by the object itself{_sibling(cls, unknown)}" if is_made else None,
        fix=f"{unknown}: ... = ...        # an annotated part is an argument" if is_made else None,
    ) from None


def _without_length(cls: type, made: object) -> ConstructionError:
    name = class_text(cls)
    return ConstructionError(
        f"{type_name(cls)}(...)",
        "the number of layers is missing",
        got=describe(made),
        fix=f"{name}(dx.Linear(dim, dim), 12)        # in a class body\n"
        f"{name}.of([block_0, block_1])        # existing layers; in a class body, dx.defer({name}.of)([...])",
    )


def _is_refused(value: object, cls: type, error: Exception) -> bool:
    """Whether an error is that of a value in a static field of a class."""
    if not isinstance(error, StatusError):
        return False
    return error.where.startswith(f"{type_name(cls)}.") and error.got == describe(value)


def _sibling(cls: Any, name: str) -> str:
    """A note of a part that is declared as the part of a name is, but with an annotation."""

    def function(part: str) -> object:
        return getattr(call_of(parts[part][0]), "target", None)

    parts: Mapping[str, Any] = maker_of(cls).expressions
    arguments = (part for part in parts if part in cls.__dataclass_fields__ and cls.__dataclass_fields__[part].init)
    made = function(name) if name in parts else None
    other = next((part for part in arguments if made is not None and function(part) is made), None)
    return "" if other is None else f": it has no annotation, unlike {other}, which is an argument for that reason"


def _binds(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def not_decorated(cls: type, name: str) -> FieldError:
    problem = "the declarations of a class require the decorator of declax"
    return FieldError(f"{type_name(cls)}.{name}", problem, fix="@dx.dataclass")
