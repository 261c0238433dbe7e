"""The outcome of a function: what it returns and what it changes.

`lifted` rebuilds objects inside of the JAX transform and calls the user's function. `Rebuilt.conclude` compares the
objects with those that went in. An `Outcome` is a pytree whose static half is a `Plan`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, compress
from operator import attrgetter, is_, not_
from typing import Any, ClassVar, Protocol

import jax
from jax.core import Tracer

from declax import _jax
from declax._graph.binding import bind
from declax._graph.cells import Item
from declax._graph.differences import first_differing, leaves_of_objects, paths_of_objects
from declax._graph.flattening import GraphDef, Walk, walk
from declax._graph.nodes import is_ref
from declax._graph.orders import Orders, order_of
from declax._graph.sown import graph_without_sown, sown_attributes
from declax._graph.unflattening import StructureChange, apply_change, blueprint_of, build_slots
from declax._module.running import note_copy
from declax._state.definition import LeafDef
from declax._state.states import State
from declax._typing import Path
from declax._variables import uncaptured_reads
from declax._variables.variable import Variable
from declax.errors import TransformError, describe, format_path, type_name
from declax.transforms._engine.captures import Closure, RebuiltClosure
from declax.transforms._engine.names import joined, name_path, names_in_result
from declax.transforms._engine.structure import Mode, Structure, contents_of_states, flatten, is_root, which_are_roots


class ResultLabels(Protocol):
    """Labels of the leaves of a call, from which those of its results follow; see `prefixes.Labels`."""

    leaves: list[Any]

    def carried(self, tree: Any, /) -> Collection[int]:
        """The leaves of a result that a loop carries."""
        ...

    def of_results(self, tree: Any, /) -> list[Any]:
        """The label of each leaf of a result."""
        ...

    def of_change(
        self, change: StructureChange, values: Sequence[Any], is_root: Sequence[bool], tree: Any, /
    ) -> tuple[list[Any], list[Any]]:
        """The labels of a changed graph, and of the other leaves of the result."""
        ...

    def keep(self, kept: Sequence[int], labels: Sequence[Any], values: Sequence[Any], /) -> tuple[int, ...]:
        """Which leaves stay where they are, given their new labels."""
        ...


class Plan:
    """The static half of an Outcome; made while tracing, used at each call. To JAX, a tree without leaves.

    Attributes:
      changed: positions of leaves that got new values, where nothing else changed.
      change: the new structure, if it changed or if roots are returned.
      tree, is_root: of the output; unknown if nothing reads them.
      labels: of the arrays, if they have any: the new values, then the output.
      calls_back: whether the program calls Python while it runs; None if that is not known yet.
    """

    __slots__ = ("calls_back", "change", "changed", "flat", "is_root", "labels", "tree")

    def __init__(
        self,
        changed: tuple[int, ...],
        change: StructureChange | None = None,
        tree: Any = None,
        is_root: tuple[bool, ...] = (),
        labels: Sequence[Any] = (),
    ) -> None:
        self.changed: tuple[int, ...] = changed
        self.labels: Sequence[Any] = labels
        self.change: StructureChange | None = change
        self.tree: Any = tree
        self.is_root: tuple[bool, ...] = is_root
        self.calls_back: bool | None = None
        self.flat: tuple[tuple[()], _Key] = (), _Key({(): self})


class _Key(dict[tuple[()], Plan]):
    """A plan in a treedef, found under its children, of which it has none; compares by identity."""

    __slots__ = ()
    __hash__: ClassVar[Any] = object.__hash__
    __eq__: ClassVar[Any] = object.__eq__


# JAX asks at each call of a compiled function; so both return without a Python frame.
_from_key: Callable[[Any, Any], Any] = dict.get


jax.tree_util.register_pytree_node(Plan, attrgetter("flat"), _from_key)


UNCHANGED = Plan(())


class Outcome:
    """The result of a traced function: a pytree whose static part is the plan."""

    __slots__ = ("new", "output", "plan")

    def __init__(self, plan: Plan, new: Any, output: Any) -> None:
        self.plan: Plan = plan
        self.new: Any = new
        self.output: Any = output

    def parts(self) -> tuple[Plan, Any, Any]:
        """The parts from which it is made."""
        return self.plan, self.new, self.output


jax.tree_util.register_dataclass(Outcome, data_fields=["new", "output"], meta_fields=["plan"])


ARGUMENTS, TAKEN_OUT, RESULTS = range(3)
"""The parts of a changed graph: the roots that went in, objects that are reached no more, and the roots of the result.

