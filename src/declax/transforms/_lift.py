"""The one engine under all transforms: JAX sees flat leaves, users see objects.

A lifted call has four steps. *Take apart*: the arguments become leaves and a
hashable `Structure`. *Trace*: inside of the JAX transform, objects are rebuilt
from the leaves, the user's function is called, and what it changed becomes an
`Outcome`. *Commit*: the outer objects get what changed. Nothing outer is
touched before the last step, which cannot fail half way.

Vocabulary
----------
root:      a Variable, Pytree or Object among the arguments.
plain:     all other leaves of the arguments.
structure: the static part of a call: the tree of the arguments, and the
           GraphDef of the roots, in which they may share.
outcome:   what comes out of the traced function: arrays, and a plan (static)
           that says what they are.
mode:      what the engine checks of the arguments, and what it lets through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
from jax.core import Tracer

from declax import _jax
from declax._modes import is_graph_mode, set_graph_updates
from declax._nodes import Kind, is_number, kind_of
from declax._values import check_depth
from declax._variables import Variable, set_raw
from declax.errors import MAX_DEPTH, TraceContextError, TransformError, format_path, too_deep
from declax.graph.binding import Binding, bind_many, check_mode
from declax.graph.build import build_slots, program_of
from declax.graph.change import Change, apply_change
from declax.graph.defs import GraphDef, walk_tokens
from declax.graph.walk import Walk

_root_kinds = (Kind.NODE, Kind.OBJECT, Kind.VARIABLE)
_is_root_class: dict[type, bool] = {}
_is_leaf_class: dict[type, bool] = {}


def is_root(value: object) -> bool:
    """Whether a value is a Variable, Pytree or Object."""
    found = _is_root_class.get(value.__class__)
    if found is None:
        found = _is_root_class[value.__class__] = kind_of(value) in _root_kinds
    return found


def is_leaf(value: object) -> bool:
    """Whether a value is an array or a number: a tree of one leaf."""
    found = _is_leaf_class.get(value.__class__)
    if found is None:
        found = _is_leaf_class[value.__class__] = kind_of(value) in (Kind.LEAF, Kind.REF) or is_number(value)
    return found


class Mode(NamedTuple):
    """What a transform takes, and what it gives back.

    Attributes:
      graph: whether arguments may share; otherwise they have to be trees.
      updates: whether changes of structure come back; otherwise they are an
        error, since nothing is lost in silence.
    """

    graph: bool = True
    updates: bool = True

    @staticmethod
    def of(graph: bool | None, graph_updates: bool | None) -> Mode:
        """The mode of a transform that is made now, from its options and the defaults."""
        graph = is_graph_mode() if graph is None else graph
        return Mode(graph, graph and (set_graph_updates.current_value() if graph_updates is None else graph_updates))


class Structure(NamedTuple):
    """The static part of a call.

    Attributes:
      tree: of ``(args, kwargs)``, with roots as leaves.
      is_root: for each leaf of the tree, whether it is a root.
      graphdef: of the tuple of roots; None where there are none.
    """

    tree: Any
    is_root: tuple[bool, ...]
    graphdef: GraphDef[Any] | None


class Call:
    """The arguments of one call, taken apart.

    Attributes:
      structure: the static part.
      binding: of the roots; None where there are none.
      values: the raw values of the graph's leaves.
      plain: the other leaves.
    """

    __slots__ = ("binding", "plain", "structure", "values")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Mode = Mode()) -> None:  # noqa: B008  # immutable
        _check_depth(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_root)
        pattern = tuple(map(is_root, leaves))
        self.binding: Binding | None = None
        self.values: list[Any] = []
        if True in pattern:
            roots = tuple(leaf for leaf, is_one in zip(leaves, pattern, strict=True) if is_one)
            self.plain = [leaf for leaf, is_one in zip(leaves, pattern, strict=True) if not is_one]
            self.binding = bind_many(roots)
            if not mode.graph:
                check_mode(self.binding.graphdef, False)
            self.values = self.binding.read()
            self.structure = Structure(tree, pattern, self.binding.graphdef)
        else:
            self.plain = leaves
            self.structure = Structure(tree, pattern, None)

    @staticmethod
    def again(structure: Structure, binding: Binding, plain: list[Any]) -> Call:
        """A call with the roots of an earlier one, whose binding is still valid."""
        call: Call = object.__new__(Call)
        call.structure = structure
        call.binding = binding
        call.values = binding.read()
        call.plain = plain
        return call

    def read_again(self) -> None:
        """Takes the values that the Variables have now."""
        if self.binding is not None:
            self.values = self.binding.read()

    def leaf_roots(self) -> list[int]:
        """For each leaf of the graph, the position of its root among all leaves."""
        if self.binding is None:
            return []
        at = [i for i, is_one in enumerate(self.structure.is_root) if is_one]
        return [at[cast(int, path[0])] for path in self.binding.graphdef.definition.paths]


_nesting = (list, tuple, dict)


def _check_depth(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses containers that are nested too deeply, before jaxlib sees them.

    With Python 3.11, jaxlib 0.10 does not give back the recursion that it has
    counted when it gives up, so that every later call of it fails.

    Raises:
      DepthError: for more than `MAX_DEPTH` levels.
    """
    level: list[Any] = [v for v in (*args, *kwargs.values()) if isinstance(v, _nesting)]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            for name, value in (*enumerate(args), *kwargs.items()):
                check_depth(value, f"argument {name}")
            raise too_deep("the arguments, one of which holds itself", ())
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, _nesting)
        ]


