"""Transforms on methods, and models in containers"""

import jax
import jax.numpy as jnp
import optax

import declax as dx


@dx.dataclass
class Layer(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)

    @dx.jit(static_argnames=("times",))
    def repeat(self, x: jax.Array, times: int = 1) -> jax.Array:
        for _ in range(times):
            x = self.linear(x)
        return x

    @dx.remat
    def cheap(self, x: jax.Array) -> jax.Array:
        return jnp.sin(self.linear(x))

    @dx.vmap(in_axes=(None, 0))
    def each(self, x: jax.Array) -> jax.Array:
        return self.linear(x)

    @dx.value_and_grad
    def loss(self, x: jax.Array) -> jax.Array:
        return jnp.mean(self.linear(x))

    @classmethod
    def small(cls, rngs: dx.Rngs) -> "Layer":
        return cls(2, rngs=rngs)


layer = Layer(2, rngs=dx.Rngs(0))
inputs = jnp.ones((3, 2))

# == a method of a jit with options, with an argument of the wrong type (annotations: yes)

repeated = layer.repeat(inputs, times=2)
# wrong: repeated = layer.repeat(inputs, times="2")
# error: arg-type | arg-type | reportArgumentType

# == a method of a jit with options, with an argument too many (annotations: yes)

twice = layer.repeat(inputs, 2)
# wrong: twice = layer.repeat(inputs, 2, 3)
# error: call-arg | call-arg | reportCallIssue

# == the result of a jitted method (annotations: yes)

result: jax.Array = layer.repeat(inputs)
# wrong: result: str = layer.repeat(inputs)
# error: assignment | assignment | reportAssignmentType

# == a rematerialized method without its argument (annotations: yes)

cheap = layer.cheap(inputs)
# wrong: cheap = layer.cheap()
# error: call-arg | call-arg | reportCallIssue

# == a vmapped method with an argument too many (annotations: yes)

each = layer.each(inputs)
# wrong: each = layer.each(layer, inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == the value and the gradient of a method (annotations: yes)

loss, grads = layer.loss(inputs)
# wrong: loss, grads, rest = layer.loss(inputs)
# error: misc | misc | reportAssignmentType

# == the gradient of a method is of its class (annotations: yes)

gradient: dx.State[Layer] = layer.loss(inputs)[1]
# wrong: gradient: dx.State[dx.Linear] = layer.loss(inputs)[1]
# error: assignment | assignment | reportAssignmentType

# == a class method that makes a model (annotations: yes)

small = Layer.small(dx.Rngs(0))
# wrong: small = Layer.small(0)
# error: arg-type | arg-type | reportArgumentType

# == a jitted bound method with an argument too few (annotations: yes)

bound = dx.jit(layer.cheap)(inputs)
# wrong: bound = dx.jit(layer.cheap)()
# error: call-arg | call-arg | reportCallIssue

# == a jitted model is called with an argument of the wrong type (annotations: yes)

compiled = dx.jit(layer)(inputs)
# wrong: compiled = dx.jit(layer)("inputs")
# error: arg-type | arg-type | reportArgumentType

# == two models in a tuple are split, and merged as one (annotations: yes)

definition, state = dx.split((layer, dx.Optimizer(layer, optax.sgd(0.1))))
same, optimizer = dx.merge(definition, state)
# wrong: same, optimizer, more = dx.merge(definition, state)
# error: misc | misc | reportAssignmentType

# == a model of a tuple that was merged (annotations: yes)

pair_def, pair_state = dx.split((layer, dx.Optimizer(layer, optax.sgd(0.1))))
width = dx.merge(pair_def, pair_state)[0].width
# wrong: width = dx.merge(pair_def, pair_state)[1].width
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a list of models is cloned (annotations: yes)

copies = dx.clone([layer, layer])
# wrong: copies: Layer = dx.clone([layer, layer])
# error: assignment | assignment | reportAssignmentType

# == the model of an optimizer's gradient function (annotations: yes)


def train_step(model: Layer, optimizer: dx.Optimizer[Layer], x: jax.Array) -> jax.Array:
    def loss_of(model: Layer) -> jax.Array:
        return jnp.mean(model(x))

    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


stepped = dx.jit(train_step)(layer, dx.Optimizer(layer, optax.sgd(0.1)), inputs)
# wrong: stepped = dx.jit(train_step)(dx.Optimizer(layer, optax.sgd(0.1)), layer, inputs)
# error: arg-type | arg-type | reportArgumentType

# == the step of an optimizer is a Variable (annotations: yes)

count: jax.Array = dx.Optimizer(layer, optax.sgd(0.1)).step.value
# wrong: count: str = dx.Optimizer(layer, optax.sgd(0.1)).step.value
# error: assignment | assignment | reportAssignmentType

# == a static argument of a method that it does not have (annotations: no)


@dx.dataclass
class Other(dx.Module):
    @dx.jit(static_argnames=("mode",))
    # wrong: @dx.jit(static_argnames=("mod",))
    # error: declax-argnames | - | -
    def run(self, x: jax.Array, mode: str) -> jax.Array:
        return x if mode == "keep" else -x


# == axes of a method, of which one is missing (annotations: no)


@dx.dataclass
class Mapped(dx.Module):
    @dx.vmap(in_axes=(None, 0))
    # wrong: @dx.vmap(in_axes=(0,))
    # error: declax-axes | - | -
    def run(self, x: jax.Array) -> jax.Array:
        return 2 * x


# == an optimizer's wrt that is a class of no Variable (annotations: no)

partly = dx.Optimizer(layer, optax.sgd(0.1), wrt=dx.Param)
# wrong: partly = dx.Optimizer(layer, optax.sgd(0.1), wrt=dx.Linear)
# error: declax-filter | - | -
