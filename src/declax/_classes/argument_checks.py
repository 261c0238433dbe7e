"""Checks of the arguments of a constructor: their types, bounds and checks, and the classes of parts."""

from __future__ import annotations

import builtins
import contextlib
import difflib
import enum
import functools
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, Field
from types import NoneType
from typing import Any, Final, TypeGuard

import numpy as np

from declax import _jax
from declax._classes.conformance import PLAIN_DATA, Misfit, fast_test, is_anything, misfit_of, names_parts, quick_test
from declax._classes.pytree import Pytree, layout_of, set_layout
from declax._fields import meanings
from declax._fields.annotations import AnnotationScope, annotation_text, own_annotations
from declax._fields.expressions import Expression
from declax._fields.keys import RNGS
from declax._fields.meanings import Meaning, bindings_of, meaning_of, members_of
from declax._fields.sources import class_text
from declax._fields.specifiers import Notes, Specifier, Status, is_restricted, multiple_of, objection, specifier_of
from declax._tree.codegen import compile_functions
from declax._tree.statuses import CONTAINERS, PLAIN, has_data, is_data, static_status
from declax._variables.variable import Variable
from declax.errors import ConstructionError, DeclaxError, LayerError, describe, type_name

kept: Final[ContextVar[tuple[type, frozenset[str]]]] = ContextVar("kept", default=(object, frozenset()))
"""The class and the fields of which `replace` passes on values: surgery may have changed their types."""


def is_checked(field: Field[Any], specifier: Specifier) -> bool:
    """Whether the constructor may check its argument for a field with a specifier."""
    return field.init and (specifier.status is not Status.DATA or is_restricted(specifier.notes))


def _owner_of(cls: Any, name: str) -> Any:
    """The class whose annotation a field has."""
    return next((base for base in cls.__mro__ if name in own_annotations(base)), cls)


def _is_of_library(cls: Any, name: str) -> bool:
    """Whether a layer of declax declares a field: layers accept what the peer's do, and have their own checks."""
    module: str = _owner_of(cls, name).__module__
    return module.startswith("declax.")


def _meaning_of_field(cls: Any, name: str) -> Meaning:
    """The meaning of the annotation of a field, with the type variables that the class binds."""
    owner = _owner_of(cls, name)
    annotation = own_annotations(owner).get(name, cls.__dataclass_fields__[name].type)
    return meaning_of(annotation, AnnotationScope(owner), bindings_of(cls).get(owner, {}))


def _is_decorated(instance: Any) -> bool:
    """Whether the class of an instance is declared; other subclasses have the rules of plain Python."""
    return "__dataclass_fields__" in type(instance).__dict__


def _is_kept(instance: Any, name: str) -> bool:
    """Whether `replace` passes on the value of a field."""
    cls, names = kept.get()
    return type(instance) is cls and name in names


class ArgumentChecks:
    """The checks of all arguments of a constructor, as one generated function."""

    def __init__(self, cls: Any, init_vars: Sequence[str]) -> None:
        self._cls = cls
        self._fields: Mapping[str, Field[Any]] = cls.__dataclass_fields__
        self._init_vars = init_vars

    @functools.cached_property
    def is_needed(self) -> bool:
        """Whether there may be anything to check."""
        pairs = ((field, specifier_of(field)) for field in self._fields.values())
        return any(specifier is not None and is_checked(field, specifier) for field, specifier in pairs)

    def limits_of(self, name: str) -> ArgumentCheck | None:
        """The check of a field with bounds or a check; None for other fields."""
        specifier = specifier_of(self._fields[name])
        return ArgumentCheck(self._cls, name) if specifier is not None and is_restricted(specifier.notes) else None

    @functools.cached_property
    def function(self) -> Callable[..., None] | None:
        """The function of an instance and its InitVars, which the first construction compiles: few classes are used."""
        constants: dict[str, Any] = {}
        lines = []
        for name, field in self._fields.items() if self.is_needed else ():
            specifier = specifier_of(field)
            is_limited = specifier is not None and is_restricted(specifier.notes)
            is_part = specifier is not None and specifier.recipe is not None
            is_typed = not (is_part or _is_of_library(self._cls, name))
            if not field.init or name == RNGS or not (is_typed or is_limited):
                continue
            check = ArgumentCheck(self._cls, name)
            condition = check.condition(constants)
            if condition is not None:
                constants[f"check_{name}"] = check
                lines.append(f"value = {_parameter(name) if name in self._init_vars else f'get({name!r})'}")
                lines.append(f"if {condition}:\n        check_{name}(self, value)")
        parameters = ", ".join(["self", *map(_parameter, self._init_vars)])
        head = f"def check_arguments({parameters}):\n    get = self.__dict__.get\n    "
        if not lines:
            return None
        made: Callable[..., None]
        (made,) = compile_functions(f"{type_name(self._cls)} arguments", [head + "\n    ".join(lines)], constants)
        return made


