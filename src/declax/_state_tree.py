"""A State as JAX sees it: nested dicts with a Variable over each value.

The Variables here are *light*: snapshots that cannot be changed, and that JAX
takes apart without calling Python. They count as Variables of their kind:
``isinstance(light, Param)`` holds, and ``light.__class__`` is `Param`.

Vocabulary
----------
light:    such a Variable. Its type is a subclass of its kind, made for that purpose.
children: what is at each of the outermost keys of a State: nested dicts, lights and other values.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, call, is_, itemgetter
from typing import Any, Final, NamedTuple
from weakref import ref

import jax
from jax.tree_util import GetAttrKey

from declax._flat_state import pair_of
from declax._metadata import Metadata
from declax._read_only import ReadOnly
from declax._state_def import StateDef, are_sortable
from declax._typing import Key, Path
from declax._variables import Variable, _set_metadata, fill_raw
from declax.errors import MAX_DEPTH

_new: Final = object.__new__
_SNAPSHOT: Final = ReadOnly(
    "what JAX sees of a State",
    why="it is a snapshot: neither the State nor a model would see the change",
    fix="state[key] = value, or variable.copy() for a Variable that can be changed",
)


class ValueKey(GetAttrKey):  # type: ignore[misc]  # a class of jaxlib, which has no types
    """The last key of a Variable's value in a State; equal to JAX's key of an attribute `value`."""


_VALUE: Final = ValueKey("value")


# --- light Variables ------------------------------------------------------------


class LightVariable:
    """Comes before their kind among the bases of lights."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nothing that a kind does for its subclasses."""


class Light(NamedTuple):
    """How lights of a kind are made.

    Attributes:
      cls: their type.
      fill: puts what JAX asks for into a new one: ``((value,), metadata)``.
    """

    cls: type[Any]
    fill: Callable[[Any, tuple[tuple[Any], Metadata]], None]


_lights: Final[dict[type[Variable[Any]], Light]] = {}


def _light_of(kind: type[Variable[Any]]) -> Light:
    """How lights of a kind are made."""
    found = _lights.get(kind)
    return _lights.setdefault(kind, _make_light(kind)) if found is None else found


def _make_light(kind: type[Variable[Any]]) -> Light:
    content = {
        "__slots__": ("_flat",),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__class__": property(lambda light: kind),
        "_trace": _SNAPSHOT,
    }
    make: Any = type(kind)
    cls = make(kind.__name__, (LightVariable, kind), content)
    light = Light(cls, cls.__dict__["_flat"].__set__)

    def unflatten(metadata: Metadata, children: Any) -> Any:
        return _new_light(light, children, metadata)

    def flatten_with_keys(variable: Any) -> tuple[tuple[tuple[Any, Any]], Metadata]:
        (value,), metadata = variable._flat
        return ((_VALUE, value),), metadata

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, attrgetter("_flat"))
    return light


def _new_light(light: Light, children: tuple[Any], metadata: Metadata) -> Any:
    made = _new(light.cls)
    light.fill(made, (children, metadata))
    fill_raw(made, children[0])
    _set_metadata(made, metadata)
    return made


# --- how a State is nested --------------------------------------------------------


class OuterKeys(tuple[Key, ...]):
    """The outermost keys of a State, as its treedef has them: equal for equal keys, whatever lies below.

    Attributes:
      definition: a reference to the definition that a State with these keys is likely to have.
      are_paths: whether each is a whole path, since JAX cannot take apart what is nested as deeply.
    """

    definition: ref[StateDef]
    are_paths: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


class Nesting(NamedTuple):
    """How JAX sees the States of one definition.

    Attributes:
      keys: the outermost ones, in JAX's order.
      tree: a PyTreeDef of nested dicts, whose leaves are those of the State.
      types: of the light of each leaf, in the State's order; None where not all leaves are of Variables.
      fills: what fills each light; see `Light`.
    """

    keys: OuterKeys
    tree: Any
    types: list[type[Any]] | None
    fills: list[Callable[[Any, tuple[tuple[Any], Metadata]], None]]