An object that is taken out is there because the function may have set it before, and the caller may hold it.
"""


def leaf_paths(structure: Structure, change: StructureChange) -> Sequence[Path]:
    """The path of each leaf of a changed graph; of what is taken out, the path where it was."""
    paths: Sequence[Any] = change.graphdef.leaf_paths
    if not change.taken_out:
        return paths
    before = paths_of_objects(structure.graphdef)
    where: Any = [(ARGUMENTS, *before[index]) for index in change.taken_out]
    return [(*where[path[1]], *path[2:]) if path[0] == TAKEN_OUT else path for path in paths]


def leaves_set(structure: Structure, plan: Plan) -> Iterator[tuple[Path, LeafDef]]:
    """The argument and path, and the kind, of each leaf that the function set."""
    if plan.change is not None:
        paths, leaf_defs = leaf_paths(structure, plan.change), plan.change.graphdef.definition.leaf_defs
        for path, leaf_def, kept in zip(paths, leaf_defs, plan.change.kept, strict=True):
            if kept < 0 and path[0] == ARGUMENTS:
                yield path[1:], leaf_def
    else:
        definition = structure.graphdef.definition
        for i in plan.changed:
            yield definition.paths[i], definition.leaf_defs[i]


def origins_of_new(structure: Structure, plan: Plan) -> Sequence[int | None]:
    """For each new value of a plan, the position in the call of the leaf that it replaces; None for a new leaf."""
    if plan.change is None:
        return plan.changed
    origins = leaf_origins(structure, plan.change)
    return [origins.get(place) for place, kept in enumerate(plan.change.kept) if kept < 0]


def names_of_outputs(structure: Structure, plan: Plan, tree: Any = None) -> list[str]:
    """The names of the output arrays: the leaves that the function set, then those of its result, of this tree."""
    results = names_in_result(tree if plan.tree is None else plan.tree)
    names = [name_path(structure, path) for path, _ in leaves_set(structure, plan)]
    if plan.change is None:
        return names + results
    returned = list(compress(results, plan.is_root))
    pairs: Any = zip(plan.change.graphdef.leaf_paths, plan.change.kept, strict=True)
    names += [joined(returned[path[1]], path[2:]) for path, kept in pairs if kept < 0 and path[0] == RESULTS]
    return names + list(compress(results, map(not_, plan.is_root)))


def apply(outcome: Outcome, objects: Sequence[Any], values: Sequence[Any]) -> Any:
    """Gives the objects of a graph the structure and values of an outcome, and returns the function's output."""
    plan = outcome.plan
    if plan.change is None:
        return outcome.output
    slots = apply_change(plan.change, objects, values, outcome.new)
    returned = slots[blueprint_of(plan.change.graphdef).root][RESULTS]
    roots, plain = iter(returned), iter(outcome.output)
    leaves = [next(roots) if is_one else next(plain) for is_one in plan.is_root]
    return jax.tree_util.tree_unflatten(plan.tree, leaves)


def is_same_value(a: Any, b: Any) -> bool:
    """Whether a raw value is the one that went in, looking into containers."""
    if a is b:
        return True
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        return False
    flat: list[Any] = [jax.tree_util.tree_flatten(value) for value in (a, b)]
    (leaves_a, tree_a), (leaves_b, tree_b) = flat
    return tree_a == tree_b and all(map(is_, leaves_a, leaves_b))


def leaf_origins(structure: Structure, change: StructureChange) -> dict[int, int]:
    """For each leaf of a changed graph that the call has too, its position there."""
    before, after = leaves_of_objects(structure.graphdef), leaves_of_objects(change.graphdef)
    found = {leaf: before[change.origins[index]] for index, leaf in after.items() if change.origins[index] >= 0}
    of_objects = set(after.values())
    for leaf, path in enumerate(leaf_paths(structure, change)):
        if path[0] == ARGUMENTS and leaf not in of_objects:
            origin = structure.graphdef.definition.position(path[1:])
            if origin is not None:
                found[leaf] = origin
    return found


