"""Arguments of layers, modes, random streams, captures."""

import jax
import jax.numpy as jnp

import declax as dx

rngs = dx.Rngs(0, dropout=1)
inputs = jnp.ones((3, 4))


@dx.dataclass
class Model(dx.Layer):
    linear: dx.Linear = dx.Linear(4, 4)
    dropout: dx.Dropout = dx.Dropout(0.5)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.linear(x)
        self.sow(dx.Intermediate, "hidden", y)
        return self.dropout(y)


model = Model(rngs=rngs)
linear = dx.Linear(4, 8, rngs=rngs)
norm = dx.BatchNorm(4, rngs=rngs)

# == a layer without its output size (annotations: yes)

sized = dx.Linear(4, 8, rngs=rngs)
# wrong: sized = dx.Linear(4, rngs=rngs)
# error: call-arg | call-arg | reportCallIssue

# == a layer without rngs (annotations: no)

seeded = dx.Linear(4, 8, rngs=rngs)
# wrong: seeded = dx.Linear(4, 8)
# error: declax-rngs | - | -

# == a layer without rngs, and with an option that decides on a key (annotations: no)

unscaled = dx.LayerNorm(4, use_scale=False, use_bias=False)
# wrong: unscaled = dx.LayerNorm(4, use_scale=False)
# error: declax-rngs | - | -

# == a layer that __init__ makes without rngs (annotations: no)


class Opened(dx.Module):
    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.up = dx.Linear(dim, 4, rngs=rngs)
        # wrong: self.up = dx.Linear(dim, 4)
        # error: declax-rngs | - | -


# == a layer that a function makes, and does not return (annotations: no)


def project(x: jax.Array) -> jax.Array:
    layer = dx.Linear(4, 8, rngs=rngs)
    # wrong: layer = dx.Linear(4, 8)
    # error: declax-rngs | - | -
    return layer(x)


# == a key in the place of rngs (annotations: yes)

keyed = dx.Linear(4, 8, rngs=rngs)
# wrong: keyed = dx.Linear(4, 8, rngs=jax.random.key(0))
# error: arg-type | arg-type | reportArgumentType

# == a misspelt option of a layer (annotations: yes)

unbiased = dx.Linear(4, 8, use_bias=False, rngs=rngs)
# wrong: unbiased = dx.Linear(4, 8, bias=False, rngs=rngs)
# error: call-arg | call-arg | reportCallIssue

# == an initializer's name in the place of the initializer (annotations: yes)

initialized = dx.Linear(4, 8, kernel_init=dx.initializers.lecun_normal(), rngs=rngs)
# wrong: initialized = dx.Linear(4, 8, kernel_init="lecun_normal", rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == an initializer that is not yet made (annotations: yes)

made = dx.Linear(4, 8, kernel_init=dx.initializers.normal(0.02), rngs=rngs)
# wrong: made = dx.Linear(4, 8, kernel_init=dx.initializers.normal, rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == an initializer in the place of a dtype (annotations: yes)

narrow = dx.Linear(4, 8, param_dtype=jnp.bfloat16, rngs=rngs)
# wrong: narrow = dx.Linear(4, 8, param_dtype=dx.initializers.zeros, rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == a number in the place of a dtype (annotations: yes)

computed_in: jax.typing.DTypeLike = jnp.float16
half = dx.Linear(4, 8, dtype=computed_in, rngs=rngs)
# wrong: half = dx.Linear(4, 8, dtype=16, rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == the class of a layer is called with inputs (annotations: yes)

applied = linear(inputs)
# wrong: applied = dx.Linear(inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == a layer is called with a list (annotations: yes)

outputs = linear(inputs)
# wrong: outputs = linear([1.0, 2.0, 3.0, 4.0])
# error: arg-type | arg-type | reportArgumentType

# == an activation that is called without its input (annotations: yes)

activated = dx.relu(linear(inputs))
# wrong: activated = dx.relu()(linear(inputs))
# error: call-arg, operator | call-arg, operator | reportCallIssue

# == a rate that is a str (annotations: yes)

dropout = dx.Dropout(0.5, rngs=rngs)
# wrong: dropout = dx.Dropout("0.5", rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == a kernel size that is a float (annotations: yes)

conv = dx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
# wrong: conv = dx.Conv(1, 8, kernel_size=(3.0, 3.0), rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == a convolution without its kernel size (annotations: yes)

