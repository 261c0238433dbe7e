"""What programs of `programs` mean: the names of declax that they use, in plain Python.

No transform compiles or rebuilds anything: loops are loops, `vmap` is a loop over the rows, branches are chosen, and
`grad` is `jax.grad` of the values of the Params, with every effect of the differentiated run undone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

made: list[Any] = []
"""All objects of this run, so that effects can be undone."""


class Object:
    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = object.__new__(cls)
        made.append(self)
        return self


class Variable(Object):
    def __init__(self, value: Any, **metadata: Any) -> None:
        self.value = value
        self.metadata = metadata

    def set_metadata(self, **metadata: Any) -> None:
        self.metadata = self.metadata | metadata

    def get_metadata(self, *, exclude_required: bool = False) -> dict[str, Any]:
        return self.metadata


class Param(Variable):
    pass


class BatchStat(Variable):
    pass


class Cache(Variable):
    pass


class Module(Object):
    pass


class List(Module):
    def __init__(self, items: Sequence[Any] = ()) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __getitem__(self, i: int) -> Any:
        return self._items[i]

    def __setitem__(self, i: int, value: Any) -> None:
        self._items = [*self._items[:i], value, *self._items[i:][1:]]

    def insert(self, i: int, value: Any) -> None:
        self._items = [*self._items[:i], value, *self._items[i:]]

    def append(self, value: Any) -> None:
        self._items = [*self._items, value]

    def pop(self) -> Any:
        *self._items, last = self._items
        return last

    def reverse(self) -> None:
        self._items = self._items[::-1]


class Dict(Module):
    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = dict(entries)

    def keys(self) -> list[str]:
        return list(self._entries)

    def items(self) -> list[tuple[str, Any]]:
        return list(self._entries.items())

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._entries = {**self._entries, key: value}

    def pop(self, key: str) -> Any:
        self._entries = dict(self._entries)
        return self._entries.pop(key)


def data(value: Any) -> Any:
    return value


dataclass = dataclasses.dataclass(eq=False)


# ================================================================= effects


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Undoes all writes to objects that were there before; no program writes to a plain container in place."""
    before = [(thing, dict(vars(thing))) for thing in made]
    yield
    for thing, attributes in before:
        vars(thing).clear()
        vars(thing).update(attributes)


# ================================================================= graphs


def children(thing: Any) -> list[tuple[Any, Any]]:
    """The parts of a node or container in the order of paths, which is that of sorted names."""
    if isinstance(thing, List):
        return list(enumerate(thing))
    if isinstance(thing, (list, tuple)):
        return list(enumerate(thing))
    if isinstance(thing, (Dict, dict)):
        return sorted(thing.items())
    return sorted(vars(thing).items()) if isinstance(thing, Module) else []


Place = tuple[Any, str, tuple[Any, ...]]
"""Where a value is: an object, its attribute, and the way into the plain containers there."""


def leaves_of(root: Any) -> dict[tuple[Any, ...], tuple[Any, Place]]:
    """By path, each Variable once, and each array that is in none; with its Variable and its place."""
    found: dict[tuple[Any, ...], tuple[Any, Place]] = {}
    seen: set[int] = set()

    def visit(path: tuple[Any, ...], value: Any, place: Any) -> None:
        if isinstance(value, Object):
            if id(value) in seen:
                return
            seen.add(id(value))
        if isinstance(value, Variable):
            found[path] = value, (value, "value", ())
        elif isinstance(value, jax.Array):
            found[path] = None, place
        else:
            for name, child in children(value):
                if isinstance(value, Module):
                    field = {List: "_items", Dict: "_entries"}.get(type(value))
                    visit((*path, name), child, (value, field or name, (name,) if field else ()))
                else:
                    visit((*path, name), child, place and (*place[:2], (*place[2], name)))

    visit((), root, None)
    return found


def _get(place: Place) -> Any:
    thing, name, way = place
    value = getattr(thing, name)
    for key in way:
        value = value[key]
    return value


def _set(place: Place, new: Any) -> None:
    def put(value: Any, way: tuple[Any, ...]) -> Any:
        if not way:
            return new
        items = dict(value) if isinstance(value, dict) else list(value)
        items[way[0]] = put(items[way[0]], way[1:])
        return items if isinstance(value, (dict, list)) else tuple(items)

    thing, name, way = place
    setattr(thing, name, put(getattr(thing, name), way))


def matches(wanted: Any, variable: Any) -> bool:
    return wanted is ... or (variable is not None and isinstance(variable, wanted))


