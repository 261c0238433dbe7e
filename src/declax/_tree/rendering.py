"""Values, models and States as text: short, nested, with counts and bytes; no large array is fetched."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import itertools
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from declax._typing import Path
from declax.errors import format_path, type_name

SMALL: Final = 10
"""The most elements that an array may have to be printed in full."""
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
Counts: TypeAlias = dict[str, tuple[int, int]]
"""Elements and bytes by kind of Variable."""


class Level(dict[Any, Any]):
    """One level of a State."""


_PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, type(None), type})
_OPENED: Final = frozenset({list, tuple, dict})
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


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal: pytrees of one structure, whose arrays are equal element by element."""
    if a is b:
        return True
    flattened: Any = map(jax.tree.flatten, (a, b))
    (leaves, tree), (others, other_tree) = flattened
    return bool(tree == other_tree) and all(map(_same_leaf, leaves, others))


def _same_leaf(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (jax.Array, np.ndarray)) or isinstance(b, (jax.Array, np.ndarray)):
        same_kind = np.shape(a) == np.shape(b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        return same_kind and bool(jax.numpy.all(a == b))
    return bool(a == b)


# --- values ---------------------------------------------------------------------


def value_text(value: Any) -> str:
    """The text of a value, a pytree of arrays included."""
    if isinstance(value, Tracer):
        return f"{type(value).__name__}({value.dtype}[{','.join(map(str, value.shape))}])"
    if isinstance(value, jax.Array):
        return _array_text(value)
    if isinstance(value, np.ndarray):
        return repr(value) if value.size <= SMALL else f"ndarray(shape={value.shape}, dtype={value.dtype!r})"
    if isinstance(value, jax.Ref):
        return repr(value) if value.size <= SMALL else f"Ref(shape={value.shape}, dtype={value.dtype!r})"
    if type(value) in _OPENED:
        return text_of(value)
    if isinstance(value, enum.Enum) and value.name:  # no text of the user, and no number
        return enum.Enum.__str__(value)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else repr(value)


def _array_text(array: jax.Array) -> str:
    shape = f"shape={array.shape}, dtype={array.dtype!r}"
    if array.is_deleted():
        return f"Array({shape}, deleted)"
    if array.size > SMALL or not array.is_fully_addressable:
        return f"Array({shape})"
    return repr(array)


def shapes_text(tree: Any) -> str:
    """The shapes of a tree of arrays, as ``f32[2,3]``."""
    return ", ".join(map(shape_text, jax.tree.leaves(tree))) or repr(tree)


def shape_text(leaf: Any) -> str:
    """The shape of an array as ``f32[2,3]``, the name of a class, or any other value."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{dtype_text(leaf.dtype)}[{','.join(map(str, leaf.shape))}]"
    return f"{type_name(leaf)}(...)" if isinstance(leaf, type) else repr(leaf)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype as JAX abbreviates it: ``f32``, ``bf16``, ``u8``, ``bool``."""
    text = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if text.startswith(long):
            return short + text.removeprefix(long)
    return text


def scalar_text(value: Any) -> str:
    """A scalar array that can be read as its number, any other by its shape."""
    is_read = isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_fully_addressable
    return str(value) if is_read and value.ndim == 0 and not value.is_deleted() else shape_text(value)


def _variable_text(variable: Any) -> str:
    """A Variable in an object: its shape; its kind and metadata where it is more than a Param."""
    kind, raw, metadata = type(variable), variable.raw_value, variable._metadata
    is_array = hasattr(raw, "shape") and hasattr(raw, "dtype")
    text = shape_text(raw) if is_array else value_text(raw)
    if is_array and not metadata and type_name(kind) == "Param":
        return text
    return f"{type_name(kind)}({', '.join([text, *(f'{key}={value_text(v)}' for key, v in metadata.items())])})"


def size_comment(value: Any) -> str:
    """The number of elements and of bytes of all arrays in a value, or nothing."""
    if next(arrays_in(value), None) is None:
        return ""
    count, size = _measure(value)
    return f" # {count:,} ({bytes_text(size)})"


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in a value; lists, tuples and dicts are opened without recursion, also if they contain themselves."""
    stack: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    around = {0}
    while stack:
        owner, items = stack[-1]
        for item in items:
            if type(item) in _OPENED:
                if id(item) not in around:
                    around.add(id(item))
                    stack.append((id(item), iter(item.values() if type(item) is dict else item)))
                    break
            elif hasattr(item, "shape") and hasattr(item, "dtype"):
                yield item
            elif type(item) not in _PLAIN:
                yield from (leaf for leaf in jax.tree.leaves(item) if hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
        else:
            stack.pop()
            around.discard(owner)


def bytes_text(size: int) -> str:
    """A number of bytes, with a unit of thousands."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"


# --- contents -------------------------------------------------------------------


def _is_variable(value: object) -> bool:
    return hasattr(type(value), "raw_value")


def _is_expandable(value: object) -> bool:
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
        if cls in _PLAIN or id(value) in self._seen:
            return None
        if _is_variable(value):
            self._seen[id(value)] = value
            _add(counts, {_counted_kind(type(value)): _measure(value.raw_value)})
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


def _measure(raw_value: Any) -> tuple[int, int]:
    size = nbytes = 0
    for array in arrays_in(raw_value):
        count = math.prod(array.shape)
        size += count
        nbytes += count * getattr(array.dtype, "itemsize", 0)
    return size, nbytes


def _header(counts: Counts) -> str:
    found = {kind: amount for kind, amount in counts.items() if any(amount)}
    if len(found) > 1:
        sizes, nbytes = zip(*found.values(), strict=True)
        found["Total"] = (sum(sizes), sum(nbytes))
    parts = [f"{kind}: {size:,} ({bytes_text(nbytes)})" for kind, (size, nbytes) in found.items()]
    return f" # {', '.join(parts)}" if parts else ""


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
        if value.__class__ in _PLAIN:
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
        keys = [key for key, _ in entries]
        if all(isinstance(key, int) for key in keys):
            opening, closing, label = "([", "])", _NO_LABEL
        elif isinstance(value, Mapping) or not all(isinstance(key, str) and key.isidentifier() for key in keys):
            opening, closing, label = "({", "})", _KEY_LABEL
        else:
            opening, closing, label = "(", ")", _NAME_LABEL
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
    text = value_text(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def treescope_repr(obj: Any, path: str | None, subtree_renderer: Any) -> Any:
    """The rendering of an expandable, a Variable or a State in treescope, with the arguments of treescope."""
    lib: Any = importlib.import_module("treescope.repr_lib")
    options: dict[str, Any] = {"object_type": type(obj), "path": path, "subtree_renderer": subtree_renderer}
    if _is_variable(obj):
        return lib.render_object_constructor(attributes={"value": obj.raw_value, **obj._metadata}, **options)
    if not _is_expandable(obj):
        return lib.render_dictionary_wrapper(wrapped_dict=obj.raw_mapping, **options)
    entries = list(obj._pytree__fields_for_repr())
    if entries and all(isinstance(key, int) for key, _ in entries):
        return lib.render_list_wrapper(wrapped_sequence=[item for _, item in entries], **options)
    if isinstance(obj, Mapping) or not all(isinstance(key, str) for key, _ in entries):
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
    if _is_notebook() and find_spec("treescope") is not None:
        for obj in objects:
            importlib.import_module("treescope").display(obj)
    else:
        for obj in objects:
            sys.stdout.write(f"{text_of(obj)}\n")


def _is_notebook() -> bool:
    """Whether Python runs in a kernel that shows HTML; an IPython in a terminal shows text."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
