"""Readers of plain values. A reader interprets one annotation: it reads, checks and writes."""

from __future__ import annotations

import abc
import contextlib
import datetime
import decimal
import enum
import functools
import math
import pathlib
import re
import uuid
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from declax.config._data import FrozenDict, FrozenList, FrozenSet, Ref, SpecData, freeze, key_of
from declax.config._files.documents import MAX_DEPTH, TOO_DEEP
from declax.config._reading.parameters import is_dtype_like, target_name
from declax.config.problems import Path, Report, described, did_you_mean, shown
from declax.config.registry import ACTIVATIONS, DTYPES, dtype_name, name_in

if TYPE_CHECKING:
    from declax.config.schema import Schemas as Schemas


class _Invalid(enum.Enum):
    INVALID = "INVALID"


INVALID: Final = _Invalid.INVALID
"""The result of a reader for invalid data; the report has the problem."""


class Limits(NamedTuple):
    """What the field that is read allows of numbers.

    Attributes:
      low, high: the bounds of the field; infinite if it has none, and any number is allowed.
      allows_nan: whether NaN and infinity are allowed.
    """

    low: float | None = None
    high: float | None = None
    allows_nan: bool = False

    def allow(self, value: int) -> bool:
        """Whether a bound allows an int of more than 128 bits."""
        return self.high is not None and value <= self.high if value > 0 else self.low is not None and value >= self.low


NO_LIMITS: Final = Limits()
_ANY_NUMBER: Final = Limits(-math.inf, math.inf, True)
_MAX_INT: Final = 1 << 128


class Context(Report):
    """What the readers collect while they read one configuration: problems, parts and references."""

    def __init__(self, *, migrate: bool = False, catalog: Any = None) -> None:
        super().__init__()
        self.catalog = catalog
        self.parts: dict[tuple[str, ...], Any] = {}
        self.names: dict[tuple[str, ...], tuple[str, ...]] = {}  # of the parameters of each part, in their order
        self.refs: list[tuple[Path, tuple[str, ...], tuple[str, ...], Any]] = []
        self.base: Path = ()  # the path of the innermost spec that stays unbuilt, where Refs start
        self.migrate = migrate
        self.limits: Limits = NO_LIMITS
        self.max_depth = MAX_DEPTH
        self.supplied: Container[Path] | None = None  # where secrets may stand; None: anywhere
        self.known: dict[Hashable, tuple[Any, object, Context]] | None = None

    def check(self, spec: SpecData, path: Path, call: Any = None) -> None:
        """Checks the arguments of a spec with the given `CallReader`, or that of its target."""
        if self.catalog is not None:
            (call or self.catalog.call(spec.target)).check(spec, path, self)

    def add_ref(self, path: Path, keys: tuple[str, ...], reader: Any) -> None:
        """Records a Ref, which `checked_refs` checks after reading."""
        self.refs.append((path, (*map(str, self.base),), keys, reader))

    def trial(self) -> Context:
        """The context for trying one member of a union; trials share the parts that they have read."""
        attempt = Context(migrate=self.migrate, catalog=self.catalog)
        attempt.max_depth = self.max_depth
        attempt.supplied = self.supplied
        attempt.base = self.base
        attempt.limits = self.limits
        attempt.known = {} if self.known is None else self.known
        return attempt

    @classmethod
    def converting(cls) -> Context:
        """The context for conversions of values that are checked elsewhere: any number passes."""
        made = cls()
        made.limits = _ANY_NUMBER
        return made

    def take(self, attempt: Context) -> None:
        self.refs += attempt.refs
        self.parts.update(attempt.parts)
        self.names.update(attempt.names)
        self.merge(attempt)

    def wrong(self, path: Path, expected: str, value: object, hint: str | None = None) -> Any:
        if self.is_full:  # to describe a value takes longer than to read it
            self.count_one()
            return INVALID
        got = f"a spec of {target_name(value.target)}" if isinstance(value, SpecData) else described(value)
        self.add("wrong-type", path, "the value has the wrong type", expected=expected, got=got, hint=hint)
        return INVALID

    def is_too_deep(self, path: Path) -> bool:
        """Whether a table or list is nested too deeply, for example because it contains itself."""
        if len(path) < self.max_depth:
            return False
        self.add("too-deep", path, TOO_DEEP, hint="flatten them")
        return True


Schema: TypeAlias = dict[str, Any]

WORDS: Final[dict[Any, str]] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    list: "list",
    tuple: "list",
    dict: "table",
    FrozenList: "list",
    FrozenDict: "table",
}

