"""Makes live objects from a GraphDef, or gives existing ones a new structure.

Each token of a GraphDef has a *slot* in one flat list; a `Blueprint`, made once for a GraphDef, fills the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from operator import is_
from typing import Any, Final, NamedTuple

import jax

from declax import _jax
from declax._classes.pytree import Pytree, prepare
from declax._fields.call import Unmade
from declax._fields.snapshots import Frozen, exact_types, freeze, is_frozen, thaw
from declax._graph.cells import check_trace_tokens, publish
from declax._graph.flattening import (
    CONTAINER,
    HAS_INDEX,
    LEAF,
    NODE,
    OBJECT,
    REF,
    STATIC,
    VARIABLE,
    GraphDef,
    child_keys,
    node_statics,
)
from declax._graph.nodes import Kind, close_container, kind_of, open_container
from declax._graph.orders import USUAL, Names, Orders, reorder
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.layout import BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, RECORD_KEY, TRACE_KEY, blank_maker
from declax._typing import MISSING, SOWN_KEY
from declax._variables.variable import Variable, new_variable, new_variables, set_raw
from declax._variables.variable import _set_metadata as set_metadata
from declax.errors import GraphError

BATCH: Final = 1024
"""How many Variables several passes take at a time, so that they stay in the processor's cache between the passes."""


class Blueprint:
    """How to build the objects that a GraphDef describes.

    Variables have the first slots and nodes the next, so that each kind is made in one go.

    Attributes:
      count, root: the number of slots; the slot of the root.
      classes, metadata: of the Variables, by slot.
      variable_leaves: the position of each Variable's leaf.
      nodes: how to make each node; alike nodes share one program, which stays in the processor's cache.
      children: the slots of the children of all nodes, in turn.
      array_leaves: slots and positions of leaves without a Variable.
      contained: the positions of those that sit in a container, or in an Object.
      containers: the slot, how, keys and child slots of each, inner ones first.
      statics: slots and values.
      references: slots and the slots that they repeat.
      indexed: the slot of each object, by index; objects of earlier graphs have the slots behind all others.
    """

    def __init__(self, graphdef: GraphDef[Any]) -> None:
        tokens = graphdef.tokens
        slots = _slots_of(tokens)
        children = [tuple(map(slots.__getitem__, found)) for found in _children(graphdef)]
        self.count: int = len(tokens)
        self.root: int = slots[0]
        self.classes: list[type] = []
        self.metadata: list[Any] = []
        self.variable_leaves: list[int] = []
        self.nodes: list[NodeProgram] = []
        self.children: list[int] = []
        self.array_leaves: list[tuple[int, int]] = []
        self.containers: list[tuple[int, Any, tuple[Any, ...], tuple[int, ...]]] = []
        self.statics: list[tuple[int, Any]] = []
        self.references: list[tuple[int, int]] = []
        self.indexed: list[int] = list(range(len(tokens), len(tokens) + graphdef.base))
        programs: dict[Any, NodeProgram] = {}
        leaf = 0
        for place, token in enumerate(tokens):
            if isinstance(token, int):
                self.references.append((slots[place], self.indexed[token]))
                continue
            self._add(slots[place], token, leaf, children[place], programs)
            leaf += token[0] <= LEAF
        self.contained: set[int] = set()
        if self.array_leaves:
            of_nodes = {c for p, t in enumerate(tokens) if isinstance(t, tuple) and t[0] == NODE for c in children[p]}
            self.contained = {position for slot, position in self.array_leaves if slot not in of_nodes}
        self.containers.reverse()
        self._last_order: tuple[Orders, list[NodeProgram]] | None = None

    def nodes_in(self, orders: Orders) -> list[NodeProgram]:
        """How to make each node with its attributes in an order."""
        if orders is USUAL:
            return self.nodes
        last = self._last_order  # most graphs have one
        if last is not None and last[0] == orders:
            return last[1]
        found = list(self.nodes)
        made: dict[tuple[int, Names], NodeProgram] = {}
        for index, names in orders.names.items():
            place = self.indexed[index] - len(self.classes)
            program = found[place]
            key = id(program), names
            if key not in made:
                made[key] = program._replace(template=dict.fromkeys(names) | program.template)
            found[place] = made[key]
        self._last_order = orders, found
        return found

    def order_of(self, index: int, orders: Orders) -> Names:
        """The attributes of a node in their order."""
        return self.nodes_in(orders)[self.indexed[index] - len(self.classes)].order

    def _add(
        self, slot: int, token: tuple[Any, ...], leaf: int, children: tuple[int, ...], programs: dict[Any, NodeProgram]
    ) -> None:
        tag = token[0]
        if tag in HAS_INDEX:
            self.indexed.append(slot)
        if tag == VARIABLE:
            self.classes.append(token[1])
            self.metadata.append(token[2])
            self.variable_leaves.append(leaf)
        elif tag in (REF, LEAF):
            self.array_leaves.append((slot, leaf))
        elif tag in (NODE, OBJECT):
            key = (token[1], *map(id, token[2]))  # equal values may differ: 1 and True
            if key not in programs:
                programs[key] = _node_program(token)
            self.nodes.append(programs[key])
            self.children += children
        elif tag == CONTAINER:
            self.containers.append((slot, token[1], token[2], children))
        elif tag == STATIC:
            self.statics.append((slot, token[1]))


