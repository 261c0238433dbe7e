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
class Scale(dx.Layer):
    width: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((wdith,), initializer=dx.initializers.ones)
    # error: name-defined | name-defined | reportUndefinedVariable


# == a shape reads a field that is no int (annotations: yes)


@dx.dataclass
class Named(dx.Layer):
    width: int = dx.field()
    rate: float = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((rate,), initializer=dx.initializers.ones)
    # error: arg-type | arg-type | reportArgumentType


# == an entry of a shape is a float (annotations: yes)


@dx.dataclass
class Fixed(dx.Layer):
    scale: dx.Param[jax.Array] = dx.variable((3, 4), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((3, 0.5), initializer=dx.initializers.ones)
    # error: arg-type | arg-type | reportArgumentType


# == a variable without an initializer (annotations: yes)


@dx.dataclass
class Uninitialized(dx.Layer):
    width: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,))
    # error: call-overload | call-overload | reportCallIssue


# == an initializer that is called too early (annotations: yes)


@dx.dataclass
class Zeroed(dx.Layer):
    width: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.zeros)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=0.0)
    # error: call-overload | call-overload | reportArgumentType


# == an initializer with a name that there is not (annotations: yes)


@dx.dataclass
class Chosen(dx.Layer):
    width: int = dx.field()
    scale_init: dx.initializers.Initializer = dx.field(default=dx.initializers.ones)
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=scale_init)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=scale_int)
    # error: name-defined | name-defined | reportUndefinedVariable


# == a dtype with a name that there is not (annotations: yes)


@dx.dataclass
class Typed(dx.Layer):
    width: int = dx.field()
    param_dtype: type = dx.field(default=float)
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones, dtype=param_dtype)
    # wrong: scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones, dtype=dtype_of)
    # error: name-defined | name-defined | reportUndefinedVariable


# == when without an optional annotation (annotations: yes)


@dx.dataclass
class Biased(dx.Layer):
    width: int = dx.field()
    _: dx.KW_ONLY
    use_bias: bool = dx.field(default=True)
    bias: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=use_bias)
    # wrong: bias: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.zeros, when=use_bias)
    # error: assignment | assignment | reportAssignmentType


# == when reads a field that is no bool (annotations: yes)


@dx.dataclass
class Gated(dx.Layer):
    width: int = dx.field()
    _: dx.KW_ONLY
    use_gate: bool = dx.field(default=True)
    gate: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=use_gate)
    # wrong: gate: dx.Param[jax.Array] | None = dx.variable((width,), initializer=dx.initializers.zeros, when=width)
    # error: call-overload | call-overload | reportArgumentType, reportCallIssue


# == a variable whose annotation is no Variable (annotations: no)


@dx.dataclass
class Plain(dx.Layer):
    width: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)
    # wrong: scale: jax.Array = dx.variable((width,), initializer=dx.initializers.ones)
    # error: declax-part | - | -


# == a part of another class than its annotation (annotations: yes)


@dx.dataclass
class Outer(dx.Layer):
    width: int = dx.field()
    inner: dx.Linear = dx.Linear(width, 2)
    # wrong: inner: dx.Linear = dx.LayerNorm(width)
    # error: assignment | assignment | reportAssignmentType


# == the method of a part reads a field that there is not (annotations: yes)


@dx.dataclass
class Reader(dx.Layer):
    width: int

    @dx.submodule
    def inner(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.width, 2, rngs=rngs)
        # wrong: return dx.Linear(self.wdith, 2, rngs=rngs)
        # error: attr-defined | attr-defined | reportAttributeAccessIssue


# == a part is given a field of the wrong type (annotations: yes)


@dx.dataclass
class Passer(dx.Layer):
    width: int = dx.field()
    name: str = dx.field()
    inner: dx.Linear = dx.Linear(width, 2)
    # wrong: inner: dx.Linear = dx.Linear(name, 2)
    # error: arg-type | arg-type | reportArgumentType


# == a part that is given no rngs (annotations: no)


@dx.dataclass
class Short(dx.Module):
    width: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.Linear(width, 2)
    # error: declax-rngs | - | -


# == parts of a class that is no Layer (annotations: no)


@dx.dataclass
class Implied(dx.Layer):
    # wrong(+2): class Implied(dx.Module):
    # error: declax-rngs | - | -
    width: int = dx.field()
    inner: dx.Linear = dx.Linear(width, 2)


# == a Layer declares rngs (annotations: no)