TUPLE: Final = "$tuple"
"""The key of a table that represents a tuple where the annotation allows both tuples and lists."""


class Reader(abc.ABC):
    """The interpretation of one annotation: `read` converts data and checks values."""

    words: frozenset[str] = frozenset(WORDS.values())
    expected: str = "any plain value"
    json_type: str | None = None
    keeps_specs: bool = False  # whether the annotation is `Spec[...]`, so that a spec stays unbuilt
    rank: int = 0  # of the members of a union that accept a type of data, those of a lower rank come first

    @abc.abstractmethod
    def read(self, value: Any, path: Path, context: Context) -> Any:
        """Converts data or a frozen value; INVALID with a problem in the report if it does not fit."""

    def fits(self, value: Any) -> bool:
        """Whether `read` accepts a value."""
        return self.read(value, (), Context.converting()) is not INVALID

    def reads_as(self, data: Any, value: Any) -> bool:
        """Whether `read` gives a frozen value for some data."""
        found = self.read(data, (), Context.converting())
        return found is not INVALID and key_of(freeze(found)) == key_of(value)

    def below(self, value: Any, key: Any) -> Reader | None:
        """The reader of an element of a list or table; None if the annotation does not determine it."""
        return None

    def member_for(self, value: Any) -> Reader:
        """The member of a union that reads a value; any other reader itself."""
        return self

    def accept(self, value: Any, path: Path, context: Context) -> Any:
        """A value that needs no conversion; records a Ref, and checks the arguments of a spec."""
        if type(value) is Ref:
            context.add_ref(path, value.keys, self)
        elif isinstance(value, SpecData):
            context.check(value, path)
        return value

    def interpret(self, value: Any) -> Any:
        """Converts a frozen value as `read` does; keeps one that does not fit, which `Spec.check` reports."""
        found = self.read(value, (), Context.converting())
        return value if found is INVALID else found

    def name_of(self, value: Any) -> str | None:
        """The string from which a value is read that is not data; None if there is none."""
        return dtype_name(value) or name_in(ACTIVATIONS, value)

    def schema(self, schemas: Schemas) -> Schema:
        """The JSON schema of the data that `read` accepts."""
        return {} if self.json_type is None else {"type": self.json_type}

    def definition(self, schemas: Schemas) -> Schema:
        """The schema that `Schemas.shared` stores."""
        return self.schema(schemas)

    def wrong(self, value: Any, path: Path, context: Context, hint: str | None = None) -> Any:
        if hint is None and "table" in self.words:
            hint = unquoted_table(value)
        return context.wrong(path, self.expected, value, hint)


class NullReader(Reader):
    words = frozenset({"null"})
    expected = "null"
    json_type = "null"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        return None if value is None else self.wrong(value, path, context)


class BoolReader(Reader):
    words = frozenset({"bool"})
    expected = "bool"
    json_type = "boolean"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        is_text = type(value) is str and value in ("true", "True", "false", "False")
        return self.wrong(value, path, context, f"write {value.lower()} without quotes" if is_text else None)


class IntReader(Reader):
    """An int; not a bool, float or string."""

    words = frozenset({"int"})
    expected = "int"
    json_type = "integer"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if _is_int(value):
            is_fine = -_MAX_INT < value < _MAX_INT or context.limits.allow(value)
            return value if is_fine else _too_big(value, self.expected, path, context)
        hint = None
        if type(value) is str:
            hint = _unquoted(value, int)
        elif type(value) is float and value.is_integer() and abs(value) < 1e18:
            hint = f"write {int(value)}"
        return self.wrong(value, path, context, hint)


class FloatReader(Reader):
    """A float, or an int, which is converted; not a bool or string."""

    words = frozenset({"int", "float"})
    rank = 1
    expected = "float"
    json_type = "number"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, (float, np.floating)):
            is_fine = math.isfinite(value) or context.limits.allows_nan
            return value if is_fine else _not_finite(value, self.expected, path, context)
        if _is_int(value):
            with contextlib.suppress(OverflowError):
                return float(value)
        return self.wrong(value, path, context, _unquoted(value, float) if type(value) is str else None)


def _not_finite(value: Any, expected: str, path: Path, context: Context) -> Any:
    hint = "dx.field(allow_nan=True), or a default that is not finite, allows NaN and infinity"
    context.add("not-finite", path, "the value is not finite", expected=expected, got=shown(float(value)), hint=hint)
    return INVALID


