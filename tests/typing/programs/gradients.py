"""Gradients and optimizers."""

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

import declax as dx

M = TypeVar("M", bound=dx.Module)


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)


def loss_of(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def loss_and_logits(model: Model, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(x)
    return jnp.mean(logits**2), logits


def to_teacher(student: Model, teacher: dx.Linear, x: jax.Array) -> jax.Array:
    return jnp.mean((student(x) - teacher(x)) ** 2)


def distance(model: M, other: M) -> jax.Array:
    pairs = zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True)
    return jnp.asarray(sum(jnp.sum((a - b) ** 2) for a, b in pairs))


@dx.custom_vjp
def clipped(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x))


def clipped_fwd(model: Model, x: jax.Array) -> tuple[jax.Array, tuple[Model, jax.Array]]:
    return clipped(model, x), (model, x)


def clipped_bwd(residuals: tuple[Model, jax.Array], g: jax.Array) -> tuple[None, jax.Array]:
    return None, g * residuals[1]


model = Model(2, rngs=dx.Rngs(0))
other = dx.Linear(2, 2, rngs=dx.Rngs(0))
inputs = jnp.ones((3, 2))
optimizer = dx.Optimizer(model, optax.sgd(0.1))
of_teacher = dx.Optimizer(other, optax.sgd(0.1))
clipped.defvjp(clipped_fwd, clipped_bwd)

# == grad is taken for a pair (annotations: yes)

grads = dx.grad(loss_of)(model, inputs)
# wrong: loss, grads = dx.grad(loss_of)(model, inputs)
# error: operator | operator | reportGeneralTypeIssues

# == value_and_grad is taken for the gradient (annotations: yes)

_, gradient = dx.value_and_grad(loss_of)(model, inputs)
optimizer.update(model, gradient)
# wrong: optimizer.update(model, dx.value_and_grad(loss_of)(model, inputs))
# error: arg-type | arg-type | reportArgumentType

# == the gradients are given before the model (annotations: yes)

a_grads = dx.grad(loss_of)(model, inputs)
optimizer.update(model, a_grads)
# wrong: optimizer.update(a_grads, model)
# error: arg-type | arg-type | reportArgumentType

# == the loss in the place of the gradients (annotations: yes)

b_loss, b_grads = dx.value_and_grad(loss_of)(model, inputs)
optimizer.update(model, b_grads)
# wrong: optimizer.update(model, b_loss)
# error: arg-type | arg-type | reportArgumentType

# == update without the model (annotations: yes)

c_grads = dx.grad(loss_of)(model, inputs)
optimizer.update(model, c_grads)
# wrong: optimizer.update(c_grads)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == auxiliary values are forgotten (annotations: yes)

(d_loss, d_logits), d_grads = dx.value_and_grad(loss_and_logits, has_aux=True)(model, inputs)
only_loss: jax.Array = d_loss
# wrong: only_loss: jax.Array = dx.value_and_grad(loss_and_logits, has_aux=True)(model, inputs)[0]
# error: assignment | assignment | reportAssignmentType

# == auxiliary values without has_aux (annotations: yes)

e_grads, e_logits = dx.grad(loss_and_logits, has_aux=True)(model, inputs)
# wrong: e_grads, e_logits = dx.grad(loss_and_logits)(model, inputs)
# error: operator, type-var | operator, type-var | reportArgumentType, reportCallIssue

# == has_aux of a function that returns one value (annotations: yes)

f_grads = dx.grad(loss_of)(model, inputs)
# wrong: f_grads = dx.grad(loss_of, has_aux=True)(model, inputs)
# error: type-var | type-var | reportArgumentType, reportCallIssue

# == grad of the call in the place of the function (annotations: yes)

g_grads = dx.grad(loss_of)(model, inputs)
# wrong: g_grads = dx.grad(loss_of(model, inputs))
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == a gradient function with an argument too few (annotations: yes)

h_grads = dx.grad(loss_of)(model, inputs)
# wrong: h_grads = dx.grad(loss_of)(model)
# error: call-arg | call-arg | reportCallIssue

# == a gradient function with its arguments swapped (annotations: yes)

i_grads = dx.grad(loss_of)(model, inputs)
# wrong: i_grads = dx.grad(loss_of)(inputs, model)
# error: arg-type | arg-type | reportArgumentType

# == the gradient is taken for a model (annotations: yes)

