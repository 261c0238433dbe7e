"""The attributes that a constructor makes, and objects that all instances would share instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from declax._classes.pytree import Pytree
from declax._fields.call import CONTAINERS, LITERAL, REPEAT, WHEN, call_of, form_of, items
from declax._fields.expressions import Expression, referred
from declax._fields.specifiers import PartRecipe, Recipe, VariableRecipe, specifier_of
from declax._tree.statuses import PLAIN, data_within
from declax._variables.variable import Variable


def is_init_var(field: dataclasses.Field[Any]) -> bool:
    """Whether an entry of ``__dataclass_fields__`` is an InitVar."""
    return field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # the standard offers no public way


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


class Reads(Expression):
    """The names that a part of any kind reads."""

    __slots__ = ("_pytree__part",)

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._pytree__part = part

    def _pytree__operands(self) -> Iterator[Any]:
        part = self._pytree__part
        recipe = part.recipe
        if isinstance(recipe, VariableRecipe):
            yield from (recipe.shape, recipe.initializer, recipe.dtype, recipe.metadata, recipe.when, recipe.sharding)
            yield from recipe.computed.values()
        elif isinstance(recipe, PartRecipe):
            yield from part.expression._pytree__operands()


def makes_data(value: Any) -> bool:
    """Whether a value gives a Pytree, or a container of some, whatever the values of the fields are."""
    value = referred(value)
    if value.__class__ in CONTAINERS:
        return any(map(makes_data, items(value)))
    call, form = call_of(value), form_of(value)
    if call is not None:
        return isinstance(call.target, type) and issubclass(call.target, Pytree)
    if form is LITERAL:
        return makes_data(value._pytree__value)
    return form in (WHEN, REPEAT) and any(map(makes_data, value._pytree__call.args[1:]))


# --- shared objects -------------------------------------------------------------


FIX_OF_SHARED: Final = """\
dx.Linear(dim, dim)        # each instance makes a call with a field among its arguments, or that lacks rngs
dx.defer(dx.Sequential)()        # and a call under dx.defer
dx.variable((dim,), initializer=dx.initializers.ones)        # a Variable
class Block(dx.Layer): ...        # has rngs, in place of a dx.Rngs"""


def is_shared(value: object) -> bool:
    """Whether a value that is made once for all instances of a class is, or holds, Pytrees or Variables."""
    if value.__class__ in PLAIN or not isinstance(value, (Pytree, Variable, list, tuple, dict)):
        return False
    objects = (item for item in data_within(value) if isinstance(item, (Pytree, Variable)))
    return not all(getattr(item, "_pytree__is_frozen", False) for item in objects)
