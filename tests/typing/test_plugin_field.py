from pathlib import Path

from plugin_cases import assert_as_marked, check

WRONG = """
from dataclasses import field
from enum import Enum
from typing import Any, Literal, Union

import jax
import jax.numpy as jnp
import numpy as np

import declax as dx


class Mode(Enum):
    FAST = 1


Json = Union[str, list["Json"], dict[str, "Json"]]
Tree = Union[jax.Array, list["Tree"]]

ZEROS = jnp.zeros(3)
rngs = dx.Rngs(0)


@dx.dataclass
class StaticData(dx.Module):
    a: jax.Array = dx.static()  # E: declax-field | StaticData.a: static(...) contradicts the annotation jax.Array
    b: jax.Array | None = dx.static(default=None)  # E: declax-field | fix: b: jax.Array | None = dx.data(...)
    c: tuple[jax.Array, int] = dx.static(kw_only=True)  # E: declax-field | tuple[jax.Array, int]
    d: dx.Linear = dx.static(kw_only=True)  # E: declax-field | StaticData.d: static(...) contradicts the annotati
    e: dx.Param[jax.Array] = dx.static(kw_only=True)  # E: declax-field | StaticData.e: static(...) contradicts th
    f: list[dx.Linear] = dx.static(default_factory=list)  # E: declax-field | StaticData.f: static(...) contradict
    g: dict[str, jax.Array] = dx.static(kw_only=True)  # E: declax-field | dict[str, jax.Array]
    h: np.ndarray[Any, Any] = dx.static(kw_only=True)  # E: declax-field | StaticData.h: static(...) contradicts t
    i: dx.Data[list[float]] = dx.static(kw_only=True)  # E: declax-field | dx.Data[list[float]]
    k: jax.Array | float = dx.static(kw_only=True)  # E: declax-field | jax.Array | float


@dx.dataclass
class Recursive(dx.Module):
    a: Json = dx.data()  # E: declax-field | Recursive.a: data(...) contradicts the annotation
    b: Tree = dx.static()  # E: declax-field | Recursive.b: static(...) contradicts the annotation
    c: dict[str, Tree] = dx.static()  # E: declax-field | Recursive.c: static(...) contradicts the annotation


@dx.dataclass
class NoLeaves(dx.Module):
    a: str = dx.data()  # E: declax-field | it contains no leaf
    b: str | None = dx.data(kw_only=True)  # E: declax-field | fix: b: str | None = dx.static(...)
    c: tuple[str, ...] = dx.data(kw_only=True)  # E: declax-field | tuple[str, ...]
    d: dict[int, str] = dx.data(kw_only=True)  # E: declax-field | dict[int, str]
    e: tuple[str, bytes] = dx.data(kw_only=True)  # E: declax-field | tuple[str, bytes]
    f: Literal["x"] = dx.data(kw_only=True)  # E: declax-field | Literal['x']
    g: Mode = dx.data(kw_only=True)  # E: declax-field | the annotation Mode
    h: type[int] = dx.data(kw_only=True)  # E: declax-field | type[int]
    i: dx.Static[tuple[float, ...]] = dx.data(kw_only=True)  # E: declax-field | dx.Static[tuple[float, ...]]


@dx.dataclass
class Marked(dx.Module):
    a: dx.Static[jax.Array]  # E: declax-field | its type contradicts the annotation dx.Static[jax.Array]
    b: dx.Static[jax.Array] = dx.field()  # E: declax-field | arrays, Variables and Pytrees are data


@dx.dataclass
class Reading(dx.Module):
    bare: int  # E: declax-part | Reading.a reads bare, which has no value in the class body
    width: int = dx.field()
    _: dx.KW_ONLY
    plain: int = 2  # E: declax-part | fix: plain: int = dx.field(default=...)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    a: dx.Linear = dx.Linear(bare, width, rngs=rngs)
    b = dx.Linear(width, plain, rngs=rngs)
    c: dx.Param[jax.Array] = dx.variable((plain,), initializer=dx.initializers.ones)
    d: int = dx.variable((2,), initializer=dx.initializers.ones)  # E: declax-part | the annotation is int
    e = dx.Linear(2, 2, rngs=dx.Rngs(0))  # E: declax-part | all instances would share this Linear


@dx.dataclass
class Positional(Reading):
    rngs: dx.InitVar[dx.Rngs] = dx.field()  # E: declax-part | fix: _: dx.KW_ONLY; rngs: dx.InitVar[dx.Rngs]


@dx.dataclass
class Forgetful(Reading):
    more: dx.Linear = dx.Linear(Reading.width, 2, rngs=rngs)  # E: declax-part | reads rngs from the module


@dx.dataclass
class Rated(dx.Module):
    size: int
    rate: float = 0.1
    cold: float = -0.1
    shown: float = dx.field(default=0.1)
    made: float = 2 * shown
    constant = 2 * rate


@dx.dataclass
class Overrated(Rated):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    half = Rated.rate / 2
    a = dx.Dropout(Rated.rate, rngs=rngs)  # E: declax-part | fix: rate: float = dx.field(default=...)  # in Rated
    b = dx.Dropout(Rated.cold, rngs=rngs)  # E: declax-part | Overrated.b reads Rated.cold, which is a constant
    c = dx.Dropout(Rated.made, rngs=rngs)
    d = dx.Linear(Rated.size, 2, rngs=rngs)  # E: declax-part | reads Rated.size, which has no value


@dx.dataclass
class Inherits(Overrated):
    rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
    e = dx.Dropout(Overrated.rate, rngs=rngs)  # E: declax-part | Inherits.e reads Rated.rate
    f = dx.Dropout(Overrated.shown, rngs=rngs)


@dx.dataclass
class Elsewhere(dx.Module):
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    a = dx.Dropout(Rated.rate, rngs=rngs)


@dx.dataclass
class Streamless(dx.Module):
    a: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones)  # E: declax-part | has no rngs


@dx.dataclass
class Defaults(dx.Module):
    a: list[int] = []  # E: declax-part | Defaults.a: all instances would share this list[int]
    b: jax.Array = ZEROS  # E: declax-part | Defaults.b: all instances would share this jax.Array
    c: dx.Linear = dx.Linear(2, 2, rngs=dx.Rngs(0))  # E: declax-part | Defaults.c: all instances would share this
    d: dict[str, int] = {"a": 1}  # E: declax-part | Defaults.d: all instances would share this dict[str, int]
"""

