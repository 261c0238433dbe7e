"""How JAX sees a State: as nested dicts with a Variable over each value.

These Variables are *light*: read-only snapshots, which JAX takes apart without calling Python. They count as Variables
of their kind: ``isinstance(light, Param)`` holds, and ``light.__class__`` is `Param`.
"""

from __future__ import annotations

import copyreg
import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any, Final, NamedTuple
from weakref import ref

import jax
from jax.tree_util import DictKey, GetAttrKey

from declax._state.definition import StateDef, are_sortable, pair_of
from declax._tree.read_only import ReadOnly
from declax._typing import Key
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, _set_metadata, fill_raw
from declax.errors import MAX_DEPTH

_new: Final = object.__new__
_call: Any = operator.call  # its type takes no functions of several types

_SNAPSHOT: Final = ReadOnly(
    "what JAX sees of a State",
    why="it is a snapshot: neither the State nor a model would see the change",
    fix="state[key] = value, or variable.copy() for a Variable that can be changed",
)
_VALUE: Final = GetAttrKey("value")

# --- light Variables ------------------------------------------------------------


class LightVariable:
    """Comes before their kind among the bases of lights."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Nothing that a kind does for its subclasses."""


class Light(NamedTuple):
    """How lights of a kind are made; `fill` puts what JAX asks for into a new one: ``((value,), metadata)``."""

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
    metaclass: Any = type(kind)
    cls = _type_of_lights(metaclass)(kind.__name__, (LightVariable, kind), content)
    light = Light(cls, cls.__dict__["_flat"].__set__)

    def unflatten(metadata: Metadata, children: Any) -> Any:
        return _new_light(light, children, metadata)

    def flatten_with_keys(variable: Any) -> tuple[tuple[tuple[Any, Any]], Metadata]:
        (value,), metadata = variable._flat
        return ((_VALUE, value),), metadata

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, attrgetter("_flat"))
    return light


@functools.cache
def _type_of_lights(metaclass: type) -> Any:
    """The metaclass of lights of kinds with a metaclass: one of their own, which tells pickle how to find them."""
    made = type(metaclass.__name__, (metaclass,), {})
    copyreg.pickle(made, lambda cls: (_light_class, (cls.__bases__[1],)))
    return made


def _light_class(kind: type[Variable[Any]]) -> type[Any]:
    return _light_of(kind).cls


def _new_light(light: Light, children: tuple[Any], metadata: Metadata) -> Any:
    made = _new(light.cls)
    light.fill(made, (children, metadata))
    fill_raw(made, children[0])
    _set_metadata(made, metadata)
    return made


# --- States as nested dicts -------------------------------------------------------


class OuterKeys(tuple[Key, ...]):
    """The outermost keys of a State, as its treedef has them: equal for equal keys, whatever lies below.

    Attributes:
      definition: a reference to the definition that a State with these keys is likely to have.
      are_paths: whether each is a whole path, since JAX cannot take apart what is nested as deeply.
    """

    definition: ref[StateDef]
    are_paths: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return _outer_keys, (tuple(self), StateDef.of((), ()), self.are_paths)


def _outer_keys(keys: Iterable[Key], definition: StateDef, are_paths: bool) -> OuterKeys:
    made = OuterKeys(keys)
    made.definition, made.are_paths = ref(definition), are_paths
    return made


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


def nesting_of(definition: StateDef) -> Nesting:
    """How JAX sees States of a definition; found at first use."""
    found: Nesting | None = definition.nesting
    if found is None:
        is_deep = max(map(len, definition.paths), default=0) > MAX_DEPTH
        order = definition.order or range(len(definition.paths))
        nested = OrderedDict((definition.paths[i], i) for i in order) if is_deep else _sortable(definition.tree)
        tree = jax.tree_util.tree_structure(nested)
        keys = _outer_keys(nested if isinstance(nested, OrderedDict) else sorted(nested), definition, is_deep)
        columns = definition.columns
        lights = [] if columns is None else list(map(_light_of, columns[0]))
        types = None if columns is None else [light.cls for light in lights]
        found = definition.nesting = Nesting(keys, tree, types, [light.fill for light in lights])
    return found


def _sortable(tree: Any) -> Any:
    """Nested dicts that JAX can take apart: it sorts their keys, except for those of an OrderedDict."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _sortable(below) for key, below in tree.items()}
    return made if are_sortable(made) else OrderedDict(made)


def children_of(definition: StateDef, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], OuterKeys]:
    """What JAX sees of a State: what is at each outermost key, and the keys."""
    nesting = nesting_of(definition)
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
    deque(map(_call, nesting.fills, shown, zip(zip(leaves), metadata)), 0)  # noqa: B905  # quicker
    deque(map(fill_raw, shown, leaves), 0)
    deque(map(_set_metadata, shown, metadata), 0)
    return shown


def pair_from(keys: OuterKeys, children: Sequence[Any]) -> tuple[StateDef, list[Any], bool] | None:
    """The State that JAX makes anew, and whether of the same children; None where its paths are others."""
    definition = keys.definition()
    if definition is None:
        return None
    nesting = nesting_of(definition)
    try:
        found: list[Any] = nesting.tree.flatten_up_to(dict(zip(keys, children, strict=True)))
    except ValueError:
        return None
    if definition.order is not None:
        found = in_state_order(definition.order, found)
    leaves = _leaves_of_lights(definition, nesting, found)
    if leaves is not None:
        return definition, leaves, True
    pair = pair_of(definition, found)
    return None if pair is None else (*pair, False)


def in_state_order(order: Sequence[int], found: Iterable[Any]) -> list[Any]:
    """Leaves in the order of a State, from those in JAX's order."""
    by_position = dict(zip(order, found, strict=True))
    return [by_position[i] for i in range(len(order))]


_flat_of = attrgetter("_flat")


def _leaves_of_lights(definition: StateDef, nesting: Nesting, found: list[Any]) -> list[Any] | None:
    """The values in lights, if these have the kinds and the metadata of a definition."""
    if nesting.types is None or definition.columns is None or list(map(type, found)) != nesting.types:
        return None
    flat = list(map(_flat_of, found))
    if not all(map(is_, map(itemgetter(1), flat), definition.columns[1])):
        return None
    return [value for (value,), _ in flat]


# --- States at one level ----------------------------------------------------------


class FlatForm:
    """A State as the library takes it apart: its leaves as JAX orders them, all at one level.

    JAX makes the State of it.
    """

    __slots__ = ("_state",)

    def __init__(self, state: Any) -> None:
        self._state = state


def _flatten_form(form: FlatForm) -> tuple[list[Any], tuple[Any, ...]]:
    definition, leaves = form._state._pair
    order = definition.order
    return leaves if order is None else [leaves[i] for i in order], (*form._state._recipe, definition)


def _flatten_form_with_keys(form: FlatForm) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, static = _flatten_form(form)
    paths = static[-1].paths
    ordered = paths if static[-1].order is None else [paths[i] for i in static[-1].order]
    keys = [DictKey(path[0] if len(path) == 1 and not isinstance(path[0], tuple) else path) for path in ordered]
    return list(zip(keys, leaves, strict=True)), static


def _unflatten_form(static: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
    make, *rest = static
    order = rest[-1].order
    return make(*rest, list(leaves) if order is None else in_state_order(order, leaves))


jax.tree_util.register_pytree_with_keys(FlatForm, _flatten_form_with_keys, _unflatten_form, _flatten_form)
