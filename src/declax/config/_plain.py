"""Readers of plain values: numbers, texts, names, lists and tables.

Vocabulary
----------
reader: what checks plain data against an annotation, and gives the value that it stands for; made once for each.
word:   the type of plain data as files have it: null, bool, int, float, string, list or table.
"""

from __future__ import annotations

import abc
import contextlib
import enum
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final

import jax

from declax.config._data import Ref, SpecData
from declax.config._tables import DTYPES, dtype_hint, dtype_name
from declax.config.files.documents import MAX_DEPTH, MAX_NODES, UnheldNumber, too_deep
from declax.config.problems import Path, Report, described, did_you_mean, shown
from declax.errors import ConfigError


class _Invalid(enum.Enum):
    INVALID = "INVALID"


INVALID: Final = _Invalid.INVALID
"""What a reader gives for data that does not fit; the problem is in the report then."""

WORDS: Final[dict[Any, str]] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    list: "list",
    tuple: "list",
    dict: "table",
}
_NONE: Final[frozenset[str]] = frozenset()
_ALL: Final = frozenset(WORDS.values())
_INT_BITS: Final = 64
REF: Final = "$ref"

TUPLE: Final = "$tuple"
"""The key of a table that stands for a tuple, where no annotation tells one from a list."""


class Context:
    """What one reading has found so far.

    Attributes:
      report: the problems.
      parts: the targets of all parts, by the names and indices of their paths.
      refs: the refs, each with its path and what may stand there.
      migrate: whether old names and versions are brought up to date.
      dropped: keys that the migration has left out, each with the class and when that lost it.
      broken: paths whose text could not be read; what is missing there is no further problem.
      known: in a trial, the parts that were read in it or in others, with what was found; None outside of trials.
    """

    def __init__(self, report: Report, *, migrate: bool = False, broken: Collection[Path] = ()) -> None:
        self.report = report
        self.broken = broken
        self.parts: dict[tuple[str, ...], Any] = {}
        self.refs: list[tuple[Path, tuple[str, ...], Mapping[str, Any] | None]] = []
        self.migrate = migrate
        self.dropped: list[tuple[Path, str, Any]] = []
        self.known: dict[Hashable, tuple[Any, object, Context]] | None = None

    def trial(self) -> Context:
        """The context of a reading that may come to nothing; it shares the parts that other trials have read."""
        attempt = Context(type(self.report)(), migrate=self.migrate, broken=self.broken)
        attempt.known = {} if self.known is None else self.known
        return attempt

    def take(self, attempt: Context) -> None:
        """Takes over all that a trial has found."""
        self.refs += attempt.refs
        self.dropped += attempt.dropped
        self.parts.update(attempt.parts)
        self.report.extend(attempt.report.problems)
        self.report.count += attempt.report.count - len(attempt.report.problems)

    def wrong(self, path: Path, expected: str, value: object, hint: str | None = None) -> Any:
        """Notes that a value has the wrong type, or is a number that no float holds."""
        if isinstance(value, UnheldNumber):
            problem = "no float holds this number: it would be read as 0.0, or as inf"
            self.report.add("out-of-range", path, problem, expected=expected, got=shown(value))
            return INVALID
        word = WORDS.get(type(value))
        message = "the value has the wrong type" if word else "this is no plain data"
        self.report.add("wrong-type", path, message, expected=expected, got=described(value), hint=hint)
        return INVALID

    def is_too_deep(self, path: Path) -> bool:
        """Whether a table or list is nested too deeply, as one that contains itself is."""
        if len(path) < MAX_DEPTH:
            return False
        self.report.extend([too_deep(path)])
        return True


