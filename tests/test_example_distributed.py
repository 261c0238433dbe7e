"""The example of several processes: its launcher, its claim, and its files."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("rich")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "distributed"


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *map(str, words)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=700, check=False)


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("launching")


def test_two_processes_have_the_losses_of_one() -> None:
    done = python(EXAMPLE / "distributed.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes, 2 devices: loss" in done.stdout


def test_a_difference_is_found() -> None:
    words = ("steps=2", "batch_size=2", "length=8", "model.width=8", "model.depth=1", "allowed_difference=0")
    done = python(EXAMPLE / "distributed.py", *words, "processes=1", "devices=2")
    differs = "differ by at most 0.0e+00" not in done.stdout
    assert done.returncode == int(differs), done.stdout + done.stderr


def test_a_process_that_fails_ends_the_others(launching: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nassert os.environ['PROCESS_ID'] != '1', 'a bug'\ntime.sleep(300)\n")
    started = time.monotonic()
    with pytest.raises(launching.LaunchError, match=r"process 1 of 2 ended with status 1\n(.|\n)*a bug"):
        launching.launch([str(program)], processes=2)
    assert time.monotonic() - started < 100


def test_a_process_that_fails_while_others_compute_ends_them(launching: ModuleType, tmp_path: Path) -> None:
    """JAX lets the one that fails wait for the others, which wait for it."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.append({str(EXAMPLE)!r})\n"
        "import jax, launching, numpy as np\n"
        "launching.join()\n"
        "rows = jax.NamedSharding(jax.make_mesh((2,), ('data',)), jax.P('data'))\n"
        "x = jax.make_array_from_process_local_data(rows, np.ones(1))\n"
        "for step in range(3):\n"
        "    assert step < 2 or jax.process_index() != 1, 'a bug'\n"
        "    print(float(x.sum()), flush=True)\n"
    )
    with pytest.raises(launching.LaunchError, match=r"2\.0\n2\.0\n(.|\n)*a bug"):
        launching.launch([str(program)], processes=2, seconds=200)


def test_processes_that_make_different_models_are_told(launching: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.append({str(EXAMPLE)!r})\n"
        "import jax, launching, declax as dx\n"
        "launching.join()\n"
        "mesh, rank = jax.make_mesh((2,), ('data',)), jax.process_index()\n"
        "dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(0), mesh=mesh)\n"
        "own = jax.make_mesh((1,), ('data',), devices=jax.local_devices())\n"
        "if rank == 0: dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(7), mesh=own)\n"
        "makes = lambda: dx.Linear(4, 8, rngs=dx.Rngs(rank)), lambda: dx.Linear(4, 8 + 8 * rank, rngs=dx.Rngs(0))\n"
        "for make in makes:\n"
        "    try: dx.init_sharded(make, mesh=mesh)\n"
        "    except dx.errors.ShardingError as error: print(error)\n"
        "try: dx.init_sharded(dx.Linear, 4, 8, rngs=dx.Rngs(rank), mesh=mesh)\n"
        "except dx.errors.ShardingError as error: print(error)\n"
    )
    for printed in launching.launch([str(program)], processes=2, seconds=200):
        assert printed.count("init_sharded: the processes make different values") == 3, printed


def test_processes_end_in_time(launching: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(300)\n")
    with pytest.raises(launching.LaunchError, match="process 0 of 2 took too long\n--- process 0:\nwaiting"):
        launching.launch([str(program)], processes=2, seconds=5)


def test_the_file_is_as_its_schema_has_it() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = (EXAMPLE / "distributed.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema distributed.schema.json\n")
    schema = json.loads((EXAMPLE / "distributed.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert validator.is_valid(tomllib.loads(text))
    assert not validator.is_valid({**tomllib.loads(text), "steps": "x"})
    done = python("-m", "declax", "schema", f"{EXAMPLE / 'distributed_run.py'}:Run")
    file = "examples/distributed/distributed"
    assert json.loads(done.stdout) == schema, f"declax schema {file}_run.py:Run -o {file}.schema.json"
