"""Values, models and States as text: short, nested, with counts and bytes; no large array is fetched."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from declax._text.arrays import OPENED, PLAIN, amount_text, array_text, measure, shape_text, type_text
from declax._typing import Path
from declax.errors import format_path, shortened, type_name

MAX_DEPTH: Final = 64
"""Levels of containers that are printed; deeper ones show their type only."""
MAX_ELEMENTS: Final = 100
"""Entries of one object or container that are printed."""
MAX_CONTAINER: Final = 80
"""The longest container that is printed on one line."""
MAX_LINE: Final = 120
"""The longest line that an object takes; a longer one is printed an entry a line."""
_AROUND: Final = len("100 x ,")
"""Columns that a list takes around an object in it."""
MAX_VALUE: Final = 2000
"""Characters of one value that are printed."""

Entries: TypeAlias = list[tuple[Any, Any]]
_NO_LABEL, _NAME_LABEL, _KEY_LABEL = "", "{}=", "{!r}: "
"""The text before an entry: nothing, its name, or its key."""
_BRACKETS: Final = {_NO_LABEL: ("([", "])"), _NAME_LABEL: ("(", ")"), _KEY_LABEL: ("({", "})")}
Counts: TypeAlias = dict[str, tuple[int, int]]
"""Elements and bytes by kind of Variable."""


class Level(dict[Any, Any]):
    """One level of a State."""


_running: Final[set[tuple[int, int]]] = set()
"""The objects being printed, by thread: a ``__repr__`` of a user may come back to them."""


def object_repr(obj: object) -> str:
    """An object with its contents, on one line where that fits; shared objects and equal neighbours once."""
    key = (id(obj), threading.get_ident())
    if key in _running:
        return f"{type_name(type(obj))}(...)"
    _running.add(key)
    try:
        return _Printer(_Contents(obj)).expanded(obj, (), 0)
    finally:
        _running.discard(key)


def state_repr(tree: Level) -> str:
    """A State, given its levels."""
    return f"State({_Printer(_Contents(tree)).text(tree, (), 0)})"


def text_of(value: object) -> str:
    """Any value as text: containers of models and Variables too."""
    return _Printer(_Contents(value)).text(value, (), 0)


# --- values ---------------------------------------------------------------------


def value_text(value: Any) -> str:
    """The text of a value, a pytree of arrays included."""
    if isinstance(value, Tracer):
        return f"{type(value).__name__}({type_text(value)})"
    if isinstance(value, (jax.Array, np.ndarray, jax.Ref)):
        return array_text(value)
    if type(value) in OPENED:
        return text_of(value)
    if isinstance(value, enum.Enum) and value.name:  # no text of the user, and no number
        return enum.Enum.__str__(value)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else repr(value)


def _variable_text(variable: Any) -> str:
    """A Variable in an object: its shape; its kind and metadata where it is more than a Param."""
    kind, raw, metadata = type(variable), variable.raw_value, variable._metadata
    is_array = hasattr(raw, "shape") and hasattr(raw, "dtype")
    text = shape_text(raw) if is_array else value_text(raw)
    if is_array and not metadata and type_name(kind) == "Param":
        return text
    return f"{type_name(kind)}({', '.join([text, *(f'{key}={value_text(v)}' for key, v in metadata.items())])})"


# --- contents -------------------------------------------------------------------


def _is_variable(value: object) -> bool:
    """Whether a value prints as a Variable."""
    return hasattr(type(value), "raw_value")


def _is_expandable(value: object) -> bool:
    """Whether a value prints with entries that it gives itself."""
    return hasattr(type(value), "_pytree__fields_for_repr")


def _entries_of(value: Any) -> Entries | None:
    """The entries of an object that prints by them, or None."""
    if _is_expandable(value):
        return list(value._pytree__fields_for_repr())
    names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    if names is not None:
        return list(zip(names, value, strict=True))
    if isinstance(value, functools.partial):
        return [*enumerate((value.func, *value.args)), *value.keywords.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _has_own_repr(type(value)):
        return [
            (f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr and hasattr(value, f.name)
        ]
    return None


def _has_own_repr(cls: type) -> bool:
    """Whether a class has a ``__repr__`` other than that of expandables, Variables or dataclasses."""
    owner = next(c for c in cls.__mro__ if "__repr__" in c.__dict__)
    written: Any = owner.__dict__["__repr__"]
    generated = getattr(getattr(written, "__wrapped__", None), "__code__", None)  # dataclasses guard against cycles
    is_generated = "__dataclass_fields__" in owner.__dict__ and getattr(generated, "co_filename", "") == "<string>"
    return not is_generated and owner.__dict__.keys().isdisjoint({"_pytree__fields_for_repr", "raw_value"})


class _Contents:
    """The entries of every object in a value, and the arrays first found in each; without recursion."""

    def __init__(self, root: object) -> None:
        self.entries: dict[int, Entries] = {}
        self.counts: dict[int, Counts] = {}
        self._seen: dict[int, object] = {}  # keeps what it knows alive: ids of the dead are given again
        self._visit(root)

    def _visit(self, root: object) -> None:
        stack: list[tuple[Iterator[Any], Counts]] = [(iter((root,)), {})]
        while stack:
            children, counts = stack[-1]
            for child in children:
                inside = self._enter(child, counts)
                if inside is not None:
                    self.counts[id(child)] = {}
                    stack.append((inside, self.counts[id(child)]))
                    break
            else:
                stack.pop()
                if stack:
                    _add(stack[-1][1], counts)

    def _enter(self, value: Any, counts: Counts) -> Iterator[Any] | None:
        """The values inside of one that is met first; counts a Variable."""
        cls = value.__class__
        if cls in PLAIN or id(value) in self._seen:
            return None
        if _is_variable(value):
            self._seen[id(value)] = value
            _add(counts, {_counted_kind(type(value)): measure(value.raw_value)})
            return None
        entries = _entries_of(value)
        inside: Iterator[Any]
        if entries is not None:
            self.entries[id(value)] = entries
            inside = iter([item for _, item in entries])
        elif isinstance(value, (list, tuple)):
            inside = iter(value)
        elif isinstance(value, dict):
            inside = iter(value.values())
        else:
            return None
        self._seen[id(value)] = value
        return inside


def _add(counts: Counts, more: Counts) -> None:
    for kind, (size, nbytes) in more.items():
        known = counts.get(kind, (0, 0))
        counts[kind] = (known[0] + size, known[1] + nbytes)


def _counted_kind(kind: type) -> str:
    """The kind under which a Variable counts: the one right below Variable."""
    kinds = [c for c in kind.__mro__ if hasattr(c, "raw_value")]
    return type_name(kinds[-2] if len(kinds) > 1 else kinds[-1])


def _header(counts: Counts) -> str:
    found = {kind: amount for kind, amount in counts.items() if any(amount)}
    if len(found) > 1:
        sizes, nbytes = zip(*found.values(), strict=True)
        found["Total"] = (sum(sizes), sum(nbytes))
    parts = [f"{kind}: {amount_text(*amount)}" for kind, amount in found.items()]
    return f" # {', '.join(parts)}" if parts else ""


def _label_of(value: object, entries: Entries) -> str:
    """Whether the entries of an object read as a list, a dict or arguments."""
    keys = [key for key, _ in entries]
    if keys and all(isinstance(key, int) for key in keys):
        return _NO_LABEL
    is_dict = isinstance(value, Mapping) or not all(isinstance(key, str) and key.isidentifier() for key in keys)
    return _KEY_LABEL if is_dict else _NAME_LABEL


# --- printing -------------------------------------------------------------------


class _Printer:
    """One text, with the objects that it has printed and their paths."""

    def __init__(self, contents: _Contents) -> None:
        self._contents = contents
        self._printed: dict[int, Path] = {}
        self._open: set[int] = set()
        self._is_inside = False  # of an object, where Variables are short

    def text(self, value: Any, path: Path, depth: int, column: int = 0) -> str:
        """A value that starts in a column of a line that is indented by ``depth`` levels."""
        if value.__class__ in PLAIN:
            return _plain_text(value)
        if _is_variable(value) or _is_expandable(value):
            return self._once(value, path, depth, column)
        has_entries = id(value) in self._contents.entries
        if not has_entries and not isinstance(value, (list, tuple, dict)):
            return _plain_text(value).replace("\n", "\n" + " " * (2 * depth + column))
        if id(value) in self._open or depth > MAX_DEPTH:
            return f"{type_name(type(value))}(...)"
        self._open.add(id(value))
        try:
            return self._attributes(value, path, depth) if has_entries else self._container(value, path, depth)
        finally:
            self._open.discard(id(value))

    def _once(self, value: Any, path: Path, depth: int, column: int) -> str:
        name, has_own_repr = type_name(type(value)), _has_own_repr(type(value))
        if id(value) in self._printed:
            return f"{name}(shared with {_where(self._printed[id(value)])})"
        if depth > MAX_DEPTH:
            return f"{name}(...)"
        if depth and getattr(type(value), "_pytree__is_folded", False):
            self._printed[id(value)] = path
            return f"{name}({_header(self._contents.counts[id(value)]).removeprefix(' # ')})"
        if not _is_variable(value) and not has_own_repr:
            return self.expanded(value, path, depth, column)
        self._printed[id(value)] = path
        text = _variable_text(value) if self._is_inside and not has_own_repr else repr(value)
        return text.replace("\n", "\n" + "  " * depth)

    def expanded(self, value: object, path: Path, depth: int, column: int = 0) -> str:
        """An expandable with its entries."""
        self._printed[id(value)] = path
        name, entries = type_name(type(value)), self._contents.entries[id(value)]
        if not entries:
            return f"{name}()"
        label = _label_of(value, entries)
        opening, closing = _BRACKETS[label]
        outside, self._is_inside = self._is_inside, True
        parts = self._parts(entries, label, path, depth)
        self._is_inside = outside
        header = _header(self._contents.counts[id(value)])
        room = MAX_LINE - 2 * depth - column - (_AROUND if depth else 0)
        return _fitted(f"{name}{opening}", parts, closing, depth, room=room, header=header)

    def _parts(self, entries: Entries, label: str, path: Path, depth: int) -> list[str]:
        rows = ((self._entry(key, item, label, path, depth), item) for key, item in entries)
        counted = _folded(rows) if label == _NO_LABEL else ((text, 1) for text, _ in rows)
        parts, shown = [], 0
        for text, count in itertools.islice(counted, MAX_ELEMENTS):
            parts.append(text)
            shown += count
        if shown < len(entries):
            parts.append(f"... {len(entries) - shown:,} more")
        return parts

    def _entry(self, key: Any, item: Any, label: str, path: Path, depth: int) -> str:
        front = "" if label == _NAME_LABEL and isinstance(key, int) else label.format(key)
        return front + self.text(item, (*path, key), depth + 1, len(front))

    def _attributes(self, value: object, path: Path, depth: int) -> str:
        """A named tuple, a dataclass or a partial function."""
        parts = self._parts(self._contents.entries[id(value)], _NAME_LABEL, path, depth)
        return _fitted(f"{type_name(type(value))}(", parts, ")", depth)

    def _container(self, value: Any, path: Path, depth: int) -> str:
        cls = type(value)
        front, back = ("", "") if cls in (list, tuple, dict, Level) else (f"{type_name(cls)}(", ")")
        if isinstance(value, dict):
            parts = self._parts(list(value.items()), _KEY_LABEL, path, depth)
            lay_out = _stacked if cls is Level and value else _fitted
            return lay_out(f"{front}{{", parts, f"}}{back}", depth)
        parts = self._parts(list(enumerate(value)), _NO_LABEL, path, depth)
        if isinstance(value, list):
            return _fitted(f"{front}[", parts, f"]{back}", depth)
        if len(value) == 1:
            parts = [f"{parts[0]},"]
        return _fitted(f"{front}(", parts, f"){back}", depth)


def _stacked(opening: str, parts: list[str], closing: str, depth: int) -> str:
    """A part a line."""
    inner = "\n" + "  " * (depth + 1)
    return f"{opening}{inner}{f',{inner}'.join(parts)}\n{'  ' * depth}{closing}"


def _fitted(
    opening: str, parts: list[str], closing: str, depth: int, *, room: int = MAX_CONTAINER, header: str = ""
) -> str:
    """All on one line where that fits, and a part a line otherwise."""
    line = f"{opening}{', '.join(parts)}{closing}"
    if not parts or (len(line) <= room and "\n" not in line):
        return line
    return _stacked(f"{opening}{header}", parts, closing, depth)


def _folded(rows: Iterable[tuple[str, object]]) -> Iterator[tuple[str, int]]:
    """The texts of items and for how many each stands: equal neighbours have one; plain values have one each."""
    for (text, is_object), group in itertools.groupby((text, _is_expandable(item)) for text, item in rows):
        count = sum(1 for _ in group)
        if is_object and count > 1:
            yield f"{count} x {text}", count
        else:
            yield from itertools.repeat((text, 1), count)


def _where(path: Path) -> str:
    text = format_path(path)
    return "the root" if not path else text if text.startswith("[") else f".{text}"


def _plain_text(value: Any) -> str:
    return shortened(value_text(value), MAX_VALUE)


# --- notebooks ----------------------------------------------------------------


def treescope_repr(obj: Any, path: str | None, subtree_renderer: Any) -> Any:
    """The rendering of an expandable, a Variable or a State in treescope, with the arguments of treescope."""
    lib: Any = importlib.import_module("treescope.repr_lib")
    options: dict[str, Any] = {"object_type": type(obj), "path": path, "subtree_renderer": subtree_renderer}
    if _is_variable(obj):
        return lib.render_object_constructor(attributes={"value": obj.raw_value, **obj._metadata}, **options)
    if not _is_expandable(obj):
        return lib.render_dictionary_wrapper(wrapped_dict=obj.raw_mapping, **options)
    entries = list(obj._pytree__fields_for_repr())
    label = _label_of(obj, entries)
    if label == _NO_LABEL:
        return lib.render_list_wrapper(wrapped_sequence=[item for _, item in entries], **options)
    if label == _KEY_LABEL:
        return lib.render_dictionary_wrapper(wrapped_dict=dict(entries), **options)
    return lib.render_object_constructor(attributes=dict(entries), **options)


def display(*objects: object) -> None:
    """Shows models, Variables, States, or containers of them.

    In a notebook with treescope installed the result folds and draws arrays;
    elsewhere it is the text that ``repr`` gives, on standard output.

    Args:
      *objects: what to show, one after the other.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> dx.display({"scale": dx.Param(jnp.ones(2))})
    {
      'scale': Param( # 2 (8 B)
        value=Array([1., 1.], dtype=float32)
      )
    }
    """
    if is_notebook() and find_spec("treescope") is not None:
        for obj in objects:
            importlib.import_module("treescope").display(obj)
    else:
        for obj in objects:
            sys.stdout.write(f"{text_of(obj)}\n")


def is_notebook() -> bool:
    """Whether Python runs in a kernel that shows HTML; an IPython in a terminal shows text."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
