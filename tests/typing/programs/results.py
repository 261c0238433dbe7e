"""Results with the types of what they are made from: checkpoints, averages, captures, specs and others."""

import tempfile

import jax
import jax.numpy as jnp
import optax

import declax as dx


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    _: dx.KW_ONLY
    linear: dx.Linear = dx.Linear(width, width)
    blocks = dx.repeat(2, dx.Linear(width, width))
    stack = dx.Stacked(dx.Linear(width, width), 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)


@dx.dataclass
class Watched(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(dx.Intermediate, "hidden", x)
        return self.linear(x)


def loss_of(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


model = Model(2, rngs=dx.Rngs(0))
other = dx.Linear(2, 2, rngs=dx.Rngs(0))
inputs = jnp.ones((4, 2))
optimizer = dx.Optimizer(model, dx.spec(optax.sgd, 0.1).build())
folder = tempfile.mkdtemp()
dx.save(f"{folder}/one", {"model": model, "optimizer": optimizer, "step": 3})
with dx.Checkpoints(f"{folder}/run") as writer:
    writer.save(3, {"model": model, "step": 3})
spec = dx.spec(Model, 2)
state = dx.state(model)

# == a restored model has the attributes of its target (annotations: no)

restored = dx.load(f"{folder}/one", into={"model": model, "optimizer": optimizer, "step": 0})
a_linear: dx.Linear = restored["model"].linear
# wrong: a_linear: dx.Linear = restored["model"].linaer
# error: attr-defined | - | -

# == a restored number is taken for a model (annotations: no)

b_restored = dx.load(f"{folder}/one", into={"model": model, "optimizer": optimizer, "step": 0})
b_outputs = b_restored["model"](inputs)
# wrong: b_outputs = b_restored["step"](inputs)
# error: operator | - | -

# == a misspelt item of a checkpoint (annotations: no)

c_restored = dx.load(f"{folder}/one", into={"model": model, "optimizer": optimizer, "step": 0})
c_restored["optimizer"].update(model, dx.grad(loss_of)(model, inputs))
# wrong: c_restored["optimiser"].update(model, dx.grad(loss_of)(model, inputs))
# error: declax-path | - | -

# == a step of a run has the types of its targets (annotations: no)

d_restored = dx.Checkpoints(f"{folder}/run").load("latest", into={"model": model, "step": 0})
d_step: int = d_restored["step"]
# wrong: d_step: int = d_restored["model"]
# error: assignment | - | -

# == the paths of an average are those of the model (annotations: no)

e_ema = dx.EMA(model, 0.9)
e_kernel = e_ema.params.linear.kernel
# wrong: e_kernel = e_ema.params.linear.kernle
# error: declax-path | - | -

# == the average of another model (annotations: yes)

f_ema = dx.EMA(model, 0.9)
f_ema.update(model)
# wrong: f_ema.update(other)
# error: arg-type | arg-type | reportArgumentType

# == accumulated gradients are those of the model (annotations: yes)

g_loss, g_grads = dx.accumulate(loss_of, steps=2)(model, inputs)
optimizer.update(model, g_grads)
# wrong: dx.Optimizer(other, optax.sgd(0.1)).update(other, g_grads)
# error: arg-type | arg-type | reportArgumentType

# == the arguments of an accumulated loss, swapped (annotations: yes)

h_loss, h_grads = dx.accumulate(loss_of, steps=2)(model, inputs)
# wrong: h_loss, h_grads = dx.accumulate(loss_of, steps=2)(inputs, model)
# error: arg-type | arg-type | reportArgumentType

# == a path of accumulated gradients (annotations: no)

i_grads = dx.accumulate(loss_of, steps=2)(model, inputs)[1]
i_kernel = i_grads.linear.kernel
# wrong: i_kernel = i_grads.linear.weights
# error: declax-path | - | -

# == a name that no module sows (annotations: no)

j_outputs, j_seen = dx.capture(Watched(2, rngs=dx.Rngs(0)), dx.Intermediate)(inputs)
j_hidden = j_seen["hidden"]
# wrong: j_hidden = j_seen["hiden"]
# error: declax-path | - | -

# == the outputs of a recurrent layer (annotations: no)

k_rnn = dx.RNN(dx.LSTMCell(2, 2, rngs=dx.Rngs(0)))
k_outputs: jax.Array = k_rnn(inputs)
# wrong: k_outputs: tuple[jax.Array, jax.Array] = k_rnn(inputs)
# error: assignment | - | -

# == the state and the outputs of a recurrent layer (annotations: no)

l_rnn = dx.RNN(dx.LSTMCell(2, 2, rngs=dx.Rngs(0)), return_carry=True)
l_carry, l_outputs = l_rnn(inputs)
l_again = l_rnn(inputs, initial_carry=l_carry)
# wrong: l_again = l_rnn(inputs, initial_carry=l_outputs)
# error: call-overload | - | -

# == an element of a Sequential (annotations: no)

m_sequential = dx.Sequential(dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.relu)
m_kernel = m_sequential[0].kernel
# wrong: m_kernel = m_sequential[0].weight
# error: attr-defined | - | -

# == a part of a spec is a spec (annotations: no)

n_linear = spec["linear"].build(rngs=dx.Rngs(0))
# wrong: n_linear = spec["linear"](inputs)
# error: operator | - | -

# == the value at a path of a spec (annotations: no)

o_features: int = spec["linear.out_features"]
# wrong: o_features: str = spec["linear.out_features"]
# error: assignment | - | -

# == a path of a spec that there is not (annotations: no)

p_width = spec["width"]
# wrong: p_width = spec["widht"]
# error: declax-spec | - | -

# == the values of several metrics (annotations: yes)

q_metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))
q_loss: jax.Array = q_metrics.compute()["loss"]
# wrong: q_loss: dx.metrics.Average = q_metrics.compute()["loss"]
# error: assignment | assignment | reportAssignmentType

# == a path through stacked layers (annotations: no)

r_kernel = state.stack.layers.kernel
# wrong: r_kernel = state.stack.layers.weight
# error: declax-path | - | -

# == a path through repeated layers (annotations: no)

s_kernel = state.blocks[1].kernel
# wrong: s_kernel = state.blocks[1].weight
# error: declax-path | - | -
