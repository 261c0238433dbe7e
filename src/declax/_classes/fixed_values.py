"""Refuses parts that a construction would fix: bound methods of parts, and arrays that are computed from Variables.

A copy of a model (`clone`, `merge`, the argument of a `jit`) has parts of its own, and training changes the values of
Variables. A method would stay that of the first part, and an array would keep the first values. The classes of parts
and the annotations tell, when the class is created; what they do not tell is not refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jax

from declax._classes.parts import Part
from declax._classes.pytree import Pytree
from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.call import (
    OPERATIONS,
    Term,
    attribute,
    is_equality,
    item_of,
    operands_of,
    results_of,
    target_of,
    walk,
)
from declax._fields.class_info import info_of
from declax._fields.deciding import class_within
from declax._fields.expressions import Declaration, referred
from declax._fields.sources import NoteWriter, declared_text
from declax._tree.attributes import class_attribute
from declax._variables.variable import Variable
from declax.errors import FieldError, type_name


def check_fixed(cls: Any, part: Part, names: Mapping[int, str]) -> None:
    """Refuses a part that is, or holds, a method of another part or an array that is computed from a Variable.

    `names` are the sources of the expressions with a name, by identity.
    """
    for value in walk(part.expression, lambda value: tuple(o for o in results_of(value) if id(o) not in names)):
        if target_of(value) is attribute and _is_method(cls, *operands_of(value)):
            raise _of_method(cls, part, value, NoteWriter(names))
        for source in () if results_of(value) else walk(value, _sources)[1:]:
            if issubclass(_class_of(cls, source), Variable):
                raise _of_array(cls, part, source, NoteWriter(names))


def _is_method(cls: Any, owner: Any, name: str) -> bool:
    of: Any = _class_of(cls, owner)
    found = class_attribute(of, name)
    is_bound = callable(found) and hasattr(type(found), "__get__") and not isinstance(found, staticmethod)
    is_field = name in getattr(of, "__dataclass_fields__", ())  # a function is its default
    is_frozen = info_of(of).is_frozen
    return is_bound and not is_field and issubclass(of, Pytree) and not is_frozen


_ARRAY_MODULES: Final = ("jax.numpy", "jax.nn", "jax._src.nn", "jax.lax", "numpy")
_CONSTANT: Final = frozenset(
    "shape dtype ndim size itemsize nbytes device sharding is_fully_addressable is_fully_replicated copy "
    "result_type zeros_like ones_like full_like empty_like".split()
)
"""Attributes of a Variable, and functions of arrays, that do not depend on the values."""


def _sources(value: Any) -> tuple[Any, ...]:
    """The operands on whose values an attribute, an item, an operation or a function of arrays depends."""
    target, operands = target_of(value), operands_of(value)
    if target is attribute:
        is_of_array = hasattr(jax.Array, operands[1]) or operands[1] in ("value", "raw_value", "get_value")
        return operands[:1] if is_of_array and operands[1] not in _CONSTANT else ()
    if isinstance(target, Term):  # a call of a method
        return (target,)
    if results_of(value):
        return results_of(value)
    is_function = str(getattr(target, "__module__", "")).startswith(_ARRAY_MODULES) and not isinstance(target, type)
    is_constant = getattr(target, "__name__", "") in _CONSTANT or (is_equality(target) and operands[1] is None)
    return operands if (is_function or id(target) in OPERATIONS) and not is_constant else ()


def _class_of(cls: Any, value: Any) -> type:
    """The class of a value of the class body, by calls and annotations; `object` if these do not tell."""
    target, operands = target_of(value), operands_of(value)
    if isinstance(target, type):
        return target
    if isinstance(value, Declaration):
        return _annotated(cls, value._pytree__name or "")
    if target is attribute:
        return _annotated(_class_of(cls, operands[0]), operands[1])
    items = referred(operands[0]) if target is item_of else value
    classes = {_class_of(cls, result) for result in results_of(items) if result is not None}
    return classes.pop() if len(classes) == 1 else object


def _annotated(cls: type, name: str) -> type:
    """The class of an attribute, if it is a Variable or a Pytree."""
    owner = next((base for base in cls.__mro__ if name in own_annotations(base)), None)
    if owner is None:
        return object
    return class_within(own_annotations(owner)[name], AnnotationScope(owner), (Variable, Pytree)) or object


def _of_method(cls: Any, part: Part, value: Any, write: NoteWriter) -> FieldError:
    call = f"{write.whole(value)}(x)"
    return FieldError(
        f"{type_name(cls)}.{part.name}",
        "a bound method of a part is fixed at construction",
        got=declared_text(value),
        why="a copy of the model (dx.clone, dx.merge, the argument of a dx.jit) would call the part of the first one",
        fix=f"def {part.name}(self, x): return {call}        # in place of {part.name} = {declared_text(value)}"
        if value is part.expression
        else f"{call}        # in a method, such as __call__",
    )


def _of_array(cls: Any, part: Part, source: Any, write: NoteWriter) -> FieldError:
    text = write.whole(part.expression)
    data = f"dx.data({text})" if results_of(part.expression) else text
    return FieldError(
        f"{type_name(cls)}.{part.name}",
        "an array that is computed from a Variable is fixed at construction",
        got=declared_text(part.expression),
        why=f"training changes {write(source).removeprefix('self.')}, and the attribute would keep the first values",
        fix=f"@property\ndef {part.name}(self): return {text}        # computed when it is read\n"
        f"self.{part.name} = {data}        # in __post_init__, if the first values are meant",
    )