def _check_keys(tree: Any, objects: Sequence[Any]) -> None:
    """Refuses a result in which a model of the call is the key of a dict: a copy, which its caller does not have."""
    waiting = [tree]
    for part in waiting:
        waiting += part.children()
        data: Any
        kind, data = part.node_data() or (None, None)
        keys: Any = data[1] if kind is defaultdict else data if kind in (dict, OrderedDict) else ()
        model = next((key for key in keys if any(key is each for each in objects)), None)
        if model is not None:
            raise TransformError(
                "the result",
                "a model that the function has received is the key of a dict",
                got=describe(model),
                why="a copy stands for it while the function is traced, and the caller would not find its own model",
                fix="{'encoder': ...}        # by name; or a list in the order of the models",
            )


class Rebuilt:
    """The arguments inside of a transform, and what takes the place of captures, made anew from all leaves."""

    __slots__ = ("_leaves", "_objects", "_roots", "_structure", "_values", "args", "captured", "kwargs")

    def __init__(self, structure: Structure, leaves: Sequence[Any]) -> None:
        count = structure.num_leaves
        self._structure = structure
        self._leaves = leaves
        self._values = leaves[:count]
        blueprint = blueprint_of(structure.graphdef)
        slots = build_slots(structure.graphdef, self._values, orders=structure.orders)
        self._roots: tuple[Any, ...] = slots[blueprint.root]
        self._objects: list[Any] = [slots[i] for i in blueprint.indexed]
        roots, rest = iter(self._roots), iter(leaves[count:])
        parts = [next(roots) if is_one else next(rest) for is_one in structure.is_root]
        self.args, self.kwargs, self.captured = jax.tree_util.tree_unflatten(structure.tree, parts)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function with some of the rebuilt objects."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_copy(error, self._objects)
            raise

    def apply(self, outcome: Outcome) -> Any:
        """The result of a function, with its outcome applied to these objects instead of the caller's."""
        return apply(outcome, self._objects, self._leaves)

    def conclude(
        self, output: Any, mode: Mode, labels: ResultLabels | None = None, donated: Collection[int] = ()
    ) -> Outcome:
        """The results and changes of the user's function; what is donated, or moves to another label, counts as new."""
        found = Walk()
        found.visit(self._roots)
        is_same = found.graphdef is self._structure.graphdef and all(map(is_, found.objects, self._objects))
        nodes = zip(found.nodes, map(found.objects.__getitem__, found.nodes), strict=True)
        has_new_orders = is_same and not self._structure.orders.are_of(nodes)
        if not is_same and not mode.updates:
            after, objects = graph_without_sown(self._roots, found.objects)
            is_kept = [*map(is_, objects, self._objects)]
            if after is not self._structure.graphdef or not all(is_kept):
                raise _structure_changed(self._structure, after, is_kept)
        tree: Any
        leaves, tree = jax.tree_util.tree_flatten(output, is_leaf=is_root)
        if tree.num_nodes > tree.num_leaves:
            _check_keys(tree, self._objects)
        if labels is not None:
            leaves = apart_from_carry(leaves, labels.carried(tree), self._objects)
        pattern = [
            is_one or self._is_ref_of_call(leaf) for is_one, leaf in zip(which_are_roots(leaves), leaves, strict=True)
        ]
        has_roots = True in pattern
        if has_roots and not mode.returns:
            carried = () if labels is None else labels.carried(tree)
            check_returned(self._structure, self._objects, leaves, tree, mode, carried)
        if is_same and not has_new_orders and not has_roots:
            values = found.read()
            pairs = enumerate(zip(values, self._values, strict=True))
            changed = tuple([i for i, (new, old) in pairs if i in donated or not is_same_value(new, old)])
            if not changed or not any(isinstance(found.cells[i], Item) or is_ref(values[i]) for i in changed):
                if not changed and labels is None:
                    return Outcome(UNCHANGED, (), output)
                found_labels = () if labels is None else [labels.leaves[i] for i in changed] + labels.of_results(tree)
                plan = Plan(changed, tree=tree, labels=found_labels)
                return Outcome(plan, tuple(values[i] for i in changed), output)
        return self._conclude_structural(leaves, tree, labels, tuple(pattern), donated)

    def _new_orders(self, found: Walk, origins: Sequence[int]) -> Orders:
        """The orders of the nodes that had another one; a new node, whose origin is -1, would have the usual one."""
        blueprint, names = blueprint_of(self._structure.graphdef), {}
        for index in found.nodes:
            node, origin = found.objects[index], origins[index]
            now, before = order_of(node)
            if origin >= 0:
                before = blueprint.order_of(origin, self._structure.orders)
            if now != before:
                names[index] = now
        return Orders(names, {})

    def _is_ref_of_call(self, leaf: Any) -> bool:
        """Whether a value is a ref that the function has got or made; JAX can return neither."""
        return is_ref(leaf) and (_jax.is_of_current_trace(leaf) or any(leaf is given for given in self._leaves))

    def _conclude_structural(
        self,
        leaves: list[Any],
        tree: Any,
        labels: ResultLabels | None,
        pattern: tuple[bool, ...],
        donated: Collection[int],
    ) -> Outcome:
        """As `conclude`, for the graph of the roots, of what is taken out of them, and of the result."""
        returned = tuple(compress(leaves, pattern))
        reached = set(map(id, walk((self._roots, returned)).objects))
        taken_out = tuple([i for i, value in enumerate(self._objects) if id(value) not in reached])
        found = walk((self._roots, tuple([self._objects[i] for i in taken_out]), returned))
        given = [(i, value) for i, value in enumerate(self._values) if i not in donated and isinstance(value, Tracer)]
        given += [(i, value) for i, value in enumerate(self._leaves) if is_ref(value)]
        inputs = {id(value): i for i, value in given}
        values = found.read()
        kept = [inputs.get(id(value), -1) for value in values]
        ranks = {id(o): i for i, o in enumerate(self._objects)}
        origins = tuple(ranks.get(id(o), -1) for o in found.objects)
        sown = tuple(sown_attributes(found.objects))
        orders = self._new_orders(found, origins)
        change = StructureChange(found.graphdef, (), origins, sown, taken_out=taken_out, orders=orders)
        for place, leaf in leaf_origins(self._structure, change).items():
            if leaf not in donated and is_same_value(values[place], self._values[leaf]):
                kept[place] = leaf
        change = change._replace(kept=tuple(kept))
        of_results: Sequence[Any] = ()
        if labels is not None:
            of_graph, of_plain = labels.of_change(change, values, pattern, tree)
            change = change._replace(kept=labels.keep(change.kept, of_graph, values))
            of_results = [label for label, i in zip(of_graph, change.kept, strict=True) if i < 0] + of_plain
        added = [position for position, i in enumerate(change.kept) if i < 0]
        times = Counter(map(id, values))
        made = [i for i in added if self._is_ref_of_call(values[i]) and times[id(values[i])] == 1]
        for position in made:
            values[position] = jax.freeze(values[position])
        change = change._replace(refs=tuple(made))
        new = tuple(values[position] for position in added)
        plain = [leaf for leaf, is_one in zip(leaves, pattern, strict=True) if not is_one]
        return Outcome(Plan((), change, tree, pattern, of_results), new, plain)


