"""The models of optimizers that were built from specs, since an optimizer does not keep its model.

They are known as long as the optimizer lives. A copy is another optimizer, whose model is not known.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, cast

from declax.config._data import SpecData
from declax.training._transformation import Description, Transformation, describe_by, is_transformation
from declax.training.optimizer import Optimizer

_MODELS: Final[weakref.WeakKeyDictionary[Optimizer[Any], weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def remember(made: object, spec: SpecData, model: object) -> None:
    """Remembers the Spec of a transformation, and the model of an optimizer."""
    if isinstance(made, Optimizer):
        try:
            _MODELS[made] = weakref.ref(model)
        except TypeError:  # a model that is a plain tree
            return
    elif not (spec.has_refs or spec.parameters.takes_rngs) and is_transformation(made):
        describe_by(cast(Description, spec), cast(Transformation, made))


def model_of(optimizer: Optimizer[Any]) -> Any:
    """The model that an optimizer was built for; None where that is not known, or the model is gone."""
    found = _MODELS.get(optimizer)
    return None if found is None else found()
