"""The kind of Variable that low-rank adapters learn."""

from declax._variables.variable import Param, T


class LoRAParam(Param[T]):
    """A parameter of a low-rank adapter (Hu et al., 2021, https://arxiv.org/abs/2106.09685)."""

    __slots__ = ()
