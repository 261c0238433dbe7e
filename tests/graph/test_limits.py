"""Very deep and very wide graphs: operations work, or one error names the limit.

Each shape is built and used in a separate process, which runs this file as a script, because exhausting the recursion
counter of jaxlib cannot be undone with Python 3.11. The report of a process gives for each use its result, its seconds,
and the peak memory in MiB.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._graph.binding import bind
from declax.errors import DepthError

DEPTH = 10_000
WIDTH = 100_000


class Open(dx.Module):
    pass


class Box(dx.Object):
    pass


# ================================================================= shapes


def one() -> Any:
    return dx.Param(jnp.ones((), jnp.float32))


def chain(make: Callable[[], Any], depth: int = DEPTH, *, each: bool = False) -> Any:
    """A node in a node in a node, with a Variable in the last, or in each."""
    root = node = make()
    for _ in range(depth):
        if each:
            put(node, "w", one())
        child = make()
        put(node, "next", child)
        node = child
    put(node, "w", one())
    return root


def put(node: Any, name: str, value: Any) -> None:
    if isinstance(node, dx.List):
        node.append(value)
    else:
        setattr(node, name, value)


def cycle() -> Any:
    root = node = chain(Open)
    while hasattr(node, "next"):
        node = node.next
    node.next = root
    return root


def nested(inner: Any, make: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    """A plain container in a plain container."""
    for _ in range(depth):
        inner = make(inner)
    return inner


def in_list(value: Any) -> Any:
    return [value]


def in_tuple(value: Any) -> Any:
    return (value,)


def in_dict(value: Any) -> Any:
    return {"k": value}


def holding(deep: Any, wrap: Callable[[Any], Any] = dx.data) -> Any:
    model = Open()
    model.w, model.deep = one(), wrap(deep)
    return model


def grown(outermost: Any, value: Any, wrap: Callable[[Any], Any] = dx.data) -> Any:
    """A model whose container was shallow when the model got it."""
    model = holding(outermost, wrap)
    deepen(model.deep, value)
    return model


def deepen(inner: Any, value: Any) -> None:
    for _ in range(DEPTH):
        new = type(inner)()
        put_plain(inner, new)
        inner = new
    put_plain(inner, value)


def put_plain(container: Any, value: Any) -> None:
    if isinstance(container, list):
        container.append(value)
    else:
        container["k"] = value


def grown_in_variable() -> Any:
    start: list[Any] = []
    model = holding(dx.Variable(start), lambda value: value)
    deepen(start, jnp.ones(()))
    return model


def grown_in_object() -> Any:
    model = Open()
    model.w, model.box = one(), Box()
    model.box.deep = []
    deepen(model.box.deep, jnp.ones(()))
    return model


def wide_modules() -> Any:
    layers, array = [Open() for _ in range(WIDTH // 100)], jnp.ones(())
    for layer in layers:
        for i in range(100):
            setattr(layer, f"p{i}", dx.Param(array))
    return dx.List(layers)


SHAPES: dict[str, Callable[[], Any]] = {
    "modules": lambda: chain(Open),
    "a variable in each": lambda: chain(Open, 2_000, each=True),
    "assigned list": lambda: holding(nested(jnp.ones(()), in_list)),
    "assigned dict": lambda: holding(nested(jnp.ones(()), in_dict)),
    "assigned tuple": lambda: holding(nested(one(), in_tuple)),
    "assigned without a word": lambda: holding(nested(jnp.ones(()), in_list), lambda value: value),
    "assigned static list": lambda: holding(nested(1, in_list), dx.static),
    "assigned static tuple": lambda: holding(nested(1, in_tuple), dx.static),
    "assigned to a list": lambda: dx.List([nested(jnp.ones(()), in_list)]),
    "grown static list": lambda: grown([], 1, dx.static),
    "grown in a variable": grown_in_variable,
}
SLOW_SHAPES: dict[str, Callable[[], Any]] = {
    "cycle": cycle,
    "lists": lambda: chain(dx.List),
    "dicts": lambda: chain(dx.Dict),
    "objects": lambda: chain(Box),
    "models in lists": lambda: nested(one(), lambda value: [holding(value)], DEPTH // 4),
    "grown list": lambda: grown([], jnp.ones(())),
    "grown dict": lambda: grown({}, one()),
    "grown static dict": lambda: grown({}, 1, dx.static),
    "grown in an object": grown_in_object,
    "no node above": lambda: nested(one(), in_list),
    "a variable in each, 10,000 modules": lambda: chain(Open, each=True),
    "a variable in each, 10,000 lists": lambda: chain(dx.List, each=True),
    "100,000 leaves": wide_modules,
    "100,000 elements": lambda: dx.List([one() for _ in range(WIDTH)]),
    "100,000 in a plain list": lambda: holding([jnp.ones(()) for _ in range(WIDTH)]),
}

# ================================================================= uses


def last_of(state: Any) -> Any:
    """Reads a State level by level."""
    for key in state.paths[-1]:
        state = state[key]
    return state


def first_variable(model: Any) -> Any:
    return next(value for _, value in dx.iter_graph(model) if isinstance(value, dx.Param))


def loss(model: Any) -> Any:
    return first_variable(model).value ** 2


def set_value(model: Any) -> None:
    variable = first_variable(model)
    variable.value = variable.value + 1


def grow(model: Any) -> None:
    if isinstance(model, (list, dx.List)):
        model.append(one())
    else:
        model.extra = one()


def add_one(leaf: Any) -> Any:
    return leaf + 1


def check_update(model: Any) -> None:
    before = first_variable(model).value
    dx.update(model, jax.tree.map(add_one, dx.state(model, dx.Param)))
    assert first_variable(model).value == before + 1


def check_jit_that_sets(model: Any) -> None:
    before = first_variable(model).value
    dx.jit(set_value)(model)
    assert first_variable(model).value == before + 1


def check_merge(model: Any) -> None:
    graphdef, state = dx.split(model)
    assert dx.graphdef(dx.merge(graphdef, state)) is graphdef


def check_grad(model: Any) -> None:
    gradients = dx.grad(loss)(model)
    assert max(float(leaf) for leaf in jax.tree.leaves(gradients)) > 0


def check_clone(model: Any) -> None:
    assert dx.graphdef(dx.clone(model)) is dx.graphdef(model)


def check_pop(model: Any) -> None:
    count = len(dx.state(model, dx.Param).leaves)
    assert len(dx.pop(model, dx.Param).leaves) == count > 0
    assert not dx.state(model, dx.Param).leaves


USES: dict[str, Callable[[Any], Any]] = {
    "graphdef": dx.graphdef,
    "split": lambda m: dx.split(m, dx.Param, ...),
    "state": dx.state,
    "merge": check_merge,
    "update": check_update,
    "update with a dict": lambda m: dx.update(m, dx.state(m, dx.Param).to_pure_dict()),
    "clone": check_clone,
    "iter_graph": lambda m: sum(1 for _ in dx.iter_graph(m)),
    "iter_modules": lambda m: sum(1 for _ in dx.iter_modules(m)),
    "find_duplicates": dx.find_duplicates,
    "nested reading": lambda m: last_of(dx.state(m)),
    "flat_state": lambda m: dx.State.from_flat_path(dx.state(m).flat_state()),
    "paths of JAX": lambda m: jax.tree_util.tree_flatten_with_path(dx.state(m, dx.Param)),
    "repr of the model": lambda m: None if isinstance(m, list) else repr(m),  # the one of a list is Python's
    "repr of the state": lambda m: repr(dx.state(m)),
    "repr of the graphdef": lambda m: repr(dx.graphdef(m)),
    "jit": dx.jit(loss),
    "jit that sets": check_jit_that_sets,
    "jit that returns": dx.jit(lambda model: model),
    "jit that grows": dx.jit(grow),
    "grad": check_grad,
    "pop": check_pop,
}

# ================================================================= the process of one shape

SECONDS = 120
"""What a use may take at most; far more than any takes on an idle machine."""


class TooSlowError(Exception):
    pass


def check_health() -> None:
    """Ordinary work must still be possible."""
    assert jax.jit(add_one)(1) == 2
    small = holding(nested(jnp.ones(()), in_list, 30))
    dx.jit(set_value)(small)
    assert small.w.value == 2
    assert len(jax.tree.leaves(nested(1, in_list, 200))) == 1


def attempt(action: Callable[[], Any]) -> tuple[str, Any]:
    """What comes of an action: "ok", the text of a DeclaxError, or of what should not be."""

    def stop(signum: int, frame: Any) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return "ok", action()
    except dx.DeclaxError as error:
        return f"{type(error).__name__}: {error}", None
    except Exception as error:  # noqa: BLE001  # whatever it is, the report shows it
        return f"FAULT {type(error).__name__}: {str(error)[:500]}", None
    finally:
        signal.alarm(0)


def report(shape: str) -> None:
    """Makes a graph, uses it in all ways, and prints what came of it."""
    start = time.perf_counter()
    came, model = attempt({**SHAPES, **SLOW_SHAPES}[shape])
    say("build", came, start)
    if model is None:
        return
    for name, use in USES.items():
        start = time.perf_counter()
        came, _ = attempt(functools.partial(use, model))
        say(name, came, start)


def say(name: str, came: str, start: float) -> None:
    seconds = time.perf_counter() - start
    health, _ = attempt(check_health)
    if health != "ok":
        came = f"FAULT the process is not healthy afterwards: {health}; {came}"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([name, came, seconds, memory]), flush=True)


class Came(NamedTuple):
    what: str
    seconds: float
    memory: float


@functools.cache
def report_of(shape: str) -> dict[str, Came]:
    """What came of each use, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, shape],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    found = {name: Came(*rest) for name, *rest in lines}
    if done.returncode:
        found["exit"] = Came(f"FAULT the process ended with {done.returncode}: {done.stderr[-1000:]}", 0, 0)
    return found


