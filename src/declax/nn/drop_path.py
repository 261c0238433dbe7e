"""Stochastic depth."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from declax._classes.decorator import dataclass
from declax._fields.specifiers import field
from declax._random.streams import Rngs, RngStream
from declax.nn.stochastic import Dropout, dropped


@dataclass
class DropPath(Dropout):
    """Sets whole examples to zero, and scales the others up: a residual branch is skipped at random.

    ``y[i] = x[i] / (1 - rate)`` with probability ``1 - rate``, and else 0, for each index `i` of the first axis.

    Huang et al., "Deep Networks with Stochastic Depth", https://arxiv.org/abs/1603.09382.

    The arguments are those of `Dropout`, without `broadcast_dims`. `model.eval()` switches it off.

    Raises:
      LayerError: as `Dropout`.

    >>> import declax as dx
    >>> layer = dx.DropPath(0.5, rngs=dx.Rngs(0))
    >>> x = jnp.ones((100, 3))
    >>> x = x + layer(x)
    >>> bool((x[:, 0] == x[:, 2]).all()), sorted(set(x[:, 0].tolist()))
    (True, [1.0, 3.0])
    """

    broadcast_dims: Sequence[int] = field(default=(), init=False)

    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Drops whole examples; the arguments are those of `Dropout`."""
        return dropped(self, inputs, deterministic, rngs, lambda x: range(1, x.ndim))
