"""Models, Variables and States as text: nested, with counts and bytes.

Vocabulary
----------
header: the comment behind an opening bracket that counts what is inside.
entry:  a name and a value of an object, as its class gives them.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from declax._value_text import bytes_text, value_text
from declax.errors import MissingExtraError, format_path, type_name

MAX_DEPTH = 64
MAX_ELEMENTS = 100


@runtime_checkable
class Expandable(Protocol):
    """An object that prints with its entries."""

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]: ...


def object_repr(obj: Any) -> str:
    """An object with all that is inside, a line for each entry.

    What occurs more than once is printed once.
    """
    return _Printer().expand(obj, ())


def state_repr(state: Mapping[Any, Any]) -> str:
    """A State as a nested dict.

    >>> from declax.state import State
    >>> print(State({"a": {"b": 1}}))
    State({
      'a': {
        'b': 1
      }
    })
    """
    return f"State({_Printer().mapping(state, (), 0)})"


def same_value(a: Any, b: Any) -> bool:
    """Whether two leaves are equal: arrays of one shape and dtype, element by element."""
    if isinstance(a, (jax.Array, np.ndarray)) or isinstance(b, (jax.Array, np.ndarray)):
        same_kind = np.shape(a) == np.shape(b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        return same_kind and bool(jax.numpy.all(a == b))
    return bool(a == b)


class _Printer:
    """One text; remembers what it has printed."""

    def __init__(self) -> None:
        self._printed: dict[int, tuple[Any, ...]] = {}

    def text(self, value: Any, path: tuple[Any, ...], depth: int) -> str:
        """A value at a depth."""
        if _is_variable(value) or isinstance(value, Expandable):
            return self._once(value, path, depth)
        if isinstance(value, (list, tuple)) and any(_is_nested(v) for v in value):
            return self._sequence(value, path, depth)
        if isinstance(value, dict) and any(_is_nested(v) for v in value.values()):
            return self.mapping(value, path, depth)
        return _plain_text(value)

    def _once(self, value: Any, path: tuple[Any, ...], depth: int) -> str:
        if id(value) in self._printed:
            first = format_path(self._printed[id(value)])
            return f"{type_name(type(value))}(...)  # the same as {'the root' if first == '()' else first}"
        if depth > MAX_DEPTH:
            return f"{type_name(type(value))}(...)"
        if _is_variable(value):
            self._printed[id(value)] = path
            return _indented(repr(value), depth)
        return self.expand(value, path, depth)

    def expand(self, value: Any, path: tuple[Any, ...], depth: int = 0) -> str:
        """An object with its entries."""
        self._printed[id(value)] = path
        entries = list(value._pytree__fields_for_repr())
        name = type_name(type(value))
        header = count_header(value)
        is_list = all(isinstance(key, int) for key, _ in entries)
        if not entries:
            return f"{name}()"
        lines = []
        for key, item in entries[:MAX_ELEMENTS]:
            text = self.text(item, (*path, key), depth + 1)
            lines.append(text if is_list else f"{key}={text}")
        if len(entries) > MAX_ELEMENTS:
            lines.append(f"...  # {len(entries) - MAX_ELEMENTS} more")
        opening, closing = ("([", "])") if is_list else ("(", ")")
        return _bracket(f"{name}{opening}{header}", lines, closing, depth)

    def mapping(self, value: Mapping[Any, Any], path: tuple[Any, ...], depth: int) -> str:
        """A mapping with an entry a line."""
        lines = []
        for key in value:
            item = value[key]
            nested = isinstance(item, Mapping) and not isinstance(item, Expandable)
            text = self.mapping(item, (*path, key), depth + 1) if nested else self.text(item, (*path, key), depth + 1)
            lines.append(f"{key!r}: {text}")
        return _bracket("{", lines, "}", depth) if lines else "{}"

    def _sequence(self, value: Any, path: tuple[Any, ...], depth: int) -> str:
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        lines = [self.text(item, (*path, i), depth + 1) for i, item in enumerate(value[:MAX_ELEMENTS])]
        if len(value) > MAX_ELEMENTS:
            lines.append(f"...  # {len(value) - MAX_ELEMENTS} more")
        return _bracket(opening, lines, closing, depth)


def _bracket(opening: str, lines: list[str], closing: str, depth: int) -> str:
    inner = "  " * (depth + 1)
    body = ",\n".join(f"{inner}{line}" for line in lines)
    return f"{opening}\n{body}\n{'  ' * depth}{closing}"


def _indented(text: str, depth: int) -> str:
    first, *rest = text.splitlines()
    return "\n".join([first, *("  " * depth + line for line in rest)])


def _is_variable(value: Any) -> bool:
    return hasattr(type(value), "raw_value")


def _is_nested(value: Any) -> bool:
    return _is_variable(value) or isinstance(value, (Expandable, list, tuple, dict, jax.Array, np.ndarray))


def _plain_text(value: Any) -> str:
    if isinstance(value, functools.partial):
        return repr(value) if len(repr(value)) < 100 else f"partial({_plain_text(value.func)}, ...)"
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, type):
        return value.__name__
    if callable(value) and hasattr(value, "__qualname__"):
        return f"<function {value.__name__}>"
    return value_text(value)


# --- counts -------------------------------------------------------------------


def count_header(value: Any) -> str:
    """The comment that counts the arrays of all Variables inside, by kind.

    >>> from declax._pytree import Pytree
    >>> count_header(Pytree())
    ''
    """
    counts: dict[str, list[int]] = {}
    for variable in _variables(value, set()):
        size, nbytes = _measure(variable.raw_value)
        total = counts.setdefault(_counted_kind(type(variable)), [0, 0])
        total[0] += size
        total[1] += nbytes
    if not counts:
        return ""
    parts = [f"{kind}: {n:,} ({bytes_text(b)})" for kind, (n, b) in counts.items()]
    if len(counts) > 1:
        n, b = (sum(total[i] for total in counts.values()) for i in (0, 1))
        parts.append(f"Total: {n:,} ({bytes_text(b)})")
    return " # " + ", ".join(parts)


def _counted_kind(kind: type) -> str:
    """The kind under which a Variable counts: the one right below Variable."""
    mro = [c for c in kind.__mro__ if hasattr(c, "raw_value") and c.__name__ != "Variable"]
    return type_name(mro[-1]) if mro else "Variable"


def _variables(value: Any, seen: set[int]) -> Iterator[Any]:
    if _is_variable(value):
        if id(value) not in seen:
            seen.add(id(value))
            yield value
    elif isinstance(value, Expandable):
        if id(value) not in seen:
            seen.add(id(value))
            for _, item in value._pytree__fields_for_repr():
                yield from _variables(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _variables(item, seen)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _variables(item, seen)


def _measure(raw_value: Any) -> tuple[int, int]:
    size = nbytes = 0
    for leaf in jax.tree.leaves(raw_value):
        count = int(np.prod(np.shape(leaf)))
        size += count
        nbytes += count * getattr(getattr(leaf, "dtype", None), "itemsize", 0)
    return size, nbytes


# --- treescope ----------------------------------------------------------------


def treescope_repr(obj: Any, path: str | None, subtree_renderer: Any) -> Any:
    """What treescope shows of an object.

    Raises:
      MissingExtraError: where treescope is not installed.
    """
    try:
        repr_lib = importlib.import_module("treescope.repr_lib")
    except ImportError:
        raise MissingExtraError(
            type_name(type(obj)),
            "rendering by treescope needs treescope, which is not installed",
            fix='pip install "declax[treescope]"',
        ) from None
    if isinstance(obj, Mapping):
        return repr_lib.render_dictionary_wrapper(
            object_type=type(obj), wrapped_dict=dict(obj), path=path, subtree_renderer=subtree_renderer
        )
    entries = {str(name): value for name, value in obj._pytree__fields_for_repr()}
    return repr_lib.render_object_constructor(
        object_type=type(obj), attributes=entries, path=path, subtree_renderer=subtree_renderer
    )
