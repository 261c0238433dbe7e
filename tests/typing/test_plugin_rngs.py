"""Calls that lack the keys they draw: what mypy with the plugin reports, and what it accepts."""

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from declax.errors import DeclaxError
from plugin_cases import assert_as_marked, check

MODELS = """
from __future__ import annotations

import jax

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(ge=1)
    up = dx.Linear(dim, 4)
    norm = dx.LayerNorm(4)


class Undecorated(Block): ...


@dx.dataclass
class Given(dx.Layer):
    mixer: dx.Linear = dx.Linear(3, 4)


@dx.dataclass
class Outer(dx.Layer):
    inner = Given()


@dx.dataclass
class Fixed(dx.Layer):
    mixer: dx.Linear = dx.field()
    inner = Given(mixer)


@dx.dataclass
class Maybe(dx.Layer):
    deep: bool = dx.field(default=False)
    inner = dx.when(deep, dx.Linear(2, 2))
    count: int = dx.field(default=0)
    many = dx.repeat(count, dx.Linear(2, 2))
    drop = dx.Dropout(0.5)
    norm = dx.LayerNorm(4, use_scale=deep, use_bias=False)
    steps: dx.Variable[jax.Array] = dx.variable((), initializer=dx.initializers.zeros, stream=None)


@dx.dataclass
class Certain(Maybe):
    deep: bool = dx.field(default=True)
    gate: dx.Param[jax.Array] | None = dx.variable((2,), initializer=dx.initializers.ones, when=deep)


@dx.dataclass
class Normed(dx.Layer):
    norm = dx.LayerNorm(4)


@dx.dataclass
class Configured(dx.Layer):
    options: Certain = dx.field()
    deep: bool = dx.field(default=True)
    scale: dx.Param[jax.Array] | None = dx.variable((2,), initializer=dx.initializers.ones, when=options.deep)
    gate: dx.Param[jax.Array] | None = dx.variable((2,), initializer=dx.initializers.ones, when=False)


@dx.dataclass
class Shallow(Certain):
    deep: bool = dx.field(default=False)


@dx.dataclass
class Methodical(Block):
    norm = dx.LayerNorm(4, use_scale=False, use_bias=False)

    @dx.submodule
    def up(self) -> dx.Linear:
        return dx.Linear(4, 4, rngs=dx.Rngs(0))


@dx.dataclass
class Without(Normed):
    norm = dx.LayerNorm(4, use_scale=False, use_bias=False)


class Opened(Block):
    def __init__(self) -> None: ...


@dx.dataclass
class Explicit(dx.Module):
    _: dx.KW_ONLY
    dim: int = dx.field(default=3)
    rngs: dx.InitVar[dx.Rngs | None] = dx.field(default=None)
    up = dx.Linear(dim, dim, rngs=rngs)


@dx.dataclass
class Linked(dx.Layer):
    linear = dx.Linear(2, 2)
    other = linear


def make(dim: int) -> dx.Linear:
    return dx.Linear(dim, 4)
"""

