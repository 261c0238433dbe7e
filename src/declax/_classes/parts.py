"""The attributes that a constructor makes, and objects that all instances would share instead."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._classes.declared_variables import VariableMaker
from declax._classes.pytree import Pytree
from declax._fields.call import Call, Term, calls_in, chosen, results_of, target_of, walk
from declax._fields.class_info import info_of
from declax._fields.expressions import Expression
from declax._fields.keys import OWN_RNGS, RNGS, own_rngs_for, rngs_parameter
from declax._fields.refusals import variable_line
from declax._fields.specifiers import PartRecipe, Recipe, SubmoduleRecipe, specifier_of
from declax._tree.statuses import data_within
from declax._variables.variable import Variable


def recipe_of(field: dataclasses.Field[Any]) -> Recipe | None:
    """How the field of a class is made, if its object makes it."""
    specifier = specifier_of(field)
    return None if specifier is None else specifier.recipe


class Part(NamedTuple):
    """One attribute that the constructor makes.

    Attributes:
      name: of the attribute.
      expression: how the class body declares it.
      recipe: how it is made.
      is_argument: whether the caller may supply it.
    """

    name: str
    expression: Expression
    recipe: Recipe
    is_argument: bool

    def made_by(self, cls: Any) -> Expression:
        """The expression that makes the part of an instance, a Variable and the part of a method too."""
        recipe = self.recipe
        if isinstance(recipe, PartRecipe):
            return self.expression
        if isinstance(recipe, SubmoduleRecipe):
            rngs = own_rngs_for(recipe.build) if cls._pytree__implies_rngs else OWN_RNGS
            return Expression(Call(recipe.build, (SELF, rngs) if recipe.takes_rngs else (SELF,)))
        maker = VariableMaker(cls, self.name, recipe)
        sharding = () if recipe.sharding is None else (recipe.sharding,)
        options = (recipe.shape, recipe.initializer, recipe.dtype, recipe.metadata, *sharding)
        made = Expression(Call(maker, (OWN_RNGS, *options), recipe.computed))
        return made if recipe.when is None else Expression(Call(chosen, (recipe.when, made, None)))


SELF: Final = Term()
"""Stands for the instance that a constructor makes."""


def makes_data(value: Any) -> bool:
    """Whether a value gives a Pytree, or a container of some, whatever the values of the fields are."""
    for result in walk(value, results_of) if results_of(value) else (value,):
        target = target_of(result)
        if isinstance(target, type) and issubclass(target, Pytree):
            return True
    return False


def may_make_data(value: Any) -> bool:
    """Whether a value is a Pytree, or may be: a call of a field, or one that draws random keys."""
    return makes_data(value) or any(map(_may_draw, calls_in(value, results_of)))


def _may_draw(call: Call) -> bool:
    is_drawing = any(isinstance(operand, Term) and operand._pytree__name == RNGS for operand in call.operands())
    return is_drawing or isinstance(call.target, Term) or rngs_parameter(call.target) is not None


# --- shared objects -------------------------------------------------------------


FIX_OF_SHARED: Final = """\
dx.Linear(dim, dim)        # each instance makes a call with a field among its arguments, or that lacks rngs
dx.defer(dx.Sequential)()        # and a call under dx.defer
dx.variable((dim,), initializer=dx.initializers.ones)        # a Variable
class Block(dx.Layer): ...        # has rngs, in place of a dx.Rngs"""


def fix_of_shared(name: str, value: object) -> str:
    """The lines that declare a part of a name in place of an object that all instances would share."""
    if not isinstance(value, Variable):
        return FIX_OF_SHARED
    array = value.raw_value
    if isinstance(array, Tracer) or not isinstance(array, (int, float, np.ndarray, jax.Array)):
        return variable_line(name, type(value), None, None)
    return variable_line(name, type(value), str(np.shape(array)), _initializer_of(array))


def _initializer_of(array: Any) -> str | None:
    """The initializer that gives the equal numbers of an array; None for other arrays."""
    if not jnp.issubdtype(jnp.result_type(array), jnp.floating):
        return None
    values = np.unique(np.asarray(array, dtype=np.float64))
    if len(values) != 1 or not np.isfinite(values[0]):
        return None
    number = float(f"{values[0]:.6g}")
    return {0.0: "zeros", 1.0: "ones"}.get(number, f"constant({number})")


MAY_BE_SHARED: Final = (Pytree, Variable, list, tuple, dict, functools.partial)
"""The classes of values of which all instances may share what is in them: others need no look."""


def is_shared(value: object) -> bool:
    """Whether a value that is made once for all instances of a class is, or holds, Pytrees or Variables."""
    if not isinstance(value, (Pytree, Variable, list, tuple, dict)):
        return False
    objects = (item for item in data_within(value) if isinstance(item, (Pytree, Variable)))
    return not all(info_of(item).is_frozen for item in objects)