# ================================================================= the tests


def faults_of(shape: str, uses: set[str]) -> dict[str, str]:
    """What came of uses that neither worked nor said where the limit is."""
    found = report_of(shape)
    faults = {use: fault for use in uses & found.keys() if (fault := fault_of(found[use].what))}
    if "exit" in found:
        faults["exit"] = found["exit"].what
    return faults


def fault_of(came: str) -> str | None:
    if came == "ok":
        return None
    if not came.startswith("DepthError"):
        return came
    if not re.search(r"deep|\[0\]|\['k'\]", came.split(":")[1]):
        return f"names no path: {came}"
    return None if re.search(r"\d[\d,_]{2,}", came) else f"names no limit: {came}"


def check(shape: str) -> None:
    found = report_of(shape)
    assert "build" in found
    assert found["build"].what != "ok" or {*found} >= {*USES}
    assert faults_of(shape, {"build", *USES}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_it_works_or_says_where_the_limit_is(shape):
    check(shape)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("shape", SLOW_SHAPES)
def test_it_works_or_says_where_the_limit_is_at_length(shape):
    check(shape)


def test_a_binding_finds_what_has_grown_in_a_variable():
    model = holding(one())
    model.deep = dx.Variable([[one().value]])
    bind(model).check_depth()
    deepen(model.deep.raw_value[0], 1)
    with pytest.raises(DepthError, match=r"^deep\[0\]\[1\].*a container is nested more than 400 levels deep"):
        bind(model).check_depth()
    with pytest.raises(DepthError, match=r"^deep\[0\]"):
        dx.clone(model)
    with pytest.raises(DepthError, match=r"^deep\[0\]"):
        dx.state(model, dx.PathContains("deep"), copy=True)


# ================================================================= static values that change in place

STATIC_CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2], lambda value: value.append(3)),
    "element": (lambda: [1, 2], lambda value: value.__setitem__(0, 5)),
    "equal element": (lambda: [1, 2], lambda value: value.__setitem__(0, True)),
    "list in a list": (lambda: [[1], [2]], lambda value: value[1].append(3)),
    "dict": (lambda: {"a": 1}, lambda value: value.update(b=2)),
    "list in a dict": (lambda: {"a": [1]}, lambda value: value["a"].append(2)),
    "set": (lambda: {1, 2}, lambda value: value.add(3)),
    "list in a tuple": (lambda: ([1], 2), lambda value: value[0].append(3)),
}


@pytest.mark.parametrize("name", STATIC_CHANGES)
def test_a_static_value_that_changes_in_place_is_traced_anew(name):
    make, change = STATIC_CHANGES[name]
    model = Open()
    model.w, model.part = one(), Open()
    model.part.sizes = make()
    traces = []

    def read(m: Any) -> Any:
        traces.append(repr(m.part.sizes))
        return m.w.value * len(repr(m.part.sizes))

    step, slope = dx.jit(read), dx.jit(lambda m: dx.grad(read)(m).w.value)
    expected = len(repr(make()))
    assert float(step(model)) == float(step(model)) == float(slope(model)) == expected
    assert len(traces) == 2
    before = dx.graphdef(model)
    change(model.part.sizes)
    changed = make()
    change(changed)
    expected = len(repr(changed))
    assert float(step(model)) == float(step(model)) == float(slope(model)) == expected
    assert traces[2:] == [repr(changed)] * 2
    assert dx.graphdef(model) != before


if __name__ == "__main__":
    report(sys.argv[1])
