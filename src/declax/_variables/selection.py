"""Filters by what fields declare about training: `trainable` and `weight_decay`."""

from __future__ import annotations

from typing import Final

from declax._filters import Unless
from declax._variables.kinds import Param
from declax._variables.variable import Variable

is_trainable: Final = Unless(Param, "trainable", "is_trainable")
"""A filter of the Params that are not declared with ``trainable=False``: what gradients and optimizers take."""

is_decayed: Final = Unless(Variable, "weight_decay", "is_decayed")
"""A filter of the Variables that are not declared with ``weight_decay=False``."""
