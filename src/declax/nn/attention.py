"""Attention, under the peer's name of its module."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.nn.linear import default_bias_init as default_bias_init
from declax.nn.linear import default_kernel_init as default_kernel_init

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
