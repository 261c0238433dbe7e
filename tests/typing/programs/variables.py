"""Variables as arrays."""

import jax
import jax.numpy as jnp

import declax as dx


class Count(dx.Variable[jax.Array]):
    unit: str = "steps"


def rotate(x: jax.Array) -> jax.Array:
    return x[::-1]


kernel = dx.Param(jnp.ones((2, 2)))
inputs = jnp.ones((2, 2))

# == a Variable is given where a number of steps is wanted (annotations: yes)


def repeat(x: jax.Array, times: int) -> jax.Array:
    return jnp.tile(x, times)


repeated = repeat(kernel, 2)
# wrong: repeated = repeat(inputs, kernel)
# error: arg-type | arg-type | reportArgumentType

# == the value is set to a str (annotations: yes)

kernel.value = jnp.zeros((2, 2))
# wrong: kernel.value = "zeros"
# error: assignment | assignment | reportAttributeAccessIssue

# == the content is set to a list (annotations: yes)

kernel[...] = jnp.zeros((2, 2))
# wrong: kernel[...] = [0.0, 0.0]
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == an attribute that arrays do not have (annotations: yes)

rows = kernel.value.shape[0]
# wrong: rows = kernel.value.rows
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == an attribute of a Variable has the type that it has of an array (annotations: yes)

rank: int = kernel.ndim
# wrong: rank: str = kernel.ndim
# error: assignment | assignment | reportAssignmentType

# == the result of arithmetic is no Variable (annotations: yes)

doubled: jax.Array = kernel * 2
# wrong: doubled: dx.Param[jax.Array] = kernel * 2
# error: assignment | assignment | reportAssignmentType

# == an operand that is no array (annotations: yes)

shifted = kernel + 1.0
# wrong: shifted = kernel + "1"
# error: operator | operator | reportOperatorIssue

# == a Param of one kind for another kind (annotations: yes)

statistics: dx.BatchStat[jax.Array] = dx.BatchStat(jnp.zeros(2))
# wrong: statistics: dx.BatchStat[jax.Array] = dx.Param(jnp.zeros(2))
# error: assignment | assignment | reportAssignmentType

# == a value of another type than the Variable's (annotations: yes)

flag: dx.Variable[int] = dx.Variable(3)
# wrong: flag: dx.Variable[int] = dx.Variable("3")
# error: arg-type | arg-type | reportAssignmentType

# == the value of an optional Variable without a check (annotations: yes)


def bias_of(layer: dx.Linear) -> jax.Array:
    return layer.bias.value if layer.bias is not None else jnp.zeros(3)
    # wrong: return layer.bias.value
    # error: union-attr | union-attr | reportOptionalMemberAccess


# == an array in the place of a Variable (annotations: yes)


def freeze(variable: dx.Variable[jax.Array]) -> None:
    variable.value = jax.lax.stop_gradient(variable.value)


freeze(kernel)
# wrong: freeze(inputs)
# error: arg-type | arg-type | reportArgumentType

# == a declared metadata field of another type (annotations: yes)

count = Count(jnp.array(0))
count.unit = "epochs"
# wrong: count.unit = 3
# error: assignment | assignment | reportAttributeAccessIssue

# == a function of arrays gets the class of a Variable (annotations: yes)

rotated = rotate(kernel)
# wrong: rotated = rotate(dx.Param)
# error: arg-type | arg-type | reportArgumentType

# == a misspelt attribute of a Variable (annotations: no)

content = kernel.value
# wrong: content = kernel.valeu
# error: declax-attribute | - | -

# == an assignment to a misspelt attribute of a Variable (annotations: no)

kernel.value = jnp.ones((2, 2))
# wrong: kernel.vaule = jnp.ones((2, 2))
# error: declax-attribute | - | -

# == misspelt metadata (annotations: no)

is_trained = kernel.trainable if kernel.has_metadata("trainable") else True
# wrong: is_trained = kernel.trainabel if kernel.has_metadata("trainable") else True
# error: declax-attribute | - | -
