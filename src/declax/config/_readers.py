"""Readers of plain values: numbers, texts, names, lists and tables.

A reader is the one interpretation of an annotation. It reads data into values, tells which values of Python fit, writes
values as data, and gives the JSON schema of that data. Files, command lines, `Spec` and `json_schema` all ask it.

Vocabulary
----------
data:   what files hold: null, bool, int, float, string, list or table.
value:  what data stands for: an enum member for its name, a tuple for a list. Lists and dicts in a spec are frozen.
word:   the name of a type of data.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import pathlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import jax
import numpy as np

from declax.config._context import INVALID, Context, Make
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData
from declax.config._tables import DTYPES, dtype_hint, dtype_name, name_in
from declax.config._unions import is_dtype_like
from declax.config.files.documents import MAX_NODES
from declax.config.problems import Path, Report, described, did_you_mean, shown
from declax.errors import ConfigError, type_name

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
_NONE: Final[frozenset[str]] = frozenset()
_ALL: Final = frozenset(WORDS.values())
_INT_BITS: Final = 64
REF: Final = "$ref"

TUPLE: Final = "$tuple"
"""The key of a table that stands for a tuple, where no annotation tells one from a list."""


class Schemas(Protocol):
    """Where readers find the schemas of what is inside of them."""

    def schema(self, reader: Reader) -> Schema:
        """The schema of the data that a reader takes."""
        ...

    def data(self, value: object, reader: Reader) -> Any:
        """A value as data."""
        ...

    def definitions(self, choices: Mapping[str, Any], *, is_tag_needed: bool) -> list[Schema]:
        """References to the schemas of the tables of several targets."""
        ...

    def shared(self, reader: Reader, name: str, make: Callable[[Schema], Schema]) -> Schema:
        """A reference to a schema that is made once for a reader, of the reference itself."""
        ...

    def noun(self, choices: Mapping[str, Any], noun: str) -> str:
        """The name of a schema of several choices."""
        ...

    def reference(self) -> Schema:
        """The schema of a table with the key ``$ref``."""
        ...


class Writer(Protocol):
    """Where readers find how to write what is inside of them."""

    def table(self, spec: SpecData, reader: Reader | None, path: Path) -> Any:
        """The table of a spec."""
        ...

    def initializer(self, value: Any, path: Path) -> Any:
        """The name or the table of an initializer."""
        ...

    def named(self, value: Any, reader: Reader, path: Path) -> Any:
        """The data of a value that no annotation describes; raises where there is none."""
        ...


class Reader(abc.ABC):
    """The interpretation of an annotation.

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
        """The value of data, or INVALID with a problem in the report of the context."""

    def holds(self, value: Any) -> bool:
        """Whether a frozen value is one that `read` gives, and may stay as it is."""
        return WORDS.get(type(value)) in self.exact

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        """What is inside of a value that it holds: keys, readers and values."""
        return ()

    def holds_inner(self, value: Any) -> bool:
        """Whether all that is inside of a value fits; a Ref may stand for a part."""
        return all(type(item) is Ref or reader.holds(item) for _, reader, item in self.inner(value))

    def visit(self, value: Any, path: Path, context: Context) -> None:
        """Checks the specs in a value that it holds, and notes the refs."""
        if type(value) is Ref:
            context.refs.append((path, value.keys, self))
            return
        if isinstance(value, SpecData):
            context.visit(value, path)
            return
        for key, reader, item in self.inner(value):
            reader.visit(item, (*path, key), context)

    def interpret(self, value: Any, make: Make) -> Any:
        """A frozen value as `read` gives it; itself where it does not fit, which `check` reports."""
        found = self.read(value, (), Context(Report(), make=make))
        return value if found is INVALID else found

    def check(self, value: Any, path: Path, context: Context) -> Any:
        """A value of Python as `read` would give it, or INVALID with a problem in the report."""
        if type(value) is not Ref and not self.holds(value):
            return self.read(value, path, context)
        self.visit(value, path, context)
        return value

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        """The data of a value. One that it does not hold is written as well as can be, and refused by `read`."""
        return value if WORDS.get(type(value)) in _ATOMS else writer.named(value, self, path)

    def schema(self, schemas: Schemas) -> Schema:
        """The JSON schema of the data that it takes."""
        return {}

    def wrong(self, value: Any, path: Path, context: Context, hint: str | None = None) -> Any:
        """INVALID, with the problem that a value has the wrong type."""
        return context.wrong(path, self.expected, value, hint)


