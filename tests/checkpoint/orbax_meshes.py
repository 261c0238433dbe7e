"""The program of `test_orbax.py`: saves sharded arrays and restores them on other meshes of all devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import numpy as np
from meshes import VALUES, check, model_of, sharded

import declax as dx


def restore(folder: Path) -> None:
    for shape, spec in [((4, 2), ("b", "a")), ((8, 1), (None, "a")), ((2, 4), (None, None))]:
        model = model_of(shape, spec, VALUES * 0)
        before = (model.w.value, model.half.value)
        dx.load(folder / "c", into={"model": model}, engine="orbax")
        check(model.w.value, before[0], VALUES)
        check(model.half.value, before[1], VALUES.astype(before[1].dtype))
    abstract = dx.eval_shape(lambda: model_of((2, 4), ("a", "b"), VALUES))
    del abstract.half
    like = sharded((4, 2), ("b", None), VALUES)
    abstract.w.value = jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=like.sharding)
    dx.load(folder / "c", into={"model": abstract}, engine="orbax", strict=False)
    check(abstract.w.value, like, VALUES)


def main(folder: Path) -> None:
    data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 8)))
    keys = jax.random.wrap_key_data(sharded((8, 1), ("a", None), data))
    whole = sharded((2, 4), (None, None), VALUES)
    items = {"model": model_of((2, 4), ("a", "b"), VALUES), "keys": {"k": keys}, "whole": {"w": whole}}
    seen: list[tuple[int, int]] = []
    dx.save(folder / "c", items, engine="orbax", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    written_once = 64 * 6 + 8 * 8  # what each process writes its part of
    assert seen[-1][0] == seen[-1][1] >= written_once // jax.process_count()
    found = dx.load(folder / "c", into={"keys": {"k": keys}}, engine="orbax")["keys"]["k"]
    assert found.sharding == keys.sharding
    for one, other in zip(found.addressable_shards, keys.addressable_shards, strict=True):
        assert (jax.random.key_data(one.data) == jax.random.key_data(other.data)).all()
    restore(folder)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    if len(sys.argv) > 2:
        jax.distributed.initialize(f"localhost:{sys.argv[3]}", 2, int(sys.argv[2]))
        assert len(jax.local_devices()) == len(jax.devices()) // 2
    main(Path(sys.argv[1]))