def _slots_of(tokens: tuple[Any, ...]) -> list[int]:
    """The slot of each token."""
    rank_of = {VARIABLE: 0, NODE: 1, OBJECT: 1}
    ranks = [2 if isinstance(token, int) else rank_of.get(token[0], 2) for token in tokens]
    slots = [0] * len(tokens)
    for slot, place in enumerate(sorted(range(len(tokens)), key=ranks.__getitem__)):
        slots[place] = slot
    return slots


class NodeProgram(NamedTuple):
    """How to make a node.

    Attributes:
      cls, new: its class, and a function that makes an instance without code of a user.
      shared: the static attributes, and the layout if the node has its own.
      copiers: names of mutable static attributes, each with a function that makes a new value.
      template: all attributes, with None for those that each node gets: copying it and setting values is quickest.
      names: the attributes that hold children.
    """

    cls: type
    new: Callable[[type], Any]
    shared: dict[Any, Any]
    copiers: tuple[tuple[Any, Callable[[], Any]], ...]
    template: dict[Any, Any]
    names: tuple[Any, ...]

    @property
    def order(self) -> Names:
        """The names of all attributes in their order."""
        return tuple([name for name in self.template if name != LAYOUT_KEY])

    def is_in(self, attributes: dict[Any, Any], children: Sequence[Any]) -> bool:
        """Whether a node has just these attributes; quick, and may be False though it has."""
        count = len(attributes) - (TRACE_KEY in attributes) - (BOUND_KEY in attributes) - (RECORD_KEY in attributes)
        if self.copiers or count != len(self.shared) + len(self.names):
            return False
        found = map(attributes.get, chain(self.shared, self.names), repeat(MISSING))
        return all(map(is_, found, chain(self.shared.values(), children)))

    def attributes(self, children: Iterable[Any]) -> dict[Any, Any]:
        """All attributes by name."""
        made = {name: copier() for name, copier in self.copiers}
        return {**self.template, **made, **dict(zip(self.names, children, strict=True))}


def _node_program(token: tuple[Any, ...]) -> NodeProgram:
    cls: Any = token[1] if token[0] == OBJECT else token[1].cls
    if not cls._pytree__info.is_registered:  # of a pickled GraphDef, in a process without an instance of the class
        prepare(cls._pytree__info)
    if token[0] == OBJECT:
        names = token[2]
        return NodeProgram(cls, blank_maker(cls), {}, (), dict.fromkeys(names), names)
    layout = token[1]
    values = dict(node_statics(token))
    copiers = tuple([(name, partial(thaw, value)) for name, value in values.items() if isinstance(value, Frozen)])
    shared = values if layout.is_closed else {**values, LAYOUT_KEY: layout}
    template = {**dict.fromkeys(layout.order), **shared}
    return NodeProgram(cls, blank_maker(cls), shared, copiers, template, layout.data_names)


def _children(graphdef: GraphDef[Any]) -> list[list[int]]:
    """For each token, the tokens of its children."""
    found: list[list[int]] = [[] for _ in graphdef.tokens]
    stack: list[int] = []
    for place, token in enumerate(graphdef.tokens):
        if stack:
            found[stack.pop()].append(place)
        if isinstance(token, tuple) and token[0] > LEAF:
            stack.extend([place] * len(child_keys(token)))
    return found


def blueprint_of(graphdef: GraphDef[Any]) -> Blueprint:
    """The blueprint of a GraphDef, made at first use."""
    if graphdef._blueprint is None:
        graphdef._blueprint = Blueprint(graphdef)
    blueprint: Blueprint = graphdef._blueprint
    return blueprint


def build(
    graphdef: GraphDef[Any],
    leaves: Sequence[Any],
    metadata: Sequence[Any] | None = None,
    variables: Sequence[Any] | None = None,
    orders: Orders = USUAL,
) -> Any:
    """Makes new objects with these leaves; with existing Variables, one for each of their leaves, if they are given."""
    return build_slots(graphdef, leaves, metadata, variables, orders=orders)[blueprint_of(graphdef).root]