@dx.dataclass
class Declaring(dx.Layer):
    width: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    # wrong: rngs: dx.InitVar[dx.Rngs] = dx.field()
    # error: declax-rngs | - | -


# == a method of parts passes no rngs (annotations: no)


@dx.dataclass
class Methodical(dx.Layer):
    width: int = dx.field()

    @dx.submodule
    def blocks(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.width, 2, rngs=rngs)]
        # wrong: return [dx.Linear(self.width, 2)]
        # error: declax-rngs | - | -


# == a part of a Layer reads rngs of the module (annotations: no)


@dx.dataclass
class Global(dx.Layer):
    width: int = dx.field()
    inner: dx.Linear = dx.Linear(width, 2)
    # wrong: inner: dx.Linear = dx.Linear(width, 2, rngs=rngs)
    # error: declax-part | - | -


# == a module that all instances would share (annotations: no)


@dx.dataclass
class Shared(dx.Module):
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(2, 2, rngs=rngs)
    # wrong: inner: dx.Linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
    # error: declax-part | - | -


# == a condition of a part without an optional annotation (annotations: yes)


@dx.dataclass
class Conditional(dx.Layer):
    _: dx.KW_ONLY
    is_deep: bool = dx.field(default=True)
    inner: dx.Linear | None = dx.when(is_deep, dx.Linear(2, 2))
    # wrong: inner: dx.Linear = dx.when(is_deep, dx.Linear(2, 2))
    # error: assignment | assignment | reportAssignmentType


# == an expression reads a constant of the class body (annotations: no)


@dx.dataclass
class Dropped(dx.Layer):
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    # wrong: rate: float = 0.1
    # error: declax-part | - | -
    drop: dx.Dropout = dx.Dropout(rate)


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
class Rated(dx.Layer):
    rate: float = 0.1
    shown: float = dx.field(default=0.1)


@dx.dataclass
class Overrated(Rated):
    drop = dx.Dropout(Rated.shown)
    # wrong: drop = dx.Dropout(Rated.rate)
    # error: declax-part | - | -


# == a list of parts is taken for one part (annotations: yes)


@dx.dataclass
class Repeated(dx.Layer):
    depth: int = dx.field()
    width: int = dx.field()
    blocks: list[dx.Linear] = dx.repeat(depth, dx.Linear(width, width))
    # wrong: blocks: dx.Linear = dx.repeat(depth, dx.Linear(width, width))
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
class Optional(dx.Layer):
    width: int = dx.field()
    use_head: bool = dx.field()
    head = dx.when(use_head, dx.Linear(width, 1))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x if self.head is None else self.head(x)
        # wrong: return self.head(x)
        # error: misc | misc | reportOptionalCall


# == one of two parts has another class than the annotation (annotations: yes)


@dx.dataclass
class Either(dx.Layer):
    width: int = dx.field()
    use_bias: bool = dx.field()
    norm: dx.LayerNorm | dx.RMSNorm = dx.when(use_bias, dx.LayerNorm(width), dx.RMSNorm(width))
    # wrong: norm: dx.LayerNorm = dx.when(use_bias, dx.LayerNorm(width), dx.RMSNorm(width))
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
class Stack(dx.Layer):
    width: int = dx.field()
    depth: int = dx.field()
    name: str = dx.field()
    blocks = dx.Stacked(dx.Linear(width, width), depth)
    # wrong: blocks = dx.Stacked(dx.Linear(width, name), depth)
    # error: arg-type | arg-type | reportArgumentType


# == a stack of another class than its annotation (annotations: yes)


@dx.dataclass
class Stacks(dx.Layer):
    width: int = dx.field()
    blocks: dx.Stacked[dx.Linear] = dx.Stacked(dx.Linear(width, width), 3, remat=True)
    # wrong: blocks: dx.Stacked[dx.LayerNorm] = dx.Stacked(dx.Linear(width, width), 3, remat=True)
    # error: arg-type | arg-type | reportAssignmentType


# == an attribute that the layers of a stack do not have (annotations: yes)


@dx.dataclass
class Deep(dx.Layer):
    width: int = dx.field()
    blocks = dx.Stacked(dx.Linear(width, width), 3)

    def kernels(self) -> jax.Array:
        return self.blocks.layers.kernel.value
        # wrong: return self.blocks.layers.kernal.value
        # error: attr-defined, no-any-return | attr-defined, no-any-return | reportAttributeAccessIssue
