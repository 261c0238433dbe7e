"""What building remembers of optimizers, since these keep neither their model nor how their transformation was made.

It is remembered as long as the optimizer lives. A copy of one is another optimizer, of which nothing is known.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, NamedTuple

from declax.config._data import SpecData
from declax.training.optimizer import Optimizer


class Origin(NamedTuple):
    """What an optimizer was made of.

    Attributes:
      model: gives the model, as long as that lives.
      tx: the spec of the transformation.
    """

    model: weakref.ReferenceType[Any]
    tx: SpecData


_ORIGINS: Final[weakref.WeakKeyDictionary[Optimizer[Any], Origin]] = weakref.WeakKeyDictionary()


def remember(made: Optimizer[Any], spec: SpecData, model: object) -> None:
    """Remembers of what an optimizer was made, where a spec says how its transformation was."""
    tx = spec.arguments.get("tx")
    if isinstance(tx, SpecData) and not tx.has_refs:
        try:
            _ORIGINS[made] = Origin(weakref.ref(model), tx)
        except TypeError:  # a model that is a plain tree
            return


def origin_of(optimizer: Optimizer[Any]) -> Origin | None:
    """What an optimizer was made of; None where that is not known, or its model is gone."""
    found = _ORIGINS.get(optimizer)
    return None if found is None or found.model() is None else found
