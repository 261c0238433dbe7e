"""Objects that a class body makes once, which all instances would share."""

from __future__ import annotations

import inspect

from declax._classes.declared_variables import RNGS
from declax._classes.pytree import Pytree
from declax._fields.class_body import RNGS_LINES
from declax._fields.expressions import Expression
from declax._fields.sources import class_text
from declax._tree.statuses import PLAIN, data_within
from declax._variables.variable import Variable
from declax.errors import type_name


def objects_shared_in(value: object) -> list[object]:
    """The Pytrees and Variables in a value that is made once for all instances of a class."""
    if value.__class__ in PLAIN or isinstance(value, Expression):
        return []
    is_looked_into = isinstance(value, (Pytree, Variable, list, tuple, dict))
    return [
        item
        for item in (data_within(value) if is_looked_into else ())
        if isinstance(item, (Pytree, Variable)) and not getattr(item, "_pytree__is_frozen", False)
    ]


def fix_of_shared(name: str, value: object, item: object) -> str:
    """The line that makes a shared object anew in each instance."""
    call = call_of_shared(item)
    if call == RNGS_LINES:
        return call
    if item is value and isinstance(item, Variable):
        name = f"{name.partition(':')[0]}: dx.{type_name(type(item))}[jax.Array]"
    forms: dict[type, str] = {list: "[{}]", tuple: "({},)", dict: "{{'a': {}}}"}
    return f"{name} = {forms.get(value.__class__, '{}').format(call)}        # each instance makes it"


def call_of_shared(item: object) -> str:
    """The expression that makes such an object anew."""
    cls = type(item)
    name = class_text(cls)
    if isinstance(item, Variable):
        return "dx.variable((dim,), initializer=dx.initializers.ones)"
    if name == "dx.Rngs":
        return RNGS_LINES
    if RNGS in inspect.signature(cls).parameters:
        return f"{name}(..., rngs=rngs)"
    return f"dx.defer({name})(...)"
