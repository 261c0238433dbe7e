"""Checks of the arguments of a constructor: bounds and checks of fields, and the classes of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar, Union, get_args, get_origin

import numpy as np

from declax._classes.pytree import Pytree, layout_of, set_layout
from declax._fields.annotations import AnnotationScope, annotation_text
from declax._fields.expressions import Expression
from declax._fields.sources import class_text
from declax._fields.specifiers import is_restricted, objection, specifier_of
from declax._tree.statuses import CONTAINERS, PLAIN, has_data, static_status
from declax._variables.variable import Variable
from declax.errors import ConstructionError, LayerError, describe, type_name


def is_checked(field: Field[Any]) -> bool:
    """Whether the constructor checks its argument for a field."""
    specifier = specifier_of(field)
    return specifier is not None and field.init and is_restricted(specifier.notes)


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
        self._low, self._high = specifier.notes.get("ge"), specifier.notes.get("le")
        self._check = specifier.notes.get("check")
        annotation: Any = scope.resolve(field.type)
        self._is_integer = annotation is int
        self._is_number = annotation in (int, float)

    def __call__(self, cls: type, value: object) -> None:
        """Raises if a value does not pass; None and the defaults of parts always pass."""
        if (value is None and not self._is_number) or isinstance(value, Expression):
            return
        where = f"{type_name(cls)}.{self.name}"
        low, high = self._low, self._high
        if low is not None or high is not None:
            if self._is_number and not self._has_type(value):
                raise LayerError(where, "this value has the wrong type", expected=self._bounds, got=describe(value))
            if self._has_type(value) and not ((low is None or low <= value) and (high is None or value <= high)):
                raise LayerError(where, "this value is out of bounds", expected=self._bounds, got=describe(value))
        problem = None if self._check is None else objection(self._check, value)
        if problem is not None:
            raise LayerError(where, problem, got=describe(value))

    def _has_type(self, value: object) -> TypeGuard[float]:
        kinds = (int, np.integer) if self._is_integer else (int, float, np.integer, np.floating)
        return isinstance(value, kinds) and not isinstance(value, bool)

    @property
    def _bounds(self) -> str:
        kind = "an integer" if self._is_integer else "a number"
        low, high = self._low, self._high
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
    """Refuses an argument for a part that is not of the class of its annotation.

    Attributes:
      is_needed: whether there is anything to check.
      names: the part, and internal parts that refer to it.
    """

    def __init__(self, cls: Any, name: str, *, is_data: bool) -> None:
        self._where = f"{type_name(cls)}.{name}"
        self.names = [name]
        self._scope = AnnotationScope(cls)
        self._annotation: Any = self._scope.resolve(cls.__dataclass_fields__[name].type)
        self._is_known = self._names_classes(self._annotation)
        self._is_anything = any(option in (Any, object) for option in self._options(self._annotation))
        self.is_needed = self._is_known or is_data

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
        name, expected = self.names[0], annotation_text(found.annotation)
        if isinstance(found.value, Pytree):
            wider = f"{expected} | {class_text(type(found.value))}"
            return f"{name}: {annotation_text(self._annotation).replace(expected, wider)} = ...        # to allow both"
        return f"leave {name} out, or give it {expected}"

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
        """The first item of a value that an annotation does not allow."""
        options = self._options(annotation)
        if not all(map(self._names_class, options)):
            return None
        found = [self._mismatch_within(value, option, path) for option in options if _is_of(value, option)]
        if not found:
            return ClassMismatch(path, annotation, value)
        return None if None in found else found[0]

    def _mismatch_within(self, value: Any, option: Any, path: str) -> ClassMismatch | None:
        cls, annotations = get_origin(option) or option, get_args(option)
        if not issubclass(cls, _SEQUENCES + _MAPPINGS):
            return None
        items = list(value.items() if isinstance(value, Mapping) else enumerate(value))
        if not issubclass(cls, tuple):
            annotations = annotations[-1:] * len(items)
        elif Ellipsis in annotations:
            annotations = annotations[:1] * len(items)
        if len(items) != len(annotations):
            return ClassMismatch(path, option, value)
        inside = (
            self._mismatch(item, annotation, f"{path}[{key!r}]")
            for (key, item), annotation in zip(items, annotations, strict=True)
        )
        return next(filter(None, inside), None)


_SEQUENCES: Final = (list, tuple, Sequence)
_MAPPINGS: Final = (dict, Mapping)


def _is_of(value: object, option: Any) -> bool:
    """Whether a value is of the class of an annotation; any sequence or mapping will do for one of a builtin class."""
    cls = get_origin(option) or option
    if issubclass(cls, _MAPPINGS):
        return isinstance(value, Mapping)
    return isinstance(value, Sequence if issubclass(cls, _SEQUENCES) else cls)