class State:
    """Values by path."""

    def __init__(self, values: dict[tuple[Any, ...], Any]) -> None:
        self.values = values


jax.tree_util.register_pytree_node(
    State,
    lambda state: (list(state.values.values()), tuple(state.values)),
    lambda paths, leaves: State(dict(zip(paths, leaves, strict=True))),
)


def state(root: Any, wanted: Any = ...) -> State:
    found = leaves_of(root).items()
    return State({path: _get(place) for path, (variable, place) in found if matches(wanted, variable)})


def update(root: Any, values: State) -> None:
    places = leaves_of(root)
    for path, value in values.values.items():
        _set(places[path][1], value)


def pop(root: Any, wanted: Any) -> State:
    """Removes the Variables of a kind from all nodes; programs have such Variables in attributes only."""
    popped = state(root, wanted)
    for node in nodes_of(root):
        for name, value in list(vars(node).items()):
            if isinstance(value, wanted):
                delattr(node, name)
    return popped


def nodes_of(root: Any) -> list[Any]:
    found: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Module):
            if id(value) in found:
                return
            found[id(value)] = value
        for _, child in children(value):
            visit(child)

    visit(root)
    return list(found.values())


def clone(root: Any) -> Any:
    return _copied(root, lambda thing: list(vars(thing).items()))


