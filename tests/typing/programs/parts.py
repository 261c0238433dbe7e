"""Declared Variables and parts."""

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