def _too_big(value: int, expected: str, path: Path, context: Context) -> Any:
    hint = f"dx.field({'le' if value > 0 else 'ge'}=...) allows ints of more than 128 bits"
    context.add("too-big", path, "the int has more than 128 bits", expected=expected, got=shown(value), hint=hint)
    return INVALID


class StrReader(Reader):
    words = frozenset({"string"})
    rank = 1
    expected = "string"
    json_type = "string"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, str):
            return value
        is_short = type(value) in (int, float, bool)
        return self.wrong(value, path, context, f'write "{shown(value)}"' if is_short else None)


class Text(NamedTuple):
    """How data spells the values of a class that are no plain data.

    Attributes:
      noun: of the text, for messages.
      read: makes a value of the class from a string; for others, None or a ValueError.
      write: makes the string.
      schema: what the JSON schema says of it.
    """

    noun: str
    read: Callable[[Any, str], Any]
    write: Callable[[Any], str]
    schema: dict[str, str]


_DURATION: Final = re.compile(r"(-)?P(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,6})?)S)?)?", re.ASCII)


def _duration(cls: Any, text: str) -> Any:
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()[1:]):
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups()[1:4])
    seconds, _, fraction = (found[5] or "0").partition(".")
    micros = int(fraction.ljust(6, "0")) if fraction else 0
    made = cls(days=days, hours=hours, minutes=minutes, seconds=int(seconds), microseconds=micros)
    return -made if found[1] else made


def _duration_text(value: datetime.timedelta) -> str:
    sign, value = ("-", -value) if value.days < 0 else ("", value)
    minutes, seconds = divmod(value.seconds, 60)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    parts = {"H": minutes // 60, "M": minutes % 60, "S": f"{seconds}{fraction}" if seconds or fraction else 0}
    time = "".join(f"{number}{unit}" for unit, number in parts.items() if number)
    days = f"{value.days}D" if value.days else ""
    return f"{sign}P{days}{'T' if time else ''}{time}" if days or time else "PT0S"


def _decimal(cls: Any, text: str) -> Any:
    with contextlib.suppress(ArithmeticError):
        return cls(text)
    return None


TEXTS: Final[Mapping[type, Text]] = {
    pathlib.PurePath: Text("a path", lambda cls, text: cls(text), lambda path: path.as_posix(), {"format": "path"}),
    datetime.datetime: Text(
        'a time such as "2026-01-31T12:00:00"',
        lambda cls, text: cls.fromisoformat(text),
        lambda time: time.isoformat(),
        {"format": "date-time"},
    ),
    datetime.date: Text(
        'a date such as "2026-01-31"',
        lambda cls, text: cls.fromisoformat(text),
        lambda date: date.isoformat(),
        {"format": "date"},
    ),
    datetime.time: Text(
        'a time of day such as "12:00:00"',
        lambda cls, text: cls.fromisoformat(text),
        lambda time: time.isoformat(),
        {"format": "time"},
    ),
    datetime.timedelta: Text(
        'a duration such as "P1DT2H30M" or "PT0.5S"', _duration, _duration_text, {"format": "duration"}
    ),
    uuid.UUID: Text("a UUID", lambda cls, text: cls(text), str, {"format": "uuid"}),
    decimal.Decimal: Text('a decimal number such as "0.1"', _decimal, str, {"format": "decimal"}),
}
"""Texts by class; of several classes that fit, the first counts."""


class TextReader(StrReader):
    """A value that data spells as a string: a path, a time, a UUID, a decimal number; or the value itself."""

    def __init__(self, cls: type, text: Text) -> None:
        self.cls = cls
        self.text = text
        self.expected = f"string, {text.noun}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, self.cls) and not (self.cls is datetime.date and isinstance(value, datetime.datetime)):
            return value
        if not isinstance(value, str):
            return self.wrong(value, path, context, f'write "{value}"' if type(value) in (int, float) else None)
        made = None
        with contextlib.suppress(ValueError):
            made = self.text.read(self.cls, value)
        return self.wrong(value, path, context) if made is None else made

    def name_of(self, value: Any) -> str | None:
        return self.text.write(value) if isinstance(value, self.cls) else None

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "string", **self.text.schema}