class ArgumentCheck:
    """The type, the bounds and the check of one field."""

    def __init__(self, cls: Any, name: str) -> None:
        field: Field[Any] = cls.__dataclass_fields__[name]
        specifier = specifier_of(field)
        self._name = name
        self._default, self._factory = field.default, field.default_factory
        notes = Notes() if specifier is None else specifier.notes
        self._low, self._high, self._check = notes.get("ge"), notes.get("le"), notes.get("check")
        self._factor = multiple_of(notes)
        self._is_bounded = self._low is not None or self._high is not None or self._factor is not None
        meaning = self._meaning = _meaning_of_field(cls, name)
        is_data_field = specifier is not None and specifier.status is Status.DATA and specifier.recipe is None
        is_marked = isinstance(meaning, meanings.MarkedType) and Status.DATA in meaning.marks
        is_typed = self._is_bounded or not _is_of_library(cls, name)
        self._quick = quick_test(meaning) if is_typed and not (is_data_field or is_marked) else None
        classes = {m.cls if isinstance(m, meanings.ClassType) else None for m in members_of(meaning)}
        self._is_optional = NoneType in classes
        self._is_number = classes - {NoneType} in ({int}, {float}, {int, float})
        self._is_integer = self._is_number and float not in classes

    def condition(self, constants: dict[str, Any]) -> str | None:
        """The source of a condition on `value` under which this check is called; None if it never is."""
        name, quick, low, high = self._name, self._quick, self._low, self._high
        is_plain = quick is not None and self._is_number and not isinstance(self._factor, str)
        if self._check is not None or (self._is_bounded and not is_plain):
            return "True"
        if quick is None:
            return None
        if quick.is_open:
            constants[f"not_{name}"] = PLAIN_DATA - quick.classes
            return f"value.__class__ in not_{name}"
        if quick.needs_look:
            constants[f"fits_{name}"] = fast_test(self._meaning)
            return f"value is not None and not fits_{name}(value)"
        condition = _is_of_none(name, quick.classes, constants)
        if self._is_bounded:
            low_text = "" if low is None else f"{_number(f'low_{name}', low, constants)} <= "
            high_text = "" if high is None else f" <= {_number(f'high_{name}', high, constants)}"
            bounds = [f"{low_text}value{high_text}"] if low_text or high_text else []
            bounds += [f"value % {self._factor} == 0"] if self._factor is not None else []
            fits = " and ".join(bounds)
            return f"{condition} or {'value is not None and ' if self._is_optional else ''}not ({fits})"
        if self._default is MISSING or self._default.__class__ in quick.classes:
            return condition
        constants[f"default_{name}"] = self._default
        return f"{condition} and value is not default_{name}"

    def __call__(self, instance: Any, value: object) -> None:
        """Raises if a value does not pass; None and defaults that are expressions always do."""
        is_needed = self._is_bounded and self._is_number and not self._is_optional
        if isinstance(value, Expression) or (value is None and not is_needed) or _jax.is_symbolic(value):
            return
        where = f"{type_name(type(instance))}.{self._name}"
        if self._quick is not None and (self._is_bounded or _is_decorated(instance)) and not self._is_default(value):
            found = misfit_of(value, self._meaning)
            if self._is_bounded and self._is_number and isinstance(value, bool):
                found = Misfit("", self._meaning, value)
            if found is not None and not _is_kept(instance, self._name):
                expected = self._bounds if self._is_bounded and self._is_number else None
                raise wrong_type(instance, self._name, self._meaning, found, expected=expected)
        low, high = self._low, self._high
        if self._is_bounded and self._is_comparable(value):
            if not ((low is None or low <= value) and (high is None or value <= high)):
                raise LayerError(where, "this value is out of bounds", expected=self._bounds, got=describe(value))
            self._check_multiple(instance, where, value)
        problem = None if self._check is None else objection(self._check, value)
        if problem is not None:
            raise LayerError(where, problem, got=describe(value))

    def _check_multiple(self, instance: Any, where: str, value: Any) -> None:
        is_field = isinstance(self._factor, str)
        factor: Any = vars(instance).get(self._factor) if isinstance(self._factor, str) else self._factor
        if type(factor) is int and factor > 0 and value % factor:
            of = f"{self._factor}={factor}" if is_field else factor
            raise LayerError(
                where,
                f"this value is not a multiple of {self._factor}",
                expected=f"a multiple of {of}, such as {max(factor, round(value / factor) * factor)}",
                got=describe(value),
            )

    def _is_default(self, value: object) -> bool:
        if self._is_bounded or value is self._default:
            return not self._is_bounded
        if self._factory is MISSING:
            return False
        with contextlib.suppress(Exception):  # a user's function
            made = self._factory()
            return type(made) is type(value) and misfit_of(made, self._meaning) is not None
        return False

    def _is_comparable(self, value: object) -> TypeGuard[float]:
        kinds = (int, np.integer) if self._is_integer else (int, float, np.integer, np.floating)
        return isinstance(value, kinds) and not isinstance(value, bool)

    @property
    def _bounds(self) -> str:
        kind = "an integer" if self._is_integer else "a number"
        low, high = self._low, self._high
        if low is None and high is None:
            return f"a multiple of {self._factor}"
        if low is None:
            return f"{kind} of at most {high:g}"
        return f"{kind} of at least {low:g}" if high is None else f"{kind} from {low:g} to {high:g}"