def _copied(root: Any, attributes_of: Callable[[Any], list[tuple[str, Any]]]) -> Any:
    copies: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, Object):
            if id(value) not in copies:
                made_now = copies[id(value)] = type(value).__new__(type(value))
                vars(made_now).update({name: copy(part) for name, part in attributes_of(value)})
            return copies[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(map(copy, value))
        if isinstance(value, dict):
            return {key: copy(part) for key, part in value.items()}
        return value

    return copy(root)


def _as_merged(thing: Any) -> list[tuple[str, Any]]:
    """The attributes in the order that `merge` gives: data, then static ones, each sorted by name; entries stay."""
    return sorted(vars(thing).items(), key=lambda item: (item[0] == "mode", item[0]))


def split(root: Any, *filters: Any) -> tuple[Any, ...]:
    rest = leaves_of(root)
    states = []
    for wanted in filters or (...,):
        taken = {path: place for path, (variable, place) in rest.items() if matches(wanted, variable)}
        states.append(State({path: _get(place) for path, place in taken.items()}))
        rest = {path: found for path, found in rest.items() if path not in taken}
    return _copied(root, _as_merged), *states


def merge(template: Any, *states: State) -> Any:
    root = _copied(template, _as_merged)
    for values in states:
        update(root, values)
    return root


# ================================================================= transforms


compiles = False
"""Whether `jit` and `remat` undo all effects of a function that raises."""


def jit(f: Any = None, **_: Any) -> Any:
    if f is None:
        return jit
    return _lifted(f) if compiles else f


remat = jit


def _lifted(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def called(*args: Any, **kwargs: Any) -> Any:
        before = [(thing, dict(vars(thing))) for thing in made]
        try:
            return f(*args, **kwargs)
        except BaseException:
            for thing, attributes in before:
                vars(thing).clear()
                vars(thing).update(attributes)
            raise

    return called


def shard_map(f: Any, **_: Any) -> Any:
    return f


class DiffState:
    def __init__(self, argnum: int, wanted: Any) -> None:
        self.argnum = argnum
        self.wanted = wanted


def value_and_grad(f: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    def differentiated(*args: Any) -> Any:
        number, wanted = (argnums.argnum, argnums.wanted) if isinstance(argnums, DiffState) else (argnums, Param)
        argument = args[number]
        is_graph = not isinstance(argument, jax.Array)

        def loss(given: Any) -> Any:
            with undone():
                if is_graph:
                    update(argument, given)
                    out = f(*args)
                else:
                    out = f(*args[:number], given, *args[number + 1 :])
            return out[0] if has_aux else out

        grads = jax.grad(loss)(state(argument, wanted) if is_graph else argument)
        return f(*args), grads

    return differentiated


def grad(f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    return lambda *args: value_and_grad(f, argnums)(*args)[1]


class custom_vjp:
    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        self.forward, self.backward = forward, backward

    def __call__(self, model: Any, x: Any) -> Any:
        """As JAX does it with all values of the model; those that the rule does not return have no cotangent."""

        @jax.custom_vjp
        def pure(values: Any, x: Any) -> Any:
            return self._with(values, self.f, model, x)

        def backward(residuals: Any, g: Any) -> Any:
            of_model, of_x = self.backward(residuals, (None, g))
            zeros = jax.tree.map(jnp.zeros_like, values)
            return State(zeros.values | of_model.values), of_x

        floats = state(model).values.items()
        values = State({path: value for path, value in floats if value.dtype == jnp.float32})
        pure.defvjp(lambda values, x: self._with(values, self.forward, model, x), backward)
        return pure(values, x)

    @staticmethod
    def _with(values: Any, f: Callable[..., Any], model: Any, x: Any) -> Any:
        with undone():
            update(model, values)
            return f(model, x)


class StateAxes:
    def __init__(self, axes: dict[Any, Any]) -> None:
        self.axes = axes

    def of(self, variable: Any) -> Any:
        return next(axis for wanted, axis in self.axes.items() if matches(wanted, variable))


def _places_with_axis(argument: Any, axis: Any) -> list[Any]:
    if axis is None:
        return []
    if isinstance(axis, StateAxes):
        return [place for variable, place in leaves_of(argument).values() if axis.of(variable) == 0]
    return [place for _, place in leaves_of(argument).values()]


def _stack(results: Sequence[Any]) -> Any:
    first = results[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_stack([r[i] for r in results]) for i in range(len(first)))
    if isinstance(first, (Module, Variable)):
        values = [state(result) for result in results]
        update(first, jax.tree.map(lambda *rows: jnp.stack(rows), *values))
        return first
    return None if first is None else jax.tree.map(lambda *rows: jnp.stack(rows), *results)


def _over_rows(f: Callable[..., Any], axes: Sequence[Any], args: Sequence[Any], undo: bool) -> list[Any]:
    """Calls a function for each row of the arguments with an axis; what models with an axis get is stacked."""
    places: list[Any] = []
    count = 0
    for argument, axis in zip(args, axes, strict=True):
        if isinstance(argument, Object):
            places += _places_with_axis(argument, axis)
        elif axis == 0:
            count = len(argument)
    rows = {(id(place[0]), *place[1:]): (place, _get(place)) for place in places}
    count = count or len(next(iter(rows.values()))[1])
    results, new = [], {key: [] for key in rows}
    for i in range(count):
        for place, value in rows.values():
            _set(place, value[i])
        given = [a[i] if axis == 0 and not isinstance(a, Object) else a for a, axis in zip(args, axes, strict=True)]
        with undone() if undo and i < count - 1 else contextlib.nullcontext():
            results.append(f(*given))
            for key, (place, _) in rows.items():
                new[key].append(_get(place))
    for key, (place, _) in rows.items():
        _set(place, jnp.stack(new[key]))
    return results


def vmap(f: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    def mapped(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        return _stack(_over_rows(f, axes, args, undo=True))

    return mapped


class Carry:
    pass


def scan(f: Callable[..., Any], in_axes: Any = (Carry, 0), out_axes: Any = (Carry, 0)) -> Callable[..., Any]:
    """Programs carry one array, which the function returns first, and any number of models."""

    def scanned(*args: Any) -> Any:
        carried = {i for i, axis in enumerate(in_axes) if axis is Carry}
        number = next(i for i in carried if not isinstance(args[i], Object))
        carry = args[number]

        def step(*given: Any) -> Any:
            nonlocal carry
            carry, out = f(*given[:number], carry, *given[number + 1 :])
            return out

        axes = [None if axis is Carry else axis for axis in in_axes]
        outs = _over_rows(step, axes, args, undo=False)
        return carry, _stack(outs)

    return scanned


def fori_loop(lower: int, upper: int, body: Callable[..., Any], value: Any) -> Any:
    for i in range(lower, upper):
        value = body(jnp.asarray(i, jnp.int32), value)
    return value


def while_loop(cond_fun: Callable[[Any], Any], body: Callable[[Any], Any], value: Any) -> Any:
    while cond_fun(value):
        value = body(value)
    return value


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    return true_fun(*operands) if pred else false_fun(*operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    return branches[max(0, min(int(index), len(branches) - 1))](*operands)


# ================================================================= training


class Optimizer(Object):
    """`optax.sgd(rate, momentum)`."""

    def __init__(self, model: Any, sgd: tuple[float, float], wrt: Any) -> None:
        self.sgd, self.wrt, self.step = sgd, wrt, 0
        self.trace = jax.tree.map(jnp.zeros_like, state(model, wrt))

    def update(self, model: Any, grads: State) -> None:
        rate, momentum = self.sgd
        self.trace = jax.tree.map(lambda t, g: momentum * t + g, self.trace, grads)
        update(model, jax.tree.map(lambda w, t: w - rate * t, state(model, self.wrt), self.trace))
        self.step += 1
