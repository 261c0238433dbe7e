"""The program of `test_meshes.py`: saves and restores sharded arrays on several devices, in one or two processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import declax as dx
from declax.checkpoint import arrays

VALUES = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def sharded(mesh_shape: tuple[int, int], spec: tuple[str | None, ...], value: np.ndarray) -> jax.Array:
    devices = np.array(jax.devices()[: mesh_shape[0] * mesh_shape[1]]).reshape(mesh_shape)
    sharding = NamedSharding(jax.sharding.Mesh(devices, ("a", "b")), PartitionSpec(*spec))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def model_of(mesh_shape: tuple[int, int], spec: tuple[str | None, ...], value: np.ndarray) -> dx.Module:
    model = dx.Module()
    model.w = dx.Param(sharded(mesh_shape, spec, value))
    model.half = dx.Param(sharded(mesh_shape, spec, value.astype(jnp.bfloat16)))
    return model


def check(found: jax.Array, like: jax.Array, value: np.ndarray) -> None:
    assert found.sharding == like.sharding, (found.sharding, like.sharding)
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), value[shard.index])


def restore(folder: Path) -> None:
    """Restores on all meshes that this number of devices allows; no part that is read is larger than a shard."""
    count = len(jax.devices())
    copied: list[int] = []
    real = arrays._copied

    def measured(found, index=...):
        part = real(found, index)
        copied.append(part.size)
        return part

    arrays._copied = measured
    for rows in [n for n in (1, 2, 4, 8) if count % n == 0]:
        for spec in [("a", "b"), ("b", "a"), ("a", None), (None, None), (("a", "b"), None)]:
            model = model_of((rows, count // rows), spec, VALUES * 0)
            before = (model.w.value, model.half.value)
            copied.clear()
            dx.load(folder / "c", into={"model": model})
            check(model.w.value, before[0], VALUES)
            check(model.half.value, before[1], VALUES.astype(jnp.bfloat16))
            assert max(copied) == before[0].addressable_shards[0].data.size
    arrays._copied = real


def main(folder: Path, action: str) -> None:
    if action == "save":
        keys = jax.device_put(jax.random.split(jax.random.key(0), 8), sharded((8, 1), ("a",), VALUES[0]).sharding)
        dx.save(folder / "c", {"model": model_of((2, 4), ("a", "b"), VALUES), "keys": {"k": keys}})
        found = dx.load(folder / "c", into={"keys": {"k": keys}})["keys"]["k"]
        assert found.sharding == keys.sharding
        assert (jax.random.key_data(found) == jax.random.key_data(keys)).all()
        restore(folder)
        return
    process, port = int(action), sys.argv[3]
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    assert len(jax.local_devices()) == len(jax.devices()) // 2
    restore(folder)
    try:
        dx.save(folder / f"d{process}", {"model": model_of((2, 4), ("a", "b"), VALUES)})
    except dx.CheckpointError as error:
        print(error)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(Path(sys.argv[1]), sys.argv[2])
