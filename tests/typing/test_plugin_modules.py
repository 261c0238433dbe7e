"""The plugin on calls of Modules, methods of the names of those of `Module`, and parts that are functions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plugin_cases import assert_as_marked, check

MODELS = """
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import jax

import declax as dx

M = TypeVar("M", bound=dx.Module)


class Mixer(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


class Table(dx.Module):
    pass


class Scale(dx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return 2 * x


class Holder(dx.Module):
    inner: dx.Module
    others: list[dx.Module]
    layers: dict[str, dx.Layer]


class Generic_(dx.Module, Generic[M]):
    def __init__(self, inner: M) -> None:
        self.inner = inner


def any_module() -> dx.Module:
    return Scale()


@dx.dataclass
class Wave(dx.Layer):
    function: Callable[[jax.Array], jax.Array] = dx.field()
    table: dict[str, Callable[[jax.Array], jax.Array]] = dx.field()
    again = function
    found = table["sin"]
    deferred = dx.defer(table.get)("sin")
    one_of = dx.when(True, again, found)


def halved(x: jax.Array) -> jax.Array:
    return x / 2
"""

RIGHT = """
from typing import Any, assert_type, cast

import jax

import declax as dx
from models import Generic_, Holder, Mixer, Scale, Table, Wave, any_module


def takes(mixer: Mixer, module: dx.Module, model: dx.CallableModule) -> None: ...


def call(
    module: dx.Module, maybe: dx.Module | None, text: "dx.Module", layer: dx.Layer, holder: Holder, x: jax.Array
) -> None:
    y: jax.Array = module(x, 3, training=True)
    assert_type(module(x), Any)
    text(y), layer(y), any_module()(y), holder.inner(x), cast(dx.Module, y)(x)
    if maybe is not None:
        maybe(x)
    for each in [*holder.others, *holder.layers.values()]:
        print(each)
    for each in holder.others:
        each(x)
    for path, found in dx.iter_modules(holder):
        print(path, found(x))
    if isinstance(module, Scale):
        assert_type(module(x), jax.Array)
    takes(module, module, module)
    takes(Scale(), Table(), Scale())
    modules: list[dx.Module] = [Table(), Scale(), dx.Module()]
    module = Table()
    assert_type(Generic_(Scale()).inner(x), jax.Array)


def loss(module: dx.Module, x: jax.Array) -> jax.Array:
    y: jax.Array = module(x)
    return y


def gradients(x: jax.Array) -> None:
    assert_type(dx.grad(loss)(Scale(), x), dx.State[dx.Module])


class Flagged(dx.Module):
    def __init__(self) -> None:
        self.train = True
        self.update = dx.Linear(2, 2, rngs=dx.Rngs(0))
        self.split: dx.Linear = self.update

    def __call__(self, x: jax.Array) -> jax.Array:
        y: jax.Array = self.update(x) if self.train else x
        return self.split(y)


class Own(dx.Module):
    def split(self, x: int) -> int:
        return x

    def update(self, graph: str) -> str:
        return graph


def methods(scale: Scale, x: jax.Array) -> None:
    assert_type(scale.split(dx.Param, ...), tuple[dx.GraphDef[Scale], dx.State[Scale], dx.State[Scale]])
    assert_type(scale.get_state(), dx.State[Scale])
    assert_type(scale.perturb("x", x), jax.Array)
    assert_type(scale.sow(dx.Intermediate, "x", x), bool)
    assert_type(Own().split(3), int)
    assert_type(Own().update("a"), str)
    scale.train(), dx.Module.eval(scale)


def waves(wave: Wave, x: jax.Array) -> None:
    assert_type(wave.again(x), jax.Array)
    assert_type(wave.found(x), jax.Array)
    assert_type(wave.one_of(x), jax.Array)
    wave.deferred


@dx.dataclass
class Later(Wave):
    third = Wave.again
    fourth = Wave.function

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.third(self.fourth(x))
"""

WRONG = """
import jax

import declax as dx
from models import Generic_, Holder, Mixer, Table, Wave, halved
from right import Own, call, takes


def calls(table: Table, holder: Holder, x: jax.Array) -> None:
    table(x)  # E: operator | "Table" not callable
    holder(x)  # E: operator | "Holder" not callable
    dx.Module()(x)  # E: operator | Module not callable
    Generic_(table).inner(x)  # E: operator | "Table" not callable
    mixer: Mixer = table  # E: assignment
    takes(table, table, x)  # E: arg-type | expected "Mixer"
    module: dx.Module[int] = table  # E: type-arg | "Module" expects no type arguments, but 1 given
    layer: dx.Layer = table  # E: assignment
    print(mixer, module, layer)


def methods(table: Table) -> None:
    table.train = True  # E: assignment
    table.update = 3  # E: assignment
    table.split(..., dx.Param)  # E: declax-filter | matches all leaves
    Own().split("a")  # E: arg-type


@dx.dataclass
class Wrong(dx.Layer):
    function = halved

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.function(x)  # E: misc | Invalid self argument & call-arg


def waves(wave: Wave) -> None:
    wave.again("x")  # E: arg-type


@dx.dataclass
class Static(dx.Layer):
    inner: dx.CallableModule = dx.static()  # E: declax-field | contradicts the annotation CallableModule
"""


def test_modules_and_their_methods(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "right.py": RIGHT, "wrong.py": WRONG}
    cache = tmp_path / "cache"
    assert_as_marked(files, check(tmp_path / "cold", files, cache=cache))
    # What `models` says comes from the cache, in which decorators are not.
    moved = {name: text + "\nprint(__name__)\n" if name != "models.py" else text for name, text in files.items()}
    assert_as_marked(moved, check(tmp_path / "cold", moved, cache=cache))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements")
def test_recursive_aliases(tmp_path: Path) -> None:
    program = """
    import declax as dx

    type Tree[T] = T | list[Tree[T]]
    type Table = int | list[Row]
    type Row = str | dict[str, Table]


    @dx.dataclass
    class Net(dx.Layer):
        dim: int = dx.field()
        sizes: Tree[int] = dx.static(default=1)
        table: Table = dx.field(default=1)
        part: Tree[dx.Linear] | None = dx.field(default=None)


    spec = dx.spec(Net, 2, [1, [2]], part=[dx.spec(dx.Linear, 2, 3)])
    wrong_spec = dx.spec(Net, "2", [1, [2]])  # E: arg-type
    net = dx.from_config(Net, {"dim": 2, "sizes": [1, [2]], "table": [{"a": 1}]})
    wrong_net = dx.from_config(Net, {"dmi": 2, "sizes": [1, [2]]})  # E: call-arg
    changed = dx.replace(net, sizes=[3, [4]])
    wrong_change = dx.replace(net, sizes=[3, ["4"]])  # E: list-item
    again = spec.replace(table=[{"b": [{"c": 3}]}])
    """
    files = {"program.py": program}
    assert_as_marked(files, check(tmp_path, files))
