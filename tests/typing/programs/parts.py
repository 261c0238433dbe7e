"""Declared Variables and parts."""

import math

import jax

import declax as dx


@dx.dataclass
class Base(dx.Module):
    _: dx.KW_ONLY
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    first: dx.Linear = dx.Linear(width, width, rngs=rngs)


rngs = dx.Rngs(0)

# == a shape with a name that there is not (annotations: yes)


@dx.dataclass
class Scale(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((wdith,), initializer=dx.initializers.ones)
    # error: name-defined | name-defined | reportUndefinedVariable


# == a shape reads a field that is no int (annotations: yes)


@dx.dataclass
class Named(dx.Module):
    width: int = dx.field()
    rate: float = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((rate,), initializer=dx.initializers.ones)
    # error: arg-type | arg-type | reportArgumentType


# == an entry of a shape is a float (annotations: yes)


@dx.dataclass
class Fixed(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((3, 4), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((3, 0.5), initializer=dx.initializers.ones)
    # error: arg-type | arg-type | reportArgumentType


# == a variable without an initializer (annotations: yes)


@dx.dataclass
class Uninitialized(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,))
    # error: call-overload | call-overload | reportCallIssue


# == an initializer that is called too early (annotations: yes)


@dx.dataclass
class Zeroed(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.zeros)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=0.0)
    # error: call-overload | call-overload | reportArgumentType


# == an initializer with a name that there is not (annotations: yes)


@dx.dataclass
class Chosen(dx.Module):
    width: int = dx.field()
    scale_init: dx.initializers.Initializer = dx.field(default=dx.initializers.ones)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=scale_init)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=scale_int)
    # error: name-defined | name-defined | reportUndefinedVariable


# == a dtype with a name that there is not (annotations: yes)


@dx.dataclass
class Typed(dx.Module):
    width: int = dx.field()
    param_dtype: type = dx.field(default=float)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones, dtype=param_dtype)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones, dtype=dtype_of)
    # error: name-defined | name-defined | reportUndefinedVariable


# == when without an optional annotation (annotations: yes)


@dx.dataclass
class Biased(dx.Module):
    width: int = dx.field()
    _: dx.KW_ONLY
    use_bias: bool = dx.field(default=True)
    rngs: dx.InitVar[dx.Rngs]
    bias: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=use_bias)
    # wrong: bias: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.zeros, when=use_bias)
    # error: assignment | assignment | reportAssignmentType


# == when reads a field that is no bool (annotations: yes)


@dx.dataclass
class Gated(dx.Module):
    width: int = dx.field()
    _: dx.KW_ONLY
    use_gate: bool = dx.field(default=True)
    rngs: dx.InitVar[dx.Rngs]
    gate: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=use_gate)
    # wrong: gate: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=width)
    # error: call-overload | call-overload | reportArgumentType, reportCallIssue


# == a variable whose annotation is no Variable (annotations: no)