def _parameter(name: str) -> str:
    """The name of an InitVar in the generated function, which uses some names itself."""
    is_used = name in ("get", "value") or name.startswith(
        ("check_", "default_", "fits_", "high_", "low_", "not_", "of_")
    )
    return f"{name}_" if is_used or name in vars(builtins) else name


def _number(name: str, number: float, constants: dict[str, Any]) -> str:
    """The source of a bound."""
    if type(number) is int or (type(number) is float and math.isfinite(number)):
        return repr(number)
    constants[name] = number
    return name


def _is_of_none(name: str, classes: frozenset[type], constants: dict[str, Any]) -> str:
    """The source of a condition: the class of `value` is none of some."""
    if len(classes) > 1:
        constants[f"of_{name}"] = classes
        return f"value.__class__ not in of_{name}"
    (cls,) = classes
    if vars(builtins).get(cls.__name__) is cls:
        return f"value.__class__ is not {cls.__name__}"
    constants[f"of_{name}"] = cls
    return f"value.__class__ is not of_{name}"


# ================================================================= parts


class PartCheck:
    """Refuses an argument for a part that is not of the type of its annotation.

    Attributes:
      is_needed: whether there is anything to check.
      names: the part, and internal parts that refer to it.
    """

    def __init__(self, cls: Any, name: str, *, is_data: bool) -> None:
        self.names = [name]
        self._is_of_parts = is_data
        self._meaning = _meaning_of_field(cls, name)
        self._is_known = names_parts(self._meaning)
        self._is_anything = any(map(is_anything, members_of(self._meaning)))
        self.is_needed = is_data or self._is_known or quick_test(self._meaning) is not None

    def __call__(self, instance: Pytree) -> None:
        """Checks the argument for the part; a function in place of a Module is static."""
        name = self.names[0]
        value = vars(instance)[name]
        is_plain = isinstance(value, type) or (value.__class__ in PLAIN and not callable(value))
        is_plain = is_plain and (value is None or not self._is_anything)
        found = None
        if self._is_known or (value is not None and _is_decorated(instance)):
            found = misfit_of(value, self._meaning)
        if found is None and self._is_of_parts and is_plain and value is not None and not self._is_known:
            found = Misfit("", self._meaning, value)
        if found is not None and not _is_kept(instance, name):
            is_part = self._is_of_parts or self._is_known
            fix = None if isinstance(found.value, Pytree) else f"leave {name} out, or give it {_text(found.meaning)}"
            raise wrong_type(instance, name, self._meaning, found, is_part=is_part, fix=fix if is_part else None)
        is_empty = isinstance(value, CONTAINERS) and not value
        if self._is_of_parts and not (is_plain or is_empty or self._is_known or has_data(value)):
            for one in self.names:
                set_layout(instance, layout_of(instance).with_status(one, static_status(value)))