j_grads = dx.grad(loss_of)(model, inputs)
j_outputs = model(inputs)
# wrong: j_outputs = j_grads(inputs)
# error: operator | operator | reportCallIssue

# == gradients of two arguments are taken for one (annotations: yes)

k_grads, k_inputs = dx.grad(loss_of, argnums=(0, 1))(model, inputs)
optimizer.update(model, k_grads)
# wrong: optimizer.update(model, dx.grad(loss_of, argnums=(0, 1))(model, inputs))
# error: arg-type | arg-type | reportArgumentType

# == the gradient of an array is no State (annotations: yes)

l_grads: jax.Array = dx.grad(loss_of, argnums=1)(model, inputs)
# wrong: l_grads: dx.State[Model] = dx.grad(loss_of, argnums=1)(model, inputs)
# error: assignment | assignment | reportAssignmentType

# == an argnum that is a name (annotations: yes)

m_grads = dx.grad(loss_of, argnums=0)(model, inputs)
# wrong: m_grads = dx.grad(loss_of, argnums="model")(model, inputs)
# error: arg-type, type-var | arg-type, type-var | reportArgumentType, reportCallIssue

# == DiffState with its arguments swapped (annotations: yes)

n_grads = dx.grad(loss_of, argnums=dx.DiffState(0, dx.Param))(model, inputs)
# wrong: n_grads = dx.grad(loss_of, argnums=dx.DiffState(dx.Param, 0))(model, inputs)
# error: arg-type, type-var | arg-type, type-var | reportArgumentType

# == an optimizer without a transformation (annotations: yes)

o_optimizer = dx.Optimizer(model, optax.adam(1e-3), wrt=dx.Param)
# wrong: o_optimizer = dx.Optimizer(model, 1e-3, wrt=dx.Param)
# error: arg-type | arg-type | reportArgumentType

# == an optax function that is not called (annotations: yes)

p_optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)
# wrong: p_optimizer = dx.Optimizer(model, optax.sgd, wrt=dx.Param)
# error: arg-type | arg-type | reportArgumentType

# == an optimizer with its arguments swapped (annotations: yes)

q_optimizer = dx.Optimizer(model, optax.sgd(0.1))
# wrong: q_optimizer = dx.Optimizer(optax.sgd(0.1), model)
# error: arg-type | arg-type | reportArgumentType

# == the optimizer of another model (annotations: yes)


def train(model: Model, optimizer: dx.Optimizer[Model]) -> None:
    optimizer.update(model, dx.grad(loss_of)(model, inputs))


train(model, optimizer)
# wrong: train(model, dx.Optimizer(other, optax.sgd(0.1)))
# error: arg-type | arg-type | reportArgumentType

# == gradients of another model (annotations: yes)


def loss_of_linear(linear: dx.Linear, x: jax.Array) -> jax.Array:
    return jnp.mean(linear(x))


r_grads = dx.grad(loss_of)(model, inputs)
optimizer.update(model, r_grads)
# wrong: optimizer.update(model, dx.grad(loss_of_linear)(other, inputs))
# error: arg-type | arg-type | reportArgumentType

# == the result of an update is taken for the model (annotations: yes)

s_grads = dx.grad(loss_of)(model, inputs)
updated: dx.State[Model] = optimizer.update(model, s_grads)
# wrong: updated: Model = optimizer.update(model, s_grads)
# error: assignment | assignment | reportAssignmentType

# == a decorated loss keeps its arguments (annotations: yes)


@dx.value_and_grad
def decorated(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x))


t_loss, t_grads = decorated(model, inputs)
# wrong: t_loss, t_grads = decorated(inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == a decorated loss with auxiliary values (annotations: yes)


