"""Layers that look up rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any

import jax
import jax.numpy as jnp

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._typing import Dtype, Initializer
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.placement import explicit_spec, make_spec
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.nn import dtypes
from declax.nn._checks import check_last_axis, field_of
from declax.nn._defaults import OutSharding, default_embed_init
from declax.nn._gathering import constrained, gathered, result_sharding
from declax.nn.layer import Layer


@dataclass
class Embed(Layer):
    """A table of vectors, looked up by integers.

    ``y[..., :] = embedding[x[...], :]``

    An integer of which there is no row gives NaN, and a negative one counts from the end: a text that is longer than a
    table of positions has NaN there.

    Args:
      num_embeddings: number of rows, one for each integer from 0.
      features: size of each row.
      dtype: dtype of the computation; None is that of the table.
      param_dtype: dtype in which the table is stored.
      embedding_init: makes the table, of shape ``(num_embeddings, features)``.
      promote_dtype: brings ``(embedding,)``, and in `attend` ``(query, embedding)``, to one dtype.
      rngs: gives one key to the table, from `params`.
      embedding_metadata: metadata of the table.

    Raises:
      LayerError: for a size below 1, for input that is not of integers, and for
        a query whose last axis is not `features`.

    >>> import declax as dx
    >>> layer = dx.Embed(5, 3, rngs=dx.Rngs(0))
    >>> layer(jnp.array([[0, 1], [4, 4]])).shape
    (2, 2, 3)
    """

    num_embeddings: int = field(ge=1)
    features: int = field(ge=1)
    _: KW_ONLY
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    embedding_init: InitVar[Initializer] = field(default=default_embed_init)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    embedding_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    embedding: Param[jax.Array] = variable(
        (num_embeddings, features),
        initializer=embedding_init,
        dtype=param_dtype,
        metadata=embedding_metadata,
    )

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Looks up the vector of each integer.

        As everywhere in JAX, no error can come from a value inside a compiled program; `jax.debug_nans(True)` finds the
        rows that do not exist. A table of one row gives that row for each integer, as in NNX.

        Args:
          inputs: array of integers, of any shape ``(...,)``.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array of shape ``(..., features)``.
        """
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise errors.LayerError(
                field_of(self, "embedding"),
                "rows are looked up by integers",
                expected="an array of an integer dtype",
                got=errors.describe(inputs),
                fix="embed(inputs.astype(jnp.int32))",
            )
        table = self.embedding.value
        (table,) = self.promote_dtype((table,), dtype=Embed._dtype_of(self, table), inexact=False)
        if self.num_embeddings == 1:
            inputs = jnp.zeros_like(inputs)
        out_sharding = result_sharding(self, self.embedding, (*inputs.shape, table.shape[1]), out_sharding)
        table = gathered(self.embedding, table, inputs, {}, out_sharding, {1: inputs.ndim})
        out_sharding = _sharding_of_rows(table, inputs) if out_sharding is None else out_sharding
        if out_sharding is None:
            return constrained(self, self.embedding, jnp.take(table, inputs, axis=0))
        return table.at[inputs].get(mode="fill", out_sharding=out_sharding)

    def attend(self, query: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Products of a query with every row: the logits of a tied output layer.

        Press and Wolf, "Using the Output Embedding to Improve Language Models", https://arxiv.org/abs/1608.05859.

        Args:
          query: array of shape ``(..., features)``.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array of shape ``(..., num_embeddings)``.

        >>> import declax as dx
        >>> dx.Embed(5, 3, rngs=dx.Rngs(0)).attend(jnp.ones((2, 3))).shape
        (2, 5)
        """
        table = self.embedding.value
        query, table = self.promote_dtype((query, table), dtype=Embed._dtype_of(self, table))
        check_last_axis(self, "features", query, "query")
        last = query.ndim - 1
        table = gathered(self.embedding, table, query, {1: last}, out_sharding, {0: last})
        return jnp.dot(query, table.T, out_sharding=out_sharding)

    def _dtype_of(self, table: jax.Array) -> Dtype:
        return table.dtype if self.dtype is None else self.dtype


def _sharding_of_rows(table: jax.Array, inputs: jax.Array) -> jax.P | None:
    """Where rows of a table lie under explicit sharding, which JAX leaves to us: as the integers and the features."""
    rows, columns = explicit_spec(inputs), explicit_spec(table)
    if rows is None or columns is None:
        return None
    return make_spec(*rows, columns[1])
