"""What a spec made in Python can be seen to have wrong before anything is built.

An annotation that says little, or a value that declax knows nothing of, is left
to the constructor.
"""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from typing import Any, Final

from declax._annotations import annotation_text
from declax._fields import Notes
from declax._pytree import Pytree
from declax.config._building import (
    INSIDE,
    PATH_ATTRIBUTE,
    TO_BUILT,
    TO_DESCRIPTION,
    WRITE_OUT,
    Place,
    Walk,
    annotation_at,
    keeps_spec,
    locate,
)
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData, thaw
from declax.config._members import allowed_classes, allows_dtypes, element_annotation, is_dtype_like, spells_dtypes
from declax.config._objections import problem_of
from declax.config._parameters import Parameter, target_name
from declax.config._plain import NO_DTYPE, listed
from declax.config._tables import DTYPES, dtype_hint
from declax.config.problems import Path, Report, shown
from declax.errors import ConfigError, DepthError, describe

_CALLABLE: Final[Any] = collections.abc.Callable
_SCALARS: Final[dict[Any, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    complex: (complex, float, int),
    str: (str,),
    bytes: (bytes,),
    type(None): (type(None),),
    None: (type(None),),
}


def check(spec: SpecData) -> None:
    """Raises one error with all that is wrong with a spec; see `Spec.check`."""
    walk = _Check(spec)
    walk.run()
    if walk.report:
        raise walk.report.error(f"Spec of {target_name(spec.target)}")


class _Check(Walk):
    """Collects what is wrong with the arguments of each spec."""

    def __init__(self, root: SpecData) -> None:
        super().__init__(root)
        self.report = Report()

    def shared(self, ref: Ref, path: Path, annotation: Any) -> Any:
        try:
            self._check_border(ref, locate(self.root, ref, path), path, annotation)
            return super().shared(ref, path, annotation)
        except (ConfigError, DepthError) as error:
            is_new = not hasattr(error, PATH_ATTRIBUTE)
            if is_new:
                code = "ref-cycle" if "circle" in error.problem else "bad-ref"
                self.report.add(code, path, error.problem, expected=error.expected, got=error.got, hint=error.fix)
            return None

    def _check_border(self, ref: Ref, place: Place, path: Path, annotation: Any) -> None:
        is_kept, is_asked = (known is not Any and keeps_spec(known) for known in (place.annotation, annotation))
        if not isinstance(place.value, SpecData) or is_kept == is_asked:
            return
        message = TO_DESCRIPTION if is_kept else TO_BUILT
        self.report.add("ref-border", path, message, expected=INSIDE, got=shown(ref.path), hint=WRITE_OUT)

    def arguments(self, spec: SpecData, path: Path) -> dict[str, Any]:
        for name, value in spec.arguments.items():
            parameter = spec.parameters.get(name)
            if parameter is not None:
                self._check(parameter, spec, name, value, (*path, name))
            self.value(value, (*path, name), annotation_at(spec.parameters, name))
        return {}

    def _check(self, parameter: Parameter, spec: SpecData, name: str, value: Any, path: Path) -> None:
        if parameter.name == spec.parameters.variadic:
            wrong = [((*path, i), *found) for i, v in enumerate(value) for found in misfits(parameter.annotation, v)]
        else:
            wrong = [((*path, *inner), *found) for inner, *found in _misfits_at(parameter.annotation, value)]
        for at, annotation, got in wrong:
            self._report_misfit(annotation, got, at)
        if wrong:
            return
        before = self.report.count
        self._check_notes(parameter, value, path)
        check = parameter.notes.check
        if check is not None and self.report.count == before:
            problem = problem_of(check, thaw(value))
            if problem is not None:
                self.report.add("check", path, problem, got=_got(value))

    def _report_misfit(self, annotation: Any, value: Any, path: Path) -> None:
        if isinstance(value, str) and allows_dtypes(allowed_classes(annotation)):
            expected, hint = listed(DTYPES, 6), dtype_hint(value)
            self.report.add("unknown-dtype", path, NO_DTYPE, expected=expected, got=shown(value), hint=hint)
        else:
            message, expected = "the value has the wrong type", _annotation_text(annotation)
            self.report.add("wrong-type", path, message, expected=expected, got=_got(value))

    def _check_notes(self, parameter: Parameter, value: Any, path: Path) -> None:
        notes = parameter.notes
        if notes.choices is not None and not isinstance(value, (SpecData, Ref)) and thaw(value) not in notes.choices:
            expected = "one of " + ", ".join(map(repr, notes.choices))
            self.report.add(
                "not-a-choice", path, "the value is none of the choices", expected=expected, got=_got(value)
            )
        self._check_range(notes, value, path)

    def _check_range(self, notes: Notes, value: Any, path: Path) -> None:
        if type(value) in (tuple, FrozenList):  # limits are those of each item, and of each value of a dict
            for index, item in enumerate(value):
                self._check_range(notes, item, (*path, index))
        if isinstance(value, FrozenDict):
            for key, item in value.items():
                self._check_range(notes, item, (*path, key))
        if not isinstance(value, (int, float)):
            return
        is_low = notes.ge is not None and not value >= notes.ge
        is_high = notes.le is not None and not value <= notes.le
        if is_low or is_high:
            bounds = [f"at least {notes.ge:g}"] if notes.ge is not None else []
            bounds += [f"at most {notes.le:g}"] if notes.le is not None else []
            self.report.add(
                "out-of-range", path, "the value is out of range", expected=" and ".join(bounds), got=_got(value)
            )


def _annotation_text(annotation: Any) -> str:
    members = allowed_classes(annotation)
    if not allows_dtypes(members):
        return annotation_text(annotation)
    others = [annotation_text(member) for member in members if not spells_dtypes(member)]
    return " or ".join(["a dtype, such as jnp.float32", *others])


def _got(value: Any) -> str:
    if isinstance(value, SpecData):
        return f"a spec of {target_name(value.target)}"
    if isinstance(value, (FrozenList, FrozenDict)):
        return shown(thaw(value))
    return describe(value)


def misfits(annotation: Any, value: Any) -> list[tuple[Any, Any]]:
    """The annotations that parts of a value do not fit, with those parts.

    >>> misfits(list[int], FrozenList([1, "two"]))
    [(<class 'int'>, 'two')]
    """
    return [(expected, got) for _, expected, got in _misfits_at(annotation, value)]


def _misfits_at(annotation: Any, value: Any) -> list[tuple[Path, Any, Any]]:
    if isinstance(value, Ref):
        return []
    members = allowed_classes(annotation)
    if allows_dtypes(members):
        if is_dtype_like(value):
            return []
        members = tuple(member for member in members if not spells_dtypes(member))
    fitting = [member for member in members if _fits(member, value)]
    if not fitting:
        return [((), annotation, value)]
    if type(value) not in (tuple, FrozenList, FrozenDict) or len(fitting) > 1:
        return []
    items = value.items() if isinstance(value, FrozenDict) else enumerate(value)
    return [
        ((key, *path), expected, got)
        for key, item in items
        for path, expected, got in _misfits_at(element_annotation(fitting[0], value, key), item)
    ]


def _fits(annotation: Any, value: Any) -> bool:
    """Whether a value may be what a member of an annotation says; True in doubt."""
    if annotation in _SCALARS:
        return not isinstance(value, (SpecData, tuple, FrozenList, FrozenDict)) and _is_scalar(annotation, value)
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return any(type(value) is type(option) and value == option for option in typing.get_args(annotation))
    if not isinstance(origin, type) or getattr(origin, "_is_protocol", False) or origin in (object, Any):
        return True
    if issubclass(origin, SpecData):
        return isinstance(value, SpecData) and _describes(typing.get_args(annotation), value)
    if isinstance(value, SpecData):
        return _describes((origin,), value)
    if issubclass(origin, enum.Enum):
        return isinstance(value, origin)
    if issubclass(origin, Pytree):
        return not isinstance(value, _PLAIN)
    return (
        _fits_container(origin, value) if type(value) in (tuple, FrozenList, FrozenDict) else _fits_atom(origin, value)
    )


_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), tuple, FrozenList, FrozenDict)


