"""Recipes of declared Variables and submodules."""

import jax

import declax as dx

# == a shape names no field (annotations: no)


@dx.dataclass
class Scale(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("wdith",), initializer=dx.initializers.ones)
    # error: declax-variable | - | -


# == a shape names a field that is no int (annotations: no)


@dx.dataclass
class Named(dx.Module):
    width: int
    name: str
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("name",), initializer=dx.initializers.ones)
    # error: declax-variable | - | -


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
    width: int
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones)
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("width",))
    # error: call-overload | call-overload | reportCallIssue


# == an initializer that is called too early (annotations: yes)


@dx.dataclass
class Zeroed(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.zeros)
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=0.0)
    # error: call-overload | call-overload | reportArgumentType


# == an initializer names no field (annotations: no)


@dx.dataclass
class Chosen(dx.Module):
    width: int
    scale_init: dx.initializers.Initializer = dx.static(default=dx.initializers.ones)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer="scale_init")
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("width",), initializer="scale_int")
    # error: declax-variable | - | -


# == a dtype names no field (annotations: no)


@dx.dataclass
class Typed(dx.Module):
    width: int
    param_dtype: type = dx.static(default=float)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones, dtype="param_dtype")
    # wrong: scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones, dtype="dtype_of")
    # error: declax-variable | - | -


# == when without an optional annotation (annotations: no)


@dx.dataclass
class Biased(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    use_bias: bool = True
    bias: dx.Param[jax.Array] | None = dx.variable(("width",), initializer=dx.initializers.zeros, when="use_bias")
    # wrong: bias: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.zeros, when="use_bias")
    # error: assignment, declax-variable | assignment | reportAssignmentType


# == when names a field that is no bool (annotations: no)


@dx.dataclass
class Gated(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    use_gate: bool = True
    gate: dx.Param[jax.Array] | None = dx.variable(("width",), initializer=dx.initializers.zeros, when="use_gate")
    # wrong: gate: dx.Param[jax.Array] | None = dx.variable(("width",), initializer=dx.initializers.zeros, when="width")
    # error: declax-variable | - | -


# == a variable whose annotation is no Variable (annotations: no)


@dx.dataclass
class Plain(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    scale: dx.Param[jax.Array] = dx.variable(("width",), initializer=dx.initializers.ones)
    # wrong: scale: jax.Array = dx.variable(("width",), initializer=dx.initializers.ones)
    # error: declax-variable | - | -


# == a submodule of another class than its annotation (annotations: yes)


@dx.dataclass
class Outer(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.submodule(lambda self, rngs: dx.LayerNorm(2, rngs=rngs))
    # error: assignment | assignment | reportAssignmentType


# == the function of a submodule reads a field that there is not (annotations: no)


@dx.dataclass
class Reader(dx.Module):
    width: int
    rngs: dx.InitVar[dx.Rngs]
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.width, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.wdith, 2, rngs=rngs))
    # error: attr-defined | - | -


# == the function of a submodule passes a field of the wrong type (annotations: no)


@dx.dataclass
class Passer(dx.Module):
    width: int
    name: str
    rngs: dx.InitVar[dx.Rngs]
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.width, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.name, 2, rngs=rngs))
    # error: arg-type | - | -


# == a submodule's function takes no rngs (annotations: yes)


@dx.dataclass
class Short(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.submodule(lambda self: dx.Linear(2, 2, rngs=dx.Rngs(0)))
    # error: arg-type, misc | arg-type, misc | reportArgumentType


# == a submodule is made in the class body (annotations: yes)


@dx.dataclass
class Shared(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs))
    # wrong: inner: dx.Linear = dx.submodule(dx.Linear(2, 2, rngs=dx.Rngs(0)))
    # error: arg-type, assignment | assignment | reportAssignmentType


# == a condition of a submodule without an optional annotation (annotations: no)


@dx.dataclass
class Conditional(dx.Module):
    rngs: dx.InitVar[dx.Rngs]
    is_deep: bool = True
    inner: dx.Linear | None = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs), when="is_deep")
    # wrong: inner: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(2, 2, rngs=rngs), when="is_deep")
    # error: assignment, declax-submodule | assignment | reportAssignmentType