class Reader(abc.ABC):
    """Checks plain data, and gives what it stands for.

    Attributes:
      words: the types of data that it can take.
      exact: those that it takes as they are.
      expected: what it takes, for people.
    """

    words: frozenset[str] = _ALL
    exact: frozenset[str] = _ALL
    expected: str = "any plain value"

    @abc.abstractmethod
    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The value, or INVALID with a problem in the report of the context."""


class NullReader(Reader):
    """None."""

    words = exact = frozenset({"null"})
    expected = "null"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """None."""
        return None if value is None else context.wrong(path, self.expected, value)


class BoolReader(Reader):
    """A bool, and nothing that could be taken for one."""

    words = exact = frozenset({"bool"})
    expected = "bool"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """A bool."""
        if value is True or value is False:
            return value
        hint = f"write {str(value).lower()} without quotes" if value in ("true", "True", "false", "False") else None
        return context.wrong(path, self.expected, value, hint)


class IntReader(Reader):
    """An int of 64 bits; no bool, no float, no text."""

    words = exact = frozenset({"int"})
    expected = "int"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """An int."""
        if type(value) is int:
            return value if value.bit_length() <= _INT_BITS else _too_large(path, value, context)
        hint = None
        if type(value) is str:
            hint = _unquoted(value, int)
        elif type(value) is float and value.is_integer() and abs(value) < 1e18:
            hint = f"write {int(value)}"
        return context.wrong(path, self.expected, value, hint)


class FloatReader(Reader):
    """A float, or an int, which stays one; no bool, no text."""

    words = frozenset({"int", "float"})
    exact = frozenset({"float"})
    expected = "float"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """A number."""
        if type(value) is float:
            return value
        if type(value) is int:
            return value if value.bit_length() <= _INT_BITS else _too_large(path, value, context)
        return context.wrong(path, self.expected, value, _unquoted(value, float) if type(value) is str else None)


class StrReader(Reader):
    """A text."""

    words = exact = frozenset({"string"})
    expected = "string"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """A text."""
        if type(value) is str:
            return value
        is_short = type(value) in (int, float, bool)
        return context.wrong(path, self.expected, value, f'write "{shown(value)}"' if is_short else None)


class PrecisionReader(StrReader):
    """A text that says how precisely JAX multiplies; an annotation names it as a text."""

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The text itself, where JAX knows it."""
        text = super().read(value, path, context)
        if text is INVALID or text in _PRECISIONS or text in jax.lax.DotAlgorithmPreset.__members__:
            return text
        names = {**_PRECISIONS, **jax.lax.DotAlgorithmPreset.__members__}
        context.report.add(
            "no-choice", path, "there is no precision of this name", expected=", ".join(_PRECISIONS),
            got=shown(text), hint=did_you_mean(text, names),
        )  # fmt: skip
        return INVALID


def _precisions() -> dict[str, Any]:
    """The names of precisions that this release of JAX takes."""
    found = dict[str, Any]()
    for name in ("default", "high", "highest", "fastest", "bfloat16", "bfloat16_3x", "tensorfloat32", "float32"):
        with contextlib.suppress(ValueError):
            found[name] = jax.lax.Precision(name)
    return found


_PRECISIONS: Final = _precisions()


class MadeReader(StrReader):
    """A text that a class is made of, such as a path."""

    def __init__(self, make: Callable[[str], Any], expected: str) -> None:
        self.make = make
        self.expected = expected

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """What is made of a text."""
        text = super().read(value, path, context)
        return text if text is INVALID else self.make(text)


class NamesReader(Reader):
    """One of a table of names."""

    words = exact = frozenset({"string"})

    def __init__(self, noun: str, table: Mapping[str, Any], code: str) -> None:
        self.noun = noun
        self.table = table
        self.code = code
        self.expected = f"the name of {noun}"

    def near(self, name: str) -> str | None:
        """A hint at the name that was meant."""
        return did_you_mean(name, self.table)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """What a name stands for."""
        if type(value) is not str:
            return context.wrong(path, self.expected, value)
        if value in self.table:
            return self.table[value]
        last = value.rpartition(".")[2] if len(value) < 200 else ""
        hint = self.near(last)
        if "." in value and hint is None and last not in self.table:
            hint = "names of modules and attributes mean nothing in data; dx.register_kind gives a name to more"
        elif last != value and last in self.table:
            hint = f"did you mean {last!r}?"
        context.report.add(
            self.code, path, f"there is no {self.noun.partition(' ')[2]} of this name",
            expected=listed(self.table, 40 if hint is None else 6), got=shown(value), hint=hint,
        )  # fmt: skip
        return INVALID


NO_DTYPE: Final = "there is no dtype of this name"


