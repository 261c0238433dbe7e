"""Models that several processes make together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import jax
import declax as dx

dx.launch.initialize()
mesh, rank = jax.make_mesh((2,), ("data",)), jax.process_index()
dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(0), mesh=mesh)
if rank == 0:  # on its own devices, a process may do as it likes
    own = jax.make_mesh((1,), ("data",), devices=jax.local_devices())
    dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(7), mesh=own)
for make in (
    lambda: dx.init_sharded(lambda: dx.Linear(4, 8, rngs=dx.Rngs(rank)), mesh=mesh),
    lambda: dx.init_sharded(lambda: dx.Linear(4, 8 + 8 * rank, rngs=dx.Rngs(0)), mesh=mesh),
    lambda: dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(rank), mesh=mesh),
):
    try:
        make()
    except dx.errors.ShardingError as error:
        print(error.problem, error.got)
print("done")
"""

METRICS = """
import warnings
import jax
import numpy as np
import declax as dx

dx.launch.initialize()
warnings.simplefilter("always")
mesh, rank = jax.make_mesh((2,), ("data",)), jax.process_index()
rows = jax.NamedSharding(mesh, jax.P("data"))
for make in (dx.metrics.Average, dx.metrics.Welford):
    own, common = make(), make()
    values = np.array([float(rank)], np.float32)
    own.update(values=values)
    dx.jit(lambda metric, values: metric.update(values=values))(
        common, jax.make_array_from_process_local_data(rows, values)
    )
    for metric in (own, common):
        with warnings.catch_warnings(record=True) as found:
            result = metric.compute()
        print(make.__name__, float(result.mean if make is dx.metrics.Welford else result))
        print(*(str(warning.message).partition(",")[0] for warning in found))
"""


SHARED_METRICS = """
import warnings
import jax
import numpy as np
import declax as dx

dx.launch.initialize()
warnings.simplefilter("always")
mesh, rank = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), jax.process_index()
rows, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())
own = np.full((4, 3), float(rank), np.float32)
common = jax.make_array_from_process_local_data(rows, own)
labels = np.zeros(4, np.int32)


class Largest(dx.Metric):
    def __init__(self):
        self.value = dx.metrics.MetricState(jax.numpy.float32(-1.0))

    def update(self, *, values, **_):
        self.value[...] = jax.numpy.maximum(self.value[...], values.max())

    def compute(self):
        return self.value[...]


def told(name, function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            result = function()
        except dx.errors.LayerError as error:
            result = f"{error.where}: {error.problem}"
    print(name, result, [str(warning.message).partition(",")[0] for warning in found])


def after(metric, **batch):
    update = dx.jit(lambda metric, values: metric.update(values=values, logits=values, labels=values[:, 0].astype(int)))
    update(metric, common)
    metric.update(**batch)
    return metric.compute()


def on_mesh(metric, **batch):
    with jax.set_mesh(mesh):
        metric.update(**batch)


for make in (dx.metrics.Average, dx.metrics.Welford, dx.metrics.Accuracy):
    name = make.__name__
    batch = {"logits": own, "labels": labels} if name == "Accuracy" else {"values": own}
    told(f"{name} after", lambda: after(make(), **batch))
    told(f"{name} under set_mesh", lambda: on_mesh(make(), **batch))
told("eager", lambda: (metric := dx.metrics.Average(), metric.update(values=common), float(metric.compute()))[-1])
told("same", lambda: "%.4f" % float(after(dx.metrics.Average(), values=jax.device_put(np.ones(4, np.float32), whole))))
told("number", lambda: "%.4f" % float(after(dx.metrics.Average(), values=1.0)))
several = dx.MultiMetric(largest=Largest(), average=dx.metrics.Average())
several.update(values=common)
told("of all", lambda: {name: float(value) for name, value in several.compute().items()})
several = dx.MultiMetric(largest=Largest(), average=dx.metrics.Average())
several.update(values=own)
told("of one", lambda: {name: float(value) for name, value in several.compute().items()})
model = dx.init_sharded(dx.Linear, 3, 3, rngs=dx.Rngs(0), mesh=mesh)
step = dx.jit(lambda model, metric, x: metric.update(values=model(x)))
told("step", lambda: step(model, dx.metrics.Average(), own))
"""


def launched(program: Path, text: str) -> list[list[str]]:
    """The lines that each of two processes prints."""
    program.write_text(text)
    options = ["--processes", "2", "--devices", "1", "--timeout", "200"]
    command = [sys.executable, "-m", "declax.launch", *options, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return [[line[4:] for line in lines if line.startswith(f"[{process}] ")] for process in range(2)]


def test_processes_that_make_different_models_are_told(tmp_path: Path) -> None:
    for lines in launched(tmp_path / "program.py", PROGRAM):
        assert lines.count("the processes make different values others in 1") == 3, lines
        assert "done" in lines


def test_metrics_of_one_process_are_told_from_those_of_all(tmp_path: Path) -> None:
    for process, lines in enumerate(launched(tmp_path / "program.py", METRICS)):
        for name in ("Average", "Welford"):
            first = lines.index(f"{name} {float(process)}")
            assert lines[first + 1] == f"{name}.compute: this is the value of process {process} alone"
            assert lines[first + 2 : first + 4] == [f"{name} 0.5", ""]


def test_arrays_of_one_process_are_no_batch_of_a_metric_of_all(tmp_path: Path) -> None:
    for process, lines in enumerate(launched(tmp_path / "program.py", SHARED_METRICS)):
        for name, first in {"Average": "values", "Welford": "values", "Accuracy": "logits"}.items():
            problem = f"{first!r} is an array of process {process} alone, and the metric is of all processes"
            text = f"{name}.update: {problem}"
            assert f"{name} after {text} []" in lines, lines
            assert f"{name} under set_mesh {text} []" in lines
        assert "eager 0.5 []" in lines  # the value of all, since the batch was
        means = {"same": (12 + 4) / (24 + 4), "number": (12 + 1) / (24 + 1)}
        assert all(f"{name} {mean:.4f} []" in lines for name, mean in means.items()), lines
        assert "of all {'largest': 1.0, 'average': 0.5} []" in lines
        alone = [f"{name}.compute: this is the value of process {process} alone" for name in ("Largest", "Average")]
        assert f"of one {{'largest': {float(process)}, 'average': {float(process)}}} {alone}" in lines
        assert """step None ["<lambda>: the axis 'data' of the mesh"]""" in lines