_ATOMS: Final = _ALL - {"list", "table"}


class NullReader(Reader):
    """None."""

    words = exact = frozenset({"null"})
    expected = "null"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        return None if value is None else self.wrong(value, path, context)

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "null"}


class BoolReader(Reader):
    """A bool, and nothing that could be taken for one."""

    words = exact = frozenset({"bool"})
    expected = "bool"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if value is True or value is False:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        hint = f"write {str(value).lower()} without quotes" if value in ("true", "True", "false", "False") else None
        return self.wrong(value, path, context, hint)

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "boolean"}


class IntReader(Reader):
    """An int of 64 bits; no bool, no float, no text."""

    words = exact = frozenset({"int"})
    expected = "int"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is int and value.bit_length() <= _INT_BITS:
            return value
        if _is_int(value):
            return value if int(value).bit_length() <= _INT_BITS else _too_large(path, value, context)
        hint = None
        if type(value) is str:
            hint = _unquoted(value, int)
        elif type(value) is float and value.is_integer() and abs(value) < 1e18:
            hint = f"write {int(value)}"
        return self.wrong(value, path, context, hint)

    def holds(self, value: Any) -> bool:
        return _is_int(value) and int(value).bit_length() <= _INT_BITS

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "integer"}


_INT: Final = IntReader()


class FloatReader(Reader):
    """A float, or an int, which becomes one; no bool, no text."""

    words = frozenset({"int", "float"})
    exact = frozenset({"float"})
    expected = "float"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is float or isinstance(value, (float, np.floating)):
            return value
        if _is_int(value):
            return float(value) if int(value).bit_length() <= _INT_BITS else _too_large(path, value, context)
        return self.wrong(value, path, context, _unquoted(value, float) if type(value) is str else None)

    def holds(self, value: Any) -> bool:
        return isinstance(value, float)

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "number"}


class NumberReader(FloatReader):
    """A float or an int, for an array without axes, whose dtype they decide."""

    exact = FloatReader.words

    def read(self, value: Any, path: Path, context: Context) -> Any:
        found = super().read(value, path, context)
        return found if found is INVALID else value

    def holds(self, value: Any) -> bool:
        return isinstance(value, float) or _INT.holds(value)


class StrReader(Reader):
    """A text."""

    words = exact = frozenset({"string"})
    expected = "string"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, str):
            return value
        is_short = type(value) in (int, float, bool)
        return self.wrong(value, path, context, f'write "{shown(value)}"' if is_short else None)

    def holds(self, value: Any) -> bool:
        return isinstance(value, str)

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "string"}


class PathReader(StrReader):
    """A path of files, written as a text."""

    expected = "string, a path"

    def __init__(self, cls: type[pathlib.PurePath]) -> None:
        self.cls = cls

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, self.cls):
            return value
        text = super().read(value, path, context)
        return text if text is INVALID else self.cls(text)

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.cls)

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        return value.as_posix() if isinstance(value, pathlib.PurePath) else super().write(value, path, writer)


class NamesReader(Reader):
    """One of a table of names, or an object that has the same use as those in the table."""

    words = frozenset({"string"})
    exact = _NONE

    def __init__(self, noun: str, table: Mapping[str, Any], code: str) -> None:
        self.noun = noun
        self.table = table
        self.code = code
        self.expected = f"the name of {noun}"

    def near(self, name: str) -> str | None:
        return did_you_mean(name, self.table)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if type(value) is not str:
            return value if self.holds(value) else self.wrong(value, path, context)
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

    def holds(self, value: Any) -> bool:
        return callable(value) or isinstance(value, SpecData)

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        name = name_in(self.table, value)
        return super().write(value, path, writer) if name is None else name

    def schema(self, schemas: Schemas) -> Schema:
        return {"enum": list(self.table)}


