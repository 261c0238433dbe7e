"""Makes files of weights and a checkpoint, and loads them into shards in a new process, which says what memory it took.

PYTHONPATH=src python tests/bounded.py FOLDER MEGABYTES [DEVICES]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import declax as dx
from declax.checkpoint.files import OpenFile
from declax.checkpoint.safetensors import write_index, write_tensors
from declax.weights import WeightMap, concatenate, split, transpose


class Net(dx.Module):
    """Parameters of four tensors of one size: transposed, fused, joined, and as the file has it."""

    def __init__(self, width: int, rngs: dx.Rngs) -> None:
        self.up = dx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.query = dx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.key = dx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.gate = dx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.table = dx.Embed(width, 4 * width, rngs=rngs)


def model_of(width: int) -> Net:
    return dx.eval_shape(lambda: Net(width, dx.Rngs(0)))


NAMES: WeightMap = {
    "up.weight": transpose("up.kernel"),
    "qk.weight": split(transpose("query.kernel"), transpose("key.kernel"), axis=0),
    ("gate.0", "gate.1"): concatenate(transpose("gate.kernel"), axis=0),
    "table": "table.embedding",
}


def make(folder: Path, megabytes: int) -> None:
    """A folder of three files with an index, and a checkpoint of the same sizes."""
    width = int((megabytes * (1 << 20) / 4 / 16) ** 0.5) // 64 * 64
    parts: list[dict[str, tuple[int, int]]] = [
        {"up.weight": (4 * width, width)},
        {"qk.weight": (4 * width, width), "gate.0": (2 * width, width)},
        {"gate.1": (2 * width, width), "table": (width, 4 * width)},
    ]
    weights = folder / "weights"
    weights.mkdir(parents=True)
    places = {}
    for number, shapes in enumerate(parts):
        file = f"model-{number:05}.safetensors"
        write_tensors(weights / file, {name: content(shape) for name, shape in shapes.items()})
        places |= dict.fromkeys(shapes, file)
    write_index(weights / "model.safetensors.index.json", places, 0)
    model = model_of(width)
    dx.load_weights(model, weights, map=NAMES)
    dx.save(folder / "checkpoint", {"model": model}, extra=[Net])
    (folder / "width").write_text(str(width))


def content(shape: tuple[int, int]) -> Any:
    """A tensor in which each place has a number of its own, nearly."""
    rows, columns = np.arange(shape[0], dtype=np.float32)[:, None], np.arange(shape[1], dtype=np.float32)
    return rows + columns / (shape[1] + 1)


def check(model: Any, width: int) -> None:
    """Compares some columns of each parameter."""
    places = np.array([0, 1, width - 1])
    rows, columns = places.astype(np.float32)[:, None], places.astype(np.float32) / np.float32(width + 1)
    for name, start in {"up": 0, "query": 0, "key": 2 * width, "gate": 0}.items():
        found = np.asarray(getattr(model, name).kernel.value)[places][:, places]
        np.testing.assert_array_equal(found, (rows + start + columns).T)
    last = np.asarray(model.gate.kernel.value)[:, -1]
    np.testing.assert_array_equal(last, 2 * width - 1 + np.arange(width, dtype=np.float32) / np.float32(width + 1))
    np.testing.assert_array_equal(np.asarray(model.table.embedding.value), content((width, 4 * width)))


def load(folder: Path, kind: str) -> dict[str, float]:
    """Loads into shards over all devices, and returns the memory beside the result by that of the largest tensor."""
    width = int((folder / "width").read_text())
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    by_rows, by_columns = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("x", None), (None, "x")))
    model = model_of(width)
    for number, (_, variable) in enumerate(dx.iter_graph(model)):
        if isinstance(variable, dx.Variable):
            leaf, sharding = variable.value, by_columns if number % 2 else by_rows
            variable.value = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    read = []
    into = OpenFile.read_into

    def counted(self: OpenFile, buffer: Any, start: int) -> None:
        read.append(len(buffer))
        into(self, buffer, start)

    OpenFile.read_into = counted  # type: ignore[method-assign]  # counts
    before = resident()
    if kind == "weights":
        dx.load_weights(model, folder / "weights", map=NAMES)
    else:
        dx.load(folder / "checkpoint", into={"model": model}, verify=False)
    peak = most_resident()
    leaves = jax.tree.leaves(dx.as_pure(dx.state(model)))
    sizes = [leaf.nbytes for leaf in leaves]
    assert all(len(leaf.sharding.device_set) == len(jax.devices()) for leaf in leaves)
    check(model, width)
    return {
        "result": sum(sizes),
        "largest": max(sizes),
        "beside": (peak - before - sum(sizes)) / max(sizes),
        "read": sum(read) / sum(sizes),
    }


def resident() -> int:
    """The memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_resident() -> int:
    """The most memory that this process has had since it began; `getrusage` counts that of its parent too."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measured(folder: Path, kind: str, devices: int) -> dict[str, float]:
    """What `load` says in a new process."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "load", str(folder), kind]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if sys.argv[1] == "load":
        print(json.dumps(load(Path(sys.argv[2]), sys.argv[3])))
    elif sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        subprocess.run([sys.executable, __file__, "make", *sys.argv[1:3]], check=True)
        for kind in ("weights", "checkpoint"):
            print(kind, measured(Path(sys.argv[1]), kind, int(sys.argv[3]) if len(sys.argv) > 3 else 4))
