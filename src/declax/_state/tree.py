"""How JAX sees a State: as nested dicts with a Variable over each value.

These Variables are *light*: read-only snapshots, which JAX flattens without calling Python. They count as Variables
of their kind: ``isinstance(light, Param)`` holds, and ``light.__class__`` is `Param`.
"""

from __future__ import annotations

import importlib
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
from declax._variables.variable import Variable
from declax.errors import MAX_DEPTH, NAME_KEY, MissingAttributeError

_new: Final = object.__new__
_call: Any = operator.call  # its type takes no functions of several types

_SNAPSHOT: Final = ReadOnly(
    "what JAX sees of a State",
    why="it is a snapshot: neither the State nor a model would see the change",
    fix="for path, variable in state.flat_state(): ...      # these Variables write to the State\n"
    "variable.copy()      # an ordinary Variable",
)
_VALUE: Final = GetAttrKey("value")

# --- light Variables ------------------------------------------------------------


class LightVariable:
    """The first base of lights; the second is their kind."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Skips the registration that a kind has for its subclasses."""


Light = tuple[type[Any], Callable[[Any, tuple[tuple[Any], Metadata]], None]]
"""The class of the lights of a kind, and the function that puts ``((value,), metadata)`` into a new one."""

_lights: Final[dict[type[Variable[Any]], Light]] = {}


def _light_of(kind: type[Variable[Any]]) -> Light:
    found = _lights.get(kind)
    return _lights.setdefault(kind, _make_light(kind)) if found is None else found


def _make_light(kind: type[Variable[Any]]) -> Light:
    """A class, since programs ask for ``type(light).__name__``, and call ``type(light)`` for a Variable of the kind."""
    content = {
        "__slots__": ("_flat",),
        "__new__": lambda _, *args, **options: kind(*args, **options),
        "__module__": __name__,
        "__qualname__": f"{kind.__module__}:{kind.__qualname__}".replace(".", "/"),  # `pickle` takes it apart at dots
        NAME_KEY: kind.__qualname__,
        "__doc__": kind.__doc__,
        "__class__": property(lambda light: kind),
        "_raw": property(lambda light: light._flat[0][0]),
        "_metadata": property(lambda light: light._flat[1]),
        "_trace": _SNAPSHOT,
    }
    of_kinds: Any = type(kind)
    cls = of_kinds(kind.__name__, (LightVariable, kind), content)
    light = cls, cls.__dict__["_flat"].__set__

    def unflatten(metadata: Metadata, children: Any) -> Any:
        return _new_light(light, children, metadata)

    def flatten_with_keys(variable: Any) -> tuple[tuple[tuple[Any, Any]], Metadata]:
        (value,), metadata = variable._flat
        return ((_VALUE, value),), metadata

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, attrgetter("_flat"))
    return light


def __getattr__(name: str) -> type[Any]:
    """The class of the lights of a kind, which `pickle` looks for here, as a treedef has it."""
    module, _, kind = name.replace("/", ".").rpartition(":")
    if not module:
        raise MissingAttributeError(f"module {__name__}", f"it has no attribute {name!r}")
    return _light_of(operator.attrgetter(kind)(importlib.import_module(module)))[0]


def _new_light(light: Light, children: tuple[Any], metadata: Metadata) -> Any:
    cls, fill = light
    made = _new(cls)
    fill(made, (children, metadata))
    return made


# --- States as nested dicts -------------------------------------------------------