def precisions() -> list[str]:
    """The names of the precisions with which this release of JAX multiplies."""
    found = list(jax.lax.DotAlgorithmPreset.__members__)
    for name in ("default", "high", "highest", "fastest", "bfloat16", "bfloat16_3x", "tensorfloat32", "float32"):
        with contextlib.suppress(ValueError):
            jax.lax.Precision(name)
            found.append(name)
    return found


class DtypeReader(NamesReader):
    """The name of a dtype."""

    def __init__(self) -> None:
        super().__init__("a dtype", DTYPES, "unknown-dtype")

    def near(self, name: str) -> str | None:
        return dtype_hint(name)

    def holds(self, value: Any) -> bool:
        return is_dtype_like(value)

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        name = dtype_name(value)
        return super().write(value, path, writer) if name is None else name


class LiteralReader(Reader):
    """One of several values."""

    def __init__(self, choices: Sequence[Any]) -> None:
        self.choices = {_exactly(choice): choice for choice in choices}
        self.words = self.exact = frozenset(WORDS.get(type(choice), "string") for choice in choices)
        self.expected = "one of " + ", ".join(shown(choice) for choice in choices)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if self.holds(value):
            return self.choices[_exactly(value)]
        hint = did_you_mean(value, [choice for choice in self.choices.values() if isinstance(choice, str)])
        return no_choice(self.expected, value, path, context, hint)

    def holds(self, value: Any) -> bool:
        try:
            return _exactly(value) in self.choices
        except TypeError:  # a list or a table
            return False

    def schema(self, schemas: Schemas) -> Schema:
        return {"enum": list(self.choices.values())}


def no_choice(expected: str, value: object, path: Path, context: Context, hint: str | None) -> Any:
    """Notes that a value is none of several."""
    message = "the value is none of the choices"
    context.report.add("no-choice", path, message, expected=expected, got=described(value), hint=hint)
    return INVALID


class EnumReader(Reader):
    """A member of an enum, by its name; by its value where no member has that name."""

    words = frozenset({"string", "int", "float", "bool"})
    exact = words

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls = cls
        self.names = dict(cls.__members__)
        self.values = {_exactly(m.value): m for m in cls if isinstance(m.value, (str, int, float))}
        self.expected = f"{cls.__name__}: one of {listed(self.names)}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, self.cls):
            return value
        found = self.member(value)
        if found is not None:
            return found
        hint, message = did_you_mean(value, self.names), "there is no member of this name"
        context.report.add("no-choice", path, message, expected=self.expected, got=described(value), hint=hint)
        return INVALID

    def member(self, value: object) -> enum.Enum | None:
        """The member of a name or a value."""
        value = plain(value)
        found = self.names.get(value) if type(value) is str else None
        is_plain = type(value) in (str, int, float, bool)
        return self.values.get(_exactly(value)) if found is None and is_plain else found

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.cls)

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        return value.name if isinstance(value, enum.Enum) else super().write(value, path, writer)

    def schema(self, schemas: Schemas) -> Schema:
        return {"enum": list(dict.fromkeys((*self.names, *(m.value for m in self.values.values()))))}


class ListReader(Reader):
    """A list of any length."""

    words = frozenset({"list"})
    exact = words

    def __init__(self, item: Reader, make: Callable[[list[Any]], Any], *, keeps_parts: bool = False) -> None:
        self.item = item
        self.make = make
        self.kind = {list: FrozenList}.get(make, make)  # type: ignore[call-overload]  # other functions are themselves
        self.keeps_parts = keeps_parts
        self.expected = f"a list, each item {item.expected}" if item.expected != Reader.expected else "a list"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not is_list(value) and type(value) is not self.kind:
            hint = "put it in brackets" if WORDS.get(type(value)) in self.item.words else None
            return self.wrong(value, path, context, hint)
        if context.is_too_deep(path) or _is_too_long(value, path, context):
            return INVALID
        read = self.item.read
        found = [read(item, (*path, i), context) for i, item in enumerate(value)]
        return INVALID if any(item is INVALID for item in found) else self.make(found)

    def holds(self, value: Any) -> bool:
        if is_made(value):
            return True
        is_list_of_parts = self.keeps_parts and type(value) is FrozenList and any(map(_is_part, value))
        return (type(value) is self.kind or is_list_of_parts) and self.holds_inner(value)

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        return [(index, self.item, item) for index, item in enumerate(value)]

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        if not is_list(value) and not isinstance(value, frozenset):
            return super().write(value, path, writer)
        items = sorted(value, key=_order) if isinstance(value, frozenset) else value
        return [self.item.write(item, (*path, i), writer) for i, item in enumerate(items)]

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "array", "items": schemas.schema(self.item)}