RIGHT = """
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NewType, Optional, Protocol, TypeVar, Union

import jax
import jax.numpy as jnp
import numpy as np

import declax as dx

if TYPE_CHECKING:
    from later import Later

T = TypeVar("T")
M = TypeVar("M", bound=dx.Module)
Size = NewType("Size", int)


class Level(IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: jax.Array
    right: int


class Act(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


Json = Union[str, list["Json"], dict[str, "Json"]]
Tree = Union[jax.Array, list["Tree"], dict[str, "Tree"]]
Mixed = Union[str, list["Others"]]
Others = Union[jax.Array, list["Mixed"]]


@dx.dataclass
class Recursive(dx.Module):
    a: Json
    b: Tree
    c: Json = dx.static()
    d: Tree = dx.data(kw_only=True)
    e: Optional[Json] = None
    f: Mixed = dx.data(kw_only=True)
    g: Others = dx.static(kw_only=True)


@dataclass
class Growing:
    known: list[str]


class Comparable:
    def __eq__(self, other: object) -> bool:
        return True


@dx.dataclass
class Unhashable(dx.Module):
    a: Growing = dx.static()
    b: Comparable = dx.static()


@dataclass(frozen=True)
class Words:
    known: tuple[str, ...]


@dataclass(eq=False)
class ById:
    known: list[str]


@dataclass(unsafe_hash=True)
class Unsafe:
    known: tuple[str, ...]


class Hashed:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@dx.dataclass(frozen=True)
class Point(dx.Pytree):
    x: int
    y: int


@dx.dataclass
class Statics(dx.Module):
    a: int = dx.static()
    b: Optional[str] = dx.static()
    c: Callable[[jax.Array], jax.Array] = dx.static()
    d: list[int] = dx.static()
    e: Sequence[int] = dx.static()
    f: Mapping[str, int] = dx.static()
    g: Any = dx.static()
    h: object = dx.static()
    i: Words = dx.static()
    j: Hashed = dx.static()
    k: Unsafe = dx.static()
    l: ById = dx.static()
    m: dx.Static[Any] = dx.static()
    n: dx.Static[jax.Array] = dx.static()
    o: Act = dx.static()
    p: type[dx.Module] = dx.static()
    q: np.dtype[Any] = dx.static()
    r: dx.Linear | Callable[[jax.Array], jax.Array] = dx.static()
    s: Pair = dx.static()
    t: Size = dx.static()
    u: Later = dx.static()
    v: set[str] = dx.static()
    w: tuple[int, ...] = dx.static(default=())
    x: int = field(metadata={"static": True}, default=1)


@dx.dataclass
class Datas(dx.Module):
    a: jax.Array = dx.data()
    b: int = dx.data()
    c: list[int] = dx.data()
    d: Callable[[jax.Array], jax.Array] = dx.data()
    e: Any = dx.data()
    f: object = dx.data()
    g: Union[str, jax.Array] = dx.data()
    h: dx.Data[str] = dx.data()
    i: list[Any] = dx.data()
    j: Level = dx.data()
    k: tuple[()] = dx.data()
    l: Later = dx.data()
    m: dict[str, jax.Array] = dx.data(default_factory=dict)
    n: jax.Array | None = dx.data(default=None)
    o: Sequence[Callable[[jax.Array], jax.Array]] = dx.data(default=())
    p: int = field(metadata={"static": False}, default=1)
    q: Point = Point(1, 2)
    r: tuple[int, ...] = (1, 2)
    s: Callable[[jax.Array], jax.Array] = jnp.sin
    t: float = 1.0


@dx.dataclass
class Legal(dx.Module):
    size: int = 4
    twice: int = size * 2
    stream: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, stream=None)


@dx.dataclass
class Deferred(dx.Module):
    width: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    a: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    b = a
    c = [dx.Linear(width, 2, rngs=rngs)]
    d = dx.defer(Hashed)()
    rope = dx.defer(dx.RoPE)()
    e = dx.repeat(2, dx.Linear(width, 2, rngs=rngs))


class Mixer(Protocol):
    def __call__(self, inputs: jax.Array) -> jax.Array: ...


@dx.dataclass
class Blended(dx.Module):
    width: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: Mixer = dx.Linear(width, width, rngs=rngs)
    function: Callable[[jax.Array], jax.Array] | None = dx.field(default=dx.Linear(width, 2, rngs=rngs))

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.width, 2, rngs=rngs)]

    last = layers[-1]


linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
mixed = Blended(2, mixer=linear, function=linear, rngs=dx.Rngs(0))
dx.state(mixed).mixer


@dx.dataclass
class Again(Blended):
    _: dx.KW_ONLY
    mixer: Mixer  # keeps the declaration of the base


dx.state(Again(2, mixer=linear, function=linear, rngs=dx.Rngs(0))).mixer


@dx.dataclass
class Further(Deferred):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    f: dx.Linear = dx.Linear(Deferred.width, 2, rngs=rngs)
    layers: ClassVar[list[int]] = []


@dx.dataclass
class Box(dx.Module, Generic[T]):
    a: T = dx.static()
    b: T = dx.data()
    c: list[T] = dx.data()
    d: list[T] = dx.static()


@dx.dataclass
class Holder(dx.Module, Generic[M]):
    part: M = dx.data()
    parts: list[M] = dx.data(default_factory=list)


class Named:
    name: str

    def describe(self) -> str:
        return self.name


@dx.dataclass
class Child(Statics, Named):
    extra: str = dx.static(default="x")


def make() -> None:
    @dx.dataclass(eq=True)
    class Local(dx.Module):
        a: str = dx.static()
        b: Inner

    class Inner:
        pass

    Local("a", Inner())
"""

