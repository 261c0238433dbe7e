"""Weights on four devices: loading keeps shardings, saving gathers; `test_on_devices.py` runs this file."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import declax as dx
from declax import weights as w

MAP: w.WeightMap = {"{i}.weight": w.transpose("blocks[{i}].kernel"), "{i}.bias": "blocks[{i}].bias"}


@dx.dataclass
class Net(dx.Layer):
    blocks = dx.Stacked(dx.Linear(4, 8), 2)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_loading_keeps_shardings_and_saving_gathers(is_abstract, tmp_path):
    source, target = Net(rngs=dx.Rngs(0)), Net(rngs=dx.Rngs(1))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(None, "x", "y"))
    layers = target.blocks.layers
    layers.kernel.value = jax.device_put(layers.kernel.value, sharding)
    target = dx.as_abstract(target) if is_abstract else target
    dx.save_weights(source, tmp_path / "m.safetensors", map=MAP)
    dx.load_weights(target, tmp_path / "m.safetensors", map=MAP)
    kernel = target.blocks.layers.kernel.value
    assert kernel.sharding == sharding
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 2, 4)}
    np.testing.assert_array_equal(kernel, source.blocks.layers.kernel.value)
    dx.save_weights(target, tmp_path / "again.safetensors", map=MAP)
    first, second = (tmp_path / f"{name}.safetensors" for name in ("m", "again"))
    assert first.read_bytes() == second.read_bytes()