def build_slots(
    graphdef: GraphDef[Any],
    leaves: Sequence[Any],
    metadata: Sequence[Any] | None = None,
    variables: Sequence[Any] | None = None,
    known: Sequence[Any] | None = None,
    orders: Orders = USUAL,
) -> list[Any]:
    """As `build`, with the objects of earlier graphs, and attributes in an order; returns the value of each slot."""
    blueprint = blueprint_of(graphdef)
    programs = blueprint.nodes_in(orders)
    trace_token = _jax.trace_state.value
    if variables is None:
        slots = _new_variables(blueprint, leaves, metadata, trace_token)
    else:
        slots = [variables[position] for position in blueprint.variable_leaves]
    nodes: list[Any] = [new(cls) for cls, new, *_ in programs]
    slots += nodes
    slots += [None] * (blueprint.count - len(slots))
    if graphdef.base:
        slots += known_objects(graphdef, {}) if known is None else known
    for slot, position in blueprint.array_leaves:
        slots[slot] = leaves[position]
    fill(blueprint, slots)
    children = map(slots.__getitem__, blueprint.children)
    for node, (_, _, _, copiers, template, names) in zip(nodes, programs, strict=True):
        attributes = node.__dict__
        attributes.update(template)
        for name, copier in copiers:
            attributes[name] = copier()
        for name in names:
            attributes[name] = next(children)
    if trace_token is not _jax.TOP:
        for node in nodes:
            node.__dict__[TRACE_KEY] = trace_token
    if orders.sets:
        orders.restore_sets([slots[slot] for slot in blueprint.indexed])
    return slots


def _new_variables(
    blueprint: Blueprint, leaves: Sequence[Any], metadata: Sequence[Any] | None, trace_token: Any
) -> list[Any]:
    raw_values = [leaves[i] for i in blueprint.variable_leaves] if blueprint.array_leaves else leaves
    metadata = blueprint.metadata if metadata is None else metadata
    made: list[Any] = []
    for start in range(0, len(blueprint.classes), BATCH):
        batch = slice(start, start + BATCH)
        made += new_variables(blueprint.classes[batch], raw_values[batch], metadata[batch], trace_token)
    return made


def known_objects(graphdef: GraphDef[Any], objects: Mapping[int, Any]) -> list[Any]:
    """The objects of earlier graphs by index; None for those that the graph does not refer to."""
    if not graphdef.base:
        return []
    missing = [t for t in graphdef.tokens if isinstance(t, int) and t < graphdef.base and t not in objects]
    if missing:
        raise GraphError(
            "merge",
            f"the graph refers to object {missing[0]} of earlier graphs, which is not there",
            got=f"{len(objects)} objects",
            fix="with dx.merge_context() as ctx:\n    first, second = ctx.merge(*first), ctx.merge(*second)",
        )
    return list(map(objects.get, range(graphdef.base)))


def fill(blueprint: Blueprint, slots: list[Any]) -> None:
    """Fills the slots of static values, references and containers."""
    for slot, value in blueprint.statics:
        slots[slot] = thaw(value) if is_frozen(value) else value
    for slot, target in blueprint.references:
        slots[slot] = slots[target]
    for slot, how, keys, children in blueprint.containers:
        slots[slot] = close_container(how, keys, [slots[c] for c in children])


class StructureChange(NamedTuple):
    """A new structure for existing objects.

    Attributes:
      graphdef: the structure.
      kept: for each leaf, the position of the value that it keeps, or -1.
      origins: for each Variable and node, the existing object, or -1.
      sown: the indexes of nodes, and names of attributes that were sown into them while tracing.
      refs: the leaves that were refs while tracing; their new values are arrays, since JAX returns no refs.
      taken_out: the existing objects that the roots and the result no longer reach; a function may have set them.
      orders: of the nodes that are new, or whose attributes have changed their order.
    """

    graphdef: GraphDef[Any]
    kept: tuple[int, ...]
    origins: tuple[int, ...]
    sown: tuple[tuple[int, str], ...] = ()
    refs: tuple[int, ...] = ()
    taken_out: tuple[int, ...] = ()
    orders: Orders = USUAL


