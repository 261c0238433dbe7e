"""Variables that show the leaves of a State: a write to one writes to the State."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from declax import _jax
from declax._state.definition import (
    Entry,
    LeafDef,
    StateDef,
    check_trace,
    empty_after,
    leaf_def_of,
    raw_of,
    sorted_pair,
)
from declax._tree.read_only import WritesThrough
from declax._typing import Path
from declax._variables.variable import Variable, _set_trace, new_variable
from declax.errors import DeclaxError, LayerError, format_path

_trace_state: Final = _jax.trace_state


class Root(Protocol):
    """The State at the root of views."""

    _trace: Any

    def _put(self, path: Path, leaf: Any, leaf_def: LeafDef, /) -> None: ...


R = TypeVar("R", bound=Root)


class View(WritesThrough, Generic[R]):
    """The place of a nested State in its root, and the token of a Variable that writes a leaf of the root."""

    __slots__ = ("path", "root")

    def __init__(self, root: R, path: Path) -> None:
        self.root = root
        self.path = path

    @property
    def trace(self) -> Any:
        """The token of the trace of the State."""
        return self.root._trace

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Applies a method of the Variable to the leaf of the State."""
        check_trace(self.root._trace, self.path, variable)
        written = new_variable(variable.__class__, variable.raw_value, variable._metadata, _trace_state.value)
        getattr(written, method)(*args, **options)
        self.publish(written)

    def publish(self, variable: Any) -> None:
        """Writes the content of a Variable to the leaf of the State."""
        self.root._put(self.path, variable.raw_value, (variable.__class__, variable._metadata))

    def refusal(self, where: str) -> DeclaxError:
        """The error of a change that only an independent Variable allows."""
        return LayerError(
            where,
            f"this shows {format_path(self.path)} of a State, which would not see the change",
            fix="variable.copy()      # an independent Variable, for the model",
        )


class Live:
    """The place of a State of `variables`: it shows the Variables of a model, and its other leaves."""

    __slots__ = ("definition", "values")

    def __init__(self, definition: StateDef, values: list[Any]) -> None:
        self.definition = definition
        self.values = values

    def pair(self) -> tuple[StateDef, list[Any]]:
        """The definition and the leaves as they are now."""
        leaf_defs = tuple(map(leaf_def_of, self.values))
        if leaf_defs != self.definition.leaf_defs:  # metadata has changed
            self.definition = StateDef.of(self.definition.paths, leaf_defs, self.definition.empty)
        return self.definition, list(map(raw_of, self.values))

    def replace(self, path: Path, entries: list[Entry], emptied: Path = ()) -> None:
        """Shows other leaves at a path and below it; the model keeps its Variables."""
        known = dict(zip(self.definition.paths, self.values, strict=True))
        new = {
            place: leaf if kind is None else new_variable(kind[0], leaf, kind[1], _trace_state.value)
            for place, leaf, kind in entries
        }
        shown = {place: value for place, value in known.items() if place in new or place[: len(path)] != path} | new
        pairs = [(place, value, leaf_def_of(value)) for place, value in shown.items()]
        empty = empty_after(self.definition, path, emptied, shown)
        self.definition, self.values = sorted_pair(pairs, is_sorted=new.keys() <= known.keys(), empty=empty)


class Kept:
    """The cache of a State: the children that JAX last saw of a pair, and views by path."""

    __slots__ = ("_views", "shown")

    def __init__(self) -> None:
        self.shown: tuple[Any, Any] = None, None
        self._views: dict[Path, ref[Variable[Any]]] = {}

    def view(self, path: Path) -> Variable[Any] | None:
        """The Variable that shows a leaf, if one is in use."""
        found = self._views.get(path)
        return None if found is None else found()

    def add_view(self, root: Root, path: Path, made: Variable[Any]) -> Variable[Any]:
        """The Variable in use, or else one that was made of the leaf, which becomes a view."""
        _set_trace(made, View(root, path))
        own = ref(made)
        view = self._views.setdefault(path, own)()
        if view is None:  # it is gone
            self._views[path], view = own, made
        return view

    def take_views(self, path: Path) -> Iterator[Variable[Any]]:
        """Removes the views at a path and below it."""
        for known in [known for known in tuple(self._views) if known[: len(path)] == path]:
            view = self.view(known)
            self._views.pop(known, None)
            if view is not None:
                yield view