kernel_sized = dx.Conv(1, 8, 3, rngs=rngs)
# wrong: kernel_sized = dx.Conv(1, 8, rngs=rngs)
# error: call-arg | call-arg | reportCallIssue

# == a padding that is a number with a point (annotations: yes)

padded = dx.Conv(1, 8, 3, padding="VALID", rngs=rngs)
# wrong: padded = dx.Conv(1, 8, 3, padding=1.5, rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == a momentum that is a str (annotations: yes)

slow = dx.BatchNorm(4, momentum=0.9, rngs=rngs)
# wrong: slow = dx.BatchNorm(4, momentum="0.9", rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == the mode of a norm by position (annotations: yes)

normed = norm(inputs, use_running_average=True)
# wrong: normed = norm(inputs, use_running_averages=True)
# error: call-arg | call-arg | reportCallIssue

# == train is a method and no flag (annotations: no)

model.train()
# wrong: model.train = True
# error: assignment | - | -

# == eval takes no model (annotations: yes)

model.eval()
# wrong: model.eval(model)
# error: call-arg | call-arg | reportCallIssue

# == train gives back nothing (annotations: yes)

model.train()
trained = model
# wrong: trained: Model = model.train()
# error: assignment | assignment | reportAssignmentType

# == a stream that is called with a shape (annotations: yes)

key = rngs.dropout()
# wrong: key = rngs.dropout((3, 4))
# error: call-arg | call-arg | reportCallIssue

# == a stream in the place of a key (annotations: yes)

noise = jax.random.normal(rngs.params(), (3,))
# wrong: noise = jax.random.normal(rngs.params, (3,))
# error: arg-type | arg-type | reportArgumentType

# == the seed of a stream is a str (annotations: yes)

streams = dx.Rngs(params=0, dropout=1)
# wrong: streams = dx.Rngs(params="zero", dropout=1)
# error: arg-type | arg-type | reportArgumentType

# == a number of splits that is a str (annotations: yes)

forked = rngs.fork(split=3)
# wrong: forked = rngs.fork(split="three")
# error: arg-type | arg-type | reportArgumentType

# == capture gives a pair (annotations: yes)

result, captured = dx.capture(model, dx.Intermediate)(inputs)
# wrong: result, captured, rest = dx.capture(model, dx.Intermediate)(inputs)
# error: misc | misc | reportAssignmentType

# == capture with an argument too few (annotations: yes)

taken, caught = dx.capture(model, dx.Intermediate)(inputs)
# wrong: taken, caught = dx.capture(model, dx.Intermediate)()
# error: call-arg | call-arg | reportCallIssue

# == capture of no kind of Variable (annotations: yes)

kinds, kind = dx.capture(model, dx.Intermediate)(inputs)
# wrong: kinds, kind = dx.capture(model, dx.Linear)(inputs)
# error: arg-type | arg-type | reportArgumentType, reportCallIssue

# == sow with its first arguments swapped (annotations: yes)

model.sow(dx.Intermediate, "outputs", inputs)
# wrong: model.sow(inputs, dx.Intermediate, "outputs")
# error: arg-type | arg-type | reportArgumentType

# == sow without a value (annotations: yes)

model.sow(dx.Intermediate, "more", inputs)
# wrong: model.sow(dx.Intermediate, "more")
# error: call-arg | call-arg | reportCallIssue

# == sow of no kind of Variable (annotations: yes)

model.sow(dx.Intermediate, "kinds", inputs)
# wrong: model.sow(dx.Linear, "kinds", inputs)
# error: arg-type | arg-type | reportArgumentType

# == perturb with its arguments swapped (annotations: yes)

perturbed = model.perturb("before", inputs)
# wrong: perturbed = model.perturb(inputs, "before")
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == perturb gives an array (annotations: yes)

shifted: jax.Array = model.perturb("after", inputs)
# wrong: shifted: str = model.perturb("after", inputs)
# error: assignment | assignment | reportAssignmentType

# == the number of embeddings is missing (annotations: yes)

embedding = dx.Embed(16, 4, rngs=rngs)
# wrong: embedding = dx.Embed(features=4, rngs=rngs)
# error: call-arg | call-arg | reportCallIssue

# == an array in the place of a dtype (annotations: no)

stored = dx.Linear(4, 8, param_dtype=inputs.dtype, rngs=rngs)
# wrong: stored = dx.Linear(4, 8, param_dtype=inputs, rngs=rngs)
# error: declax-field | - | -