def _nesting_of(definition: StateDef) -> Nesting:
    """How JAX sees States of a definition; found at first use."""
    found: Nesting | None = definition.nesting
    if found is None:
        is_deep = max(map(len, definition.paths), default=0) > MAX_DEPTH
        nested = OrderedDict(_by_path(definition)) if is_deep else _sortable(definition.tree)
        tree = jax.tree_util.tree_structure(nested)
        keys = OuterKeys(nested if isinstance(nested, OrderedDict) else sorted(nested))
        keys.definition, keys.are_paths = ref(definition), is_deep
        columns = definition.columns
        lights = [] if columns is None else list(map(_light_of, columns[0]))
        types = None if columns is None else [light.cls for light in lights]
        found = definition.nesting = Nesting(keys, tree, types, [light.fill for light in lights])
    return found


def _by_path(definition: StateDef) -> Iterator[tuple[Path, int]]:
    order = range(len(definition.paths)) if definition.order is None else definition.order
    return ((definition.paths[position], position) for position in order)


def _sortable(tree: Any) -> Any:
    """Nested dicts that JAX can take apart: it sorts their keys, except for those of an OrderedDict."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _sortable(below) for key, below in tree.items()}
    return made if are_sortable(made) else OrderedDict(made)


Children = tuple[tuple[Any, ...], OuterKeys]
"""What is at each outermost key, and the keys."""


def children_of(definition: StateDef, leaves: Sequence[Any]) -> Children:
    """What JAX sees of a State."""
    nesting = _nesting_of(definition)
    shown = _shown(definition, nesting, leaves)
    if definition.order is not None:
        shown = [shown[i] for i in definition.order]
    nested = nesting.tree.unflatten(shown)
    return tuple(map(nested.__getitem__, nesting.keys)), nesting.keys


def _shown(definition: StateDef, nesting: Nesting, leaves: Sequence[Any]) -> list[Any]:
    """A light for each leaf that is a Variable's, and the other leaves as they are."""
    if nesting.types is None:
        pairs = zip(definition.leaf_defs, leaves, strict=True)
        return [leaf if kind is None else _new_light(_light_of(kind[0]), (leaf,), kind[1]) for kind, leaf in pairs]
    assert definition.columns is not None  # as for `types`
    metadata = definition.columns[1]
    shown: list[Any] = list(map(_new, nesting.types))  # without a frame of Python for each
    deque(map(call, nesting.fills, shown, zip(zip(leaves), metadata)), 0)  # noqa: B905  # quicker
    deque(map(fill_raw, shown, leaves), 0)
    deque(map(_set_metadata, shown, metadata), 0)
    return shown


_flat_of = attrgetter("_flat")


def pair_from(keys: OuterKeys, children: Sequence[Any]) -> tuple[StateDef, list[Any], bool] | None:
    """The definition and the leaves of the State that JAX makes anew.

    Args:
      keys: as `children_of` gave them.
      children: what is at each of them now.

    Returns:
      None where the paths are others than before; otherwise also whether the
      children are what JAX would see of the State.
    """
    definition = keys.definition()
    found = None if definition is None else _found(definition, dict(zip(keys, children, strict=True)))
    if definition is None or found is None:
        return None
    leaves = _leaves_of_lights(definition, found)
    if leaves is not None:
        return definition, leaves, True
    pair = pair_of(definition, found)
    return None if pair is None else (*pair, False)


def _found(definition: StateDef, nested: dict[Any, Any]) -> list[Any] | None:
    nesting = _nesting_of(definition)
    try:
        found: list[Any] = nesting.tree.flatten_up_to(nested)
    except ValueError:
        return None
    return found if definition.order is None else in_state_order(definition.order, found)


def in_state_order(order: Sequence[int], found: Iterable[Any]) -> list[Any]:
    """Leaves in the order of a State, from those in JAX's order."""
    by_position = dict(zip(order, found, strict=True))
    return [by_position[i] for i in range(len(order))]


def _leaves_of_lights(definition: StateDef, found: list[Any]) -> list[Any] | None:
    """The values in lights, if these have the kinds and the metadata of a definition."""
    types = _nesting_of(definition).types
    if types is None or definition.columns is None or list(map(type, found)) != types:
        return None
    flat = list(map(_flat_of, found))
    if not all(map(is_, map(itemgetter(1), flat), definition.columns[1])):
        return None
    return [value for (value,), _ in flat]
