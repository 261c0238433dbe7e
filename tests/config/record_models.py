"""Classes, and random specs of them, with all that a configuration can say."""

from __future__ import annotations

import enum
from typing import Any, Literal

import jax.numpy as jnp
from hypothesis import strategies as st

import declax as dx
from declax._typing import Dtype, Initializer


class Order(enum.Enum):
    FIRST = "first"
    LAST = 2


@dx.dataclass
class Feed(dx.Module):
    dim: int = dx.field(default=2)
    hidden: int = 4 * dim
    scale: float = dx.static(default=1.0, allow_nan=True)
    init: Initializer = dx.static(default=dx.initializers.zeros)


@dx.dataclass
class Mixer(dx.Module):
    dim: int = dx.field(default=2)
    order: Order = Order.FIRST
    dtype: Dtype | None = None
    side: Literal["pre", "post"] | None = "pre"


@dx.dataclass
class Block(dx.Module):
    dim: int = dx.field(default=2)
    mixer: Feed | Mixer | None = None
    feed: Feed = Feed(dim)
    rates: tuple[float, ...] = ()


@dx.dataclass
class Model(dx.Module):
    dim: int = dx.field(default=2)
    depth: int = dx.field(default=2)
    first: Feed | None = None
    blocks: list[Block] = dx.field(default_factory=list)
    named: dict[str, Feed | Mixer] = dx.field(default_factory=dict)
    kept: dx.Spec[Block] | None = None
    shared: Feed | None = None
    notes: Any = dx.static(default=None)
    text: str | None = "text"
    repeated: list[Block] = dx.repeat(depth, Block(dim))
    last: Block = Block(dim, rates=(0.5,))


def _some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


numbers = st.integers(1, 5)
texts = st.text(max_size=6) | st.sampled_from(["null", "\U0002ec38", "1", "true", "$ref", "a.b", "\n", "~", "3e5"])
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3).filter(lambda key: not key.startswith("$"))
notes = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys.filter(lambda key: key != "kind"), inner),
    max_leaves=4,
)
feeds = _some(
    dim=numbers,
    hidden=numbers,
    scale=st.floats(),
    init=st.sampled_from([dx.initializers.normal(0.5), dx.initializers.ones]),
).map(lambda said: dx.spec(Feed, **said))
mixers = _some(
    dim=numbers,
    order=st.sampled_from(Order),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16, None]),
    side=st.sampled_from(["pre", "post", None]),
).map(lambda said: dx.spec(Mixer, **said))
blocks = _some(
    dim=numbers,
    mixer=st.none() | feeds | mixers,
    feed=feeds | _some(hidden=numbers, scale=st.just(2.0)),
    rates=st.lists(st.sampled_from([0.0, -0.0, 0.1, 1e300]), max_size=2).map(tuple),
).map(lambda said: dx.spec(Block, **said))
models = _some(
    dim=numbers,
    depth=st.integers(0, 3),
    first=feeds,
    blocks=st.lists(blocks, max_size=3),
    named=st.dictionaries(keys, feeds | mixers, max_size=2),
    kept=st.none() | blocks,
    notes=notes,
    text=st.none() | texts,
    repeated=_some(feed=_some(hidden=numbers), rates=st.just((0.25,))),
    last=_some(dim=numbers, mixer=mixers),
).map(lambda said: dx.spec(Model, **said, **({"shared": dx.Ref("/first")} if "first" in said else {})))
