"""Paths of a State, and fields by name."""

import dataclasses

import jax
import jax.numpy as jnp

import declax as dx


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    linear = dx.Linear(width, width)
    blocks: list[dx.Linear] = dx.data(default_factory=list[dx.Linear])


def as_name(name: str) -> str:
    return name


def loss_of(model: Model) -> jax.Array:
    return jnp.mean(model.linear(jnp.ones((3, 2))))


model = Model(2, rngs=dx.Rngs(0), blocks=[dx.Linear(2, 2, rngs=dx.Rngs(0))])
state = dx.state(model)

# == a path of a State that there is not (annotations: no)

kernel = state.linear.kernel
# wrong: kernel = state.linaer.kernel
# error: declax-path | - | -

# == the end of a path that there is not (annotations: no)

bias = state.linear.bias
# wrong: bias = state.linear.bais
# error: declax-path | - | -

# == a key of a State that there is not (annotations: no)

by_key = state["linear"]["kernel"]
# wrong: by_key = state["linear"]["kernal"]
# error: declax-path | - | -

# == what is at a path has the field's type (annotations: no)

shape = jnp.shape(state.linear.kernel)
# wrong: shape = as_name(state.linear.kernel)
# error: arg-type | - | -

# == a path of gradients that there is not (annotations: no)


grads = dx.grad(loss_of)(model)
gradient = grads.linear.kernel
# wrong: gradient = grads.linear.kernle
# error: declax-path | - | -

# == a path through a list (annotations: no)

in_list = state["blocks"][0]["kernel"]
# wrong: in_list = state["blocks"][0]["weight"]
# error: declax-path | - | -

# == a static field is in no State (annotations: no)

width = model.width
# wrong: width = state.width
# error: declax-path | - | -

# == replace with a field that there is not (annotations: no)

replaced = dx.replace(model, width=3, rngs=dx.Rngs(0))
# wrong: replaced = dx.replace(model, widht=3, rngs=dx.Rngs(0))
# error: call-arg | - | -

# == replace with a value of another type (annotations: no)

retyped = dx.replace(model, width=3, rngs=dx.Rngs(0))
# wrong: retyped = dx.replace(model, width="3", rngs=dx.Rngs(0))
# error: arg-type | - | -

# == replace gives the class of its argument (annotations: yes)

kept: Model = dx.replace(model, width=3, rngs=dx.Rngs(0))
# wrong: kept: dx.Linear = dx.replace(model, width=3, rngs=dx.Rngs(0))
# error: assignment | assignment | reportAssignmentType

# == replace of a submodule (annotations: no)

swapped = dx.replace(model, blocks=[dx.Linear(2, 2, rngs=dx.Rngs(0))], rngs=dx.Rngs(0))
# wrong: swapped = dx.replace(model, linear=dx.Linear(2, 2, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
# error: call-arg | - | -

# == the standard replace with a field that there is not (annotations: no)

standard = dataclasses.replace(model, width=3, rngs=dx.Rngs(0))
# wrong: standard = dataclasses.replace(model, widht=3, rngs=dx.Rngs(0))
# error: call-arg | call-arg | -

# == the standard replace with a value of another type (annotations: no)

standard_type = dataclasses.replace(model, width=3, rngs=dx.Rngs(0))
# wrong: standard_type = dataclasses.replace(model, width="3", rngs=dx.Rngs(0))
# error: arg-type | arg-type | -

# == a State is written at a path that there is not (annotations: no)

state["linear"]["kernel"] = dx.Param(jnp.ones((2, 2)))
# wrong: state["linear"]["kernal"] = dx.Param(jnp.ones((2, 2)))
# error: declax-path | - | -

# == an attribute of a State is set that there is not (annotations: no)

state.linear.kernel = dx.Param(jnp.ones((2, 2)))
# wrong: state.linear.kernle = dx.Param(jnp.ones((2, 2)))
# error: declax-path | - | -

# == a key of a State is deleted that there is not (annotations: no)

del state["linear"]["bias"]
# wrong: del state["linear"]["bais"]
# error: declax-path | - | -

# == a path of gradients that are read as their model (annotations: yes)

as_model: dx.Param[jax.Array] = dx.grad(loss_of)(model).as_model.linear.kernel
# wrong: as_model: dx.Param[jax.Array] = dx.grad(loss_of)(model).as_model.linear.kernle
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a path through a list of a State that is read as its model (annotations: yes)

in_model = state.as_model.blocks[0].kernel.shape
# wrong: in_model = state.as_model.blocks.kernel.shape
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a Variable of a State that is read as its model has its type (annotations: yes)

of_model = jnp.shape(state.as_model.linear.kernel)
# wrong: of_model = as_name(state.as_model.linear.kernel)
# error: arg-type | arg-type | reportArgumentType