LATER = """
class Later:
    def __init__(self) -> None:
        self.x = 1
"""

LAYERS = """
import jax

import declax as dx


class Open(dx.Module):
    def __init__(self, width: int, rngs: dx.Rngs | None = None) -> None:
        self.linear = dx.Linear(width, width, rngs=rngs)


@dx.dataclass
class Deferred(dx.Layer):
    drop: dx.Dropout = dx.Dropout(0.1)
    silent: dx.Dropout = dx.Dropout(0.1, rngs=None)
    open: Open = Open(4)
    shared: Open = Open(4, dx.Rngs(0))  # E: declax-part | all instances would share this Open
    both: dx.Sequential = dx.Sequential(dx.Linear(3, 4), dx.relu)
    layers: list[dx.Linear] = [dx.Linear(3, 4), dx.Linear(4, 4)]
    made: dx.Linear = dx.Linear(3, 4, rngs=dx.Rngs(0))  # E: declax-part | all instances would share this Linear
    scale: dx.Param[jax.Array] = dx.variable((3,), initializer=dx.initializers.ones)


@dx.dataclass
class OfModule(dx.Module):
    drop: dx.Dropout = dx.Dropout(0.1)  # E: declax-part | all instances would share this Dropout
    deferred: dx.Dropout = dx.defer(dx.Dropout)(0.1)
"""

WRONG_LOCAL = """
import jax

import declax as dx


def make(x: jax.Array) -> object:
    @dx.dataclass(eq=True)
    class Local(dx.Module):
        a: jax.Array = dx.static()  # E: declax-field | Local.a: static(...)

    @dx.dataclass
    class Other(dx.Module):
        a: jax.Array = dx.static()  # E: declax-field | Other.a: static(...)

    return Local(x), Other(x)


class Outer:
    @dx.dataclass(frozen=True)
    class Inner(dx.Pytree):
        a: str = dx.data()  # E: declax-field | Inner.a: data(...)
"""


def test_fields(tmp_path: Path) -> None:
    files = {"wrong.py": WRONG, "right.py": RIGHT, "later.py": LATER, "local.py": WRONG_LOCAL, "of_layers.py": LAYERS}
    assert_as_marked(files, check(tmp_path, files))