def apart_from_carry(leaves: list[Any], carried: Collection[int], given: Sequence[Any]) -> list[Any]:
    """The leaves of a result, where those that a loop stacks have copies of the new objects that it carries too.

    The objects that the function was given are not copied, nor what holds refs.
    """
    stacked = [i for i, leaf in enumerate(leaves) if i not in carried and is_root(leaf)] if carried else []
    if not stacked:
        return leaves
    next_step = walk(tuple([leaves[i] for i in carried if is_root(leaves[i])]), known=given)
    found = walk(tuple([leaves[i] for i in stacked]), known=given)
    values, new = found.read(), found.objects[len(given) :]
    if {*map(id, next_step.objects[len(given) :])}.isdisjoint(map(id, new)) or any(map(is_ref, values)):
        return leaves
    slots = build_slots(found.graphdef, values, known=given)
    copies = dict(zip(stacked, slots[blueprint_of(found.graphdef).root], strict=True))
    return [copies.get(i, leaf) for i, leaf in enumerate(leaves)]


def _structure_changed(structure: Structure, after: GraphDef[Any], is_kept: Sequence[bool]) -> TransformError:
    found = first_differing(structure.graphdef, after, is_kept)
    return TransformError(
        name_path(structure, found.path) if found.path else "the arguments",
        "the function changes the structure of its arguments here, and changes of structure do not come back",
        why="graph_updates=False (or graph=False, or a default) forbids changes of structure",
        **found.details("graph_updates=True        # or undo the change before the function returns, as by dx.pop"),
    )


