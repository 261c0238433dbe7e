"""Class bodies: what needs the value of a field."""

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import declax as dx


@dx.dataclass
class Mlp(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    gated: bool = dx.field(default=False)
    sizes: tuple[int, ...] = dx.field(default=(8, 8))
    hidden = 4 * dim
    up = dx.Linear(dim, hidden)


@dataclass
class Options:
    width: int = 8


mlp = Mlp(4, rngs=dx.Rngs(0))
print(functools.__name__, math.pi, operator.add, np.pi, Options(), jnp.pi)

# == a part under if (annotations: no)


@dx.dataclass
class UnderIf(dx.Layer):
    dim: int = dx.field()
    gated: bool = dx.field(default=False)
    gate = dx.when(gated, dx.Linear(dim, dim))
    # wrong: gate = dx.Linear(dim, dim) if gated else None
    # error: declax-value | - | -


# == an if statement about a field (annotations: no)

WIDE = True


@dx.dataclass
class IfStatement(dx.Layer):
    dim: int = dx.field()
    gated: bool = dx.field(default=False)
    if WIDE:
        # wrong: if gated:
        # error: declax-value | - | -
        gate = dx.Linear(dim, dim)


# == not of a field (annotations: no)


@dx.dataclass
class Negated(dx.Layer):
    dim: int = dx.field()
    bare: bool = dx.field(default=False)
    linear = dx.Linear(dim, dim, use_bias=dx.defer(operator.not_)(bare))
    # wrong: linear = dx.Linear(dim, dim, use_bias=not bare)
    # error: declax-value | - | -


# == `and` of two fields (annotations: no)


@dx.dataclass
class Both(dx.Layer):
    dim: int = dx.field()
    gated: bool = dx.field(default=False)
    gate = dx.when(gated & (dim > 2), dx.Linear(dim, dim))
    # wrong: gate = dx.when(gated and dim > 2, dx.Linear(dim, dim))
    # error: declax-value | - | -


# == `or` with a default (annotations: no)


@dx.dataclass
class Default(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    width: int = dx.field(default=0)
    linear = dx.Linear(dim, dx.when(width == 0, dim, width))
    # wrong: linear = dx.Linear(dim, width or dim)
    # error: declax-value | - | -


# == a chain of comparisons (annotations: no)


@dx.dataclass
class Chained(dx.Layer):
    dim: int = dx.field()
    gate = dx.when((1 < dim) & (dim < 9), dx.Linear(dim, dim))
    # wrong: gate = dx.when(1 < dim < 9, dx.Linear(dim, dim))
    # error: declax-value | - | -


# == a field among values (annotations: no)


@dx.dataclass
class Among(dx.Layer):
    kind: str = dx.field(default="mean")
    is_linear: bool = (kind == "sum") | (kind == "mean")
    # wrong: is_linear: bool = kind in ("sum", "mean")
    # error: declax-value | - | -


# == `is None` of a field (annotations: no)


@dx.dataclass
class Optional(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    width: int | None = dx.field(default=None)
    is_square: bool = width == None  # noqa: E711
    # wrong: is_square: bool = width is None
    # error: declax-value | - | -


# == max of two fields (annotations: no)


@dx.dataclass
class Largest(dx.Layer):
    dim: int = dx.field()
    width: int = dx.field()
    linear = dx.Linear(dim, dx.defer(max)(dim, width))
    # wrong: linear = dx.Linear(dim, max(dim, width))
    # error: declax-value | - | -


# == a comprehension over a range (annotations: no)


@dx.dataclass
class Deep(dx.Layer):
    depth: int = dx.field()
    layers = dx.repeat(depth, dx.Linear(2, 2))
    # wrong: layers = [dx.Linear(2, 2) for _ in range(depth)]
    # error: declax-value | - | -


# == a comprehension over a field (annotations: no)


@dx.dataclass
class Sized(dx.Layer):
    sizes: tuple[int, ...] = dx.field()
    layers = [dx.Linear(2, size) for size in (3, 4)]
    # wrong: layers = [dx.Linear(2, size) for size in sizes]
    # error: declax-value | - | -


# == the length of a field (annotations: no)


@dx.dataclass
class Counted(dx.Layer):
    sizes: tuple[int, ...] = dx.field()
    depth = dx.defer(len)(sizes)
    # wrong: depth = len(sizes)
    # error: declax-value | - | -


# == a formatted field (annotations: no)


@dx.dataclass
class Named(dx.Layer):
    dim: int = dx.field()
    name = dx.defer("block{}".format)(dim)
    # wrong: name = f"block{dim}"
    # error: declax-value | - | -


# == a field that is unpacked (annotations: no)


@dx.dataclass
class Image(dx.Layer):
    shape: tuple[int, int] = dx.field()
    height, width = shape[0], shape[1]
    # wrong: height, width = shape
    # error: declax-value | - | -
    linear = dx.Linear(height, width)


# == a list of layers behind a star (annotations: no)


@dx.dataclass
class Starred(dx.Layer):
    dim: int = dx.field()
    net = dx.Sequential(dx.repeat(3, dx.Linear(dim, dim)))
    # wrong: net = dx.Sequential(*dx.repeat(3, dx.Linear(dim, dim)))
    # error: declax-value | - | -


# == a function of NumPy on a field (annotations: no)


@dx.dataclass
class Logarithmic(dx.Layer):
    dim: int = dx.field()
    scale = dx.defer(np.log)(dim)
    # wrong: scale = np.log(dim)
    # error: declax-value | - | -


# == a function of math on a field (annotations: no)


@dx.dataclass
class Scaled(dx.Layer):
    dim: int = dx.field()
    scale = dim**-0.5
    # wrong: scale = 1 / math.sqrt(dim)
    # error: declax-value | - | -


# == an array of the size of a field (annotations: no)


@dx.dataclass
class Scale(dx.Layer):
    dim: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.zeros)
    # wrong: scale = dx.Param(jnp.zeros(dim))
    # error: declax-value | - | -


# == int of a quotient (annotations: no)


@dx.dataclass
class Quotient(dx.Layer):
    dim: int = dx.field()
    rate: float = dx.field(default=0.5)
    linear = dx.Linear(dim, dx.defer(int)(dim * rate))
    # wrong: linear = dx.Linear(dim, int(dim * rate))
    # error: declax-value | - | -


# == a match statement about a field (annotations: no)

KIND = "mean".lower()


@dx.dataclass
class Matched(dx.Layer):
    kind: str = dx.field(default="mean")
    match KIND:
        # wrong: match kind:
        # error: declax-value | - | -
        case "mean":
            linear = dx.Linear(2, 2)
        case _:
            linear = dx.Linear(2, 3)


# == a list that repeats a call (annotations: no)


@dx.dataclass
class Repeated(dx.Layer):
    dim: int = dx.field()
    layers = [dx.Linear(dim, dim), dx.Linear(dim, dim)]
    # wrong: layers = [dx.Linear(dim, dim)] * 2
    # error: declax-value | - | -


# == a partial over a field (annotations: no)


@dx.dataclass
class Partial(dx.Layer):
    dim: int = dx.field()
    clip: Callable[[int], int] = dx.defer(functools.partial)(max, dim)
    # wrong: clip: Callable[[int], int] = functools.partial(max, dim)
    # error: declax-value | - | -


# == a plain dataclass with a field (annotations: no)


@dx.dataclass
class Configured(dx.Layer):
    dim: int = dx.field()
    options: Options = dx.defer(Options)(dim)
    # wrong: options: Options = Options(dim)
    # error: declax-value | - | -


# == an initializer with a field (annotations: no)


@dx.dataclass
class Initialized(dx.Layer):
    std: float = dx.field(default=0.1)
    w: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.defer(dx.initializers.normal)(std))
    # wrong: w: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.normal(std))
    # error: declax-value | - | -


# == a subscript that is a field (annotations: no)

RATES = {"low": 0.1, "high": 0.5}


@dx.dataclass
class Looked(dx.Layer):
    level: str = dx.field(default="low")
    drop = dx.Dropout(dx.defer(RATES.get)(level, 0.0))
    # wrong: drop = dx.Dropout(RATES[level])
    # error: declax-value | - | -


# == a field that is counted up (annotations: no)


@dx.dataclass
class Counting(dx.Layer):
    dim: int = dx.field()
    wider = dim + 1
    # wrong: dim += 1
    # error: declax-value | - | -
    linear = dx.Linear(2, 2)


# == a test of a field of a base (annotations: no)


@dx.dataclass
class Gated(Mlp):
    gate = dx.when(Mlp.gated, dx.Linear(Mlp.dim, Mlp.dim))
    # wrong: gate = dx.Linear(Mlp.dim, Mlp.dim) if Mlp.gated else None
    # error: declax-value | - | -


# == a default of a parameter that needs a value (annotations: no)


@dx.dataclass
class Parameter(dx.Layer):
    dim: int = dx.field()

    def scaled(self, by: int = 2) -> int:
        # wrong: def scaled(self, by: int = max(dim, 2)) -> int:
        # error: declax-value | - | -
        return self.dim * by


# == an array of a part of the class (annotations: no)

shape = mlp.up.kernel.shape
# wrong: shape = Mlp.up.kernel.shape
# error: declax-value | - | -

# == a size of the class (annotations: no)

width = mlp.dim + 1
# wrong: width = Mlp.dim + 1
# error: declax-value | - | -

# == a test of a field of the class (annotations: no)


def is_gated() -> bool:
    return bool(mlp.gated)
    # wrong: return bool(Mlp.gated)
    # error: declax-value | - | -


# == items of a field of the class (annotations: no)

for size in mlp.sizes:
    # wrong: for size in Mlp.sizes:
    # error: declax-value | - | -
    print(size)