def _is_scalar(annotation: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return annotation is bool
    if not isinstance(value, (int, float, complex, str, bytes, type(None))):
        return annotation is not type(None) and annotation is not None and not callable(value)
    return isinstance(value, _SCALARS[annotation])


def _describes(wanted: tuple[Any, ...], spec: SpecData) -> bool:
    cls: Any = (typing.get_origin(wanted[0]) or wanted[0]) if wanted else None
    if not isinstance(spec.target, type) or not isinstance(cls, type) or not issubclass(cls, Pytree):
        return True
    return issubclass(spec.target, cls) or bool(getattr(cls, "_is_protocol", False))


def _fits_container(origin: type, value: Any) -> bool:
    if issubclass(origin, collections.abc.Mapping):
        return isinstance(value, FrozenDict)
    if isinstance(value, FrozenDict):
        return not issubclass(origin, (collections.abc.Sequence, _CALLABLE))
    if issubclass(origin, tuple):
        return type(value) is tuple
    if issubclass(origin, list):
        return isinstance(value, FrozenList)
    return origin is not _CALLABLE


def _fits_atom(origin: type, value: Any) -> bool:
    if not isinstance(value, _PLAIN):
        return True
    if issubclass(origin, (list, tuple, dict, collections.abc.Mapping, types.FunctionType)):
        return False
    if issubclass(origin, (collections.abc.Sequence, collections.abc.Iterable)):
        return isinstance(value, (str, bytes))
    return origin is not _CALLABLE or callable(value)