class TupleReader(Reader):
    """A list of as many items as there are annotations."""

    words = frozenset({"list"})
    exact = words

    def __init__(self, items: Sequence[Reader]) -> None:
        self.items = tuple(items)
        self.expected = f"a list of {len(items)}: {', '.join(item.expected for item in items)}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not is_list(value) or len(value) != len(self.items):
            return self.wrong(value, path, context)
        if context.is_too_deep(path):
            return INVALID
        found = [r.read(v, (*path, i), context) for i, (r, v) in enumerate(zip(self.items, value, strict=True))]
        return INVALID if any(item is INVALID for item in found) else tuple(found)

    def holds(self, value: Any) -> bool:
        return is_made(value) or (type(value) is tuple and len(value) == len(self.items) and self.holds_inner(value))

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        return [(index, *pair) for index, pair in enumerate(zip(self.items, value, strict=True))]

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        if not isinstance(value, tuple) or len(value) != len(self.items):
            return super().write(value, path, writer)
        return [r.write(v, (*path, i), writer) for i, (r, v) in enumerate(zip(self.items, value, strict=True))]

    def schema(self, schemas: Schemas) -> Schema:
        items = [schemas.schema(item) for item in self.items]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}


class MappingReader(Reader):
    """A table with any keys."""

    words = frozenset({"table"})
    exact = words

    def __init__(self, key: Reader, item: Reader) -> None:
        self.key = key
        self.item = item
        self.expected = f"a table, each value {item.expected}" if item.expected != Reader.expected else "a table"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not isinstance(value, Mapping):
            return self.wrong(value, path, context)
        if context.is_too_deep(path) or _is_too_long(value, path, context):
            return INVALID
        found: dict[Any, Any] = {}
        is_valid = True
        for key, item in value.items():
            if not isinstance(key, str) and not (type(key) is int and "int" in self.key.words):
                is_valid = context.wrong((*path, shown(key)), "a string as the key", key) is not INVALID
                continue
            inside = (*path, str(key))
            made = self.key.read(self._key(key), inside, context)
            read = self.item.read(item, inside, context)
            if made is INVALID or read is INVALID:
                is_valid = False
            elif made in found:
                context.report.add("duplicate-key", inside, "the key is given twice, as a text and as a number")
                is_valid = False
            else:
                found[made] = read
        return found if is_valid else INVALID

    def _key(self, key: str | int) -> object:
        """A key of a file, which may be the text of a number."""
        return _number_of(key) if isinstance(key, str) and self.key.words == IntReader.words else key

    def holds(self, value: Any) -> bool:
        return is_made(value) or (
            type(value) is FrozenDict and all(map(self.key.holds, value)) and self.holds_inner(value)
        )

    def inner(self, value: Any) -> Iterable[tuple[str | int, Reader, Any]]:
        return [(key, self.item, item) for key, item in value.items()]

    def write(self, value: Any, path: Path, writer: Writer) -> Any:
        if not isinstance(value, Mapping):
            return super().write(value, path, writer)
        return {str(k): self.item.write(v, (*path, str(k)), writer) for k, v in value.items()}

    def schema(self, schemas: Schemas) -> Schema:
        return {"type": "object", "additionalProperties": schemas.schema(self.item)}