def apply_change(
    change: StructureChange,
    objects: Sequence[Any] | Mapping[int, Any],
    old: Sequence[Any],
    new: Iterable[Any],
    metadata: Sequence[Any] | None = None,
    known: Sequence[Any] = (),
) -> list[Any]:
    """Gives existing objects the new structure; sets only differences, after all checks."""
    blueprint = blueprint_of(change.graphdef)
    fresh = iter(new)
    leaves = [next(fresh) if i < 0 else old[i] for i in change.kept]
    for position in change.refs:
        value = leaves[position]
        is_shape = isinstance(value, jax.ShapeDtypeStruct)
        leaves[position] = value.update(is_ref=True) if is_shape else jax.new_ref(value)
    own = blueprint.indexed[change.graphdef.base :]
    existing = {slot: objects[origin] for slot, origin in zip(own, change.origins, strict=True) if origin >= 0}
    slots: list[Any] = [*[None] * blueprint.count, *known]
    writes = _fill_variables(blueprint, slots, leaves, existing, metadata or blueprint.metadata)
    views = check_trace_tokens(variable for variable, _, _ in writes)
    for slot, node in enumerate(blueprint.nodes, len(blueprint.classes)):
        slots[slot] = existing[slot] if slot in existing else node.new(node.cls)
    for slot, position in blueprint.array_leaves:
        slots[slot] = existing.get(slot, leaves[position])  # a ref stays the one that it is
    fill(blueprint, slots)
    trace_token = _jax.current_trace()
    edits: list[tuple[dict[Any, Any], dict[Any, Any], list[Any]]] = []
    every_child = map(slots.__getitem__, blueprint.children)
    for slot, node in enumerate(blueprint.nodes_in(change.orders), len(blueprint.classes)):
        attributes = slots[slot].__dict__
        children = list(islice(every_child, len(node.names)))
        if slot not in existing:
            attributes.update(node.attributes(children))
            if trace_token is not _jax.TOP:
                attributes[TRACE_KEY] = trace_token
        elif not node.is_in(attributes, children):
            edits.append((attributes, *_differences(slots[slot], node.attributes(children), trace_token)))
    is_structural = any(variable._metadata is not notes for variable, _, notes in writes)
    for variable, value, notes in writes:
        set_raw(variable, value)
        set_metadata(variable, notes)
    publish(views)
    for attributes, changed, gone in edits:
        is_structural |= bool(gone) or any(
            kind_of(attributes.get(name)) is not Kind.LEAF or kind_of(value) is not Kind.LEAF
            for name, value in changed.items()
        )
        attributes.update(changed)
        for name in gone:
            del attributes[name]
    for index, names in change.orders.names.items():
        if blueprint.indexed[index] in existing:
            is_structural |= reorder(slots[blueprint.indexed[index]].__dict__, names)
    if is_structural:
        epoch.advance()
    for index, name in change.sown:
        note_sown(slots[own[index]], name)
    return slots


def note_sown(node: Pytree, name: str) -> None:
    """Notes, in a node that a transform has rebuilt, that an attribute was sown."""
    attributes: Any = node.__dict__
    if TRACE_KEY in attributes:
        attributes.setdefault(SOWN_KEY, set()).add(name)


def _differences(node: Pytree, wanted: dict[Any, Any], trace_token: object) -> tuple[dict[Any, Any], list[Any]]:
    """The attributes that a node has to get, and the names that it has to lose; raises if it cannot be set now."""
    attributes = tuple(node.__dict__.items())
    own = {name: value for name, value in attributes if name not in INTERNAL_KEYS or name == LAYOUT_KEY}
    changed = {name: value for name, value in wanted.items() if not same_content(own.get(name, MISSING), value)}
    gone = [name for name, value in own.items() if name not in wanted and not isinstance(value, Unmade)]
    if (changed or gone) and node.__dict__.get(TRACE_KEY, _jax.TOP) is not trace_token:
        raise wrong_trace(node, next((name for name in (*changed, *gone) if name not in INTERNAL_KEYS), "..."))
    return changed, gone


def _fill_variables(
    blueprint: Blueprint, slots: list[Any], leaves: Sequence[Any], existing: dict[int, Any], metadata: Sequence[Any]
) -> list[tuple[Variable[Any], Any, Any]]:
    trace_token = _jax.current_trace()
    writes = []
    made = zip(blueprint.classes, metadata, blueprint.variable_leaves, strict=True)
    for slot, (cls, notes, leaf) in enumerate(made):
        found = existing.get(slot)
        if found is None:
            slots[slot] = new_variable(cls, leaves[leaf], notes, trace_token)
            continue
        slots[slot] = found
        if found.raw_value is not leaves[leaf] or found._metadata is not notes:
            writes.append((found, leaves[leaf], notes))
    return writes


def same_content(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or containers of the same objects, however deep."""
    pairs = [(a, b)]
    while pairs:
        x, y = pairs.pop()
        if x is y:
            continue
        if x.__class__ is not y.__class__:
            return False
        kind = kind_of(x)
        if kind is Kind.CONTAINER:
            keys_x, children_x, how_x = open_container(x)
            keys_y, children_y, how_y = open_container(y)
            if keys_x != keys_y or how_x != how_y:
                return False
            pairs.extend(zip(children_x, children_y, strict=True))
        elif kind is not Kind.STATIC:
            return False
        else:
            a, b = freeze(x), freeze(y)
            if not (a == b and exact_types(a) == exact_types(b)):  # neither 1 and True nor 0.0 and -0.0
                return False
    return True