@dx.value_and_grad(has_aux=True)
def with_aux(model: Model, x: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    return jnp.mean(model(x)), {"x": x}


(u_loss, u_aux), u_grads = with_aux(model, inputs)
# wrong: u_loss, u_aux, u_grads = with_aux(model, inputs)
# error: misc | misc | reportAssignmentType

# == custom_vjp keeps the arguments (annotations: yes)

clipped_loss = clipped(model, inputs)
# wrong: clipped_loss = clipped(model)
# error: call-arg | call-arg | reportCallIssue

# == defvjp without the backward rule (annotations: yes)

clipped.defvjp(clipped_fwd, clipped_bwd)
# wrong: clipped.defvjp(clipped_fwd)
# error: call-arg | call-arg | reportCallIssue

# == the gradient of a generic loss, of another model (annotations: yes)

v_grads = dx.grad(distance)(model, dx.clone(model))
optimizer.update(model, v_grads)
# wrong: optimizer.update(model, dx.grad(distance)(other, dx.clone(other)))
# error: arg-type | - | reportArgumentType

# == the gradient of the second model is taken for that of the first (annotations: yes)

of_teacher.update(other, dx.grad(to_teacher, argnums=1)(model, other, inputs))
# wrong: of_teacher.update(other, dx.grad(to_teacher, argnums=0)(model, other, inputs))
# error: arg-type | arg-type | reportArgumentType

# == the gradients of two models in the order of their names (annotations: yes)

w_loss, (w_student, w_teacher) = dx.value_and_grad(to_teacher, argnums=(0, 1))(model, other, inputs)
optimizer.update(model, w_student)
# wrong: optimizer.update(model, w_teacher)
# error: arg-type | arg-type | reportArgumentType

# == a path of the gradient of a second model (annotations: no)

x_kernel = dx.grad(to_teacher, argnums=1)(model, other, inputs).kernel
# wrong: x_kernel = dx.grad(to_teacher, argnums=1)(model, other, inputs).linear
# error: declax-path | - | -

# == the gradients of a third argument (annotations: no)


def to_ensemble(student: Model, first: dx.Linear, second: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(student(x) - first(x) - second(x))


y_first, y_third = dx.grad(to_ensemble, argnums=(1, 2))(model, other, Model(2, rngs=dx.Rngs(1)), inputs)
optimizer.update(model, y_third)
# wrong: optimizer.update(model, y_first)
# error: arg-type | - | -

# == gradients of a list of models (annotations: no)


def of_all(models: list[Model], x: jax.Array) -> jax.Array:
    return jnp.mean(models[0](x))


z_grads = dx.grad(of_all)([model], inputs)
optimizer.update(model, z_grads[0])
# wrong: optimizer.update(model, z_grads)
# error: arg-type | - | -

# == auxiliary values of a gradient of the second argument (annotations: no)


def to_teacher_aux(student: Model, teacher: dx.Linear) -> tuple[jax.Array, int]:
    return jnp.mean(student.linear.kernel - teacher.kernel), 3


(za_loss, za_count), za_grads = dx.value_and_grad(to_teacher_aux, argnums=1, has_aux=True)(model, other)
of_teacher.update(other, za_grads)
# wrong: optimizer.update(model, za_grads)
# error: arg-type | - | -

# == a decorated loss of the second model (annotations: no)


@dx.value_and_grad(argnums=1)
def decorated_second(student: Model, teacher: dx.Linear) -> jax.Array:
    return jnp.mean(student.linear.kernel - teacher.kernel)


zb_loss, zb_grads = decorated_second(model, other)
of_teacher.update(other, zb_grads)
# wrong: optimizer.update(model, zb_grads)
# error: arg-type | - | -

# == the value of a lambda (annotations: yes)

zc_loss, zc_grads = dx.value_and_grad(lambda m: jnp.mean(m(inputs)))(model)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]  # a lambda
zc_sum: jax.Array = zc_loss
# wrong: zc_sum: dx.State[Model] = zc_loss
# error: assignment | assignment | reportAssignmentType

# == the gradient of a partial, whose first argument is the second model (annotations: yes)

zd_grads = dx.grad(functools.partial(to_teacher, model))(other, inputs)
of_teacher.update(other, zd_grads)
# wrong: optimizer.update(model, zd_grads)
# error: arg-type | arg-type | reportArgumentType

# == the value and gradient of a partial with a keyword (annotations: yes)

ze_loss, ze_grads = dx.value_and_grad(functools.partial(loss_of, x=inputs))(model)
optimizer.update(model, ze_grads)
# wrong: optimizer.update(model, ze_loss)
# error: arg-type | arg-type | reportArgumentType

# == a path of the gradient of a partial (annotations: no)

zf_kernel = dx.grad(functools.partial(loss_of, x=inputs))(model).linear.kernel
# wrong: zf_kernel = dx.grad(functools.partial(loss_of, x=inputs))(model).linear.kernle
# error: declax-path | - | -

# == an argument too many of the gradient of a partial (annotations: no)

zg_grads = dx.grad(functools.partial(to_teacher, model))(other, inputs)
# wrong: zg_grads = dx.grad(functools.partial(to_teacher, model))(other, inputs, inputs)
# error: call-arg | - | reportCallIssue
