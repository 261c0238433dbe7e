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
    dx.replace(block, widht=3, rngs=rngs)  # E: declax-replace | did you mean 'width'?
    dx.replace(block, width="3", rngs=rngs)  # E: declax-replace | replace(Block, width=...): expected int, got str
    dx.replace(block, part=dx.Linear(2, 2, rngs=rngs), rngs=rngs)  # E: declax-replace | the object makes 'part' itself
    dx.replace(block, width=3)  # E: declax-replace | fix: dx.replace(obj, rngs=...)
    dx.replace(block, widht=3)  # E: declax-replace | replace constructs anew, and the constructor needs 'rngs'
    dx.replace(block, layers=["a"], rngs=rngs)  # E: declax-replace | expected list[int], got list[str]
    dx.replace(block, activation=lambda x, y: x, rngs=rngs)  # E: declax-replace | replace(Block, activation=...)
    dx.replace(block, rngs=3)  # E: declax-replace | expected dx.Rngs, got int
    dx.replace(block, calls=3, rngs=rngs)  # E: declax-replace | the object makes 'calls' itself
    dx.replace(boxed, value="x")  # E: declax-replace | expected int, got str
    dx.replace(either, size=1)  # E: declax-replace | 'size' is no field of Block & declax-replace | needs 'rngs'
    dataclasses.replace(block, part=dx.Linear(2, 2, rngs=rngs), rngs=rngs)  # E: declax-replace | 'part' itself
    dataclasses.replace(block, widht=3, rngs=rngs)  # E: call-arg
    dataclasses.replace(block, width="3", rngs=rngs)  # E: arg-type


def of_any(block: B, rngs: dx.Rngs) -> B:
    return dx.replace(block, widht=3, rngs=rngs)  # E: declax-replace | did you mean 'width'?
"""

MODELS = """
from collections.abc import Callable
from typing import Generic, TypeVar

import jax

import declax as dx

T = TypeVar("T")


@dx.dataclass
class Block(dx.Module):
    width: int
    layers: list[int]
    scale: float = 1.0
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    calls: int = dx.static(default=0, init=False)
    hint: int | None = None
    rngs: dx.InitVar[dx.Rngs]
    part: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.width, 2, rngs=rngs))

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


def test_an_unknown_name_is_all_that_is_told(tmp_path: Path) -> None:
    """What the call needs besides stands in a note, so that the name comes first."""
    files = {
        "uses.py": """
            import declax as dx


            def replaced(linear: dx.Linear) -> None:
                dx.replace(linear, out_featuers=3)
        """
    }
    (found,) = check(tmp_path, files)
    first, fields, needed = found.text.splitlines()
    assert first == "replace(Linear, ...): 'out_featuers' is no field of Linear; did you mean 'out_features'?"
    assert fields.startswith("its fields are in_features, out_features, ")
    assert needed == "replace constructs anew, and the constructor needs 'rngs'"


def test_replace(tmp_path: Path) -> None:
    files = {"wrong.py": WRONG, "right.py": RIGHT, "models.py": MODELS}
    assert_as_marked(files, check(tmp_path, files))
