"""Fields and their specifiers."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field  # noqa: F401  # pyright: ignore[reportUnusedImport]  # a mistake uses it
from typing import Literal, NamedTuple, Union

import jax
import jax.numpy as jnp

import declax as dx

# == an array as a static field (annotations: no)


@dx.dataclass
class Normalizer(dx.Module):
    mean: jax.Array = dx.data()
    # wrong: mean: jax.Array = dx.static()
    # error: declax-field | - | -
    eps: float = 1e-6


# == an optional array as a static field (annotations: no)


@dx.dataclass
class Masked(dx.Module):
    mask: jax.Array | None = dx.data(default=None)
    # wrong: mask: jax.Array | None = dx.static(default=None)
    # error: declax-field | - | -


# == a tuple of arrays as a static field (annotations: no)


@dx.dataclass
class Bounds(dx.Module):
    limits: tuple[jax.Array, jax.Array] = dx.data()
    # wrong: limits: tuple[jax.Array, jax.Array] = dx.static()
    # error: declax-field | - | -


# == a module as a static field (annotations: no)


@dx.dataclass
class Wrapper(dx.Module):
    inner: dx.Linear = dx.data()
    # wrong: inner: dx.Linear = dx.static()
    # error: declax-field | - | -


# == a Variable as a static field (annotations: no)


@dx.dataclass
class Scaled(dx.Module):
    scale: dx.Param[jax.Array] = dx.data()
    # wrong: scale: dx.Param[jax.Array] = dx.static()
    # error: declax-field | - | -


# == a str as data (annotations: yes)


@dx.dataclass
class Named(dx.Module):
    name: str = dx.static(default="block")
    # wrong: name: str = dx.data(default="block")
    # error: assignment, declax-field | assignment | reportAssignmentType


# == a str without a default as data (annotations: no)


@dx.dataclass
class Labelled(dx.Module):
    label: str = dx.static()
    # wrong: label: str = dx.data()
    # error: declax-field | - | -


# == a container of names as data (annotations: no)


@dx.dataclass
class Tagged(dx.Module):
    tags: tuple[str, ...] = dx.static(default=())
    # wrong: tags: tuple[str, ...] = dx.data(default=())
    # error: declax-field | - | -


# == a list as the default of a static field (annotations: yes)


@dx.dataclass
class Sizes(dx.Module):
    sizes: list[int] = dx.static(default_factory=list[int])
    # wrong: sizes: list[int] = dx.static(default=[8, 8])
    # error: assignment | assignment | reportAssignmentType


# == an array as the default of a static field (annotations: yes)


@dx.dataclass
class Offset(dx.Module):
    offset: jax.Array = dx.data(default_factory=lambda: jnp.zeros(3))
    # wrong: offset: jax.Array = dx.static(default=jnp.zeros(3))
    # error: assignment, declax-field | assignment | reportAssignmentType


# == a list as the default of a data field (annotations: yes)


@dx.dataclass
class Stack(dx.Module):
    layers: list[dx.Linear] = dx.data(default_factory=list[dx.Linear])
    # wrong: layers: list[dx.Linear] = dx.data(default=[])
    # error: assignment | assignment | reportAssignmentType


# == an array as the default of a data field (annotations: yes)


@dx.dataclass
class Shifted(dx.Module):
    shift: jax.Array = dx.data(default_factory=lambda: jnp.zeros(3))
    # wrong: shift: jax.Array = dx.data(default=jnp.zeros(3))
    # error: assignment | assignment | reportAssignmentType


# == a recursive alias of arrays as static (annotations: no)


ArrayTree = Union[jax.Array, list["ArrayTree"]]


@dx.dataclass
class Nested(dx.Module):
    arrays: ArrayTree = dx.data()
    # wrong: arrays: ArrayTree = dx.static()
    # error: declax-field | - | -


# == an annotation that says data, a specifier that says static (annotations: no)


@dx.dataclass
class Contradicted(dx.Module):
    values: dx.Data[list[float]] = dx.data(default_factory=list[float])
    # wrong: values: dx.Data[list[float]] = dx.static(default_factory=list[float])
    # error: declax-field | - | -


# == an annotation that says static, a specifier that says data (annotations: no)


@dx.dataclass
class Confused(dx.Module):
    table: dx.Static[tuple[float, ...]] = dx.static(default=())
    # wrong: table: dx.Static[tuple[float, ...]] = dx.data(default=())
    # error: declax-field | - | -


# == a default of another type than the field (annotations: yes)


@dx.dataclass
class Activated(dx.Module):
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    # wrong: activation: Callable[[jax.Array], jax.Array] = dx.static(default="gelu")
    # error: arg-type | arg-type | reportAssignmentType


# == a factory of another type than the field (annotations: yes)


@dx.dataclass
class Produced(dx.Module):
    count: int = dx.static(default_factory=int)
    # wrong: count: int = dx.static(default_factory=str)
    # error: assignment | assignment | reportAssignmentType


# == a keyword that no specifier has (annotations: yes)


@dx.dataclass
class Helped(dx.Module):
    width: int = dx.static(default=8, help="the width")
    # wrong: width: int = dx.static(default=8, halp="the width")
    # error: call-overload | call-overload | reportCallIssue


# == a field without a default after one with (annotations: yes)


@dx.dataclass
class Ordered(dx.Module):
    first: int = 1
    second: int = 2
    # wrong: second: int
    # error: misc | misc | reportGeneralTypeIssues


# == a Module with declared fields that is no dataclass (annotations: no)


@dx.dataclass
# wrong(+1):
# error: declax-undecorated | - | -
class Undecorated(dx.Layer):
    width: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)


# == a field with init=False that nothing sets (annotations: no)


@dx.dataclass
class Derived(dx.Module):
    width: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width**2
        # wrong(-2): print(self.width)
        # error: declax-unset | - | -


# == __post_init__ without an InitVar (annotations: no)


@dx.dataclass
class Seeded(dx.Module):
    width: int
    seed: InitVar[int]
    key: jax.Array = field(init=False)

    def __post_init__(self, seed: int) -> None:
        # wrong: def __post_init__(self) -> None:
        # error: override | override | reportGeneralTypeIssues
        self.key = jax.random.key(self.width)


# == __post_init__ with an InitVar of another type (annotations: no)


@dx.dataclass
class Reseeded(dx.Module):
    seed: InitVar[int]
    key: jax.Array = field(init=False)

    def __post_init__(self, seed: int) -> None:
        # wrong: def __post_init__(self, seed: str) -> None:
        # error: override | override | reportGeneralTypeIssues
        self.key = jax.random.key(0)


# == a frozen module is changed (annotations: yes)


@dx.dataclass(frozen=True)
class Settings(dx.Pytree):
    width: int


settings = Settings(3)
wider = dx.replace(settings, width=4)
# wrong: settings.width = 4
# error: misc | misc | reportAttributeAccessIssue

# == a Module under the decorator of the standard (annotations: no)


@dx.dataclass
# wrong(+1): @dataclass
# error: declax-undecorated | - | -
class Sized(dx.Module):
    size: int


# == an array for a static field that takes anything (annotations: no)


@dx.dataclass
class Keyed(dx.Module):
    key: object = dx.static()


keyed = Keyed("a")
# wrong: keyed = Keyed(jnp.ones(2))
# error: declax-field | - | -

# == a choice where one of its values is needed (annotations: yes)


def plain_width(kind: Literal["plain"]) -> int:
    return len(kind)


def width_of(kind: Literal["plain", "gated"]) -> int:
    return len(kind)


@dx.dataclass
class Gate(dx.Layer):
    kind: Literal["plain", "gated"] = dx.field(default="plain")
    is_gated = kind == "gated"
    width = dx.defer(width_of)(kind)
    # wrong: width = dx.defer(plain_width)(kind)
    # error: arg-type | arg-type | reportArgumentType


# == a value that may be None where it has to be (annotations: yes)


def width_without(size: None) -> int:
    print(size)
    return 4


def width_with(size: int | None) -> int:
    return size or 4


@dx.dataclass
class Widened(dx.Layer):
    size: int | None = dx.field(default=None)
    width = dx.defer(width_with)(size)
    # wrong: width = dx.defer(width_without)(size)
    # error: arg-type | arg-type | reportArgumentType


# == a value that may be None where a number is needed (annotations: yes)


@dx.dataclass
class Restricted(dx.Layer):
    size: int | None = dx.static(default=3)
    width = dx.defer(width_with)(size)
    # wrong: width = dx.defer(abs)(size)
    # error: arg-type | arg-type | reportArgumentType


# == a default that is no choice (annotations: yes)


@dx.dataclass
class Chosen(dx.Layer):
    kind: Literal["plain", "gated"] = dx.field(default="gated")
    # wrong: kind: Literal["plain", "gated"] = dx.field(default="gatd")
    # error: arg-type | arg-type | reportAssignmentType


# == a default of another type for a value that may be None (annotations: yes)


@dx.dataclass
class Limited(dx.Layer):
    limit: int | None = dx.field(default=3)
    # wrong: limit: int | None = dx.field(default="3")
    # error: arg-type | arg-type | reportAssignmentType


# == a default of another type for data (annotations: yes)


@dx.dataclass
class Heated(dx.Layer):
    temperature: float = dx.data(default=1.0)
    # wrong: temperature: float = dx.data(default=(1.0, 2.0))
    # error: arg-type | arg-type | reportAssignmentType


# == a default that is wider than its field is read (annotations: yes)


class Shape(NamedTuple):
    height: int
    width: int


@dx.dataclass
class Framed(dx.Layer):
    shape: tuple[int, int] = dx.static(default=Shape(2, 3))
    height = shape[0]
    # wrong: height = shape.height
    # error: attr-defined | attr-defined | reportAttributeAccessIssue


# == a default of another type for a recursive alias (annotations: yes)


Json = Union[str, int, None, list["Json"], dict[str, "Json"]]


@dx.dataclass
class Annotated(dx.Layer):
    notes: Json = dx.static(default=None)
    # wrong: notes: Json = dx.static(default=1.5)
    # error: assignment | assignment | reportAssignmentType