class NamesReader(Reader):
    """A name from a table, or any callable or spec."""

    words = frozenset({"string"})
    rank = 2

    def __init__(self, noun: str, table: Mapping[str, Any], code: str) -> None:
        self.noun = noun
        self.table = table
        self.code = code
        self.expected = f"the name of {noun}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is not str:
            return self.accept(value, path, context) if self.allows(value) else self.wrong(value, path, context)
        if value in self.table:
            return self.table[value]
        last = value.rpartition(".")[2] if len(value) < 200 else ""
        hint = f"did you mean {last!r}?" if last in self.table else did_you_mean(last, self.table)
        hint = hint or (unquoted_table(value) if "table" in self.words else None)
        if "." in value and hint is None:
            hint = "data cannot name modules or attributes; dx.register_kind adds a name"
        context.add(
            self.code, path, f"unknown {self.noun.partition(' ')[2]}",
            expected=listed(self.table, 40 if hint is None else 6), got=shown(value), hint=hint,
        )  # fmt: skip
        return INVALID

    def allows(self, value: Any) -> bool:
        """Whether a value is used as it is."""
        return callable(value) or isinstance(value, SpecData)

    def name_of(self, value: Any) -> str | None:
        return name_in(self.table, value)

    def schema(self, schemas: Schemas) -> Schema:
        return {"enum": list(self.table)}


class DtypeReader(NamesReader):
    def __init__(self) -> None:
        super().__init__("a dtype", DTYPES, "unknown-dtype")

    def allows(self, value: Any) -> bool:
        return is_dtype_like(value)

    def name_of(self, value: Any) -> str | None:
        return dtype_name(value)


class LiteralReader(Reader):
    def __init__(self, choices: Sequence[Any]) -> None:
        self.choices: dict[tuple[Any, Any], Any] = {_exactly(choice): choice for choice in choices}
        self.words = frozenset(WORDS.get(type(choice), "string") for choice in choices)
        self.expected = "one of " + ", ".join(shown(choice) for choice in choices)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        with contextlib.suppress(TypeError, KeyError):  # a list or a table has no hash
            return self.choices[_exactly(value)]
        return no_choice(self.expected, value, path, context, [name for kind, name in self.choices if kind is str])

    def schema(self, schemas: Schemas) -> Schema:
        return {"enum": [choice for _, choice in self.choices]}


def no_choice(expected: str, value: object, path: Path, context: Context, choices: Iterable[Any]) -> Any:
    hint = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
    message = "the value is not one of the choices"
    context.add("no-choice", path, message, expected=expected, got=described(value), hint=hint)
    return INVALID


