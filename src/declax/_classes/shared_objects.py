"""Objects that a class body makes once, which all instances would share."""

from __future__ import annotations

from typing import Final

from declax._classes.pytree import Pytree
from declax._fields.class_body import RNGS_LINES
from declax._tree.statuses import PLAIN, data_within
from declax._variables.variable import Variable

FIX_OF_SHARED: Final = f"""\
dx.Linear(dim, dim, rngs=rngs)        # each instance makes a call with a field among its arguments
dx.defer(dx.Sequential)()        # and a call under dx.defer
dx.variable((dim,), initializer=dx.initializers.ones)        # a Variable
{RNGS_LINES}        # in place of a dx.Rngs"""


def is_shared(value: object) -> bool:
    """Whether a value that is made once for all instances of a class is, or holds, Pytrees or Variables."""
    if value.__class__ in PLAIN or not isinstance(value, (Pytree, Variable, list, tuple, dict)):
        return False
    objects = (item for item in data_within(value) if isinstance(item, (Pytree, Variable)))
    return not all(getattr(item, "_pytree__is_frozen", False) for item in objects)
