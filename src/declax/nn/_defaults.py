"""How layers make their parameters, unless the caller says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax

from declax._typing import Initializer
from declax.initializers import lecun_normal, variance_scaling, zeros

default_kernel_init: Initializer = lecun_normal()
default_bias_init: Initializer = zeros
default_embed_init: Initializer = variance_scaling(1.0, "fan_in", "normal", out_axis=0)

OutSharding: TypeAlias = jax.NamedSharding | jax.P | None

Made: TypeAlias = tuple[Initializer, Mapping[str, Any]]
"""How a parameter is made: by an initializer, with metadata."""