@dx.dataclass
class Plain(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: jax.Array = dx.variable((width,), initializer=dx.initializers.ones)
    # error: declax-part | - | -


# == a part of another class than its annotation (annotations: yes)


@dx.dataclass
class Outer(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.LayerNorm(width, rngs=rngs)
    # error: assignment | assignment | reportAssignmentType


# == the method of a part reads a field that there is not (annotations: yes)


@dx.dataclass
class Reader(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]

    @dx.submodule
    def inner(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.width, 2, rngs=rngs)
        # wrong: return dx.Linear(self.wdith, 2, rngs=rngs)
        # error: attr-defined | attr-defined | reportAttributeAccessIssue


# == a part is given a field of the wrong type (annotations: yes)


@dx.dataclass
class Passer(dx.Module):
    width: int = dx.field()
    name: str = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.Linear(name, 2, rngs=rngs)
    # error: arg-type | arg-type | reportArgumentType


# == a part that is given no rngs (annotations: yes)


@dx.dataclass
class Short(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.Linear(width, 2)
    # error: call-arg | call-arg | reportCallIssue


# == a module that all instances would share (annotations: no)


@dx.dataclass
class Shared(dx.Module):
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(2, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
    # error: declax-part | - | -


# == a condition of a part without an optional annotation (annotations: yes)


@dx.dataclass
class Conditional(dx.Module):
    _: dx.KW_ONLY
    is_deep: bool = dx.field(default=True)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear | None = dx.when(is_deep, dx.Linear(2, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.when(is_deep, dx.Linear(2, 2, rngs=rngs))
    # error: assignment | assignment | reportAssignmentType


# == an expression reads a constant of the class body (annotations: no)


@dx.dataclass
class Dropped(dx.Module):
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    # wrong: rate: float = 0.1
    # error: declax-part | - | -
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    drop: dx.Dropout = dx.Dropout(rate, rngs=rngs)


# == a subclass with a part forgets its rngs (annotations: no)


@dx.dataclass
class Deeper(Base):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    # wrong(+1):
    # error: declax-part | - | -
    outer = dx.Linear(Base.width, 2, rngs=rngs)


# == a subclass with a part forgets KW_ONLY (annotations: no)


@dx.dataclass
class Behind(Base):
    _: dx.KW_ONLY
    # wrong(+1):
    # error: declax-part | - | -
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    last: dx.Linear = dx.Linear(Base.width, 2, rngs=rngs)


# == an expression reads a constant of a base (annotations: no)


@dx.dataclass
class Rated(dx.Module):
    rate: float = 0.1
    shown: float = dx.field(default=0.1)


@dx.dataclass
class Overrated(Rated):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    drop = dx.Dropout(Rated.shown, rngs=rngs)
    # wrong: drop = dx.Dropout(Rated.rate, rngs=rngs)
    # error: declax-part | - | -


# == a list of parts is taken for one part (annotations: yes)


@dx.dataclass
class Repeated(dx.Module):
    depth: int = dx.field()
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks: list[dx.Linear] = dx.repeat(depth, dx.Linear(width, width, rngs=rngs))
    # wrong: blocks: dx.Linear = dx.repeat(depth, dx.Linear(width, width, rngs=rngs))
    # error: assignment | assignment | reportAssignmentType


# == a part of a list is given a field of the wrong type (annotations: yes)


@dx.dataclass
class Listed(dx.Module):
    name: str = dx.field()
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks = dx.repeat(3, dx.Linear(width, width, rngs=rngs))
    # wrong: blocks = dx.repeat(3, dx.Linear(name, width, rngs=rngs))
    # error: arg-type | arg-type | reportArgumentType


# == a part that may be None is called (annotations: yes)


@dx.dataclass
class Optional(dx.Module):
    width: int = dx.field()
    use_head: bool = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    head = dx.when(use_head, dx.Linear(width, 1, rngs=rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x if self.head is None else self.head(x)
        # wrong: return self.head(x)
        # error: misc | misc | reportOptionalCall


# == one of two parts has another class than the annotation (annotations: yes)


@dx.dataclass
class Either(dx.Module):
    width: int = dx.field()
    use_bias: bool = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    norm: dx.LayerNorm | dx.RMSNorm = dx.when(use_bias, dx.LayerNorm(width, rngs=rngs), dx.RMSNorm(width, rngs=rngs))
    # wrong: norm: dx.LayerNorm = dx.when(use_bias, dx.LayerNorm(width, rngs=rngs), dx.RMSNorm(width, rngs=rngs))
    # error: assignment | assignment | reportAssignmentType


# == a deferred function is given a field of the wrong type (annotations: yes)


@dx.dataclass
class Rooted(dx.Module):
    width: int = dx.field()
    name: str = dx.field()
    root = dx.defer(math.isqrt)(width)
    # wrong: root = dx.defer(math.isqrt)(name)
    # error: arg-type | arg-type | reportArgumentType


# == the result of a deferred function has the wrong type (annotations: yes)


@dx.dataclass
class Halved(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner = dx.Linear(width, dx.defer(math.isqrt)(width), rngs=rngs)
    # wrong: inner = dx.Linear(width, dx.defer(math.sqrt)(width), rngs=rngs)
    # error: arg-type | arg-type | reportArgumentType


# == a stack over a call with a field of the wrong type (annotations: yes)


@dx.dataclass
class Stack(dx.Module):
    width: int = dx.field()
    depth: int = dx.field()
    name: str = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks = dx.Stacked(dx.Linear(width, width, rngs=rngs), depth)
    # wrong: blocks = dx.Stacked(dx.Linear(width, name, rngs=rngs), depth)
    # error: arg-type | arg-type | reportArgumentType


# == a stack of another class than its annotation (annotations: yes)


@dx.dataclass
class Stacks(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks: dx.Stacked[dx.Linear] = dx.Stacked(dx.Linear(width, width, rngs=rngs), 3, remat=True)
    # wrong: blocks: dx.Stacked[dx.LayerNorm] = dx.Stacked(dx.Linear(width, width, rngs=rngs), 3, remat=True)
    # error: arg-type | arg-type | reportAssignmentType


# == an attribute that the layers of a stack do not have (annotations: yes)


@dx.dataclass
class Deep(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks = dx.Stacked(dx.Linear(width, width, rngs=rngs), 3)

    def kernels(self) -> jax.Array:
        return self.blocks.layers.kernel.value
        # wrong: return self.blocks.layers.kernal.value
        # error: attr-defined, no-any-return | attr-defined, no-any-return | reportAttributeAccessIssue
