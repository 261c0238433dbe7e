"""List, Dict and Sequential."""

import jax
import jax.numpy as jnp

import declax as dx

rngs = dx.Rngs(0)
inputs = jnp.ones((3, 2))
listed = dx.List([dx.Linear(2, 2, rngs=rngs)])
keyed = dx.Dict({"a": dx.Linear(2, 2, rngs=rngs)})
chain = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu)

# == an element of another class is appended (annotations: yes)

layers: dx.List[dx.Linear] = dx.List([dx.Linear(2, 2, rngs=rngs)])
layers.append(dx.Linear(2, 2, rngs=rngs))
# wrong: layers.append(dx.LayerNorm(2, rngs=rngs))
# error: arg-type | arg-type | reportArgumentType

# == an element has the class of the List (annotations: yes)

kernels = dx.List([dx.Linear(2, 2, rngs=rngs)])[0].kernel
# wrong: kernels = dx.List([dx.Linear(2, 2, rngs=rngs)])[0].weight
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a List with one layer that is no list (annotations: yes)

one = dx.List([dx.Linear(2, 2, rngs=rngs)])
# wrong: one = dx.List(dx.Linear(2, 2, rngs=rngs))
# error: call-overload | call-overload | reportArgumentType

# == a List with a key that is a str (annotations: yes)

first = listed[0]
# wrong: first = listed["0"]
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == the loop variable of a List (annotations: yes)

for layer in listed:
    sized = layer.out_features
    # wrong: sized = layer.output_size
    # error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a Dict of another class (annotations: yes)

heads: dx.Dict[dx.Linear] = dx.Dict({"a": dx.Linear(2, 2, rngs=rngs)})
heads["b"] = dx.Linear(2, 2, rngs=rngs)
# wrong: heads["b"] = dx.LayerNorm(2, rngs=rngs)
# error: assignment | assignment | reportArgumentType

# == a Dict with a key that is a number (annotations: yes)

head = keyed["a"]
# wrong: head = keyed[0]
# error: index | index | reportArgumentType

# == a value of a Dict has its class (annotations: yes)

features = keyed["a"].in_features
# wrong: features = keyed["a"].in_feature
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a field that is a list of layers gets one layer (annotations: yes)


@dx.dataclass
class Tower(dx.Module):
    layers: list[dx.Linear]


tower = Tower([dx.Linear(2, 2, rngs=rngs)])
# wrong: tower = Tower(dx.Linear(2, 2, rngs=rngs))
# error: arg-type | arg-type | reportArgumentType

# == a layer of Sequential that cannot be called (annotations: yes)

last = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu)
# wrong: last = dx.Sequential(dx.Linear(2, 3, rngs=rngs), "relu")
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == sizes of neighbours around an activation (annotations: no)

sequence = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu, dx.Linear(3, 2, rngs=rngs))
# wrong: sequence = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu, dx.Linear(4, 2, rngs=rngs))
# error: declax-sizes | - | -

# == sizes of neighbours in a list of layers (annotations: no)

stacked = dx.Sequential([dx.Linear(2, 3, rngs=rngs), dx.Linear(3, 2, rngs=rngs)])
# wrong: stacked = dx.Sequential([dx.Linear(2, 3, rngs=rngs), dx.Linear(2, 2, rngs=rngs)])
# error: declax-sizes | - | -

# == a norm of another size than the layer before it (annotations: no)

normed = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.LayerNorm(3, rngs=rngs))
# wrong: normed = dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.LayerNorm(2, rngs=rngs))
# error: declax-sizes | - | -

# == the result of a chain (annotations: yes)

result: jax.Array = chain(inputs)
# wrong: result: str = chain(inputs)
# error: assignment | assignment | reportAssignmentType
