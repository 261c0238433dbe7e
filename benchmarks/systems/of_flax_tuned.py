"""Flax NNX as its experts would run it: `cached_partial`, and no graph where a tree will do."""

from collections.abc import Callable
from functools import partial
from typing import cast

from benchmarks.systems import System
from benchmarks.systems.of_flax import Model, increment, make_graph, make_step, nnx


def _cached(model: Model) -> Callable[[], object]:
    return cast("Callable[[], object]", nnx.cached_partial(nnx.jit(increment, graph=True, graph_updates=True), model))


SYSTEM = System(
    name="flax nnx, tuned",
    make_step=partial(make_step, bind=_cached),
    make_graph=partial(make_graph, graph=False),
)