class ObjectReader(Reader):
    """An instance of a class that is not described by a table, such as an array; plain data of it is an exception."""

    def __init__(self, cls: Any, noun: str, hint: str | None = None) -> None:
        self.cls = cls if isinstance(cls, type) and not _is_only_typed(cls) else None
        self.words = self.exact = frozenset(WORDS[kind] for kind in _DATA_TYPES if self._is_of_class(kind))
        self.expected = noun
        self.hint = hint

    def _is_of_class(self, kind: type) -> bool:
        return self.cls is not None and issubclass(kind, self.cls)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if self.holds(value):
            return value
        message = f"a configuration cannot give {self.expected}"
        context.report.add("no-data", path, message, got=described(value), hint=self.hint)
        return INVALID

    def holds(self, value: Any) -> bool:
        word = WORDS.get(type(value))
        if word is not None:
            return word in self.words
        if isinstance(value, SpecData):
            return describes(value, (self.cls,) if self.cls is not None else ())
        return self.cls is None or isinstance(value, self.cls)

    def schema(self, schemas: Schemas) -> Schema:
        if not self.words:
            return {"not": {}, "description": f"a configuration cannot give {self.expected}"}
        return {"type": sorted({_JSON_TYPES[word] for word in self.words})}


_DATA_TYPES: Final = (type(None), bool, int, float, str)
_JSON_TYPES: Final = {"null": "null", "bool": "boolean", "int": "integer", "float": "number", "string": "string"}


def describes(spec: SpecData, bases: Collection[type]) -> bool:
    """Whether a spec may make an instance of one of some classes; of a function that is not known."""
    target = spec.target
    return not isinstance(target, type) or not bases or any(is_of(target, base) for base in bases)


def is_made(value: object) -> bool:
    """Whether a value is the spec of a function, which may make a list or a dict."""
    return isinstance(value, SpecData) and not isinstance(value.target, type)


def is_of(cls: type, base: type) -> bool:
    """Whether a class is a subclass, or the base a protocol, which says too little."""
    return bool(getattr(base, "_is_protocol", False)) or issubclass(cls, base)


def _is_only_typed(cls: type) -> bool:
    """Whether instances cannot be told by their class, as those of most protocols."""
    try:
        return not isinstance(issubclass(int, cls), bool)
    except TypeError:
        return True


def read_ref(table: Mapping[str, Any], path: Path, context: Context, reader: Reader) -> Any:
    """The Ref of a table with the key ``$ref``; where it leads to is checked when all is read.

    Args:
      table: the table.
      path: where it stands.
      context: of the reading.
      reader: of what may stand there.
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
    context.refs.append((path, ref.keys, reader))
    return ref


def is_list(value: object) -> bool:
    """Whether data is a list; a named tuple is not."""
    return type(value) in (list, tuple, FrozenList)


def listed(names: Mapping[str, Any], most: int = 40) -> str:
    """Names as people list them; the end of a very long list is cut."""
    found = list(names)
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")


def _is_part(value: object) -> bool:
    return isinstance(value, (SpecData, Ref))


def _is_int(value: object) -> bool:
    return type(value) is int or (isinstance(value, (int, np.integer)) and not isinstance(value, bool))


def plain(value: Any) -> Any:
    """A number of NumPy as one of Python; any other value itself."""
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.void) else value


def _exactly(value: Any) -> Hashable:
    value = plain(value)
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


def _order(item: Any) -> tuple[str, Any]:
    """The key by which items of a set are sorted, so that equal sets are written alike."""
    is_ordered = type(item) in (bool, int, float, str)
    return type_name(type(item)), item if is_ordered else item.name if isinstance(item, enum.Enum) else repr(item)


def _too_large(path: Path, value: int, context: Context) -> Any:
    context.report.add(
        "out-of-range", path, "the int is too large", expected=f"at most {_INT_BITS} bits", got=shown(int(value))
    )
    return INVALID


def _is_too_long(value: Any, path: Path, context: Context) -> bool:
    if len(value) <= MAX_NODES:
        return False
    context.report.add("too-large", path, f"there are more than {MAX_NODES} values", got=shown(value))
    return True
