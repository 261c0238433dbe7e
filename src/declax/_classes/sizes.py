"""The fields that decide what parts are made of: sizes, lengths of lists, conditions, integer and bool arguments."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from declax._classes.method_reads import Read, reads_in_calls, reads_of
from declax._classes.parts import Part, makes_data
from declax._fields.annotations import AnnotationScope, annotations_of, own_annotations
from declax._fields.call import (
    CONTAINERS,
    Call,
    Term,
    attribute,
    call_of,
    has_expression,
    is_arithmetic,
    is_lazy,
    item_of,
    operands_of,
    repeated,
    results_of,
    target_of,
    unnamed_operands,
    walk,
)
from declax._fields.deciding import decide
from declax._fields.expressions import Declaration, Expression, referred
from declax._fields.sources import declared_text, text_of
from declax._fields.specifiers import PartRecipe, Status, SubmoduleRecipe, VariableRecipe
from declax.errors import FieldError, type_name


def deciding_fields(cls: Any, parts: Collection[Part], post_inits: Iterable[Any]) -> dict[str, str]:
    """The fields of a class that decide what its parts are made of, each with the first such part.

    Fields that hold layers or arrays, and those of the library's own classes, are left out.
    """
    reader = _Reader(cls)
    computed = {part.name: part.expression for part in parts if isinstance(part.recipe, PartRecipe)}
    for part in parts:
        for value in _deciding_values(part, reader):
            reader.add(value, part.name)
        if isinstance(part.recipe, SubmoduleRecipe):
            for read in reads_of(cls, part.recipe.build):
                reader.add_read(read, part.name, computed)
    for post_init in post_inits:
        for name, read in reads_in_calls(cls, post_init):
            reader.add_read(read, name, computed)
    return reader.found


def _deciding_values(part: Part, reader: _Reader) -> Iterator[Any]:
    if isinstance(part.recipe, VariableRecipe):
        yield from (part.recipe.shape, part.recipe.when)
    for term in _terms_of(part):
        call = call_of(term)
        if is_lazy(target_of(term)):
            yield operands_of(term)[0]
        elif call is not None:
            yield from filter(reader.is_integer, _arguments(call))
            if any(call_of(referred(argument)) for argument in _arguments(call)):
                yield from (value for _, value in _integer_arguments(call))


def _terms_of(part: Part) -> list[Term]:
    """The terms that one part is made of; those with a name are parts of their own."""
    if not isinstance(part.recipe, PartRecipe):
        return []
    return [value for value in walk(part.expression, unnamed_operands) if isinstance(value, Term)]


_MODES: Final = ("deterministic", "use_running_average")
"""Flags that `train` and `eval` set."""


class _Reader:
    """Collects the fields that expressions of one class read."""

    def __init__(self, cls: Any) -> None:
        self.found: dict[str, str] = {}
        self._cls = cls
        bases = [base for base in cls.__mro__[:-1] if not base.__module__.startswith("declax.")]
        self._declared = {name for base in bases for name in own_annotations(base)}

    def add(self, value: Any, part: str) -> None:
        """Adds the fields that a value reads, also those by which other fields are computed."""
        for term in walk(value, self._operands):
            field = self._field_of(term)
            if field is not None and field.init and field.name in self._declared and self._is_read(term):
                self.found.setdefault(field.name, part)

    def add_read(self, read: Read, part: str, computed: Mapping[str, Expression]) -> None:
        """Adds a field that a method reads, if it is a condition or an integer there."""
        name, *behind = read.names
        field: dataclasses.Field[Any] | None = self._cls.__dataclass_fields__.get(name)
        if name in computed:
            if read.is_tested or self.is_integer(computed[name]):
                self.add(computed[name], part)
        elif field is not None and field.init and name in self._declared and self._is_static(field):
            kind = AnnotationScope(self._cls).resolve(field.type)
            for attribute_name in behind:
                kind = _annotation_in(kind, attribute_name)
            if name not in _MODES and (read.is_tested or _is_integer_type(kind)):
                self.found.setdefault(name, part)

    def _operands(self, value: Any) -> tuple[Any, ...]:
        return operands_of(value) if self._is_read(value) else ()

    def _is_read(self, value: Any) -> bool:
        """Whether a value is made of numbers, and not of layers or arrays."""
        field = self._field_of(value)
        return not makes_data(value) and (field is None or self._is_static(field))

    def _field_of(self, value: Any) -> dataclasses.Field[Any] | None:
        name = value._pytree__name if isinstance(value, Term) else None
        found: dataclasses.Field[Any] | None = self._cls.__dataclass_fields__.get(name)
        return found

    def _is_static(self, field: dataclasses.Field[Any]) -> bool:
        is_attribute = field._field_type is dataclasses._FIELD  # type: ignore[attr-defined]  # the standard offers no public way
        return is_attribute and decide(field.type, AnnotationScope(self._cls)).status is not Status.DATA

    def is_integer(self, value: Any) -> bool:
        """Whether a value is an integer, or holds integers only, by the annotations of the fields in it."""
        value = referred(value)
        if value.__class__ in CONTAINERS:
            return all(map(self.is_integer, operands_of(value)))
        if not isinstance(value, Term):
            return type(value) in (int, bool)
        field, call = self._field_of(value), call_of(value)
        if field is not None and field.init:
            return field.name not in _MODES and _is_integer_type(AnnotationScope(self._cls).resolve(field.type))
        if call is not None:
            is_made = makes_data(value) or isinstance(call.target, Term)
            return not is_made and all(map(self.is_integer, _arguments(call)))
        target, operands = target_of(value), operands_of(value)
        if target is attribute:
            return _is_integer_type(self._annotation_of_attribute(*operands))
        if target is item_of:
            return self.is_integer(operands[0])
        is_whole = is_arithmetic(target) and target is not operator.truediv
        parts = operands if is_whole else results_of(value)
        return bool(parts) and all(map(self.is_integer, parts))

    def _annotation_of_attribute(self, owner: Any, name: str) -> Any:
        """The annotation of an attribute of the class of a field, as of `dim` in ``config.dim``."""
        field = self._cls.__dataclass_fields__.get(owner._pytree__name) if isinstance(owner, Declaration) else None
        return Any if field is None else _annotation_in(AnnotationScope(self._cls).resolve(field.type), name)


def _annotation_in(cls: Any, name: str) -> Any:
    """The annotation of an attribute of a class."""
    if not isinstance(cls, type) or cls is object:
        return Any
    return AnnotationScope(cls).resolve(annotations_of(cls).get(name, Any))


def _arguments(call: Call) -> tuple[Any, ...]:
    return (*call.args, *call.kwargs.values())


def _is_integer_type(annotation: Any) -> bool:
    """Whether an annotation is of an integer, a bool, of None, or of a container of those."""
    annotation = getattr(annotation, "__origin__", None) if hasattr(annotation, "__metadata__") else annotation
    if annotation in (int, bool, None, type(None)):
        return True
    origin = get_origin(annotation)
    args = [arg for arg in get_args(annotation) if arg is not Ellipsis]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        args = args[1:]  # the items are the values
    return origin is not None and bool(args) and all(map(_is_integer_type, args))


# --- sizes that are floats ------------------------------------------------------


def check_sizes(cls: Any, part: Part) -> None:
    """Refuses a size that is a quotient, which Python gives as a float."""
    for what, value in _sizes_in(part):
        quotient = _quotient_in(value)
        if quotient is not None:
            raise FieldError(
                f"{type_name(cls)}.{part.name}",
                f"{what} is a size, and {text_of.whole(quotient)} is a float",
                expected="an integer",
                fix=f"{text_of.whole(quotient).replace(' / ', ' // ')}        # in place of {text_of.whole(quotient)}",
            )


def fix_of_size(part: Part, where: str) -> str | None:
    """The call that makes an integer of the argument that was none; `where` is the class and the argument."""
    for call in filter(None, map(call_of, _terms_of(part))):
        for name, value in _integer_arguments(call) if isinstance(call.target, type) else ():
            if where == f"{type_name(call.target)}.{name}" and has_expression(value):
                fixed = Expression(call.with_arguments({name: Expression(Call(int, (value,)))}))
                return declared_text(fixed, part.expression._pytree__owner)
    return None


def _sizes_in(part: Part) -> Iterator[tuple[str, Any]]:
    if isinstance(part.recipe, VariableRecipe):
        shape: Any = part.recipe.shape
        sizes = shape if isinstance(shape, (list, tuple)) else (shape,)
        for size in sizes:
            yield "this entry of the shape", size
    for term in _terms_of(part):
        call = call_of(term)
        if target_of(term) is repeated:
            yield "the length of the list", operands_of(term)[0]
        elif call is not None and _has_quotient(call):
            for name, size in _integer_arguments(call):
                yield f"the argument {name!r}", size


def _has_quotient(call: Call) -> bool:
    for argument in _arguments(call):
        is_computed = isinstance(argument, Expression) and not isinstance(argument, Declaration)
        if is_computed and _quotient_in(argument) is not None:
            return True
    return False


def _integer_arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """The arguments of a call that the called function annotates as integers, by name."""
    try:
        bound = call.bind()
    except (TypeError, ValueError):  # it has no signature, or the arguments do not fit
        return
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].annotation in (int, "int"):
            yield name, value


def _quotient_in(value: Any) -> Term | None:
    """A division in arithmetic, which makes its result a float."""
    for term in walk(value, _arithmetic_operands):
        if isinstance(term, Term) and target_of(term) is operator.truediv:
            return term
    return None


def _arithmetic_operands(value: Any) -> tuple[Any, ...]:
    return operands_of(value) if is_arithmetic(target_of(value)) else ()