class DtypeReader(NamesReader):
    """The name of a dtype."""

    def __init__(self) -> None:
        super().__init__("a dtype", DTYPES, "unknown-dtype")

    def near(self, name: str) -> str | None:
        """A hint at the dtype that was meant."""
        return dtype_hint(name)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """A scalar type of `jax.numpy`."""
        name = dtype_name(value)  # a mapping of Python may hold the dtype itself
        return super().read(value if name is None else name, path, context)


class LiteralReader(Reader):
    """One of several values."""

    def __init__(self, choices: Sequence[Any]) -> None:
        self.choices = {_exactly(choice): choice for choice in choices}
        self.words = self.exact = frozenset(WORDS.get(type(choice), "string") for choice in choices)
        self.expected = "one of " + ", ".join(shown(choice) for choice in choices)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The choice."""
        try:
            found = self.choices.get(_exactly(value), INVALID)
        except TypeError:  # a list or a table
            found = INVALID
        if found is INVALID:
            hint = did_you_mean(value, [choice for choice in self.choices.values() if isinstance(choice, str)])
            context.report.add(
                "no-choice",
                path,
                "the value is none of the choices",
                expected=self.expected,
                got=described(value),
                hint=hint,
            )
        return found


class EnumReader(Reader):
    """A member of an enum, by its name; by its value where no member has that name."""

    words = exact = frozenset({"string", "int", "float", "bool"})

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.names = dict(cls.__members__)
        self.values = {_exactly(m.value): m for m in cls if isinstance(m.value, (str, int, float))}
        self.expected = f"{cls.__name__}: one of {listed(self.names)}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The member."""
        found: Any = self.names.get(value) if type(value) is str else None
        if found is None and type(value) in (str, int, float, bool):
            found = self.values.get(_exactly(value))
        if found is not None:
            return found
        hint = did_you_mean(value, self.names)
        context.report.add(
            "no-choice",
            path,
            "there is no member of this name",
            expected=self.expected,
            got=described(value),
            hint=hint,
        )
        return INVALID


class ListReader(Reader):
    """A list of any length."""

    words = exact = frozenset({"list"})

    def __init__(self, item: Reader, make: Callable[[list[Any]], Any]) -> None:
        self.item = item
        self.make = make
        self.expected = f"a list, each item {item.expected}" if item.expected != Reader.expected else "a list"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The items, in the container that the annotation names."""
        if type(value) not in (list, tuple):
            hint = "put it in brackets" if WORDS.get(type(value)) in self.item.words else None
            return context.wrong(path, self.expected, value, hint)
        if context.is_too_deep(path) or _is_too_long(value, path, context):
            return INVALID
        read = self.item.read
        found = [read(item, (*path, i), context) for i, item in enumerate(value)]
        return INVALID if any(item is INVALID for item in found) else self.make(found)


class TupleReader(Reader):
    """A list of as many items as there are annotations."""

    words = exact = frozenset({"list"})

    def __init__(self, items: Sequence[Reader]) -> None:
        self.items = tuple(items)
        self.expected = f"a list of {len(items)}: {', '.join(item.expected for item in items)}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The tuple."""
        if type(value) not in (list, tuple) or len(value) != len(self.items):
            return context.wrong(path, self.expected, value)
        if context.is_too_deep(path):
            return INVALID
        found = [r.read(v, (*path, i), context) for i, (r, v) in enumerate(zip(self.items, value, strict=True))]
        return INVALID if any(item is INVALID for item in found) else tuple(found)


