"""Changes existing objects so that they have a new structure.

Vocabulary
----------
origin: of a Variable or node in the new structure: the index of the existing
        object that it is, or -1 for a new one.
kept:   of a leaf: the position of the old leaf whose value it keeps, or -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from declax import _epoch, _jax
from declax._attributes import wrong_trace
from declax._layout import BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, TRACE_KEY
from declax._nodes import Kind, kind_of, open_container
from declax._pytree import Pytree
from declax._read_only import ReadOnly
from declax._static import exact_types, freeze
from declax._typing import MISSING
from declax._variables import Variable, new_variable, set_raw
from declax._variables import _set_metadata as set_metadata
from declax.errors import TraceContextError, type_name
from declax.graph.build import Program, fill, program_of
from declax.graph.defs import GraphDef


class Change(NamedTuple):
    """A new structure for existing objects.

    Attributes:
      graphdef: the structure.
      kept: for each leaf, the position of the value that it keeps, or -1.
      origins: for each Variable and node, the existing object, or -1.
    """

    graphdef: GraphDef[Any]
    kept: tuple[int, ...]
    origins: tuple[int, ...]


def apply_change(
    change: Change,
    objects: Sequence[Any] | Mapping[int, Any],
    old: Sequence[Any],
    new: Iterable[Any],
    metadata: Sequence[Any] | None = None,
    known: Sequence[Any] = (),
) -> list[Any]:
    """Gives existing objects the new structure.

    All new objects are made, and all checks done, before the first existing
    one is touched; of those, only what differs is set.

    Args:
      change: the new structure.
      objects: the existing objects by index.
      old: the values of the existing leaves.
      new: the values that are not kept, in order.
      metadata: of each Variable, where it differs from the description.
      known: the objects from before the graph, as many as the GraphDef's base.

    Returns:
      The value of each slot of the new structure.

    Raises:
      TraceContextError: for existing objects of another trace level.
    """
    program = program_of(change.graphdef)
    fresh = iter(new)
    leaves = [next(fresh) if i < 0 else old[i] for i in change.kept]
    own = program.indexed[change.graphdef.base :]
    existing = {slot: objects[origin] for slot, origin in zip(own, change.origins, strict=True) if origin >= 0}
    slots: list[Any] = [*[None] * program.count, *known]
    writes = _fill_variables(program, slots, leaves, existing, metadata or program.metadata)
    for slot, (maker, cls) in enumerate(program.node_makers, len(program.classes)):
        slots[slot] = existing[slot] if slot in existing else maker(cls)
    for slot, position in program.plain_leaves:
        slots[slot] = existing.get(slot, leaves[position])  # a ref stays the one that it is
    fill(program, slots)
    attributes = [
        (slots[slot], slot in existing, node.attributes(slots))
        for slot, node in enumerate(program.nodes, len(program.classes))
        if not (slot in existing and node.is_in(slots[slot].__dict__, slots))
    ]
    _check_levels(writes, attributes)
    is_structural = any(variable._metadata is not notes for variable, _, notes in writes)
    for variable, value, notes in writes:
        set_raw(variable, value)
        set_metadata(variable, notes)
    for node, is_existing, wanted in attributes:
        is_structural |= _give(node, is_existing, wanted)
    if is_structural:
        _epoch.advance()
    return slots


def _fill_variables(
    program: Program, slots: list[Any], leaves: Sequence[Any], existing: dict[int, Any], metadata: Sequence[Any]
) -> list[tuple[Variable[Any], Any, Any]]:
    mark = _jax.current_trace()
    writes = []
    made = zip(program.classes, metadata, program.variable_leaves, strict=True)
    for slot, (cls, notes, leaf) in enumerate(made):
        found = existing.get(slot)
        if found is None:
            slots[slot] = new_variable(cls, leaves[leaf], notes, mark)
            continue
        slots[slot] = found
        if found.raw_value is not leaves[leaf] or found._metadata is not notes:
            writes.append((found, leaves[leaf], notes))
    return writes


def check_marks(variables: Iterable[Variable[Any] | None], what: str = "write-back") -> None:
    """Checks that Variables may be set at this trace level.

    Args:
      variables: the Variables; None for leaves that are in none.
      what: what is about to set them, for the error.

    Raises:
      TraceContextError: for one of another trace level.

    >>> check_marks([Variable(1), None])
    """
    mark = _jax.current_trace()
    for variable in variables:
        if variable is not None and variable._trace is not mark:
            if isinstance(variable._trace, ReadOnly):
                raise variable._trace.refusal(f"{what} to a {type_name(type(variable))}")
            raise TraceContextError(
                f"{what} to a {type_name(type(variable))}",
                "cannot mutate a Variable from a different trace level",
                why="the Variable was made outside of the function that JAX is tracing now",
                fix="pass it, or the model that has it, as an argument of the traced function too",
            )


def _check_levels(writes: Sequence[Any], attributes: Sequence[tuple[Any, bool, dict[Any, Any]]]) -> None:
    check_marks(variable for variable, _, _ in writes)
    mark = _jax.current_trace()
    for node, is_existing, wanted in attributes:
        if is_existing and node.__dict__.get(TRACE_KEY, _jax.TOP) is not mark and _differs(node, wanted):
            raise wrong_trace(node, next(iter(wanted), "..."))


def _differs(node: Pytree, wanted: dict[Any, Any]) -> bool:
    own = {n: v for n, v in tuple(node.__dict__.items()) if n not in (TRACE_KEY, BOUND_KEY)}
    return own.keys() != wanted.keys() or any(not same_content(own[n], v) for n, v in wanted.items())


def _give(node: Any, is_existing: bool, wanted: dict[Any, Any]) -> bool:
    """Sets what differs; says whether an existing node got another structure."""
    attributes = node.__dict__
    if not is_existing:
        attributes.update(wanted)
        mark = _jax.current_trace()
        if mark is not _jax.TOP:
            attributes[TRACE_KEY] = mark
        return False
    changed = [
        n for n, v in wanted.items() if (old := attributes.get(n, MISSING)) is not v and not same_content(old, v)
    ]
    gone = [n for n in tuple(attributes) if n not in wanted and (n not in INTERNAL_KEYS or n == LAYOUT_KEY)]
    is_structural = bool(gone) or any(
        not (kind_of(attributes.get(name)) is Kind.LEAF and kind_of(wanted[name]) is Kind.LEAF) for name in changed
    )
    for name in changed:
        attributes[name] = wanted[name]
    for name in gone:
        del attributes[name]
    return is_structural


def same_content(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or containers of the same objects; without recursion, however deep."""
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
        elif kind is not Kind.STATIC or not _same_static(x, y):
            return False
    return True


def _same_static(a: Any, b: Any) -> bool:
    """Whether two static values are equal, and neither 1 and True nor 0.0 and -0.0."""
    frozen_a, frozen_b = freeze(a), freeze(b)
    return bool(frozen_a == frozen_b) and exact_types(frozen_a) == exact_types(frozen_b)