WRONG = """
from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

import declax as dx
from models import Block, Certain, Explicit, Given, Linked, Normed, Outer, Undecorated

linear = dx.Linear(3, 4)  # E: declax-rngs | Linear(...): kernel draws a key, but the call has no rngs
renamed = dx.Linear
layer = renamed(3, 4)  # E: declax-rngs | fix: Linear(..., rngs=dx.Rngs(0))
layers = [dx.Conv(3, 4, (3, 3)), dx.Embed(3, 4), dx.MultiHeadAttention(2, 4)]  # E: declax-rngs | Embed(...): embedding
norms = dx.LayerNorm(3), dx.BatchNorm(3)  # E: declax-rngs | LayerNorm(...): scale draws a key
unscaled = dx.LayerNorm(3, use_scale=False)  # E: declax-rngs | LayerNorm(...): bias draws a key
starred = dx.Linear(*(3, 4))  # E: declax-rngs
chain = dx.Sequential(dx.Linear(3, 4), dx.relu)  # E: declax-rngs
block = Block(4)  # E: declax-rngs | Block(...): up.kernel draws a key
undecorated = Undecorated(4)  # E: declax-rngs | Undecorated(...): up.kernel draws a key
given = Given()  # E: declax-rngs | Given(...): mixer.kernel draws a key
outer = Outer()  # E: declax-rngs | Outer(...): inner.mixer.kernel draws a key
certain = Certain()  # E: declax-rngs | gate draws a key
normed = Normed()  # E: declax-rngs | norm.scale draws a key
explicit = Explicit()  # E: declax-rngs | up.kernel draws a key
linked = Linked()  # E: declax-rngs | linear.kernel draws a key
built = dx.spec(dx.LayerNorm, 3).build()  # E: declax-spec | build: LayerNorm takes rngs
replaced = dx.spec(dx.Linear, 3, 4).replace(use_bias=False).build()  # E: declax-spec
spec_of_given = dx.spec(Given).build(rngs=None)  # E: declax-spec


def use(x: jax.Array) -> jax.Array:
    layer = dx.Linear(3, 4)  # E: declax-rngs
    return layer(x) + dx.Linear(3, 4)(x)  # E: declax-rngs


def use_nested(x: jax.Array) -> Callable[[jax.Array], jax.Array]:
    def inner(y: jax.Array) -> jax.Array:
        model = Block(4)  # E: declax-rngs
        return model.up(y)

    return inner


class Config:
    head = dx.Linear(3, 4)  # E: declax-rngs


class Open(dx.Module):
    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.up = dx.Linear(dim, 4)  # E: declax-rngs | fix: Linear(..., rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return dx.Linear(4, 4)(x)  # E: declax-rngs


@dx.dataclass
class Passing(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, 4)  # E: declax-rngs | Passing.up: Linear.kernel draws a key, but the call has no rngs
    stem = dx.Linear(4, 4)  # E: declax-rngs | fix: Linear(..., rngs=rngs)
    kept = dx.Linear(dim, 4, rngs=rngs)
    many = dx.repeat(3, dx.Linear(dim, 4))  # E: declax-rngs | Passing.many

    @dx.submodule
    def blocks(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.dim, 4) for _ in range(2)]  # E: declax-rngs


@dx.dataclass
class Keyless(dx.Module):
    dim: int = dx.field()
    up: dx.Linear = dx.Linear(dim, 4)  # E: declax-rngs | fix: class Keyless(dx.Layer): ...


@dx.dataclass
class Declaring(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()  # E: declax-rngs | class Declaring(dx.Module), to pass keys explicitly
    up = dx.Linear(dim, 4, rngs=rngs)


@dx.dataclass
class Drawing(dx.Module):
    dim: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable(  # E: declax-part | class Drawing(dx.Layer): ...
        (dim,), initializer=dx.initializers.ones
    )


rngs = dx.Rngs(0)


@dx.dataclass
class Reading(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, 4, rngs=rngs)  # E: declax-part | fix: leave rngs=rngs out
    real = dx.Linear(4, 4, rngs=dx.Rngs(0))  # E: declax-part | all instances would share this Linear


def of_states(block: Block) -> None:
    dx.state(block).rngs  # E: declax-path | State[Block]: Block has no field 'rngs'
    dx.replace(block, rngs=3)  # E: arg-type
    dx.replace(block, dim=3)  # E: declax-rngs | replace: Block.up.kernel draws a key, but the call has no rngs
    dataclasses.replace(block, dim=3)  # E: declax-rngs | fix: replace(..., rngs=dx.Rngs(0))
"""

