"""The kind of Variable that low-rank adapters learn."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._variables.variable import Param, T


class LoRAParam(Param[T]):
    """A parameter of a low-rank adapter (Hu et al., 2021, https://arxiv.org/abs/2106.09685)."""

    __slots__ = ()


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
