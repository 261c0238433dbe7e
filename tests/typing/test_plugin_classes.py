from pathlib import Path

from plugin_cases import assert_as_marked, check

WRONG = """
import dataclasses
from dataclasses import InitVar, field

import jax

import declax as dx
from bases import Base, OpenBase


class Undecorated(dx.Module):  # E: declax-undecorated | Undecorated declares width, rngs, scale but is not decora
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)


class Several(dx.Pytree):  # E: declax-undecorated | Several declares a, b, d but is not decorated, so these are n
    a: int = dx.static(default=1)
    b: jax.Array = dx.data()
    d: int = field(default=2)


class Scaled(Base):  # E: declax-undecorated | @dx.dataclass above class Scaled
    gain: float = dx.static(default=2.0)


class Gained(Base):
    gain: float = 2.0


class Plain(dx.Module):
    inputs: int
    outputs: int


def calls() -> None:
    Plain(1, 2)  # E: call-arg | Too many arguments for "Plain"
    Plain(inputs=1)  # E: call-arg | Unexpected keyword argument "inputs" for "Plain"
    Gained(1, gain=2.0)  # E: call-arg | Unexpected keyword argument "gain" for "Gained"
    OpenBase(1)  # E: call-arg | Too many arguments for "OpenBase"

    class Local(dx.Module):  # E: declax-undecorated | Local declares a
        a: int = dx.static(default=1)


@dataclasses.dataclass
class StandardMade(dx.Pytree):  # E: declax-undecorated | StandardMade: rngs: the standard decorator does not know
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    part: dx.Linear = dx.Linear(2, 2, rngs=rngs)


@dataclasses.dataclass(eq=False)
class StandardSpecified(dx.Pytree):  # E: declax-undecorated | StandardSpecified: a, b: the standard decorator doe
    a: int = dx.static(default=1)
    b: int = dx.data(default=1)


@dataclasses.dataclass(frozen=True)
class StandardModule(dx.Module):  # E: declax-undecorated | @dx.dataclass above class StandardModule
    width: int


@dataclasses.dataclass
class StandardChild(Base):  # E: declax-undecorated | compares models by value
    width: int = 1


@dx.dataclass
class Derived(dx.Module):
    width: int
    area: int = field(init=False)  # E: declax-unset | self.area = ...
    table: jax.Array = dx.data(init=False)  # E: declax-unset | Derived.table
    kept: int = dx.static(init=False)

    def __post_init__(self) -> None:
        self.kept = self.area


@dx.dataclass
class WithInit(dx.Module):
    seed: InitVar[int]
    scale: InitVar[int]

    def __post_init__(self, scale: int, seed: int) -> None:  # E: override | Signature of "__post_init__" incompat
        print(seed, scale)


@dx.dataclass
class More(Base):
    scale: InitVar[int] = 1

    def __post_init__(self, start: int) -> None:  # E: override | Signature of "__post_init__" incompatible with s
        super().__post_init__(start)

"""

BASES = """
from dataclasses import InitVar

import declax as dx


@dx.dataclass
class Base(dx.Module):
    size: int
    start: InitVar[int] = 0

    def __post_init__(self, start: int) -> None:
        self.size += start


class OpenBase(dx.Module):
    size: int
"""

RIGHT = """
from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import InitVar, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp

import declax as dx
from bases import Base, OpenBase

T = TypeVar("T")


def layer(cls: type[T]) -> type[T]:
    return cls


class Open(dx.Module):
    count: int
    rate: float = 0.1
    layers: list[dx.Linear]

    def __init__(self, count: int, *, rate: float = 0.2) -> None:
        self.count = count
        self.rate = rate
        self.layers = []
        self.seen = dx.data(3)
        self.note = dx.static("x")


class Mixin(dx.Module):
    size: int

    def double(self) -> int:
        return 2 * self.size


@dx.dataclass
class Mixed(Mixin):
    size: int


class Inherited(Base):
    note: ClassVar[str] = "x"

    def area(self) -> int:
        return self.size


class OpenChild(Open):
    extra: int = 3


class Keywords(dx.Module):
    size: int

    def __init__(self, **sizes: int) -> None:
        self.size = sizes["size"]


@layer
class Wrapped(dx.Module):
    a: int = dx.static(default=1)


class Late(dx.Module):
    a: int = dx.static(default=1)


Decorated = dx.dataclass(Late)


@dataclasses.dataclass
class Standard(dx.Pytree):
    a: int = field(metadata={"static": True})


@dataclasses.dataclass(eq=False)
class StandardModule(dx.Module):
    a: int = field(default=1)


@dataclasses.dataclass
class StandardEmpty(dx.Module):
    def __call__(self) -> int:
        return 1


class NoPytree:
    a: int = field(default=1)


Open(3, rate=0.1), Mixed(2), Inherited(1, start=2), OpenChild(2), Keywords(size=2), Standard(2), Mixin(), OpenBase()


@dx.dataclass
class Set(dx.Module):
    width: int
    a: int = field(init=False)
    b: int = dx.static(init=False)
    c: int = dx.static(init=False)
    d: int = dx.static(init=False, default=1)
    e: list[int] = dx.static(init=False, default_factory=list)
    f: int = dx.static(init=False)
    g: int = dx.static(init=False)

    def __post_init__(self) -> None:
        self.a, (self.b, *_) = self.width, (1, 2)
        self._set()
        for self.g in range(3):
            pass

    def _set(self) -> None:
        object.__setattr__(self, "c", 2)


def finish(made: Set) -> Set:
    made.f = 1
    return made


@dx.dataclass
class Template(dx.Module):
    table: jax.Array = dx.data(init=False)

    @abstractmethod
    def fill(self) -> None: ...


@dx.dataclass
class OfOther(Base):
    extra: int = dx.static(init=False)


@dx.dataclass(init=False)
class OwnInit(dx.Module):
    a: int = dx.static(init=False)

    def __init__(self) -> None:
        vars(self)["a"] = 1


@dx.dataclass
class First(dx.Module):
    seed: dx.InitVar[int]
    rngs: dx.InitVar[dx.Rngs]
    key: jax.Array = dx.data(init=False)

    def __post_init__(self, seed: int, rngs: dx.Rngs) -> None:
        self.key = jax.random.key(seed)


@dx.dataclass
class Second(First):
    more: int = 2


@dx.dataclass
class Third(First):
    more: InitVar[int] = 2

    def __post_init__(self, seed: int, rngs: dx.Rngs, more: int = 2) -> None:
        super().__post_init__(seed + more, rngs)


@dx.dataclass
class Loose(dx.Module):
    seed: InitVar[int]

    def __post_init__(self, *given: Any) -> None: ...


@dx.dataclass
class Looser(Loose):
    more: InitVar[int] = 1


@dx.dataclass
class Renamed(dx.Module):
    seed: InitVar[int]
    scale: InitVar[float]

    def __post_init__(self, a: int, b: float) -> None: ...


@dx.dataclass
class OnlyRngs(dx.Module):
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    part: dx.Linear = dx.Linear(2, 2, rngs=rngs)


@dx.dataclass
class GenericBase(dx.Module, Generic[T]):
    value: T
    start: InitVar[T]

    def __post_init__(self, start: T) -> None:
        self.value = start


@dx.dataclass
class OfInt(GenericBase[int]):
    other: int = 1
"""


def test_undecorated_unset_and_post_init(tmp_path: Path) -> None:
    files = {"wrong.py": WRONG, "right.py": RIGHT, "bases.py": BASES}
    assert_as_marked(files, check(tmp_path, files))
