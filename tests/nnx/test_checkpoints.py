"""Checkpoints of States: one library restores what the other saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")
ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Orbax


def model_of(nnx: Any, seed: int) -> Any:
    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 2, use_bias=False, rngs=rngs)])
            self.norm = nnx.BatchNorm(2, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    return Model(nnx.Rngs(params=seed, dropout=seed + 1))


def values_of(nnx: Any, node: Any) -> Any:
    """The State without random keys, which Orbax stores apart."""
    return nnx.state(node, nnx.Not(nnx.RngState))


def save(path: Path, state: Any) -> Any:
    """Saves a State, and returns what Orbax restores without a target."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path)


def assert_same(ours: Any, theirs: Any) -> None:
    found, wanted = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (ours, theirs))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        np.testing.assert_array_equal(found[path], value)


def test_both_write_one_layout(tmp_path: Path) -> None:
    raw = [save(tmp_path / nnx.__name__, values_of(nnx, model_of(nnx, 0))) for nnx in (dx, flax_nnx)]
    assert_same(*raw)
    assert set(raw[0]["layers"]["0"]["kernel"]) == {"value"}


@pytest.mark.parametrize(("writer", "reader"), [(dx, flax_nnx), (flax_nnx, dx), (dx, dx)], ids=str)
def test_one_restores_what_the_other_saved(writer: Any, reader: Any, tmp_path: Path) -> None:
    saved, model = model_of(writer, 0), model_of(reader, 5)
    save(tmp_path / "model", values_of(writer, saved))
    abstract = reader.eval_shape(lambda: model_of(reader, 0))
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "model", values_of(reader, abstract))
    assert type(restored) is reader.State
    assert isinstance(restored["layers"][0]["kernel"], reader.Param)
    reader.update(model, restored)
    assert_same(values_of(writer, saved), values_of(reader, model))


@pytest.mark.slow
def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    def trained(nnx: Any) -> Any:
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(lambda m: (m(jnp.ones((1, 2))) ** 2).sum())(model))
        return optimizer

    with jax.numpy_dtype_promotion("standard"):
        ours, peers = trained(dx), trained(flax_nnx)
        raw = [save(tmp_path / nnx.__name__, nnx.state(o)) for nnx, o in ((dx, ours), (flax_nnx, peers))]
        np.testing.assert_equal(jax.tree.structure(raw[0]), jax.tree.structure(raw[1]))
        fresh = dx.Optimizer(dx.Linear(2, 3, rngs=dx.Rngs(0)), optax.adam(0.1), wrt=dx.Param)
        with ocp.StandardCheckpointer() as checkpointer:
            dx.update(fresh, checkpointer.restore(tmp_path / "flax.nnx", dx.state(fresh)))
    assert_same(dx.state(fresh), flax_nnx.state(peers))
