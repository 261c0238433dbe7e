"""Runs a program under one library, and records what it sees: values, order, and which object is which.

A program is the source of a module. Besides `dx` it finds the functions below, and calls `look(**names)` after each
step.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import declax as dx
from fuzz import oracle

EAGER = types.SimpleNamespace(**{name: getattr(dx, name) for name in dir(dx) if name[0] != "_" and name != "nnx"})
"""declax, whose functions are not compiled as a whole."""


def _as_it_is(f: Any = None, **_: Any) -> Any:
    return (lambda f: f) if f is None else f


EAGER.jit = EAGER.remat = _as_it_is
SGD = {"rate": 0.1, "momentum": 0.5}
LIBRARIES: dict[str, tuple[Any, Any]] = {
    "oracle": (oracle, tuple(SGD.values())),
    "eager": (EAGER, optax.sgd(SGD["rate"], SGD["momentum"])),
    "compiled": (dx, optax.sgd(SGD["rate"], SGD["momentum"])),
}
MESH = jax.make_mesh((1,), ("all",), devices=jax.devices()[:1])
MODULE, FILE = "fuzzed_program", "<program>"


# ================================================================= what programs call, whatever the library


def entries(value: Any) -> list[tuple[Any, Any]]:
    """The names and values in a node or container, in their order."""
    if isinstance(value, (oracle.List, dx.List, list, tuple)):
        return list(enumerate(value))
    if isinstance(value, (oracle.Dict, dx.Dict, dict)):
        return list(value.items())
    if isinstance(value, (oracle.Module, dx.Module)):
        return [(name, part) for name, part in vars(value).items() if name[0] != "_"]
    return []


def walk(root: Any) -> Iterator[Any]:
    """Each node and Variable once, and each array, in the order of attributes."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, jax.Array):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, (oracle.Object, dx.Module, dx.Variable)):
                yield value
            waiting.extend(part for _, part in reversed(entries(value)))


VARIABLES = (oracle.Variable, dx.Variable)


def nodes(root: Any) -> list[Any]:
    kinds = (oracle.List, oracle.Dict, dx.List, dx.Dict)
    return [n for n in walk(root) if isinstance(n, (oracle.Module, dx.Module)) and not isinstance(n, kinds)]


def node(root: Any, k: int) -> Any:
    found = nodes(root)
    return found[k % len(found)]


def variables(root: Any) -> list[Any]:
    return [value for value in walk(root) if isinstance(value, VARIABLES)]


def bump(root: Any, k: int, by: Any) -> None:
    """Sets the k-th Variable."""
    found = variables(root)
    if found:
        v = found[k % len(found)]
        v.value = v.value + 1 if v.value.dtype == jnp.int32 else v.value * 0.5 + by


def tag(root: Any, k: int, text: Any) -> None:
    found = variables(root)
    if found:
        found[k % len(found)].set_metadata(tag=text)


def reraw(root: Any, k: int, by: Any) -> None:
    """Sets the array attribute of the k-th node."""
    n = node(root, k)
    if hasattr(n, "raw"):
        n.raw = n.raw * 0.5 + by


def as_number(x: Any) -> Any:
    return jnp.sum(x.astype(jnp.float32))


def read(root: Any, k: int) -> Any:
    found = variables(root)
    return as_number(found[k % len(found)].value) if found else 0.0


def total(root: Any) -> Any:
    """All values of a graph, weighted by the order in which they are met."""
    arrays = [v if isinstance(v, jax.Array) else v.value for v in walk(root) if isinstance(v, (jax.Array, *VARIABLES))]
    return sum((as_number(x) * (1 + 0.125 * (k % 5)) for k, x in enumerate(arrays)), 0.0)


def statics(root: Any) -> float:
    """A number that depends on the static attributes, their types included."""
    text = "".join(f"{n.mode!r}{type(n.mode).__name__}" for n in nodes(root) if hasattr(n, "mode"))
    text += "".join(repr(sorted(v.get_metadata(exclude_required=True).items())) for v in variables(root))
    return sum(map(ord, text)) % 17 * 0.25


def order(root: Any) -> float:
    """A number that depends on the order of names."""
    text = "".join(str(name) for value in walk(root) for name, _ in entries(value))
    return sum(ord(c) * (k % 7) for k, c in enumerate(text)) % 13 * 0.25


def same(a: Any, b: Any) -> float:
    return 1.5 if a is b else 0.0


def swap(n: Any) -> None:
    if hasattr(n, "left") and hasattr(n, "right"):
        n.left, n.right = n.right, n.left


def drop(n: Any, name: str) -> None:
    if hasattr(n, name):
        delattr(n, name)


def share(n: Any, m: Any, name: str) -> None:
    if hasattr(m, name):
        setattr(n, name, getattr(m, name))


def last_first(table: Any) -> None:
    """Moves the first entry to the end."""
    for key in list(table.keys())[:1]:
        table[key] = table.pop(key)


