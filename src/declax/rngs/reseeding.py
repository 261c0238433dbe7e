"""Keys from outside for the streams of a model.

Vocabulary
----------
seed:   what a key is made from: an int, a key, or a stream.
policy: how the key of a seed becomes the keys of a stream that was split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax._threads import committing
from declax._typing import MISSING, Missing, Path, Shape
from declax.errors import RngError, describe, suggest
from declax.rngs.backups import NewKey, RngBackups, in_place, replace_keys
from declax.rngs.finding import Stream, StreamTable, is_key
from declax.rngs.streams import RngStream, RngValue

P = ParamSpec("P")
R = TypeVar("R")

Policy: TypeAlias = Literal["scalars_only", "match_shape"] | Callable[[Path, jax.Array, Shape], jax.Array]
"""How one key becomes those of a stream: the name of a policy, or a function of path, key and shape."""


@overload
def reseed(
    node: Any, /, *, graph: bool | None = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> RngBackups: ...
@overload
def reseed(
    *, graph: bool | None = None, policy: Policy = "scalars_only", **stream_keys: RngValue
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def reseed(
    node: Any | Missing = MISSING,
    /,
    *,
    graph: bool | None = None,
    policy: Policy = "scalars_only",
    **stream_keys: RngValue,
) -> Any:
    """Gives the streams of these names below a node new keys, in place; they count from 0.

    The streams of one name draw their keys from one new stream, in the order of
    the graph, so that two layers never share one: a model that is reseeded as
    it was made gets the keys that it had. All of them are reseeded, or on an
    error none. `backup_keys` keeps what they had before.

    Args:
      node: a model, an Rngs, or a container of such. Without it, this is a
        decorator: the streams of all arguments are reseeded before each call,
        and restored after it, also where it fails.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`.
      policy: what to do with a stream that was split: ``"scalars_only"``, an
        error; ``"match_shape"``, split the new key too; a function of the path
        of the stream, the new key and the shape: what it returns.
      **stream_keys: for each name, a seed: an int, a key, or a stream.

    Returns:
      What the streams had before, for `restore_rngs`; as the subject of a
      ``with``, it restores them at the end of the block.

    Raises:
      RngError: for a name that no stream has, a seed that is none, a stream
        that was split, an unknown policy or a bad result of one, and where
        nothing is named or there are no streams.
      GraphError: for a graph where a tree is asked for.
      TraceContextError: for a stream of another trace level; names its place.

    >>> import declax as dx
    >>> layer = dx.Dropout(0.5, rngs=dx.Rngs(dropout=42))
    >>> x = jnp.ones(10)
    >>> first = layer(x)
    >>> backups = reseed(layer, dropout=42)
    >>> bool((layer(x) == first).all())
    True
    """
    seeds = {name: _seed(name, value) for name, value in stream_keys.items()}
    if not seeds:
        raise RngError("reseed", "no stream is named", fix="dx.reseed(model, dropout=42)")
    apply = policy if callable(policy) else _POLICIES.get(policy)
    if apply is None:
        raise RngError(
            "reseed",
            "there is no such policy",
            expected="'scalars_only', 'match_shape', or a function of path, key and shape",
            got=repr(policy),
            fix=suggest(policy, _POLICIES) if isinstance(policy, str) else None,
        )

    def put(value: Any) -> RngBackups:
        table = StreamTable("reseed", value, graph)
        streams = table.named(seeds)
        table.check_are_own(streams)
        sources = {name: RngStream(key, name) for name, key in seeds.items()}  # anew for each call
        keys = [_checked(table, stream, apply, sources[stream.tag]()) for stream in streams]
        with committing:
            new_keys = [NewKey(key, jnp.zeros(key.shape, np.uint32)) for key in keys]
            return replace_keys(table, streams, new_keys)

    return in_place("reseed", put, node)


def _seed(name: str, value: RngValue) -> jax.Array:
    key = RngStream(value, name).key.value
    if key.shape:
        raise RngError(
            f"reseed(..., {name}=...)",
            "an array of keys is no seed",
            expected="an int, a key, or a stream with one key",
            got=f"keys of shape {key.shape}",
            fix="policy='match_shape'        # splits one key for a stream that was split",
        )
    return key


_Apply: TypeAlias = Callable[[Path, jax.Array, Shape], jax.Array]


def _scalars_only(path: Path, key: jax.Array, shape: Shape) -> jax.Array:
    return key


def _match_shape(path: Path, key: jax.Array, shape: Shape) -> jax.Array:
    return jax.random.split(key, shape) if shape else key


_POLICIES: Final[dict[str, _Apply]] = {"scalars_only": _scalars_only, "match_shape": _match_shape}


def _checked(table: StreamTable, stream: Stream, apply: _Apply, key: jax.Array) -> jax.Array:
    """The new keys of a stream, by a policy."""
    shape: Shape = stream.key.value.shape
    if apply is _scalars_only and shape:
        raise RngError(
            table.label(stream),
            "the stream was split, and one key cannot take the place of many",
            got=f"keys of shape {shape}",
            fix="dx.reseed(model, policy='match_shape', ...)        # or dx.restore_rngs(backups) first",
        )
    made: Any = apply(stream.path, key, shape)
    if not is_key(made) or made.shape != shape:
        raise RngError(
            table.label(stream),
            "the policy gave no keys for this stream",
            expected=f"keys of jax.random of shape {shape}",
            got=describe(made),
            fix="policy=lambda path, key, shape: jax.random.split(key, shape)",
        )
    keys: jax.Array = made
    return keys
