"""The range, the choices and the check that a field declares besides its annotation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from declax._fields import objection
from declax.config._context import INVALID, Context
from declax.config._data import FrozenList, Ref, SpecData, thaw
from declax.config._parameters import Parameter
from declax.config._readers import Reader, Schema, Schemas, Writer, no_choice
from declax.config.problems import Path, described, did_you_mean, shown


class CheckedReader(Reader):
    """A reader, and the notes of a field."""

    def __init__(self, reader: Reader, parameter: Parameter) -> None:
        notes = parameter.notes
        self.reader = reader
        self.words, self.exact = reader.words, reader.exact
        self.ge, self.le = notes.ge, notes.le
        self.test = notes.check
        self.choices = notes.choices
        self.expected = reader.expected + self._bounds()

    def _bounds(self) -> str:
        parts = [f"at least {self.ge}"] if self.ge is not None else []
        parts += [f"at most {self.le}"] if self.le is not None else []
        parts += [f"one of {', '.join(map(shown, self.choices))}"] if self.choices is not None else []
        return "".join(f", {part}" for part in parts)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        return self._noted(self.reader.read(value, path, context), value, path, context)

    def check(self, value: Any, path: Path, context: Context) -> Any:
        return self._noted(thaw(self.reader.check(value, path, context)), value, path, context)

    def holds(self, value: Any) -> bool:
        return self.reader.holds(value)

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        return self.reader.inner(value)

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        return self.reader.write(value, path, writer)

    def schema(self, schemas: Schemas) -> Schema:
        found = schemas.schema(self.reader)
        if self.choices is not None:
            return {"enum": [schemas.data(choice, self.reader) for choice in self.choices]}
        limits = {"minimum": self.ge, "maximum": self.le}
        return _limited(found, {name: limit for name, limit in limits.items() if limit is not None})

    def _noted(self, found: Any, value: Any, path: Path, context: Context) -> Any:
        if found is INVALID:
            return INVALID
        is_given = found is not None and not isinstance(found, (SpecData, Ref))
        if self.choices is not None and is_given and found not in self.choices:
            hint = did_you_mean(value, [c for c in self.choices if isinstance(c, str)])
            return no_choice(self.expected, value, path, context, hint)
        is_fine = self._in_range(found, path, context)
        is_fine = is_fine and (self.test is None or self._passes(self.test, found, value, path, context))
        return found if is_fine else INVALID

    def _passes(self, test: Callable[[Any], object], found: Any, value: Any, path: Path, context: Context) -> bool:
        """Whether the check of the field has no objection."""
        problem = problem_of(test, found)
        if problem is not None:
            context.report.add("check", path, problem, got=described(value))
        return problem is None

    def _in_range(self, value: Any, path: Path, context: Context) -> bool:
        kind = type(value)
        if kind is int or kind is float:
            is_low = self.ge is not None and not value >= self.ge
            is_high = self.le is not None and not value <= self.le
            return not (is_low or is_high) or self._report_range(value, is_low, path, context)
        items = value.items() if kind is dict else enumerate(value) if kind in (list, tuple) else ()
        each = [self._in_range(item, (*path, key), context) for key, item in items]
        return all(each)

    def _report_range(self, value: float, is_low: bool, path: Path, context: Context) -> bool:
        hint = f"the least is {self.ge}" if is_low else f"the most is {self.le}"
        context.report.add(
            "out-of-range", path, "the value is out of range", expected=self.expected, got=shown(value), hint=hint
        )
        return False


def checked(parameter: Parameter, reader: Reader) -> Reader:
    """The reader of a parameter, with its notes where it has some."""
    notes = parameter.notes
    has_checks = any(note is not None for note in (notes.ge, notes.le, notes.choices, notes.check))
    return CheckedReader(reader, parameter) if has_checks else reader


def problem_of(check: Callable[[Any], object], value: Any) -> str | None:
    """The objection of a check; None where it has none, and for parts, which are not made yet.

    >>> problem_of(lambda size: size % 2 == 0, 3)
    'the value does not pass the check of its field'
    """
    if value is None or _has_parts(value):
        return None
    try:
        return objection(check, value)
    except Exception as error:  # noqa: BLE001  # the function of a user, on data of anybody
        return f"the check of the field raised {type(error).__name__}: {error}"


def _has_parts(value: Any) -> bool:
    if isinstance(value, (SpecData, Ref)):
        return True
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple, FrozenList)) else ()
    )
    return any(map(_has_parts, inner))


def _limited(schema: Schema, limits: dict[str, float]) -> Schema:
    """A schema with limits for its numbers, wherever they are."""
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return schema | {"items": _limited(schema["items"], limits)}
    if isinstance(schema.get("additionalProperties"), dict):
        return schema | {"additionalProperties": _limited(schema["additionalProperties"], limits)}
    if "anyOf" in schema:
        return schema | {"anyOf": [_limited(option, limits) for option in schema["anyOf"]]}
    return schema | limits  # these say nothing of what is no number