class MappingReader(Reader):
    """A table with any keys."""

    words = exact = frozenset({"table"})

    def __init__(self, key: Reader, item: Reader) -> None:
        self.key = key
        self.item = item
        self.expected = f"a table, each value {item.expected}" if item.expected != Reader.expected else "a table"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The dict."""
        if not isinstance(value, Mapping):
            return context.wrong(path, self.expected, value)
        if context.is_too_deep(path) or _is_too_long(value, path, context):
            return INVALID
        found = {}
        is_valid = True
        for key, item in value.items():
            if not isinstance(key, str) and not (type(key) is int and "int" in self.key.words):
                is_valid = context.wrong((*path, shown(key)), "a string as the key", key) is not INVALID
                continue
            inside = (*path, str(key))
            given = _number_of(key) if isinstance(key, str) and "int" in self.key.words else key
            made = self.key.read(given, inside, context)
            read = self.item.read(item, inside, context)
            if made is INVALID or read is INVALID:
                is_valid = False
            elif made in found:
                context.report.add("duplicate-key", inside, "the key is given twice, as a text and as a number")
                is_valid = False
            else:
                found[made] = read
        return found if is_valid else INVALID


class AnyReader(Reader):
    """Any plain data, where an annotation says nothing."""

    def __init__(self) -> None:
        self.items = ListReader(self, list)
        self.table = MappingReader(StrReader(), self)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The data itself; a table of `$ref` alone is a ref."""
        kind = type(value)
        if kind in (str, bool, float, type(None)) or isinstance(value, (SpecData, Ref)):
            return value
        if kind is int:
            return ANY_INT.read(value, path, context)
        if kind in (list, tuple):
            return self.items.read(value, path, context)
        if isinstance(value, Mapping):
            if len(value) == 1 and REF in value:
                return read_ref(value, path, context, None)
            if TUPLE in value:
                return self._tuple(value, path, context)
            return self.table.read(value, path, context)
        name = dtype_name(value)
        return context.wrong(path, self.expected, value) if name is None else DTYPES[name]

    def _tuple(self, table: Mapping[str, Any], path: Path, context: Context) -> Any:
        items = table[TUPLE]
        if len(table) > 1 or type(items) not in (list, tuple):
            context.report.add(
                "tuple", path, "this is no tuple", expected='{ "$tuple" = [1, 2] } and nothing else', got=shown(table)
            )
            return INVALID
        found = self.items.read(items, path, context)  # a Ref counts items of tuples as those of lists
        return found if found is INVALID else tuple(found)


class NoReader(Reader):
    """What data cannot give, such as an array or a class."""

    words = exact = _NONE

    def __init__(self, what: str, hint: str | None = None) -> None:
        self.expected = what
        self.hint = hint

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """No value; a problem, always."""
        context.report.add(
            "no-data", path, f"a configuration cannot give {self.expected}", got=described(value), hint=self.hint
        )
        return INVALID


def read_ref(table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any] | None) -> Any:
    """The Ref of a table with the key ``$ref``; where it leads to is checked when all is read.

    Args:
      table: the table.
      path: where it stands.
      context: of the reading.
      choices: the targets that may stand there, by tag; None for any.
    """
    target = table[REF]
    if type(target) is not str or len(table) > 1:
        expected = '{ "$ref" = "/path/to/part" } and nothing else'
        context.report.add("ref", path, "this is no reference", expected=expected, got=described(target))
        return INVALID
    try:
        ref = Ref(target)
    except ConfigError:
        hint = "/" + target.strip("./").replace(".", "/") if len(target) < 100 else None
        context.report.add(
            "ref", path, "a reference is a path from the root, with a / before each name and index", got=shown(target),
            hint=hint and f'"$ref" = "{hint}"',
        )  # fmt: skip
        return INVALID
    context.refs.append((path, ref.keys, choices))
    return ref


def listed(names: Mapping[str, Any], most: int = 40) -> str:
    """Names as people list them; the end of a very long list is cut."""
    found = list(names)
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")


def _exactly(value: Any) -> Hashable:
    return (type(value), value)  # so that 1, 1.0 and true are three values


def _unquoted(text: str, kind: Callable[[str], object]) -> str:
    try:
        kind(text if len(text) <= 40 else "")
    except ValueError:
        return "write a number, without quotes"
    return f"write {text.strip()} without quotes"


def _number_of(key: str) -> Any:
    is_number = len(key) < 20 and key.removeprefix("-").isdecimal() and key.isascii()
    return int(key) if is_number and str(int(key)) == key else key  # no second spelling of a key


def _too_large(path: Path, value: int, context: Context) -> Any:
    context.report.add(
        "out-of-range", path, "the int is too large", expected=f"at most {_INT_BITS} bits", got=shown(value)
    )
    return INVALID


def _is_too_long(value: Any, path: Path, context: Context) -> bool:
    if len(value) <= MAX_NODES:
        return False
    context.report.add("too-large", path, f"there are more than {MAX_NODES} values", got=shown(value))
    return True


ANY_INT: Final = IntReader()