RIGHT = """
from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax

import declax as dx
from models import Block, Certain, Configured, Explicit, Fixed, Given, Maybe, Methodical, Opened, Outer
from models import Shallow, Without, make

rngs = dx.Rngs(0)
passed = dx.Linear(3, 4, rngs=rngs), Block(4, rngs=rngs), Explicit(rngs=rngs)
given = Given(dx.Linear(3, 4, rngs=rngs))
conditional = Certain(False), Shallow(), Methodical(4)
keyless = Maybe(), Without(), Opened(), dx.Dropout(0.5), dx.PReLU(), Fixed(dx.Linear(3, 4, rngs=rngs))
normed = dx.LayerNorm(3, use_scale=False, use_bias=False)
specs = dx.spec(dx.Linear, 3, 4), dx.spec(Given), dx.spec(Block, 3).build(rngs=rngs)
built = dx.spec(Maybe).build(), dx.spec(dx.LayerNorm, 3).replace(use_scale=False, use_bias=False).build()
later = functools.partial(dx.Linear, 3, 4)


def in_doubt(flag: bool) -> None:
    dx.LayerNorm(3, use_scale=flag, use_bias=False)
    Maybe(flag)
    dx.Linear(3, 4, rngs=None)
    dx.eval_shape(lambda: Block(4))
    dx.spec(Given, dx.spec(dx.Linear, 3, 4)).build()
    dx.spec(Given).replace(mixer=dx.spec(dx.Linear, 3, 4)).build()


def of_options(options: Certain) -> None:
    print(Configured(options))


def options(**given: Any) -> dx.Linear:
    made = dx.Linear(3, 4, **given)
    return made


def in_variable(dim: int) -> dx.Linear:
    layer = dx.Linear(dim, 4)
    return layer


def in_list(dim: int) -> dx.Sequential:
    layers = []
    for _ in range(3):
        layers.append(dx.Linear(dim, dim))
    return dx.Sequential(*layers)


def one_of(flag: bool) -> dx.Linear | None:
    return dx.Linear(3, 4) if flag else None


def each() -> Iterator[dx.Linear]:
    yield dx.Linear(3, 4)


@dx.dataclass
class Deferring(dx.Layer):
    dim: int = dx.field()
    helped = make(dim)
    stem = dx.Linear(4, 4)
    argument: dx.Linear = dx.Linear(4, 4)
    rnn: dx.RNN[Any] = dx.RNN(dx.LSTMCell(3, 4))
    chain = dx.Sequential(dx.Linear(3, 4), dx.relu)
    listed = [dx.Linear(3, 4), dx.Linear(4, 4)]
    comprehended = [dx.Linear(4, 4) for _ in range(3)]
    keyed: dict[str, dx.Linear] = {"a": dx.Linear(4, 4)}
    outer = Outer()
    drop = dx.Dropout(0.5, rngs=None)
    other = stem

    @staticmethod
    def head(dim: int) -> dx.Linear:
        return dx.Linear(dim, 10)


@dx.dataclass
class Storing(dx.Layer):
    dim: int = dx.field()
    rngs: dx.Rngs | None = dx.field(default=None, kw_only=True)  # type: ignore[assignment]  # it is kept


class Mixin(dx.Layer):
    extra = dx.Linear(4, 4)


def of_layers(block: Block, given: Given, options: dict[str, Any]) -> Block:
    dx.replace(block, **options)
    dx.replace(given, mixer=dx.Linear(3, 4, rngs=rngs))
    return dx.replace(block, rngs=rngs)
"""


def test_calls_without_keys(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "wrong_rngs.py": WRONG, "right_rngs.py": RIGHT}
    assert_as_marked(files, check(tmp_path, files))


# ================================================================= the run time agrees


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names of a program, which can import the models."""
    models = types.ModuleType("models")
    monkeypatch.setitem(sys.modules, "models", models)
    exec(MODELS, vars(models))
    program = types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", program)
    return vars(program)


def statements(text: str) -> Iterator[str]:
    """The statements of a program, with their decorators."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        first = node.decorator_list[0].lineno if isinstance(node, ast.ClassDef) and node.decorator_list else node.lineno
        yield "\n".join(lines[first - 1 : node.end_lineno])


def test_right_programs_run(names: dict[str, object]) -> None:
    exec(RIGHT, names)


def test_what_is_reported_is_refused(names: dict[str, object]) -> None:
    """Calls of a module and class bodies are; a function or method only when it runs."""
    refused = 0
    for statement in statements(WRONG):
        code = f"from __future__ import annotations\n{statement}"
        if "# E: declax-" not in statement or statement.startswith(("class Open(", "def ")):
            exec(code, names)
            continue
        refused += 1
        with pytest.raises(DeclaxError, match=r"random keys|rngs|would be shared|draws"):
            exec(code, names)
    assert refused >= 20
