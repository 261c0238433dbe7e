"""split, merge, update, state, pop, clone."""

import jax
import jax.numpy as jnp

import declax as dx


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)
    norm: dx.BatchNorm = dx.BatchNorm(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.linear(x))


model = Model(2, rngs=dx.Rngs(0))
inputs = jnp.ones((3, 2))

# == one State too few is unpacked (annotations: yes)

definition, params, rest = dx.split(model, dx.Param, ...)
# wrong: definition, params = dx.split(model, dx.Param, ...)
# error: misc | misc | reportAssignmentType

# == one State too many is unpacked (annotations: yes)

graphdef, state = dx.split(model)
# wrong: graphdef, state, others = dx.split(model)
# error: misc | misc | reportAssignmentType

# == four States of a method are unpacked as three (annotations: yes)

a_def, a_params, a_stats, a_rest = model.split(dx.Param, dx.BatchStat, ...)
# wrong: a_def, a_params, a_stats = model.split(dx.Param, dx.BatchStat, ...)
# error: misc | misc | reportAssignmentType

# == the result of split is not unpacked (annotations: yes)

whole, values = dx.split(model)
merged = dx.merge(whole, values)
# wrong: merged = dx.merge(dx.split(model), values)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == merge with its arguments swapped (annotations: yes)

first_def, first_state = dx.split(model)
again = dx.merge(first_def, first_state)
# wrong: again = dx.merge(first_state, first_def)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == merge gets a model (annotations: yes)

second_def, second_state = dx.split(model)
second = dx.merge(second_def, second_state)
# wrong: second = dx.merge(model, second_state)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == what merge gives has the model's methods only (annotations: yes)

third_def, third_state = dx.split(model)
width = dx.merge(third_def, third_state).width
# wrong: width = dx.merge(third_def, third_state).size
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == the merged model is taken for another class (annotations: yes)

fourth_def, fourth_state = dx.split(model)
fourth: Model = dx.merge(fourth_def, fourth_state)
# wrong: fourth: dx.Linear = dx.merge(fourth_def, fourth_state)
# error: assignment | assignment | reportAssignmentType

# == update with its arguments swapped (annotations: yes)

fifth = dx.state(model)
dx.update(model, fifth)
# wrong: dx.update(fifth, model)
# error: call-overload | call-overload | reportArgumentType

# == update gets a list of arrays (annotations: yes)

dx.update(model, dx.state(model, dx.Param))
# wrong: dx.update(model, [jnp.ones(2)])
# error: call-overload | call-overload | reportArgumentType

# == a State is called like a model (annotations: yes)

outputs = model(inputs)
# wrong: outputs = dx.state(model)(inputs)
# error: operator | operator | reportCallIssue

# == a GraphDef is called like a model (annotations: yes)

sixth_def, sixth_state = dx.split(model)
sixth = dx.merge(sixth_def, sixth_state)(inputs)
# wrong: sixth = sixth_def(inputs)
# error: operator | operator | reportCallIssue

# == one State for two filters (annotations: yes)

some, others = dx.state(model, dx.Param, dx.BatchStat)
seventh: dx.State[Model] = some
# wrong: seventh: dx.State[Model] = dx.state(model, dx.Param, dx.BatchStat)
# error: assignment | assignment | reportAssignmentType

# == a State of another model (annotations: yes)


def norm_of(state: dx.State[dx.Linear]) -> int:
    return len(state)


count = norm_of(dx.state(model.linear))
# wrong: count = norm_of(dx.state(model))
# error: arg-type | arg-type | reportArgumentType

# == pop without a filter (annotations: yes)

popped = dx.pop(model, dx.Intermediate)
# wrong: popped = dx.pop(model)
# error: call-overload | call-overload | reportCallIssue

# == pop with two filters gives two States (annotations: yes)

sown, perturbed = dx.pop(model, dx.Intermediate, dx.Perturbation)
# wrong: sown, perturbed, left = dx.pop(model, dx.Intermediate, dx.Perturbation)
# error: misc | misc | reportAssignmentType

# == clone is taken for a pair (annotations: yes)

copied = dx.clone(model)
# wrong: copied, copied_state = dx.clone(model)
# error: misc | misc | reportGeneralTypeIssues

# == a filter that is no kind of Variable (annotations: no)

kernels = dx.state(model, dx.Param)
# wrong: kernels = dx.state(model, dx.Linear)
# error: declax-filter | - | -

# == a number as a filter (annotations: yes)

numbered = dx.state(model, dx.Param)
# wrong: numbered = dx.state(model, 0)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == a Variable in the place of its kind (annotations: yes)

selected = dx.state(model, dx.Param)
# wrong: selected = dx.state(model, model.linear.kernel)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == States of many filters are unpacked as one too few (annotations: no)

b_def, b_1, b_2, b_3, b_4, b_5, b_6, b_7, b_8 = dx.split(model, "a", "b", "c", "d", "e", "f", "g", ...)
# wrong: b_def, b_1, b_2, b_3, b_4, b_5, b_6, b_7 = dx.split(model, "a", "b", "c", "d", "e", "f", "g", ...)
# error: misc | misc | reportAssignmentType

# == the class in the place of a model (annotations: no)

c_def, c_state = dx.split(model)
# wrong: c_def, c_state = dx.split(Model)
# error: declax-model | - | -

# == a copy of a class (annotations: no)

c_copy = dx.clone(model.norm)
# wrong: c_copy = dx.clone(dx.BatchNorm)
# error: declax-model | - | -

# == an update by the State of another model (annotations: no)

dx.update(model.linear, dx.state(model.linear))
# wrong: dx.update(model.linear, dx.state(model))
# error: declax-model | - | -

# == a GraphDef and the State of another model (annotations: no)

d_def, d_state = dx.split(model.linear)
d_merged = dx.merge(d_def, d_state)
# wrong: d_merged = dx.merge(d_def, dx.state(model.norm))
# error: declax-model | - | -
