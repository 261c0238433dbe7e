"""The limits that a field sets for its values: range, multiples, choices and check."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from declax._fields.specifiers import is_restricted, multiple_of, objection
from declax.config._data import Ref, SpecData
from declax.config._reading.parameters import Parameter
from declax.config._reading.readers import (
    INVALID,
    Context,
    Limits,
    Reader,
    Schema,
    WrappingReader,
    is_list,
    no_choice,
)
from declax.config.problems import Path, described, shown

if TYPE_CHECKING:
    from declax.config._reading.readers import Schemas


class CheckedReader(WrappingReader):
    """Adds the range, choices and check of a field to a reader; values with parts, which are not built yet, pass."""

    def __init__(self, reader: Reader, parameter: Parameter) -> None:
        super().__init__(lambda: reader)
        self.words = reader.words
        notes = parameter.notes
        self.low, self.high = notes.get("ge"), notes.get("le")
        self.choices, self.check = notes.get("choices"), notes.get("check")
        self.limits = Limits(self.low, self.high, allows_nan(parameter))
        factor = multiple_of(notes)
        self.factor = factor if isinstance(factor, int) else None  # a field, which `CallReader` compares
        bounds = [f"at least {self.low}"] if self.low is not None else []
        bounds += [f"at most {self.high}"] if self.high is not None else []
        bounds += [f"a multiple of {factor}"] if factor is not None else []
        bounds += [f"one of {', '.join(map(shown, self.choices))}"] if self.choices is not None else []
        self.expected = ", ".join([reader.expected, *bounds])

    def read(self, value: Any, path: Path, context: Context) -> Any:
        outer, context.limits = context.limits, self.limits
        found = self.reader.read(value, path, context)
        context.limits = outer
        if found is INVALID or found is None:
            return found
        if self.choices is not None and found not in self.choices and not _has_parts(found):
            return no_choice(self.expected, value, path, context, self.choices)
        is_fine = self._is_in_range(found, path, context)
        if is_fine and self.check is not None and not _has_parts(found):
            try:
                problem = objection(self.check, found)
            except Exception as error:  # noqa: BLE001  # a user's function, called with untrusted data
                problem = f"the check of the field raised {type(error).__name__}: {error}"
            if problem is not None:
                context.add("check", path, problem, got=described(value))
                return INVALID
        return found if is_fine else INVALID

    def schema(self, schemas: Schemas) -> Schema:
        if self.choices is not None:
            return {"enum": [schemas.data(choice, self.reader) for choice in self.choices]}
        limits = {"minimum": self.low, "maximum": self.high, "multipleOf": self.factor}
        return _limited(self.reader.schema(schemas), {n: limit for n, limit in limits.items() if limit is not None})

    def _is_in_range(self, value: Any, path: Path, context: Context) -> bool:
        kind = type(value)
        if kind is not int and kind is not float:
            items = value.items() if kind is dict else enumerate(value) if kind in (list, tuple) else ()
            each = [self._is_in_range(item, (*path, key), context) for key, item in items]
            return all(each)
        is_low = self.low is not None and not value >= self.low
        if not is_low and (self.high is None or value <= self.high):
            factor = self.factor
            return factor is None or is_multiple(value, factor, str(factor), path, context, self.expected)
        hint = f"the minimum is {self.low}" if is_low else f"the maximum is {self.high}"
        context.add(
            "out-of-range", path, "the value is out of range", expected=self.expected, got=shown(value), hint=hint
        )
        return False


def is_multiple(value: Any, factor: Any, of: str, path: Path, context: Context, expected: str) -> bool:
    """Whether a number is a multiple of another; adds a problem if not."""
    if type(value) is not int or type(factor) is not int or factor < 1 or value % factor == 0:
        return True
    message, nearest = f"the value is not a multiple of {of}", max(factor, round(value / factor) * factor)
    context.add("not-a-multiple", path, message, expected=expected, got=shown(value), hint=f"{nearest} is one")
    return False


def checked(parameter: Parameter, reader: Reader) -> Reader:
    """The reader of a parameter, with the constraints of its field."""
    has_checks = "choices" in parameter.notes or is_restricted(parameter.notes) or allows_nan(parameter)
    return CheckedReader(reader, parameter) if has_checks else reader


def allows_nan(parameter: Parameter) -> bool:
    """Whether a field says that its value may be NaN or infinite: its option, default, choices or a bound."""
    notes = parameter.notes
    said = (parameter.default, notes.get("choices"), notes.get("ge"), notes.get("le"))
    return bool(notes.get("allow_nan")) or not all(map(_is_finite, said))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    items = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return all(map(_is_finite, items))


def _has_parts(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_parts, value.values()))
    return any(map(_has_parts, value)) if is_list(value) else isinstance(value, (SpecData, Ref))


def _limited(schema: Schema, limits: dict[str, float]) -> Schema:
    """A schema with limits for its numbers, also in lists, tables and unions."""
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return schema | {"items": _limited(schema["items"], limits)}
    if isinstance(schema.get("additionalProperties"), dict):
        return schema | {"additionalProperties": _limited(schema["additionalProperties"], limits)}
    if "anyOf" in schema:
        return schema | {"anyOf": [_limited(option, limits) for option in schema["anyOf"]]}
    return schema | limits  # JSON schema applies limits to numbers only
