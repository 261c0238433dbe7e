from pathlib import Path

from plugin_cases import assert_as_marked, check

WRONG = """
import dataclasses
from typing import TypeVar

import jax

import declax as dx
from models import Block, Boxed

B = TypeVar("B", bound=Block)


def replaced(block: Block, boxed: Boxed[int], either: Block | Boxed[str], rngs: dx.Rngs) -> None:
    dx.replace(block, widht=3, rngs=rngs)  # E: call-arg | Unexpected keyword argument "widht" for "replace" of "B
    dx.replace(block, width="3", rngs=rngs)  # E: arg-type | Argument "width" to "replace" of "Block" has incompat
    dx.replace(block, part=dx.Linear(2, 2, rngs=rngs), rngs=rngs)
    dx.replace(block, width=3)  # E: call-arg | Missing named argument "rngs" for "replace" of "Block"
    dx.replace(block, widht=3)  # E: call-arg | Unexpected keyword argument "widht" for "replace" of "Block"; did
    dx.replace(block, layers=["a"], rngs=rngs)  # E: list-item | List item 0 has incompatible type "str"; expected
    dx.replace(block, activation=lambda x, y: x, rngs=rngs)  # E: arg-type | Argument "act & misc | Cannot infer
    dx.replace(block, rngs=3)  # E: arg-type | Argument "rngs" to "replace" of "Block" has incompatible type "int"
    dx.replace(block, calls=3, rngs=rngs)  # E: call-arg | Unexpected keyword argument "calls" for "replace" of "B
    dx.replace(boxed, value="x")  # E: arg-type | Argument "value" to "replace" of "Boxed[int]" has incompatible t
    dx.replace(either, size=1)  # E: arg-type | Argument "size" to "repla & call-arg | Missing named argument "r
    dataclasses.replace(block, part=dx.Linear(2, 2, rngs=rngs), rngs=rngs)
    dataclasses.replace(block, widht=3, rngs=rngs)  # E: call-arg
    dataclasses.replace(block, width="3", rngs=rngs)  # E: arg-type


def of_any(block: B, rngs: dx.Rngs) -> B:
    return dx.replace(block, widht=3, rngs=rngs)  # E: call-arg | Unexpected keyword argument "widht" for "replace
"""

MODELS = """
from collections.abc import Callable
from typing import Generic, TypeVar

import jax

import declax as dx

T = TypeVar("T")


@dx.dataclass
class Block(dx.Module):
    width: int = dx.field()
    layers: list[int] = dx.field()
    scale: float = dx.field(default=1.0)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    calls: int = dx.static(default=0, init=False)
    hint: int | None = dx.field(default=None)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    part: dx.Linear = dx.Linear(width, 2, rngs=rngs)

    def wider(self, rngs: dx.Rngs) -> "Block":
        return dx.replace(self, width=2 * self.width, rngs=rngs)


@dx.dataclass
class Boxed(dx.Module, Generic[T]):
    value: T
    size: int = 0
""".replace("    rngs: dx.InitVar", "    _: dx.KW_ONLY\n    rngs: dx.InitVar")

RIGHT = """
import dataclasses
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

import declax as dx
from models import Block, Boxed

B = TypeVar("B", bound=Block)
P = TypeVar("P", bound=dx.Pytree)


class Child(Block):
    def again(self, rngs: dx.Rngs) -> Self:
        return dx.replace(self, scale=2, rngs=rngs)


def replaced(block: Block, boxed: Boxed[int], rngs: dx.Rngs, given: dict[str, Any]) -> Block:
    dx.replace(boxed, value=3)
    dx.replace(boxed)
    dx.replace(Boxed[float | None](None), value=None)
    dx.replace(block, hint=None, layers=[], scale=1, rngs=rngs)
    dx.replace(block, activation=lambda x: x + 1, rngs=rngs)
    dx.replace(block, **given)
    dx.replace(block, width=3, **given)
    dx.replace(Child(1, [2], rngs=rngs), width=3, rngs=rngs)
    dataclasses.replace(block, width=2, rngs=rngs)
    return dx.replace(block, width=3, activation=jnp.tanh, rngs=rngs)


def of_any(block: B, rngs: dx.Rngs) -> B:
    return dx.replace(block, width=3, rngs=rngs)


def of_pytree(tree: P, anything: Any) -> P:
    dx.replace(anything, x=3)
    return dx.replace(tree, x=3)
"""


def test_replace(tmp_path: Path) -> None:
    files = {"wrong.py": WRONG, "right.py": RIGHT, "models.py": MODELS}
    assert_as_marked(files, check(tmp_path, files))