def first_out(table: Any) -> None:
    for key in list(table.keys())[:1]:
        table.pop(key)


def shrink(items: Any) -> None:
    if len(items):
        items.pop()


def tuned(w: Any, g: Any) -> Any:
    return w - 0.1 * jnp.sin(g)


def leaf_sum(tree: Any) -> Any:
    return sum((as_number(leaf) for leaf in jax.tree.leaves(tree)), 0.0)


COMMON: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        node,
        bump,
        tag,
        reraw,
        read,
        total,
        statics,
        order,
        same,
        swap,
        drop,
        share,
        last_first,
        first_out,
        shrink,
    )
} | {"tuned": tuned, "leaf_sum": leaf_sum}


# ================================================================= what is seen


class Record:
    """What a program shows. Each object has a number from its first time, and is looked at ever after."""

    def __init__(self) -> None:
        self.looks: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []

    def look(self, **names: Any) -> None:
        seen: list[Any] = [(name, self._describe(value)) for name, value in names.items()]
        number = 0
        while number < len(self._objects):  # which grows
            thing = self._objects[number]
            seen.append((f"object {number}", type(thing).__name__, self._content(thing)))
            number += 1
        self.looks.append(seen)

    def _number(self, thing: Any) -> tuple[str, int]:
        number = self._numbers.setdefault(id(thing), len(self._objects))
        if number == len(self._objects):
            self._objects.append(thing)
        return "object", number

    def _describe(self, value: Any) -> Any:
        if isinstance(value, (jax.Array, np.ndarray)):
            return np.asarray(value)
        if isinstance(value, (oracle.State, dx.State)):
            return sorted((str(path), np.asarray(leaf)) for path, leaf in _paths_of(value))
        if isinstance(value, (oracle.Object, dx.Pytree, dx.Variable)):
            return self._number(value)
        if isinstance(value, dict):
            return "dict", [(self._describe(k), self._describe(v)) for k, v in value.items()]
        if isinstance(value, (set, frozenset)):
            return "set", sorted(map(self._describe, value))
        if isinstance(value, (list, tuple)):
            return type(value).__name__, [self._describe(item) for item in value]
        return type(value).__name__, repr(value)

    def _content(self, thing: Any) -> Any:
        if isinstance(thing, VARIABLES):
            return self._describe(thing.value), sorted(thing.get_metadata(exclude_required=True).items())
        if isinstance(thing, oracle.Optimizer):
            return thing.step, [np.asarray(x) for _, x in sorted(thing.trace.values.items(), key=lambda i: str(i[0]))]
        if isinstance(thing, dx.Optimizer):
            found = jax.tree_util.tree_leaves_with_path(thing.optax_state())
            leaves = sorted((str(path), leaf) for path, leaf in found)
            return int(thing.step.value), [np.asarray(leaf) for _, leaf in leaves]
        return [(name, self._describe(part)) for name, part in entries(thing)]


def _paths_of(state: Any) -> Iterator[tuple[Any, Any]]:
    return (
        iter(state.values.items()) if isinstance(state, oracle.State) else zip(state.paths, state.leaves, strict=True)
    )


def run(source: str, library: str) -> list[Any]:
    """What a program shows, at each look."""
    oracle.made.clear()
    lib, sgd = LIBRARIES[library]
    record = Record()
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    vars(module).update(COMMON, dx=lib, sgd=sgd, look=record.look, jnp=jnp, jax=jax, mesh=MESH)
    exec(compile(source, FILE, "exec"), vars(module))
    return record.looks


def difference(source: str, libraries: Sequence[str] = ("eager", "compiled")) -> str | None:
    """The first difference between the oracle, declax, and declax compiled; None if they agree."""
    for library in libraries:
        oracle.compiles = library == "compiled"
        wanted = run(source, "oracle")
        try:
            found = run(source, library)
        except Exception as error:  # noqa: BLE001  # any is a difference
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
            return f"{library}: {type(error).__name__} at lines {lines}: {error}"
        for i, (ours, theirs) in enumerate(zip(wanted, found, strict=True)):
            text = first_difference(ours, theirs)
            if text is not None:
                return f"{library}: look {i}: {text}"
    return None


def first_difference(wanted: Any, found: Any, path: str = "") -> str | None:
    if isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray):
        is_same = wanted.shape == found.shape and wanted.dtype == found.dtype
        if is_same and np.allclose(wanted, found, rtol=1e-3, atol=1e-3):
            return None
    elif isinstance(wanted, (list, tuple)) and type(wanted) is type(found):
        label = next((f"{path}.{part}" for part in wanted[:1] if isinstance(part, str)), path)
        pairs = zip(wanted, found, strict=False)
        text = next((text for a, b in pairs if (text := first_difference(a, b, label)) is not None), None)
        if text is not None or len(wanted) == len(found):
            return text
    elif type(wanted) is type(found) and wanted == found:
        return None
    return f"{path}: expected {wanted!r}, and found {found!r}"
