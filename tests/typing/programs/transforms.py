"""Transforms as functions, decorators and on methods."""

import jax
import jax.numpy as jnp

import declax as dx


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)

    @dx.jit
    def predict(self, x: jax.Array) -> jax.Array:
        return self.linear(x)


def forward(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@dx.jit
def mean_of(x: jax.Array) -> jax.Array:
    return jnp.mean(x)


@dx.jit(static_argnames=("times",))
def repeat(x: jax.Array, times: int) -> jax.Array:
    return jnp.tile(x, times)


def choose(x: jax.Array, mode: str) -> jax.Array:
    return x if mode == "keep" else -x


@dx.scan
def cumulate(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return carry + x, (x, x)


def double(x: jax.Array) -> jax.Array:
    return 2 * x


def halve(x: jax.Array) -> jax.Array:
    return x / 2


def words(x: jax.Array) -> str:
    return str(x)


model = Model(2, rngs=dx.Rngs(0))
inputs = jnp.ones((3, 2))

# == a jitted function with an argument too few (annotations: yes)


@dx.jit
def plain(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


plainly = plain(model, inputs)
# wrong: plainly = plain(model)
# error: call-arg | call-arg | reportCallIssue

# == a jitted function with its arguments swapped (annotations: yes)

jitted = dx.jit(forward)
in_order = jitted(model, inputs)
# wrong: in_order = jitted(inputs, model)
# error: arg-type | arg-type | reportArgumentType

# == the result of a jitted function is taken for a str (annotations: yes)

mean: jax.Array = mean_of(inputs)
# wrong: mean: str = mean_of(inputs)
# error: assignment | assignment | reportAssignmentType

# == a function that the factory jits, with an argument of the wrong type (annotations: yes)

repeated = repeat(inputs, 2)
# wrong: repeated = repeat(inputs, "2")
# error: arg-type | arg-type | reportArgumentType

# == a misspelt keyword of a jitted function (annotations: yes)

named = repeat(inputs, times=2)
# wrong: named = repeat(inputs, tims=2)
# error: call-arg | call-arg | reportCallIssue

# == a jitted method with an argument too many (annotations: yes)

predicted = model.predict(inputs)
# wrong: predicted = model.predict(inputs, 2)
# error: call-arg | call-arg | reportCallIssue

# == a jitted method with an argument of the wrong type (annotations: yes)

well_predicted = model.predict(inputs)
# wrong: well_predicted = model.predict("x")
# error: arg-type | arg-type | reportArgumentType

# == a jitted method without its instance (annotations: yes)

bound = Model.predict(model, inputs)
# wrong: bound = Model.predict(inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == a keyword that jit does not have (annotations: yes)

donating = dx.jit(forward, donate_argnums=(1,))
# wrong: donating = dx.jit(forward, donated_argnums=(1,))
# error: call-overload | call-overload | reportCallIssue

# == a static argument that the function does not have (annotations: no)


@dx.jit(static_argnames=("training",))
# wrong: @dx.jit(static_argnames=("trainig",))
# error: declax-argnames | - | -
def classify(model: Model, x: jax.Array, training: bool) -> jax.Array:
    return model(x) if training else x


# == a static argument of jit called as a function (annotations: no)

chosen = dx.jit(choose, static_argnames="mode")
# wrong: chosen = dx.jit(choose, static_argnames="mod")
# error: declax-argnames | - | -

# == a static number that the function does not have (annotations: no)

numbered = dx.jit(choose, static_argnums=1)
# wrong: numbered = dx.jit(choose, static_argnums=2)
# error: declax-argnames | - | -

# == a donated argument that the function does not have (annotations: no)

donated = dx.jit(forward, donate_argnames="x")
# wrong: donated = dx.jit(forward, donate_argnames="y")
# error: declax-argnames | - | -

# == a static argument by a number in the place of a name (annotations: yes)

by_name = dx.jit(choose, static_argnames=("mode",))
# wrong: by_name = dx.jit(choose, static_argnames=(1,))
# error: arg-type | arg-type | reportArgumentType

# == functools.partial of jit loses no argument (annotations: yes)


@dx.jit(inline=True)
def partially(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


partial_result = partially(model, inputs)
# wrong: partial_result = partially(model, inputs, inputs)
# error: call-arg | call-arg | reportCallIssue

# == in_axes with an entry too few (annotations: no)

batched = dx.vmap(forward, in_axes=(None, 0))(model, inputs)
# wrong: batched = dx.vmap(forward, in_axes=(None,))(model, inputs)
# error: declax-axes | - | -

# == in_axes with an entry too many, in a decorator (annotations: no)


@dx.vmap(in_axes=(None, 0))
# wrong: @dx.vmap(in_axes=(None, 0, 0))
# error: declax-axes | - | -
def vectorized(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


# == an axis that is a str (annotations: yes)

across = dx.vmap(forward, in_axes=(None, 0))(model, inputs)
# wrong: across = dx.vmap(forward, in_axes=(None, "0"))(model, inputs)
# error: arg-type | arg-type | reportArgumentType

# == a vmapped function with an argument too few (annotations: yes)

mapped = dx.vmap(forward, in_axes=(None, 0))(model, inputs)
# wrong: mapped = dx.vmap(forward, in_axes=(None, 0))(model)
# error: call-arg | call-arg | reportCallIssue

# == vmap of the call in the place of the function (annotations: yes)

called = dx.vmap(forward, in_axes=(None, 0))(model, inputs)
# wrong: called = dx.vmap(forward(model, inputs), in_axes=(None, 0))
# error: call-overload | call-overload | reportArgumentType

# == a size in the place of the name of an axis (annotations: yes)

sized = dx.vmap(mean_of, axis_size=3)(inputs)
# wrong: sized = dx.vmap(mean_of, axis_size="batch")(inputs)
# error: call-overload | call-overload | reportArgumentType

# == labels of StateAxes as keywords (annotations: yes)

axes = dx.StateAxes({dx.Param: None, ...: 0})
# wrong: axes = dx.StateAxes(params=None, rest=0)
# error: call-arg | call-arg | reportCallIssue

# == the results of scan are swapped (annotations: yes)

total, steps = cumulate(jnp.zeros(2), inputs)
as_array: jax.Array = total
# wrong: as_array: jax.Array = steps
# error: assignment | assignment | reportAssignmentType

# == a scanned function with an argument too few (annotations: yes)

scanned = cumulate(jnp.zeros(2), inputs)
# wrong: scanned = cumulate(inputs)
# error: call-arg | call-arg | reportCallIssue

# == the length of scan is an array (annotations: yes)

long = dx.scan(cumulate, length=3)
# wrong: long = dx.scan(cumulate, length=inputs)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == the carry of scan changes its type (annotations: yes)


def keeping(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.add(carry, x), x


def changing(carry: jax.Array, x: jax.Array) -> tuple[str, jax.Array]:
    return str(carry), x


carried = dx.scan(keeping)
# wrong: carried = dx.scan(changing)
# error: type-var | type-var | reportArgumentType, reportCallIssue

# == the branches of cond have different types (annotations: yes)

branched: jax.Array = dx.cond(True, double, halve, inputs)
# wrong: branched: jax.Array = dx.cond(True, double, words, inputs)
# error: assignment | assignment | reportAssignmentType

# == cond without the second branch (annotations: yes)

both = dx.cond(True, double, halve, inputs)
# wrong: both = dx.cond(True, double)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == a branch that is called already (annotations: yes)

later = dx.cond(True, double, halve, inputs)
# wrong: later = dx.cond(True, double(inputs), halve, inputs)
# error: arg-type | arg-type | reportArgumentType

# == the operands of cond do not fit the branches (annotations: yes)

operated = dx.cond(True, double, halve, inputs)
# wrong: operated = dx.cond(True, double, halve, "inputs")
# error: arg-type | arg-type | reportArgumentType

# == the operands of cond are too few (annotations: yes)

enough = dx.cond(True, double, halve, inputs)
# wrong: enough = dx.cond(True, double, halve)
# error: arg-type | arg-type | reportArgumentType

# == one function in the place of the branches of switch (annotations: yes)

switched = dx.switch(1, [double, halve], inputs)
# wrong: switched = dx.switch(1, double, inputs)
# error: arg-type | arg-type | reportArgumentType

# == the body of a loop returns another type (annotations: yes)


def step(i: jax.Array, x: jax.Array) -> jax.Array:
    return x + i.astype(x.dtype)


def spell(i: jax.Array, x: jax.Array) -> str:
    return str(x)


looped = dx.fori_loop(0, 3, step, inputs)
# wrong: looped = dx.fori_loop(0, 3, spell, inputs)
# error: arg-type | arg-type | reportArgumentType

# == the arguments of a loop are swapped (annotations: yes)

ordered = dx.while_loop(lambda x: jnp.all(x < 3), double, inputs)
# wrong: ordered = dx.while_loop(inputs, double, lambda x: jnp.all(x < 3))
# error: arg-type | arg-type | reportArgumentType

# == a rematerialized function with an argument too few (annotations: yes)

rematerialized = dx.remat(forward)(model, inputs)
# wrong: rematerialized = dx.remat(forward)(model)
# error: call-arg | call-arg | reportCallIssue

# == a static argument of remat that the function does not have (annotations: no)

static_remat = dx.remat(choose, static_argnames=("mode",))
# wrong: static_remat = dx.remat(choose, static_argnames=("moed",))
# error: declax-argnames | - | -

# == a policy that is a name (annotations: yes)

saving = dx.remat(forward, policy=jax.checkpoint_policies.dots_saveable)
# wrong: saving = dx.remat(forward, policy="dots_saveable")
# error: call-overload | call-overload | reportArgumentType

# == what cached_partial has is given again (annotations: yes)

cached = dx.cached_partial(dx.jit(forward), model)(inputs)
# wrong: cached = dx.cached_partial(dx.jit(forward), model)(model, inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == eval_shape keeps the result (annotations: yes)

abstract: Model = dx.eval_shape(lambda: Model(2, rngs=dx.Rngs(0)))
# wrong: abstract: dx.Linear = dx.eval_shape(lambda: Model(2, rngs=dx.Rngs(0)))
# error: assignment | assignment | reportAssignmentType
