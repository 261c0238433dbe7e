"""The fields of a class as sizes: which are symbols, with which conditions, and which run through their values."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from declax._fields.annotations import AnnotationScope
from declax._fields.keys import RNGS
from declax._fields.specifiers import CLASS_VAR, Notes, is_init_var, multiple_of, specifier_of
from declax._random.streams import Rngs
from declax._text.dimensions import FIELD, Condition, Operation, Size, Symbol
from declax.errors import ShapeError, type_name

MOST_COMBINATIONS: Final = 16


class Fields(NamedTuple):
    """The fields of a class that its constructor takes.

    Attributes:
      symbols: the keys of those that are sizes.
      conditions: what the notes say of these.
      choices: the values of those with few.
      defaults: the names of those that keep their defaults.
      chosen: values of required fields that are no sizes.
    """

    symbols: list[str]
    conditions: list[Condition]
    choices: dict[str, tuple[Any, ...]]
    defaults: list[str]
    chosen: dict[str, Any]

    def combinations(self) -> list[dict[str, Any]]:
        """The values of the fields with few; none but the defaults if there are too many."""
        if math.prod(map(len, self.choices.values())) > MOST_COMBINATIONS:
            return [{}]
        return [dict(zip(self.choices, values, strict=True)) for values in itertools.product(*self.choices.values())]


def fields_of(cls: Any, named: Collection[str]) -> Fields:
    """The fields of a class; `named` are those that annotations, conditions or inputs name.

    Raises:
      ShapeError: a field has no default, and is no number.
    """
    found = Fields([], [], {}, [], {})
    scope = AnnotationScope(cls)
    for name, field in getattr(cls, "__dataclass_fields__", {}).items():
        if not field.init or name == RNGS or field._field_type is CLASS_VAR:
            continue
        specifier = specifier_of(field)
        notes: Notes = Notes() if specifier is None else specifier.notes
        annotation = scope.resolve(field.type)
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        values = _values_of(annotation)
        if annotation is int and _is_size(name, notes, named, has_default=has_default):
            found.symbols.append(FIELD + name)
            found.conditions.extend(conditions_of(name, notes))
        elif values:
            found.choices[name] = values
        elif has_default:
            found.defaults.extend([] if is_init_var(field) else [name])
        elif annotation is float:
            low, high = notes.get("ge"), notes.get("le")
            found.chosen[name] = float(max(0.0 if low is None else low, min(0.5, 0.5 if high is None else high)))
        else:
            raise ShapeError(type_name(cls), f"the field {name!r} has no default")
    return found


def conditions_of(name: str, notes: Notes) -> Iterator[Condition]:
    """What the notes of a field say of its value."""
    size: Size = Symbol(FIELD + name)
    low, high, factor = notes.get("ge"), notes.get("le"), multiple_of(notes)
    if low is not None and low > 1:
        yield Condition.of(size, ">=", math.ceil(low))
    if high is not None:
        yield Condition.of(size, "<=", math.floor(high))
    if factor is not None:
        of: Size = Symbol(FIELD + factor) if isinstance(factor, str) else int(factor)
        yield Condition.of(Operation("%", (size, of)), "==", 0)


def _is_size(name: str, notes: Notes, named: Collection[str], *, has_default: bool) -> bool:
    low = notes.get("ge")
    return not has_default or name in named or "multiple_of" in notes or (low is not None and low >= 1)


def _values_of(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return (False, True)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return tuple(annotation)
    return ()


def instance_of(cls: Any, fields: Mapping[str, Any]) -> Any:
    """An instance of a class, with streams if its constructor takes them."""
    takes_rngs = RNGS in getattr(cls, "__dataclass_fields__", {})
    return cls(**fields, rngs=Rngs(0)) if takes_rngs else cls(**fields)