class Rebuilt:
    """The arguments inside of a transform, made anew from leaves.

    Attributes:
      args, kwargs: what the user's function is called with.
    """

    __slots__ = ("_objects", "_roots", "_structure", "_values", "args", "kwargs")

    def __init__(self, structure: Structure, values: Sequence[Any], plain: Sequence[Any]) -> None:
        self._structure = structure
        self._values = values
        self._roots: tuple[Any, ...] = ()
        self._objects: list[Any] = []
        if structure.graphdef is not None:
            program = program_of(structure.graphdef)
            slots = build_slots(structure.graphdef, values)
            self._roots = slots[program.root]
            self._objects = [slots[i] for i in program.indexed]
        roots, rest = iter(self._roots), iter(plain)
        leaves = [next(roots) if is_one else next(rest) for is_one in structure.is_root]
        self.args, self.kwargs = jax.tree_util.tree_unflatten(structure.tree, leaves)

    def conclude(self, output: Any, mode: Mode) -> Outcome:
        """What the user's function returned and changed.

        Raises:
          TransformError: for a changed structure where the mode lets none through.
        """
        found = Walk()
        found.visit(self._roots)
        is_same = found.graphdef is self._structure.graphdef and all(map(_is, found.objects, self._objects))
        if not is_same and not mode.updates and self._structure.graphdef is not None:
            raise _structure_changed(self._structure.graphdef, found.graphdef)
        leaves, tree = jax.tree_util.tree_flatten(output, is_leaf=is_root)
        has_roots = any(map(is_root, leaves))
        if self._structure.graphdef is None and not has_roots:
            return Outcome(_UNCHANGED, (), output)
        if is_same and not has_roots:
            values = found.read()
            changed = tuple(i for i, value in enumerate(values) if not _same(value, self._values[i]))
            if not any(map(found.is_in_container, changed)):
                plan = Plan(changed) if changed else _UNCHANGED
                return Outcome(plan, tuple(values[i] for i in changed), output)
        return self._conclude_structural(found, leaves, tree)

    def _conclude_structural(self, found: Walk, leaves: list[Any], tree: Any) -> Outcome:
        returned = tuple(leaf for leaf in leaves if is_root(leaf))
        found = Walk()
        found.visit((self._roots, returned))
        inputs = {id(value): i for i, value in enumerate(self._values) if isinstance(value, Tracer)}
        values = found.read()
        kept = tuple(inputs.get(id(value), -1) for value in values)
        ranks = {id(o): i for i, o in enumerate(self._objects)}
        origins = tuple(ranks.get(id(o), -1) for o in found.objects)
        change = Change(found.graphdef, kept, origins)
        pattern = tuple(map(is_root, leaves))
        new = tuple(value for value, i in zip(values, kept, strict=True) if i < 0)
        plain = [leaf for leaf in leaves if not is_root(leaf)]
        return Outcome(Plan((), change, tree, pattern), new, plain)


def _structure_changed(before: GraphDef[Any], after: GraphDef[Any]) -> TransformError:
    pairs = zip(walk_tokens(before.tokens), walk_tokens(after.tokens), strict=False)
    path = next((path for (path, old), (_, new) in pairs if old != new), ())
    return TransformError(
        f"argument {format_path(path)}",
        "the function changes the structure of its arguments here, and changes of structure do not come back",
        why="graph_updates=False, graph=False or a default of these says so",
        fix="graph_updates=True        # or undo the change before the function returns, as by dx.pop",
    )


def _is(a: object, b: object) -> bool:
    return a is b


def _same(a: Any, b: Any) -> bool:
    """Whether a raw value is the one that went in, looking into containers."""
    if a is b:
        return True
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        return False
    leaves_a, leaves_b = jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)
    trees: list[Any] = [jax.tree_util.tree_structure(a), jax.tree_util.tree_structure(b)]
    return trees[0] == trees[1] and all(x is y for x, y in zip(leaves_a, leaves_b, strict=True))


