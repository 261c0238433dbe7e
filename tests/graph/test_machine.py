"""Random sequences of all operations on graphs, compared with a model in plain Python.

A twin is a real graph and the reference graph with which it must agree. An edit is plain data that describes a
change by paths; it is applied to both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import declax as dx
import strategies
from declax._graph import unflattening, updating
from declax.errors import FilterError, GraphError
from graph import reference_model as reference
from graph.reference_model import Leaf, Node, Refused, Var

steps = 0
"""How many rules were carried out in this run."""

KIND_NAMES = {cls: name for name, cls in strategies.KINDS.items()}
NODE_NAMES = {cls: name for name, cls in strategies.NODES.items()}
DEFAULTS = {"scale": {"unit": "m"}}


@dataclass(eq=False)
class Twin:
    real: Any
    model: Any


@dataclass(eq=False)
class Saved:
    graphdef: Any
    states: list[Any]
    template: Any
    model_states: list[reference.State]


# ================================================================= filters

FILTERS: dict[str, tuple[Any, reference.Filter]] = {
    "param": (dx.Param, lambda path, leaf: leaf.kind in ("param", "scale")),
    "stat": (dx.BatchStat, lambda path, leaf: leaf.kind == "stat"),
    "variable": (dx.Variable, lambda path, leaf: leaf.kind is not None),
    "cache or scale": ((dx.Cache, strategies.Scale), lambda path, leaf: leaf.kind in ("cache", "scale")),
    "tag": ("dropout", lambda path, leaf: (leaf.metadata or {}).get("tag") == "dropout"),
    "contains": (dx.PathContains("a"), lambda path, leaf: "a" in path),
    "in": (dx.PathIn(("a",), ("b", 0)), lambda path, leaf: path in (("a",), ("b", 0))),
    "not": (dx.Not(dx.Param), lambda path, leaf: leaf.kind not in ("param", "scale")),
    "all": (
        dx.All(dx.Param, dx.PathContains("kernel")),
        lambda path, leaf: leaf.kind in ("param", "scale") and "kernel" in path,
    ),
    "function": (lambda path, value: len(path) < 2, lambda path, leaf: len(path) < 2),
    "nothing": (False, lambda path, leaf: False),
}
REST = (..., lambda path, leaf: True)

some_filters = st.lists(st.sampled_from(sorted(FILTERS)), min_size=1, max_size=3)


def pairs_of(names: list[str], *, rest: bool) -> tuple[list[Any], list[reference.Filter]]:
    chosen = [FILTERS[name] for name in names] + [REST] * rest
    return [real for real, _ in chosen], [wants for _, wants in chosen]


# ================================================================= comparing


def compare(real: Any, model: Any) -> None:
    """Checks that a graph has the structure, sharing and values of its reference."""
    there: dict[int, Any] = {}
    back: dict[int, Any] = {}
    stack = [((), real, model, None)]
    while stack:
        path, x, y, owner = stack.pop()
        where = str(path)
        if reference.is_object(y):
            assert there.setdefault(id(x), y) is y, f"{where}: sharing differs"
            is_first = id(y) not in back
            assert back.setdefault(id(y), x) is x, f"{where}: sharing differs"
            if not is_first:
                continue
        if isinstance(y, Var):
            assert KIND_NAMES[type(x)] == y.kind, where
            assert reference.typed(x.get_metadata(exclude_required=True)) == reference.typed(y.metadata), where
            reference.same_leaf(x.raw_value, y.value, where)
        elif isinstance(y, Node):
            assert NODE_NAMES[type(x)] == y.kind, where
            attributes = strategies.own_attributes(x)
            assert attributes.keys() == y.attributes().keys(), where
            if y.kind != "object":
                assert strategies.status_of(x) == y.data.keys(), where
            for name, value in y.static.items():
                assert reference.typed(attributes[name]) == reference.typed(value), f"{where}.{name}"
            stack += [((*path, name), attributes[name], value, y) for name, value in y.data.items()]
        elif reference.is_leaf(y, owner):
            reference.same_leaf(x, y, where)
        elif isinstance(y, (list, tuple, dict)):
            assert type(x) is type(y), where
            keys = [list(value) if isinstance(value, dict) else list(range(len(value))) for value in (x, y)]
            assert keys[0] == keys[1], where
            stack += [((*path, key), x[key], y[key], y) for key in keys[1]]
        else:
            assert reference.typed(x) == reference.typed(y), where


def compare_state(real: Any, model: reference.State) -> None:
    """Checks that a State has the leaves of the reference, in its order."""
    assert list(real.paths) == list(model)
    assert {path for path, _ in real.flat_state()} == model.keys()
    for path, value in real.flat_state():
        leaf = model[path]
        if leaf.kind is None:
            reference.same_leaf(value, leaf.value, str(path))
        else:
            assert KIND_NAMES[type(value)] == leaf.kind, path
            assert reference.typed(value.get_metadata(exclude_required=True)) == reference.typed(leaf.metadata), path
            reference.same_leaf(value.raw_value, leaf.value, str(path))


# ================================================================= edits

NODES = ("open", "pytree", "object", "declared", "list", "dict")
NAMES = ("a", "b", "kernel", "new")
STATIC_NAMES = ("m", "n")
STATICS = (0, 1, True, 1.0, -0.0, "x", None, (1, 2), (True, 2), [1], [True], [1, "x"], {"a": [1]}, {1}, jnp.tanh)


def _specs(depth: int = 2) -> st.SearchStrategy[Any]:
    numbers = st.tuples(st.just("number"), st.sampled_from([1, 2.5, True]))
    new = st.tuples(st.just("new"), st.tuples(st.sampled_from(sorted(strategies.KINDS)), st.integers(0, 9)))
    made = st.tuples(st.just("made"), st.sampled_from(NODES))
    return st.one_of(strategies._values(6, 6, depth), new, made, numbers)


VARIABLE_EDITS = ("value", "value", "note", "forget")
NODE_EDITS = ("attribute", "attribute", "static", "delete", "grow", "alias")
CONTAINER_EDITS = ("append", "replace", "remove")

some_edits = st.tuples(
    st.sampled_from(VARIABLE_EDITS + NODE_EDITS + CONTAINER_EDITS),
    st.integers(0, 9),
    st.integers(0, 9),
    _specs(),
)


def resolve(root: Any, edit: Any) -> Any:
    """The edit by paths for a reference graph.

    Where the graph has nothing of the sort, it gets a new Variable; None where it has no place for one.
    """
    new = "new", (sorted(strategies.KINDS)[edit[1] % 5], edit[2])
    return _resolve(root, edit) or _resolve(root, ("attribute", edit[2], edit[1], new))


def _resolve(root: Any, edit: Any) -> Any:
    kind, i, j, spec = edit
    variables = reference.objects(root, Var)
    nodes = reference.objects(root, Node)
    plain = reference.objects(root, (list, dict))
    spec = _resolve_spec(spec, variables, nodes)
    if kind in VARIABLE_EDITS:
        path = variables[i % len(variables)][0] if variables else None
        return None if path is None else (kind, path, j, spec)
    open_nodes = [(p, n) for p, n in nodes if n.kind not in ("list", "dict")]
    if kind in NODE_EDITS:
        path, node = open_nodes[i % len(open_nodes)] if open_nodes else (None, None)
        if node is None:
            return None
        if kind == "delete":
            names = sorted(node.attributes())
            return (kind, path, names[j % len(names)], spec) if names else None
        if kind == "grow":
            names = sorted(n for n, v in node.static.items() if isinstance(v, list))
            return (kind, path, names[j % len(names)], spec) if names else None
        if kind == "alias":
            return (kind, path, "alias", plain[j % len(plain)][0]) if plain else None
        return kind, path, (STATIC_NAMES if kind == "static" else NAMES)[j % 2], (j, spec)
    holders = [(p, n) for p, n in nodes if n.kind in ("list", "dict")] + [(p, v) for p, v in plain if _has_text_keys(v)]
    if not holders:
        return None
    path, holder = holders[i % len(holders)]
    keys = sorted(holder.attributes()) if isinstance(holder, Node) else [k for k, _ in reference.children(holder)]
    if kind == "append":
        return kind, path, f"key{j % 2}", spec
    return (kind, path, keys[j % len(keys)], spec) if keys else None


def _has_text_keys(value: Any) -> bool:
    return isinstance(value, list) or all(isinstance(key, str) for key in value)


def _resolve_spec(spec: Any, variables: list[Any], nodes: list[Any]) -> Any:
    """Puts paths in the place of numbers."""
    kind, content = spec
    if kind == "node":
        return "at", nodes[content % len(nodes)][0]
    if kind == "variable":
        return ("at", variables[content % len(variables)][0]) if variables else ("new", ("param", content))
    if kind in ("list", "tuple"):
        return kind, tuple(_resolve_spec(item, variables, nodes) for item in content)
    if kind in ("dict", "ints"):
        return kind, tuple((key, _resolve_spec(item, variables, nodes)) for key, item in content)
    return spec


def edit_model(root: Any, edit: Any) -> None:
    """Carries out an edit on a reference graph."""
    kind, path, key, spec = edit
    target = reference.at(root, path)
    makers = {
        "at": lambda place: reference.at(root, place),
        "new": lambda content: Var(content[0], strategies.array_of(content[1]), dict(DEFAULTS.get(content[0], {}))),
        "made": reference.new_node,
    }

    def value(spec: Any) -> Any:
        return reference.of_spec(spec, makers, strategies.array_of)

    if kind == "value":
        target.value = strategies.array_of(key)
    elif kind == "note":
        target.metadata["note"] = [key % 2, bool(key % 2), "n", ["x", key % 2]][key % 4]
    elif kind == "forget":
        target.metadata.pop("note", None)
    elif kind == "attribute":
        target.set(key, value(spec[1]))
    elif kind == "static":
        target.set(key, reference.own(STATICS[_static_of(spec)]), is_static=True)
    elif kind == "delete":
        target.delete(key)
    elif kind == "grow":
        target.static[key].append(9)
    elif kind == "alias":
        target.set(key, reference.at(root, spec))
    elif isinstance(target, Node):
        if kind == "remove":
            target.remove({key})
        else:
            is_new = kind == "append" and target.kind == "list"
            target.set(len(target.attributes()) if is_new else key, value(spec))
    elif kind == "remove":
        del target[key]
    elif kind == "append" and isinstance(target, list):
        target.append(value(spec))
    else:
        target[key] = value(spec)


def _static_of(spec: Any) -> int:
    return (spec[0] * 7 + len(str(spec[1]))) % len(STATICS)


def edit_real(root: Any, edit: Any) -> None:
    """Carries out an edit on a real graph."""
    kind, path, key, spec = edit
    target = real_at(root, path)
    is_box = isinstance(target, dx.Object)

    def value(spec: Any) -> Any:
        return _real_value(root, spec)

    if kind == "value":
        target.value = jnp.asarray(strategies.array_of(key))
    elif kind == "note":
        target.set_metadata(note=[key % 2, bool(key % 2), "n", ["x", key % 2]][key % 4])
    elif kind == "forget":
        if "note" in target.get_metadata():
            target.del_metadata("note")
    elif kind == "attribute":
        setattr(target, key, value(spec[1]) if is_box else dx.data(value(spec[1])))
    elif kind == "static":
        static = reference.own(STATICS[_static_of(spec)])
        setattr(target, key, static if is_box else dx.static(static))
    elif kind == "delete":
        delattr(target, key)
    elif kind == "grow":
        getattr(target, key).append(9)
    elif kind == "alias":
        found = real_at(root, spec)
        setattr(target, key, found if is_box else dx.data(found))
    elif kind == "remove":
        del target[key]
    else:
        wrap = dx.data if isinstance(target, dx.Pytree) else lambda x: x
        if kind == "append" and isinstance(target, (list, dx.List)):
            target.append(wrap(value(spec)))
        else:
            target[key] = wrap(value(spec))


def real_at(root: Any, path: reference.Path) -> Any:
    for key in path:
        is_named = isinstance(root, dx.Pytree) and not isinstance(root, (dx.List, dx.Dict))
        root = getattr(root, key) if is_named else root[key]
    return root


def _real_value(root: Any, spec: Any) -> Any:
    kind, content = spec
    if kind == "at":
        return real_at(root, content)
    if kind == "new":
        return strategies.KINDS[content[0]](jnp.asarray(strategies.array_of(content[1])))
    if kind == "made":
        return strategies.NODES[content]()
    if kind == "raw":
        return jnp.asarray(strategies.array_of(content))
    if kind == "numpy":
        return strategies.array_of(content)
    if kind == "number":
        return content
    if kind in ("dict", "ints"):
        return {key: _real_value(root, item) for key, item in content}
    items = [_real_value(root, item) for item in content]
    return tuple(items) if kind == "tuple" else items


class Deliberate(Exception):
    pass


# ================================================================= the machine


class GraphMachine(RuleBasedStateMachine):
    """Holds twins and saved pairs at once, and compares all of them after each step."""

    twins = Bundle("twins")
    saved = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[Twin] = []
        self.kept: list[Saved] = []

    # --- what comes and goes

    def add(self, real: Any, model: Any) -> Twin:
        twin = Twin(real, model)
        self.alive.append(twin)
        return twin

    def room(self) -> bool:
        return len(self.alive) < 5

    @precondition(room)
    @rule(target=twins, recipe=strategies.recipes(max_nodes=4), several=st.lists(some_edits, min_size=3, max_size=8))
    def build(self, recipe: Any, several: list[Any]) -> Twin:
        counted()
        model = reference.of_recipe(recipe, strategies.array_of, DEFAULTS, strategies.FUNCTIONS)
        twin = self.add(strategies.build(recipe), model)
        for edit in several:
            self.carry_out(twin, edit)
        return twin

    @precondition(lambda self: len(self.alive) > 2)
    @rule(twin=consumes(twins))
    def forget_twin(self, twin: Twin) -> None:
        counted()
        self.alive.remove(twin)

    @precondition(lambda self: len(self.kept) > 2)
    @rule(pair=consumes(saved))
    def forget_saved(self, pair: Saved) -> None:
        counted()
        self.kept.remove(pair)

    # --- edits, by hand and in a jitted function

    @rule(twin=twins, edit=some_edits)
    def edit(self, twin: Twin, edit: Any) -> None:
        counted()
        self.carry_out(twin, edit)

    @rule(twin=twins, several=st.lists(some_edits, min_size=2, max_size=4))
    def edit_much(self, twin: Twin, several: list[Any]) -> None:
        counted()
        for edit in several:
            self.carry_out(twin, edit)

    def carry_out(self, twin: Twin, edit: Any) -> None:
        found = resolve(twin.model, edit)
        if found is not None:
            edit_real(twin.real, found)
            edit_model(twin.model, found)

    @rule(twin=twins, edit=some_edits)
    def edit_in_jit(self, twin: Twin, edit: Any) -> None:
        counted()
        found = resolve(twin.model, edit)
        if found is None or found[0] == "alias" or reference.has_aliased_containers(twin.model):
            return  # one container in two places is two values to a traced function
        dx.jit(lambda m: edit_real(m, found))(twin.real)
        edit_model(twin.model, found)

    @rule(twin=twins)
    def double_in_jit(self, twin: Twin) -> None:
        counted()
        double(twin.real)
        for _, var in reference.objects(twin.model, Var):
            if var.kind in ("param", "scale"):
                var.value = plus_one(var.value * np.float32(2))

    @rule(twin=twins, edit=some_edits)
    def fail_in_jit(self, twin: Twin, edit: Any) -> None:
        counted()
        found = resolve(twin.model, edit)

        def change_and_fail(m: Any) -> None:
            if found is not None:
                edit_real(m, found)
            raise Deliberate

        with pytest.raises(Deliberate):
            dx.jit(change_and_fail)(twin.real)

    # --- split, merge, update, pop, clone

    @precondition(lambda self: len(self.kept) < 4)
    @rule(target=saved, twin=twins, names=st.lists(st.sampled_from(sorted(FILTERS)), max_size=3))
    def split(self, twin: Twin, names: list[str]) -> Saved:
        counted()
        filters, wants = pairs_of(names, rest=True)
        graphdef, *states = dx.split(twin.real, *filters)
        model_states = reference.group(reference.take(twin.model), wants, is_exhaustive=True)
        pair = Saved(graphdef, states, reference.copy(twin.model), model_states)
        self.kept.append(pair)
        return pair

    @rule(twin=twins, names=some_filters)
    def split_without_rest(self, twin: Twin, names: list[str]) -> None:
        counted()
        filters, wants = pairs_of(names, rest=False)
        try:
            expected = reference.group(reference.take(twin.model), wants, is_exhaustive=True)
        except Refused:
            with pytest.raises(FilterError, match="no filter matches this leaf"):
                dx.split(twin.real, *filters)
            return
        _, *states = dx.split(twin.real, *filters)
        for state, wanted in zip(states, expected, strict=True):
            compare_state(state, wanted)

    @rule(pair=saved, which=st.integers(0, 3), leaf=st.integers(0, 9), note=st.integers(0, 3), new=st.booleans())
    def edit_state(self, pair: Saved, which: int, leaf: int, note: int, new: bool) -> None:
        counted()
        state, model_state = [*zip(pair.states, pair.model_states, strict=True)][which % len(pair.states)]
        paths = [path for path, found in model_state.items() if found.kind is not None]
        if not paths:
            return
        path = paths[leaf % len(paths)]
        box, found = real_at(state, path), model_state[path]
        if new:
            box.value = jnp.asarray(strategies.array_of(note))
            model_state[path] = found._replace(value=strategies.array_of(note))
        else:
            box.set_metadata(note=note)
            model_state[path] = found._replace(metadata={**(found.metadata or {}), "note": note})

    @precondition(room)
    @rule(target=twins, pair=saved, copy=st.booleans(), turn=st.integers(0, 3))
    def merge(self, pair: Saved, copy: bool, turn: int) -> Twin:
        counted()
        states = pair.states[turn:] + pair.states[:turn]
        model = reference.merge(pair.template, pair.model_states)
        return self.add(dx.merge(pair.graphdef, *states, copy=copy), reference.clone(model) if copy else model)

    @rule(one=saved, other=saved)
    def merge_foreign(self, one: Saved, other: Saved) -> None:
        counted()
        try:
            expected = reference.merge(one.template, other.model_states)
        except Refused:
            with pytest.raises(GraphError, match="the State does not fit the graph"):
                dx.merge(one.graphdef, *other.states)
            return
        compare(dx.merge(one.graphdef, *other.states), expected)

    @rule(twin=twins, pair=saved, part=st.integers(0, 3), pure=st.booleans())
    def update(self, twin: Twin, pair: Saved, part: int, pure: bool) -> None:
        counted()
        states, model_states = pair.states, pair.model_states
        if part < len(states):
            states, model_states = states[part : part + 1], model_states[part : part + 1]
        if pure:
            states = [state.to_pure_dict() for state in states]
            model_states = [{p: Leaf(None, None, leaf.value) for p, leaf in state.items()} for state in model_states]
        self.update_both(twin, states, model_states)

    @rule(twin=twins, names=some_filters)
    def update_some(self, twin: Twin, names: list[str]) -> None:
        counted()
        filters, wants = pairs_of(names, rest=True)
        state = dx.state(twin.real, *filters)[0]
        found = reference.group(reference.take(twin.model), wants)[0]
        grown = {path: leaf._replace(value=plus_one(leaf.value)) for path, leaf in found.items()}
        self.update_both(twin, [jax.tree.map(more, state)], [grown])

    def update_both(self, twin: Twin, states: list[Any], model_states: list[reference.State]) -> None:
        try:
            reference.update(twin.model, model_states)
        except Refused:
            with pytest.raises(GraphError, match=r"the State does not fit the graph|cannot be changed in place"):
                dx.update(twin.real, *states)
            return
        dx.update(twin.real, *states)

    @rule(twin=twins, names=some_filters)
    def pop(self, twin: Twin, names: list[str]) -> None:
        counted()
        filters, wants = pairs_of(names, rest=False)
        try:
            expected = reference.pop(twin.model, wants)
        except Refused:
            with pytest.raises(GraphError, match="this leaf sits in a tuple, which cannot be changed in place"):
                dx.pop(twin.real, *filters)
            return
        popped = dx.pop(twin.real, *filters)
        for state, wanted in zip(popped if len(filters) > 1 else [popped], expected, strict=True):
            compare_state(state, wanted)

    @precondition(room)
    @rule(target=twins, twin=twins)
    def clone(self, twin: Twin) -> Twin:
        counted()
        return self.add(dx.clone(twin.real), reference.clone(twin.model))

    @precondition(room)
    @rule(target=twins, twin=twins)
    def clone_and_donate(self, twin: Twin) -> Twin:
        counted()
        original = dx.clone(twin.real)  # owns its arrays, which may therefore be donated
        made = dx.clone(original)
        arrays = [leaf for leaf in dx.state(original).leaves if isinstance(leaf, jax.Array)]
        for array in {id(array): array for array in arrays}.values():
            donate(array)
            assert array.is_deleted()
        return self.add(made, reference.clone(twin.model))

    # --- looking

    @rule(twin=twins, names=some_filters)
    def look(self, twin: Twin, names: list[str]) -> None:
        counted()
        filters, wants = pairs_of(names, rest=False)
        states = dx.state(twin.real, *filters)
        groups = reference.group(reference.take(twin.model), wants)
        for state, wanted in zip(states if len(filters) > 1 else [states], groups, strict=True):
            compare_state(state, wanted)
        objects = dx.find_duplicates(twin.real, only=dx.Not((jax.Array, np.ndarray)))  # the model shares no arrays
        assert objects == reference.duplicates(twin.model)
        found = list(dx.iter_graph(twin.real))
        assert [path for path, _ in found] == reference.everything(twin.model)
        modules = [path for path, value in found if isinstance(value, dx.Module)]
        assert [path for path, _ in dx.iter_modules(twin.real)] == modules

    # --- what must fail, and leave all as it was

    @rule(twin=twins, other=st.integers(0, 9), fault=st.sampled_from(["shape", "path", "kind"]))
    def update_wrongly(self, twin: Twin, other: int, fault: str) -> None:
        counted()
        state = dx.state(twin.real)
        flat = dict(jax.tree.map(more, state).flat_state())
        candidates = [path for path, leaf in reference.take(twin.model).items() if leaf.kind is not None]
        if fault == "path" or not candidates:
            flat["nowhere", "new"] = dx.Param(jnp.ones(2))
        else:
            path = candidates[other % len(candidates)]
            if fault == "shape":
                flat[path] = flat[path].copy(jnp.ones((7, 1)))
            else:
                flat[path] = (dx.Intermediate if other % 2 else dx.Variable[Any])(flat[path].raw_value)
                if type(flat[path]) is type(real_at(twin.real, path)):
                    flat[path] = dx.Intermediate(flat[path].raw_value)
        with pytest.raises(GraphError, match="the State does not fit the graph at 1 path"):
            dx.update(twin.real, dx.State.from_flat_path(flat))

    @rule(twin=twins)
    def pop_nothing(self, twin: Twin) -> None:
        counted()
        with pytest.raises(FilterError, match="at least one filter is required"):
            dx.pop(twin.real)

    @rule(pair=saved)
    def merge_too_little(self, pair: Saved) -> None:
        counted()
        short = [state for state in pair.states if not len(state)]
        if len(short) < len(pair.states):
            with pytest.raises(GraphError, match="the State does not fit the graph"):
                dx.merge(pair.graphdef, *short, dx.State())

    # --- after each step

    @invariant()
    def all_agree(self) -> None:
        defs = []
        for twin in self.alive:
            compare(twin.real, twin.model)
            compare_state(dx.state(twin.real), reference.take(twin.model))
            defs.append((dx.graphdef(twin.real), reference.structure(twin.model)))
        for pair in self.kept:
            for state, wanted in zip(pair.states, pair.model_states, strict=True):
                compare_state(state, wanted)
            defs.append((pair.graphdef, reference.structure(pair.template)))
        for i, (graphdef, structure) in enumerate(defs):
            for other, other_structure in defs[:i]:
                assert (graphdef == other) == (structure == other_structure)


def plus_one(value: Any) -> Any:
    return np.asarray(value + np.float32(1))  # NumPy makes scalars of arrays without axes


def more(leaf: Any) -> Any:
    return jnp.asarray(leaf, np.float32) + 1


def counted() -> None:
    global steps
    steps += 1


@dx.jit
def double(m: Any) -> None:
    for _, value in dx.iter_graph(m):
        if isinstance(value, dx.Param):
            value.value = value.value * np.float32(2) + np.float32(1)


donate = jax.jit(lambda x: ~x if x.dtype == bool else x + x, donate_argnums=0)

_SETTINGS = hypothesis.settings(
    max_examples=10,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.slow
def test_random_sequences_agree_with_the_reference_model():
    before = steps
    run_state_machine_as_test(GraphMachine, settings=_SETTINGS)
    assert steps - before >= 200


@pytest.mark.slow
def test_random_sequences_agree_where_models_count_as_large(monkeypatch):
    """Variables are made and checked in batches, as in models of thousands of leaves."""
    for module in (unflattening, updating):
        monkeypatch.setattr(module, "BATCH", 2)
    run_state_machine_as_test(GraphMachine, settings=_SETTINGS)


@pytest.mark.slow
@pytest.mark.campaign
def test_long_random_sequences_agree_with_the_reference_model():
    examples = int(os.environ.get("DECLAX_MACHINE_EXAMPLES", "200"))
    before = steps
    run_state_machine_as_test(
        GraphMachine,
        settings=hypothesis.settings(_SETTINGS, max_examples=examples, stateful_step_count=200, derandomize=False),
    )
    assert steps - before >= 10 * examples


# ================================================================= what the machine has found


@pytest.mark.parametrize("number", [1.0, np.float32(1)])
def test_an_update_with_numbers_leaves_the_structure_as_it_was(number):
    model = strategies.Open()
    model.plain, model.box = dx.data([jnp.zeros(())]), strategies.Box()
    model.box.raw = jnp.zeros(())
    before = dx.graphdef(model)
    dx.update(model, jax.tree.map(lambda leaf: number, dx.state(model)))
    assert dx.graphdef(model) is before
    assert [float(leaf) for leaf in dx.state(model).leaves] == [1.0, 1.0]


def test_pop_takes_what_state_shows_and_leaves_no_reference():
    model = strategies.Open()
    model.a, model.part = dx.Param(jnp.ones(1)), strategies.Open()
    model.part.b = model.a
    wanted = dx.state(model, dx.PathContains("part"))
    popped = dx.pop(model, dx.PathContains("part"))
    assert popped == wanted
    assert hasattr(model, "a") == hasattr(model.part, "b")


def test_modules_have_the_paths_that_states_have():
    model = strategies.Open()
    first, second = strategies.Open(), strategies.Open()
    second.w = dx.Param(jnp.ones(1))
    model.a = dx.data([first, second])
    first.alias = dx.data(model.a)
    assert dx.state(model).paths == (("a", 0, "alias", 1, "w"),)
    assert ("a", 0, "alias", 1) in dict(dx.iter_graph(model))
    assert ("a", 0, "alias", 1) in dict(dx.iter_modules(model))