# ================================================================= errors


WRONG_TYPE: Final = "this value has the wrong type"


def _text(meaning: Meaning) -> str:
    return re.sub(r"\b(typing|collections\.abc)\.(?=\w)", "", annotation_text(meaning.annotation))


def wrong_type(
    instance: Any,
    name: str,
    meaning: Meaning,
    found: Misfit,
    *,
    is_part: bool = False,
    expected: str | None = None,
    fix: str | None = None,
) -> DeclaxError:
    """The error for an argument that is not of the type of its annotation."""
    where = f"{type_name(type(instance))}.{name}{found.path}"
    expected = expected or _text(found.meaning)
    got, fix = describe(found.value), fix or _converted(name, found)
    if fix is None and _is_of_library(type(instance), name):
        fix = f"{name}=int(...)" if isinstance(found.value, (float, np.floating)) else None
    elif fix is None:
        fix = _wider(name, meaning, found)
    if is_part or names_parts(found.meaning):
        problem = "the given part is of the wrong class"
        if found.value.__class__ in (bool, int):
            labels = f"dx.prefix(model, {{...: {found.value!r}}})        # for a tree of labels or axes"
            fix = labels if fix is None else f"{fix}\n{labels}"
        return ConstructionError(where, problem, expected=expected, got=got, fix=fix)
    return LayerError(where, WRONG_TYPE, expected=expected, got=got, fix=fix)


def _converted(name: str, found: Misfit) -> str | None:
    """The argument with the value that was probably meant."""
    value, converted = found.value, None
    for member in () if found.path else members_of(found.meaning):
        cls: Any = member.cls if isinstance(member, meanings.ClassType) else None
        if cls in (int, float) and isinstance(value, (float, str)):
            converted = converted or _number_text(value, is_integer=cls is int)
        elif isinstance(member, (meanings.TupleType, meanings.CollectionType)):
            is_one = not isinstance(value, CONTAINERS) and misfit_of([value], member) is None
            item = repr(value) if value.__class__ in PLAIN else "..."
            is_list = isinstance(member, meanings.CollectionType) and member.cls is list
            converted = converted or ((f"[{item}]" if is_list else f"({item},)") if is_one else None)
        elif isinstance(member, meanings.LiteralType):
            near = difflib.get_close_matches(str(value), map(str, member.values), n=1, cutoff=0.0)
            converted = converted or repr(next(v for v in member.values if [str(v)] == near))
        elif cls is None:
            continue
        elif issubclass(cls, enum.Enum) and isinstance(value, str):
            near = difflib.get_close_matches(value, cls.__members__, n=1, cutoff=0.0)
            converted = f"{type_name(cls)}.{near[0]}" if near else None
        elif issubclass(cls, pathlib.PurePath) and isinstance(value, str):
            converted = f"{type_name(cls)}({value!r})"
        elif issubclass(cls, Variable) and is_data(value) and not isinstance(value, Pytree):
            converted = f"{class_text(cls)}(...)"
    return None if converted is None else f"{name}={converted}"


def _number_text(value: float | str, *, is_integer: bool) -> str | None:
    with contextlib.suppress(ValueError, OverflowError):
        number = float(value)
        if number.is_integer():
            return str(int(number)) if is_integer else str(number)
        return None if is_integer else str(number)
    return None


def _wider(name: str, meaning: Meaning, found: Misfit) -> str:
    """The annotation that allows the value too."""
    expected, whole = _text(found.meaning), _text(meaning)
    wider = f"{expected} | {class_text(type(found.value))}"
    return f"{name}: {whole.replace(expected, wider) if expected in whole else wider} = ...        # to allow both"
