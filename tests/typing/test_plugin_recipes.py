from pathlib import Path

from plugin_cases import assert_as_marked, check

WRONG_VARIABLES = """
import jax
import jax.numpy as jnp

import declax as dx
from declax.initializers import lecun_normal, ones, zeros


@dx.dataclass
class Names(dx.Module):
    dim: int
    name: str
    flag: bool
    dtype: int = 0
    many: tuple[int, ...] = ()
    late: int = dx.static(init=False)  # E: declax-unset | Names.late
    rngs: dx.InitVar[dx.Rngs | None] = None
    a: dx.Param[jax.Array] = dx.variable(("dmi",), initializer=ones)  # E: declax-variable | did you mean 'dim'?
    b: dx.Param[jax.Array] = dx.variable(("name",), initializer=ones)  # E: declax-variable | which is no int
    c: dx.Param[jax.Array] = dx.variable("dims", initializer=ones)  # E: declax-variable | shape names 'dims'
    d: dx.Param[jax.Array] = dx.variable("name", initializer=ones)  # E: declax-variable | which is no shape
    e: dx.Param[jax.Array] = dx.variable((3, "many"), initializer=ones)  # E: declax-variable | it is declared as many
    f: dx.Param[jax.Array] = dx.variable(["flag"], initializer=ones)  # E: declax-variable | which is no int
    g: dx.Param[jax.Array] = dx.variable((2,), initializer="oens")  # E: declax-variable | initializer names 'oens'
    h: dx.Param[jax.Array] = dx.variable((2,), initializer="dim")  # E: declax-variable | which is no initializer
    i: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, dtype="flaot32")  # E: declax-variable | no field
    j: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, dtype="dtype")  # E: declax-variable | is no dtype
    k: dx.Param[jax.Array] | None = dx.variable((2,), initializer=ones, when="dim")  # E: declax-variable | no bool
    l: dx.Param[jax.Array] | None = dx.variable((2,), initializer=ones, when="flga")  # E: declax-variable | 'flag'?
    m: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, when="flag")  # E: declax-variable & assignment
    n: jax.Array = dx.variable((2,), initializer=ones)  # E: declax-variable | its annotation jax.Array is none
    o: dx.Param[jax.Array] = dx.variable(("late",), initializer=ones)  # E: declax-variable | has no value yet
    p: dx.Param[jax.Array] = dx.variable(("rngs",), initializer=ones)  # E: declax-variable | an InitVar is gone
    q: dx.Param[jax.Array] = dx.variable((lambda self: self.dmi,), initializer=ones)  # E: attr-defined | "Names"
    r: dx.Param[jax.Array] = dx.variable(lambda self: (self.dmi, 2), initializer=ones)  # E: attr-defined | "Names" has
    s: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, metadata="metta")  # E: declax-variable | metadata
    t: dx.Param[jax.Array] = dx.variable((lambda self: self.u.size,), initializer=ones)  # E: declax-variable | self.u
    u: dx.Param[jax.Array] = dx.variable((2,), initializer=ones)


@dx.dataclass
class Unmade(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Param[jax.Array] = dx.variable(  # E: call-overload
        (2,),
        initializer=lecun_normal,  # E: declax-variable | Unmade.a: lecun_normal makes an initializer, and is none
    )
    b: dx.Param[jax.Array] = dx.variable(  # E: call-overload
        (2,),
        initializer=dx.initializers.normal,  # E: declax-variable | fix: normal()
    )
    c: dx.Param[jax.Array] = dx.variable(  # E: call-overload
        (2,),
        initializer=dx.initializers.constant,  # E: declax-variable | fix: constant(...)
    )


@dx.dataclass
class NoRngs(dx.Module):
    a: dx.Param[jax.Array] = dx.variable((2,), initializer=ones)  # E: declax-variable | draws from the stream 'params'
    b: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, stream=None)


@dx.dataclass
class Child(Names):
    z: dx.Param[jax.Array] = dx.variable(("dim", "manny"), initializer=ones)  # E: declax-variable | 'many'?
"""

WRONG_SUBMODULES = """
import jax

import declax as dx


@dx.dataclass
class Parts(dx.Module):
    dim: int
    name: str
    flag: bool
    made: dx.Linear
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.dmi, 2, rngs=rngs))  # E: attr-defined | "Parts"
    b: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.name, 2, rngs=rngs))  # E: arg-type | "str"
    c: dx.Linear = dx.submodule(lambda self, rngs: self.made, when="flag")  # E: declax-submodule & assignment
    d: dx.Linear | None = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs), when="dim")  # E: declax-submodule
    e: dx.Linear | None = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs), when="flg")  # E: declax-submodule
    f: dx.Linear = dx.submodule(lambda self, rngs: self.g)  # E: declax-submodule | self.g has no value yet
    g: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs.params))  # E: arg-type


@dx.dataclass
class Bare(dx.Module):
    a: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs))  # E: arg-type & declax-submodule | fix:
    b: dx.Linear = dx.submodule(lambda me, keys: dx.Linear(2, 2, rngs=keys))  # E: arg-type & declax-submodule | keys is


def for_bare(self: Bare, rngs: dx.Rngs) -> dx.Linear:
    return dx.Linear(2, 2, rngs=rngs)


@dx.dataclass
class Named(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Linear = dx.submodule(for_bare)  # E: arg-type | "Callable[[Named, Rngs]
"""