class EnumReader(LiteralReader):
    """A member of an enum, by its name."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls = cls
        self.choices = {_exactly(name): member for name, member in cls.__members__.items()}
        self.words = frozenset({"string"})
        self.expected = f"{cls.__name__}: one of {listed(cls.__members__)}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        return value if isinstance(value, self.cls) else super().read(value, path, context)

    def name_of(self, value: Any) -> str | None:
        return value.name if isinstance(value, enum.Enum) else None


class ListReader(Reader):
    """A list, tuple or set.

    Args:
      item: the reader of the items; None for a tuple with one annotation for each item.
      make: the class or function that makes the value from a list.
      first: the readers of the first items, which the class body declares or the annotation lists.
    """

    words: frozenset[str] = frozenset({"list"})

    def __init__(self, item: Reader | None, make: Callable[[list[Any]], Any], first: Sequence[Reader] = ()) -> None:
        self.item = item
        self.first = first
        self.make = make
        self.rank = max((reader.rank for reader in (*first, *([] if item is None else [item]))), default=0)
        if item is None:
            self.expected = f"a list of {len(first)}: {', '.join(reader.expected for reader in first)}"
        else:
            self.expected = f"a list, each item {item.expected}" if item.expected != Reader.expected else "a list"

    def _has_length_of(self, value: Any) -> bool:
        return self.item is not None or len(value) == len(self.first)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        is_set = self.make in (set, frozenset) and isinstance(value, (set, frozenset, FrozenSet))
        if not (is_set or is_list(value)) or not self._has_length_of(value):
            if is_made(value):
                return self.accept(value, path, context)
            may_be_item = self.item is not None and WORDS.get(type(value)) in self.item.words
            return self.wrong(value, path, context, "put it in brackets" if may_be_item else None)
        if context.is_too_deep(path):
            return INVALID
        found = [self.below(value, i).read(item, (*path, i), context) for i, item in enumerate(value)]
        if any(item is INVALID for item in found):
            return INVALID
        try:
            return self.make(found)
        except TypeError:  # an item of a set without a hash
            return self.wrong(value, path, context)

    def below(self, value: Any, key: Any) -> Any:
        return self.first[key] if self.first and type(key) is int and key < len(self.first) else self.item

    def schema(self, schemas: Schemas) -> Schema:
        first = [reader.schema(schemas) for reader in self.first]
        if self.item is None:
            return {"type": "array", "items": first, "minItems": len(first), "maxItems": len(first)}
        rest = self.item.schema(schemas)
        return {"type": "array", **({"items": first, "additionalItems": rest} if first else {"items": rest})}


class MappingReader(Reader):
    """A table with any keys. Parts that the class body declares have defaults."""

    words: frozenset[str] = frozenset({"table"})

    def __init__(
        self, key: Reader, item: Reader, declared: Mapping[Any, tuple[Reader, Any]] = MappingProxyType({})
    ) -> None:
        self.key = key
        self.item = item
        self.declared = declared
        self.expected: str = f"a table, each value {item.expected}" if item.expected != Reader.expected else "a table"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not isinstance(value, Mapping):
            return (self.accept if is_made(value) else self.wrong)(value, path, context)
        if context.is_too_deep(path):
            return INVALID
        found: dict[Any, Any] = {}
        is_valid = True
        for key, item in value.items():
            if not isinstance(key, str) and not (type(key) is int and "int" in self.key.words):
                is_valid = context.wrong((*path, shown(key)), "a string as the key", key) is not INVALID
                continue
            inside = (*path, str(key))
            is_number = isinstance(key, str) and self.key.words == IntReader.words
            made = self.key.read(_number_of(str(key)) if is_number else key, inside, context)
            read = self.below(value, made).read(item, inside, context)
            if made is INVALID or read is INVALID:
                is_valid = False
            elif made in found:
                context.add("duplicate-key", inside, "the key is given twice, as a string and as a number")
                is_valid = False
            else:
                found[made] = read
        return {**{key: default for key, (_, default) in self.declared.items()}, **found} if is_valid else INVALID

    def below(self, value: Any, key: Any) -> Reader:
        return self.declared[key][0] if key in self.declared else self.item

    def schema(self, schemas: Schemas) -> Schema:
        made: Schema = {"type": "object", "additionalProperties": self.item.schema(schemas)}
        named = {str(key): reader.schema(schemas) for key, (reader, _) in self.declared.items()}
        return made | {"properties": named} if named else made


class TypedDictReader(Reader):
    """A table with known keys."""

    words: frozenset[str] = frozenset({"table"})

    def __init__(self, name: str, required: Collection[str], find: Callable[[], dict[str, Reader]]) -> None:
        self.name = name
        self.required = required
        self.expected = f"a table, a {name}"
        self._find = find

    @functools.cached_property
    def readers(self) -> dict[str, Reader]:
        """The readers of the values by key, made when they are needed: the table may be in itself."""
        return self._find()

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not isinstance(value, Mapping):
            return (self.accept if is_made(value) else self.wrong)(value, path, context)
        if context.is_too_deep(path):
            return INVALID
        found: dict[Any, Any] = {}
        for key, item in value.items():
            reader = self.readers.get(key) if isinstance(key, str) else None
            found[key] = INVALID if reader is None else reader.read(item, (*path, key), context)
            if reader is None:
                hint = did_you_mean(key, self.readers)
                message = f"{self.name} has no key {shown(key, 40)}"
                place = key if isinstance(key, str) else shown(key)
                context.add("unknown-key", (*path, place), message, expected=listed(self.readers), hint=hint)
        for key in self.readers:
            if key in self.required and key not in found:
                found[key] = INVALID
                message = f"{self.name} requires {key!r}"
                context.add("missing-key", (*path, key), message, expected=self.readers[key].expected)
        return INVALID if any(item is INVALID for item in found.values()) else found

    def below(self, value: Any, key: Any) -> Reader | None:
        return self.readers.get(key)

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, self.name)

    def definition(self, schemas: Schemas) -> Schema:
        made: Schema = {"title": self.name, "type": "object"}
        made["properties"] = {key: reader.schema(schemas) for key, reader in self.readers.items()}
        if self.required:
            made["required"] = [key for key in self.readers if key in self.required]
        return {**made, "additionalProperties": False}


class ObjectReader(Reader):
    """An instance of a class that data cannot describe, such as an array."""

    def __init__(self, cls: Any, noun: str, hint: str | None = None) -> None:
        self.cls = cls if isinstance(cls, type) and not is_only_typed(cls) else None
        self.words = frozenset()
        self.expected = noun
        self.hint = hint

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if self._allows(value):
            return self.accept(value, path, context)
        message = f"a configuration cannot give {self.expected}"
        context.add("no-data", path, message, got=described(value), hint=self.hint)
        return INVALID

    def _allows(self, value: Any) -> bool:
        if type(value) in WORDS:
            return False
        if isinstance(value, SpecData):
            return describes(value, (self.cls,) if self.cls is not None else ())
        return self.cls is None or isinstance(value, self.cls)

    def schema(self, schemas: Schemas) -> Schema:
        return {"not": {}, "description": f"a configuration cannot give {self.expected}"}


def describes(spec: SpecData, bases: Collection[type]) -> bool:
    """Whether a spec may build an instance of one of some classes; True for a function, whose result is unknown."""
    target = spec.target
    if not isinstance(target, type) or not bases:
        return True
    return any(getattr(base, "_is_protocol", False) or issubclass(target, base) for base in bases)


def is_made(value: object) -> bool:
    """Whether a value is the spec of a function, which may return a list or a dict."""
    return isinstance(value, SpecData) and not isinstance(value.target, type)


def is_only_typed(cls: type) -> bool:
    """Whether `isinstance` cannot test the class, as for most protocols."""
    try:
        return not isinstance(issubclass(int, cls), bool)
    except TypeError:
        return True


# --- wrapping readers -------------------------------------------------------------


class WrappingReader(Reader):
    """A reader that delegates to another one."""

    def __init__(self, find: Callable[[], Reader]) -> None:
        self._find = find

    @functools.cached_property
    def reader(self) -> Reader:
        return self._find()

    def read(self, value: Any, path: Path, context: Context) -> Any:
        return self.reader.read(value, path, context)

    def interpret(self, value: Any) -> Any:
        return self.reader.interpret(value)

    def below(self, value: Any, key: Any) -> Reader | None:
        return self.reader.below(value, key)

    def member_for(self, value: Any) -> Reader:
        return self.reader.member_for(value)


class AliasReader(WrappingReader):
    """Refers to the reader of a recursive alias from inside that reader."""

    def __init__(self, name: str, find: Callable[[], Reader]) -> None:
        super().__init__(find)
        self.expected = name

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, self.expected)

    def definition(self, schemas: Schemas) -> Schema:
        return self.reader.schema(schemas)


# --- helpers ----------------------------------------------------------------------


def entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and elements of a list, tuple or table."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if is_list(value) else ()


def is_list(value: object) -> bool:
    return type(value) in (list, tuple, FrozenList)


def listed(names: Collection[str], most: int = 40) -> str:
    """Names in a sentence; a long list is cut."""
    found = list(names)
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")


def _is_int(value: object) -> bool:
    return type(value) is int or (isinstance(value, (int, np.integer)) and not isinstance(value, bool))


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.void) else value


def _exactly(value: Any) -> tuple[Any, Any]:
    value = plain(value)
    return (type(value), value)  # distinguishes 1, 1.0 and true


def _unquoted(text: str, kind: Callable[[str], object]) -> str:
    try:
        kind(text if len(text) <= 40 else "")
    except ValueError:
        return "write a number, without quotes"
    if "_" in text:
        return f"write {text.strip().replace('_', '')} without quotes; YAML 1.2 and JSON have no _ in numbers"
    return f"write {text.strip()} without quotes"


_BARE: Final = re.compile(r"(\w[\w.]*)\s*[=:]\s*(?:([A-Za-z_][\w./+-]*)|([^\s,{}][^,{}]*|(?=\{)))")


def unquoted_table(value: object) -> str | None:
    """The fix for a string that looks like an inline table, as on a command line; None for other values."""
    if type(value) is not str or len(value) > 200 or not re.fullmatch(r"\{\s*\w[^\"']*\}", value.strip()):
        return None
    made = _BARE.sub(lambda found: f"{found[1]}={_word(found[2]) or (found[3] or '').strip()}", value.strip())
    made = re.sub(r",\s*", ", ", made)
    return f"quote the strings in it: {made} (for a shell, the whole word in ' ')" if '"' in made else None


def _word(text: str | None) -> str | None:
    return text if text is None or text in ("true", "false", "inf", "nan") else f'"{text}"'


def _number_of(key: str) -> Any:
    is_number = len(key) < 20 and key.removeprefix("-").isdecimal() and key.isascii()
    return int(key) if is_number and str(int(key)) == key else key  # each int key has one spelling