def check_returned(
    structure: Structure,
    objects: Sequence[Any],
    leaves: Sequence[Any],
    tree: Any,
    mode: Mode,
    carried: Collection[int] = (),
) -> None:
    """Refuses Variables of the arguments in a result; and without sharing, objects that it has twice."""
    pattern = [is_one and i not in carried for i, is_one in enumerate(which_are_roots(leaves))]
    found = Walk()
    found.visit(tuple(compress(leaves, pattern)))
    names = list(compress(names_in_result(tree), pattern))
    inputs = {id(value): index for index, value in enumerate(objects) if isinstance(value, Variable)}
    for index, value in enumerate(found.objects):
        if id(value) in inputs:
            argument = name_path(structure, paths_of_objects(structure.graphdef)[inputs[id(value)]])
            name = _name_below(names, paths_of_objects(found.graphdef)[index])
            raise TransformError(
                name,
                "the function returns a Variable of its arguments, and Variables in results are new ones",
                got=f"Duplicate {type_name(type(value))} found at paths {argument} and {name}",
                why="graph_updates=False (or graph=False, or a default) does not support Variable aliasing",
                fix=f"dx.clone({argument})        # or return its value; graph_updates=True returns it",
            )
    if not mode.graph and found.graphdef.shared is not None:
        *paths, cls = found.graphdef.shared
        first, again = (_name_below(names, path) for path in paths)
        raise TransformError(
            again,
            "this is reached twice, so the result is not a tree",
            got=f"Duplicate {type_name(cls)} found at paths {first} and {again}",
            fix="graph=True        # keeps sharing",
        )


def _name_below(names: list[str], path: Any) -> str:
    return joined(names[path[0]], path[1:])


def check_states_kept(before: Sequence[tuple[State[Any], dict[Path, Any]]], output: Any) -> None:
    """Refuses a write to a State among the arguments whose value is not in the result: the caller would not see it."""
    for state, old in before:
        written = [
            (path, new) for path, new in zip(state.paths, state.leaves, strict=True) if old.get(path, new) is not new
        ]
        if not written:
            continue
        leaves, *_ = flatten(output)
        values = chain.from_iterable(bind(leaf).read() if is_root(leaf) else (leaf,) for leaf in leaves)
        returned = set(map(id, values))
        for path, new in written:
            if id(new) not in returned:
                raise TransformError(
                    format_path(path),
                    "the function writes to a State that it got as an argument, and the write would be lost",
                    why="a State is a snapshot of values, and the State of the caller is another one",
                    fix="return state        # then dx.update(model, f(state)); or write to a copy, dx.State(state)",
                )


def lifted(
    closure: Closure,
    structure: Structure,
    mode: Mode = Mode(),  # noqa: B008  # immutable
    labels: ResultLabels | None = None,
    adapt: Callable[[Any], Callable[..., Any]] | None = None,
    donated: Collection[int] = (),
) -> Callable[..., Outcome]:
    """A function of the leaves of a call that rebuilds objects and calls the user's.

    `labels` are those of the call's leaves, if the results need labels; `adapt` turns the user's function into one of
    these arguments. Donated leaves of the graph count as set.
    """

    def call_on_leaves(*leaves: Any) -> Outcome:
        rebuilt = Rebuilt(structure, leaves)
        if structure.key is None or not structure.key.names:
            return call_user(closure.function, rebuilt)
        captures = structure.key.captures() or closure.find()  # those of the call, also after the function changed them
        with RebuiltClosure(captures, rebuilt.captured) as rebuilt_closure:
            outcome = call_user(rebuilt_closure.function, rebuilt)
            rebuilt_closure.conclude()  # last, since it changes what is outside
        return outcome

    def call_user(user: Callable[..., Any], rebuilt: Rebuilt) -> Outcome:
        function = user if adapt is None else adapt(user)
        states = contents_of_states((rebuilt.args, rebuilt.kwargs)) if structure.has_states else ()
        with uncaptured_reads.body():
            output = rebuilt.call(function, *rebuilt.args, **rebuilt.kwargs)
            check_states_kept(states, output)
            return rebuilt.conclude(output, mode, labels, donated)

    return call_on_leaves
