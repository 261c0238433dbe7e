"""Checks of the arguments of a constructor: bounds and checks of fields, and the classes of parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np

from declax._classes.pytree import Pytree, layout_of, set_layout
from declax._fields.annotations import AnnotationScope, annotation_text
from declax._fields.expressions import Choice, Deferred, Expression, Literal, Repeated, referred
from declax._fields.sources import class_text, text_of
from declax._fields.specifiers import objection, specifier_of
from declax._tree.statuses import CONTAINERS, PLAIN, has_data, static_status
from declax._variables.variable import Variable
from declax.errors import ConstructionError, FieldError, LayerError, describe, type_name


def is_checked(field: Field[Any]) -> bool:
    """Whether the constructor checks its argument for a field."""
    specifier = specifier_of(field)
    if specifier is None or not field.init:
        return False
    return any(note is not None for note in (specifier.notes.check, specifier.notes.ge, specifier.notes.le))


class ArgumentCheck:
    """The check and the bounds of one field.

    Attributes:
      name: of the field.
      index: its place among the InitVars, if it is one.
    """

    def __init__(self, field: Field[Any], scope: AnnotationScope, init_vars: Sequence[str]) -> None:
        specifier = specifier_of(field)
        assert specifier is not None
        self.name = field.name
        self.index = init_vars.index(field.name) if field.name in init_vars else None
        self._notes = specifier.notes
        annotation: Any = scope.resolve(field.type)
        self._is_integer = annotation is int
        self._is_number = annotation in (int, float)

    def __call__(self, cls: type, value: object) -> None:
        """Raises if a value does not pass; None and the defaults of parts always pass."""
        if (value is None and not self._is_number) or isinstance(value, Expression):
            return
        notes = self._notes
        where = f"{type_name(cls)}.{self.name}"
        if (notes.ge is not None or notes.le is not None) and not self._is_within(value):
            raise LayerError(where, "this value is out of bounds", expected=self._bounds, got=describe(value))
        problem = None if notes.check is None else objection(notes.check, value)
        if problem is not None:
            raise LayerError(where, problem, got=describe(value))

    def _is_within(self, value: Any) -> bool:
        kinds = (int, np.integer) if self._is_integer else (int, float, np.integer, np.floating)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, kinds):
            return not self._is_number
        low, high = self._notes.ge, self._notes.le
        return bool((low is None or low <= value) and (high is None or value <= high))

    @property
    def _bounds(self) -> str:
        kind = "an integer" if self._is_integer else "a number"
        low, high = self._notes.ge, self._notes.le
        if low is None:
            return f"{kind} of at most {high:g}"
        return f"{kind} of at least {low:g}" if high is None else f"{kind} from {low:g} to {high:g}"


# ================================================================= parts


class ClassMismatch(NamedTuple):
    """A value that is not of the class of its annotation, and its subscripts within a part."""

    path: str
    annotation: Any
    value: Any


class PartCheck:
    """Refuses a part of another class than its annotation, the declared part first.

    Attributes:
      is_needed: whether there is anything to check.
      names: the part, and internal parts that refer to it.
    """

    def __init__(self, cls: Any, name: str, declared: Expression, *, is_data: bool) -> None:
        self._where = f"{type_name(cls)}.{name}"
        self.names = [name]
        self._scope = AnnotationScope(cls)
        self._annotation: Any = self._scope.resolve(cls.__dataclass_fields__[name].type)
        self._is_known = self._names_classes(self._annotation)
        self._is_anything = any(option in (Any, object) for option in self._options(self._annotation))
        self.is_needed = self._is_known or is_data
        found = self._mismatch(declared, self._annotation)
        if found is not None:
            expected, made = annotation_text(found.annotation), class_text(class_of(found.value) or NoneType)
            is_expression = isinstance(found.value, Expression)
            text = found.value._pytree__source(text_of) if is_expression else text_of(found.value)
            raise FieldError(
                self._where + found.path,
                "the declared part does not have the class of its annotation",
                expected=expected,
                got=f"{text}, which gives {made}",
                fix=f"{name}: {self._wider(found, made)} = ...",
            )

    def __call__(self, instance: Pytree) -> None:
        """Checks the argument for the part; a function in place of a Module is static."""
        value = vars(instance)[self.names[0]]
        found = self._mismatch(value, self._annotation)
        is_plain = isinstance(value, type) or (value.__class__ in PLAIN and not callable(value))
        is_plain = is_plain and (value is None or not self._is_anything)
        if found is None and is_plain and value is not None and not self._is_known:
            found = ClassMismatch("", self._annotation, value)
        if found is not None:
            raise ConstructionError(
                self._where + found.path,
                "the given part is of the wrong class",
                expected=annotation_text(found.annotation),
                got=describe(found.value),
                fix=self._fix(found),
            )
        is_empty = isinstance(value, CONTAINERS) and not value
        if not (is_plain or is_empty or self._is_known or has_data(value)):
            for name in self.names:
                set_layout(instance, layout_of(instance).with_status(name, static_status(value)))

    def _fix(self, found: ClassMismatch) -> str:
        name, annotation = self.names[0], found.annotation
        if isinstance(found.value, Pytree):
            return f"{name}: {self._wider(found, class_text(type(found.value)))} = ...        # to allow both"
        if isinstance(found.value, type):
            return f"{name}={class_text(found.value)}(...)"
        if not isinstance(annotation, type) or getattr(annotation, "_is_protocol", False):
            return f"leave {name} out        # the constructor makes it"
        made = f"{class_text(annotation)}(...)"
        return f"{made}        # as {name}{found.path}" if found.path else f"{name}={made}"

    def _wider(self, found: ClassMismatch, made: str) -> str:
        """The annotation of the part that allows the class of a value too."""
        expected = annotation_text(found.annotation)
        return annotation_text(self._annotation).replace(expected, f"{expected} | {made}")

    def _options(self, annotation: Any) -> tuple[Any, ...]:
        annotation = self._scope.resolve(annotation)
        while hasattr(annotation, "__metadata__"):  # Annotated
            annotation = self._scope.resolve(annotation.__origin__)
        if isinstance(annotation, TypeVar):
            options = annotation.__constraints__ or (annotation.__bound__ or object,)
            return tuple(chain.from_iterable(map(self._options, options)))
        is_union = get_origin(annotation) in (Union, UnionType)
        return tuple(chain.from_iterable(map(self._options, get_args(annotation)))) if is_union else (annotation,)

    def _names_classes(self, annotation: Any) -> bool:
        """Whether an annotation names classes of parts only, also within containers; a Protocol says less."""
        return all(map(self._names_class, self._options(annotation)))

    def _names_class(self, option: Any) -> bool:
        cls = get_origin(option) or option
        if not isinstance(cls, type) or getattr(cls, "_is_protocol", False):
            return False
        if issubclass(cls, _SEQUENCES + _MAPPINGS):
            items = [item for item in get_args(option) if item is not Ellipsis]
            return any(map(self._names_classes, items))
        return issubclass(cls, (NoneType, Pytree, Variable))

    def _mismatch(self, value: object, annotation: Any, path: str = "") -> ClassMismatch | None:
        """The first item of a value, or of a declared part, that an annotation does not allow."""
        value = referred(value)
        if isinstance(value, Choice):
            branches = (self._mismatch(branch, annotation, path) for branch in value._pytree__pair)
            return next((found for found in branches if found is not None), None)
        options = self._options(annotation)
        found = [self._mismatch_with(value, option, path) for option in options]
        if None in found:
            return None
        deepest = max(filter(None, found), key=lambda mismatch: len(mismatch.path))
        return deepest if len(deepest.path) > len(path) else ClassMismatch(path, annotation, value)

    def _mismatch_with(self, value: Any, option: Any, path: str) -> ClassMismatch | None:
        made, cls = class_of(value), get_origin(option) or option
        if made is None or not self._names_class(option):
            return None
        is_container = issubclass(cls, _SEQUENCES + _MAPPINGS)
        expected = cls if not is_container else Mapping if issubclass(cls, _MAPPINGS) else Sequence
        if not issubclass(made, expected):
            return ClassMismatch(path, option, value)
        if not is_container:
            return None
        items = list(_items(value))
        annotations = get_args(option)[-1:] * len(items)
        if issubclass(cls, tuple) and Ellipsis not in get_args(option):
            annotations = get_args(option)
        elif issubclass(cls, tuple):
            annotations = get_args(option)[:1] * len(items)
        if len(items) != len(annotations):
            return ClassMismatch(path, option, value)
        inside = (
            self._mismatch(item, annotation, f"{path}[{key!r}]")
            for (key, item), annotation in zip(items, annotations, strict=True)
        )
        return next((found for found in inside if found is not None), None)


_SEQUENCES: Final = (list, tuple, Sequence)
_MAPPINGS: Final = (dict, Mapping)


def class_of(value: object) -> type | None:
    """The class of a value, or of what an expression gives; None if it is not known."""
    if isinstance(value, Repeated):
        return list
    if isinstance(value, Literal):
        return type(value._pytree__value)
    if not isinstance(value, Expression):
        return type(value)
    function = value._pytree__function if isinstance(value, Deferred) else None
    return function if isinstance(function, type) and issubclass(function, Pytree) else None


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Repeated):
        return [(0, value._pytree__item)]
    value = value._pytree__value if isinstance(value, Literal) else value
    return value.items() if isinstance(value, Mapping) else enumerate(value)
