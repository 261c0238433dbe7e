"""Variables in nested mappings by the paths of a State, as parts of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

import jax
from typing_extensions import TypeVar

from declax import _jax, errors
from declax._classes.pytree import Pytree, layout_of
from declax._fields.specifiers import Status
from declax._filters import Filter
from declax._graph.api import state, variables
from declax._graph.updating import update
from declax._state.states import FlatState, ReplaceFn, State, filter_state, split_state
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.layout import BOUND_KEY, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._typing import Path

M_co = TypeVar("M_co", covariant=True, default=Any)


def _make_key(name: Name) -> Any:
    return jax.tree_util.DictKey(name) if isinstance(name, str) else jax.tree_util.SequenceKey(name)


class Branch(Pytree, Mapping[Name, Any], Generic[M_co]):
    """One level of what mirrors the parameters of a model: by ``[key]`` and by ``.name``.

    Unlike a dict it reports changes, so that a jitted call need not look into it.
    """

    _pytree__make_key: ClassVar[Any] = staticmethod(_make_key)
    _pytree__is_folded: ClassVar[bool] = True
    """In the text of an optimizer it shows its size only."""

    def __init__(self, children: Mapping[Name, Any]) -> None:
        attributes: dict[Any, Any] = vars(self)
        attributes.update(children)
        attributes[LAYOUT_KEY] = Layout.of(Branch, dict.fromkeys(children, Status.DATA))
        if _jax.trace_state.value is not _jax.TOP:
            attributes[TRACE_KEY] = _jax.trace_state.value

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, key: Name) -> Any:
        attributes: dict[Any, Any] = vars(self)
        if key not in layout_of(self).statuses:
            hint = errors.suggest(str(key), map(str, self))
            raise errors.MissingKeyError(f"Branch[{key!r}]", f"there is no key {key!r}", fix=hint)
        return attributes[key]

    def __setitem__(self, key: Name, value: Any) -> None:
        self[key]  # raises if it is unknown
        attributes: dict[Any, Any] = vars(self)
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, key)
        attributes[key] = value
        if BOUND_KEY in attributes:
            epoch.advance()

    def _variables(self) -> State[M_co]:
        found: State[Any] = variables(self)  # its paths are those of the model
        return found

    @property
    def as_model(self) -> M_co:
        """As `State.as_model`."""
        return cast("M_co", self)

    # The methods of a State that programs use, which has this place in NNX.

    def flat_state(self) -> FlatState:
        """As `State.flat_state`, of the Variables themselves."""
        return self._variables().flat_state()

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
        """As `State.to_pure_dict`."""
        return self._variables().to_pure_dict(extract_fn)

    def map(self, f: Callable[[Path, Any], Any]) -> State[M_co]:
        """As `State.map`."""
        return self._variables().map(f)

    split = split_state
    filter = filter_state

    def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[State[M_co], ...]:
        """As of a State, of the Variables themselves."""
        return self._variables()._parts(filters, where, is_exhaustive=is_exhaustive)

    def replace_by_pure_dict(self, pure_dict: Mapping[Any, Any], replace_fn: ReplaceFn | None = None) -> None:
        """As `State.replace_by_pure_dict`; sets the values of the Variables."""
        replaced = state(self)
        replaced.replace_by_pure_dict(pure_dict, replace_fn)
        update(self, replaced)

    def __iter__(self) -> Iterator[Name]:
        return iter(layout_of(self).statuses)

    def __len__(self) -> int:
        return len(layout_of(self).statuses)

    __hash__ = Pytree.__hash__  # pyright: ignore[reportAssignmentType]  # a Mapping has none

    def __eq__(self, other: object, /) -> bool:
        return Pytree.__eq__(self, other)

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return self.items()


def branches_of(paths: Iterable[Path], values: Iterable[Any]) -> Any:
    """Branches with these values; the value itself where the path is empty."""
    root: dict[Name, Any] = {}
    for path, value in zip(paths, values, strict=True):
        if not path:  # the State of one Variable
            return value
        level = root
        for key in path[:-1]:
            level = level.setdefault(_name_of(key), _Level())
        level[_name_of(path[-1])] = value
    return _closed(root)


def find(branches: Any, path: Path) -> Any:
    """The value at a path of `branches_of`."""
    for key in path:
        branches = branches[_name_of(key)]
    return branches


class _Level(dict[Name, Any]):
    """One level, before it is a Branch."""


def _closed(level: dict[Name, Any]) -> Branch[Any]:
    return Branch({name: _closed(child) if isinstance(child, _Level) else child for name, child in level.items()})


def _name_of(key: Hashable) -> Name:
    return key if isinstance(key, str) or type(key) is int else f"[{key!r}]"