class Plan:
    """What an Outcome's arrays are; made while tracing, used at each call.

    Compares by identity: each trace has a plan of its own.

    Attributes:
      changed: positions of leaves that got new values, where nothing else changed.
      change: what became of the structure, if it changed or if roots are returned.
      tree, is_root: of the output, where roots are returned.
    """

    __slots__ = ("change", "changed", "is_root", "tree")

    def __init__(
        self,
        changed: tuple[int, ...],
        change: Change | None = None,
        tree: Any = None,
        is_root: tuple[bool, ...] = (),
    ) -> None:
        self.changed = changed
        self.change = change
        self.tree = tree
        self.is_root = is_root


_UNCHANGED = Plan(())


class Outcome:
    """What a traced function gives back: a pytree whose static part is the plan."""

    __slots__ = ("new", "output", "plan")

    def __init__(self, plan: Plan, new: Any, output: Any) -> None:
        self.plan = plan
        self.new = new
        self.output = output


jax.tree_util.register_pytree_node(
    Outcome,
    lambda outcome: ((outcome.new, outcome.output), outcome.plan),
    lambda plan, children: Outcome(plan, children[0], children[1]),
)


def written_leaves(call: Call, outcome: Outcome) -> set[int]:
    """The leaves of a call's graph that the function gives new values."""
    plan = outcome.plan
    if plan.change is None:
        return set(plan.changed)
    if call.structure.graphdef is None:
        return set()
    before, after = program_of(call.structure.graphdef), program_of(plan.change.graphdef)
    leaf_of = dict(zip(range(len(before.classes)), before.variable_leaves, strict=True))
    origin_of = dict(zip(after.indexed, plan.change.origins, strict=True))
    written = set()
    for slot, leaf in enumerate(after.variable_leaves):
        origin = origin_of[slot]
        if origin >= 0 and plan.change.kept[leaf] < 0:
            written.add(leaf_of[before.indexed[origin]])
    return written


def is_current(call: Call, outcome: Outcome) -> bool:
    """Whether the Variables that a call is about to set still have the values that it read."""
    binding, plan = call.binding, outcome.plan
    if binding is None or plan is _UNCHANGED:
        return True
    positions = plan.changed if plan.change is None else range(len(call.values))
    variables, values = binding.variables, call.values
    return all(v is None or v.raw_value is values[i] for i in positions for v in (variables[i],))


def commit(call: Call, outcome: Outcome) -> Any:
    """Gives the outer objects what changed, and returns the function's output.

    Raises:
      TraceContextError: for changed objects of another trace level; nothing is
        changed then.
    """
    plan, binding = outcome.plan, call.binding
    if plan is _UNCHANGED or (binding is None and plan.change is None):
        return outcome.output
    if plan.change is None:
        _write(binding, plan.changed, outcome.new)  # type: ignore[arg-type]  # a plan with changes has a binding
        return outcome.output
    objects = [] if binding is None else binding.objects()
    slots = apply_change(plan.change, objects, call.values, outcome.new)
    _, returned = slots[program_of(plan.change.graphdef).root]
    roots, plain = iter(returned), iter(outcome.output)
    leaves = [next(roots) if is_one else next(plain) for is_one in plan.is_root]
    return jax.tree_util.tree_unflatten(plan.tree, leaves)


def _write(binding: Binding, changed: tuple[int, ...], new: Iterable[Any]) -> None:
    variables = binding.variables
    if len(changed) < len(variables):
        variables = [variables[i] for i in changed]
    if not binding.has_plain:
        if binding.mark is not _jax.trace_state.value:
            _check_marks(variables)
        deque(map(set_raw, variables, new), 0)  # type: ignore[arg-type]  # none of them is None
        return
    _check_marks(variables)
    for position in changed:
        binding.check_plain(position)
    for position, variable, value in zip(changed, variables, new, strict=True):
        if variable is not None:
            set_raw(variable, value)
        else:
            binding.write_plain(position, value)


def _check_marks(variables: Sequence[Variable[Any] | None]) -> None:
    mark = _jax.current_trace()
    for variable in variables:
        if variable is not None and variable._trace is not mark:
            raise TraceContextError(
                f"write-back to a {type(variable).__name__}",
                "cannot mutate a Variable from a different trace level",
                why="the Variable was made outside of the function that JAX is tracing now",
                fix="pass it as an argument of the traced function too",
            )


def lifted(
    function: Callable[..., Any],
    structure: Structure,
    mode: Mode = Mode(),  # noqa: B008  # immutable
) -> Callable[..., Outcome]:
    """A function of flat leaves that rebuilds objects and calls the user's.

    Takes the values of the graph's leaves and the plain leaves as two
    sequences.
    """

    def call_on_leaves(values: Sequence[Any], plain: Sequence[Any]) -> Outcome:
        rebuilt = Rebuilt(structure, values, plain)
        return rebuilt.conclude(function(*rebuilt.args, **rebuilt.kwargs), mode)

    return call_on_leaves