class OuterKeys(tuple[Key, ...]):
    """The outermost keys of a State, which its treedef has; they compare as a tuple."""

    definition: ref[StateDef]
    """The definition that a State with these keys is likely to have."""
    are_paths: bool
    """Whether each is a whole path, since JAX cannot flatten dicts that are nested this deeply."""

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
      lights: of each leaf, in the State's order: the class and what fills one; None unless all are of Variables.
    """

    keys: OuterKeys
    tree: Any
    lights: tuple[list[type[Any]], list[Any]] | None


def nesting_of(definition: StateDef) -> Nesting:
    found: Nesting | None = definition.nesting
    if found is None:
        is_deep = max(map(len, definition.paths), default=0) > MAX_DEPTH
        order = definition.order or range(len(definition.paths))
        nested = OrderedDict((definition.paths[i], i) for i in order) if is_deep else _sortable(definition.tree)
        tree = jax.tree_util.tree_structure(nested)
        keys = _outer_keys(nested if isinstance(nested, OrderedDict) else sorted(nested), definition, is_deep)
        columns = definition.columns
        lights = [] if columns is None else list(map(_light_of, columns[0]))
        both = None if columns is None else ([cls for cls, _ in lights], [fill for _, fill in lights])
        found = definition.nesting = Nesting(keys, tree, both)
    return found


def _sortable(tree: Any) -> Any:
    """Nested dicts that JAX can flatten: it sorts the keys of a dict, not those of an OrderedDict."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _sortable(below) for key, below in tree.items()}
    return made if are_sortable(made) else OrderedDict(made)


def children_of(definition: StateDef, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], OuterKeys]:
    """The children of a State in a pytree, and their keys."""
    nesting = nesting_of(definition)
    nested = nesting.tree.unflatten(definition.in_jax_order(_shown(definition, nesting, leaves)))
    return tuple(map(nested.__getitem__, nesting.keys)), nesting.keys


def _shown(definition: StateDef, nesting: Nesting, leaves: Sequence[Any]) -> list[Any]:
    """A light for each leaf of a Variable, and the other leaves as they are."""
    if nesting.lights is None:
        pairs = zip(definition.leaf_defs, leaves, strict=True)
        return [leaf if kind is None else _new_light(_light_of(kind[0]), (leaf,), kind[1]) for kind, leaf in pairs]
    assert definition.columns is not None  # as for `lights`
    metadata = definition.columns[1]
    types, fills = nesting.lights
    shown: list[Any] = list(map(_new, types))  # without a frame of Python for each
    deque(map(_call, fills, shown, zip(zip(leaves), metadata)), 0)  # noqa: B905  # quicker
    return shown


def pair_from(keys: OuterKeys, children: Sequence[Any]) -> tuple[StateDef, list[Any], bool] | None:
    """The State of children, and whether it shows the same ones; None if its paths have changed."""
    definition = keys.definition()
    if definition is None:
        return None
    nesting = nesting_of(definition)
    try:
        found = nesting.tree.flatten_up_to(dict(zip(keys, children, strict=True)))
    except ValueError:
        return None
    found = definition.from_jax_order(found)
    leaves = _leaves_of_lights(definition, nesting, found)
    if leaves is not None:
        return definition, leaves, True
    pair = pair_of(definition, found)
    return None if pair is None else (*pair, False)


_flat_of = attrgetter("_flat")


def _leaves_of_lights(definition: StateDef, nesting: Nesting, found: list[Any]) -> list[Any] | None:
    """The values in lights, if these have the kinds and the metadata of a definition."""
    if nesting.lights is None or definition.columns is None or list(map(type, found)) != nesting.lights[0]:
        return None
    flat = list(map(_flat_of, found))
    if not all(map(is_, map(itemgetter(1), flat), definition.columns[1])):
        return None
    return [value for (value,), _ in flat]


# --- States at one level ----------------------------------------------------------


class FlatForm:
    """A State as the library flattens it: its leaves in JAX's order, at one level. JAX unflattens to the State."""

    __slots__ = ("_state",)

    def __init__(self, state: Any) -> None:
        self._state = state


def _flatten_form(form: FlatForm) -> tuple[Sequence[Any], tuple[Any, ...]]:
    definition, leaves = form._state._pair
    return definition.in_jax_order(leaves), (*form._state._recipe, definition)


def _flatten_form_with_keys(form: FlatForm) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, static = _flatten_form(form)
    paths = static[-1].in_jax_order(static[-1].paths)
    keys = [DictKey(path[0] if len(path) == 1 and not isinstance(path[0], tuple) else path) for path in paths]
    return list(zip(keys, leaves, strict=True)), static


def _unflatten_form(static: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
    make, *rest, definition = static
    return make(definition, definition.from_jax_order(leaves), *rest)


jax.tree_util.register_pytree_with_keys(FlatForm, _flatten_form_with_keys, _unflatten_form, _flatten_form)