RIGHT = """
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp

import declax as dx
from declax.initializers import Initializer, ones, zeros

M = TypeVar("M", bound=dx.Module)


@dataclasses.dataclass
class Sizes:
    width: int


class HasWidth(Protocol):
    width: int


def linear_of(self: HasWidth, rngs: dx.Rngs) -> dx.Linear:
    return dx.Linear(self.width, 2, rngs=rngs)


def anything(self: Any, rngs: Any) -> Any:
    return self


@dx.dataclass
class Variables(dx.Module, Sizes):
    dim: int
    sizes: tuple[int, ...]
    use_bias: bool = True
    param_dtype: jax.typing.DTypeLike = dx.static(default=jnp.bfloat16)
    name_of_dtype: str = "float32"
    kernel_init: Initializer = dx.static(default=ones)
    any_init: Callable[..., jax.Array] = dx.static(default=ones)
    anything: Any = None
    meta: dict[str, object] = dx.static(default_factory=dict)
    calls: int = dx.static(default=0, init=False)
    _: dx.KW_ONLY
    flexible: int | None = None
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Param[jax.Array] = dx.variable(("dim", lambda self: 2 * self.dim, 3), initializer=ones)
    b: dx.Param[jax.Array] | None = dx.variable(["dim"], initializer="kernel_init", when="use_bias")
    c: dx.BatchStat[jax.Array] = dx.variable("sizes", initializer="any_init", dtype="param_dtype")
    d: dx.Param[jax.Array] = dx.variable("dim", initializer="anything", dtype="bfloat16", metadata="meta")
    e: dx.Param[jax.Array] = dx.variable(lambda self: (self.dim, *self.sizes), initializer=zeros, dtype="name_of_dtype")
    f: dx.Param[Any] = dx.variable(initializer=zeros, dtype=jnp.int32)
    g: dx.Param[jax.Array] = dx.variable(("calls", "anything", "flexible", "width"), initializer=zeros, dtype="<f4")
    h: dx.Param[jax.Array] = dx.variable((lambda self: self.a.shape[0],), initializer=zeros)
    i: Any = dx.variable((2,), initializer=zeros, when="use_bias")
    shift: jax.Array | dx.Param[jax.Array] | None = dx.variable((2,), initializer=zeros, when="use_bias")


@dx.dataclass
class Quiet(dx.Module):
    stream: str | None
    a: dx.Param[jax.Array] = dx.variable((2,), initializer=ones, stream=None)


@dx.dataclass
class Child(Variables):
    gain: float = 2.0
    z: dx.Param[jax.Array] = dx.variable(("dim", "width"), initializer=ones)


@dx.dataclass
class Parts(dx.Module, Generic[M]):
    width: int
    make: Callable[[], M] = dx.static()
    is_deep: bool = True
    rngs: dx.InitVar[dx.Rngs | None] = None
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.width, 2, rngs=rngs))
    named: dx.Linear = dx.submodule(linear_of)
    open: dx.Linear = dx.submodule(anything)
    made: M = dx.submodule(lambda self, rngs: self.make())
    layers: list[dx.Linear] = dx.submodule(
        lambda self, rngs: [dx.Linear(i, self.width, rngs=rngs) for i in range(self.width)]
    )
    last: dx.Linear | None = dx.submodule(lambda self, rngs: self.inner, when="is_deep")


@dx.dataclass
class Bare(dx.Module):
    a: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=dx.Rngs(0)))
    b: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs or dx.Rngs(0)))
    c: dx.Dropout = dx.submodule(lambda self, rngs: dx.Dropout(0.5, rngs=rngs))


@dx.dataclass
class OwnRngs(dx.Module):
    rngs: dx.Rngs
    a: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs))


@dx.dataclass(frozen=True, kw_only=True)
class Frozen(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Linear = dx.submodule(linear_of)


def local() -> object:
    @dx.dataclass(eq=False)
    class Local(dx.Module):
        width: int
        rngs: dx.InitVar[dx.Rngs]
        a: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.width, 2, rngs=rngs))
        b: dx.Param[jax.Array] = dx.variable(("width",), initializer=ones)

    return Local(2, rngs=dx.Rngs(0))
"""


def test_variables_and_submodules(tmp_path: Path) -> None:
    files = {"wrong_variables.py": WRONG_VARIABLES, "wrong_submodules.py": WRONG_SUBMODULES, "right.py": RIGHT}
    assert_as_marked(files, check(tmp_path, files))
