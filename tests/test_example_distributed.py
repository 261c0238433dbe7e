"""The example of several processes: its claim, and its files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "distributed"


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *map(str, words)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=700, check=False)


def test_two_processes_have_the_losses_of_one() -> None:
    done = python(EXAMPLE / "distributed.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes, 2 devices: loss" in done.stdout


def test_a_difference_is_found() -> None:
    words = ("steps=2", "batch_size=2", "length=8", "model.width=8", "model.depth=1", "allowed_difference=0")
    done = python(EXAMPLE / "distributed.py", *words, "processes=1", "devices=2")
    differs = "differ by at most 0.0e+00" not in done.stdout
    assert done.returncode == int(differs), done.stdout + done.stderr


def test_a_process_that_fails_is_an_error() -> None:
    done = python(EXAMPLE / "distributed.py", "model.heads=5")
    assert done.returncode == 1
    assert "process 0 of 1 ended with status 1:\nTraceback" in done.stderr


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    """With the examples and the losses of one process that was not interrupted."""

    def steps(folder: str, processes: int, last: int) -> list[tuple[str, str, str]]:
        options = ["--processes", str(processes), "--devices", "1"]
        done = python("-m", "declax.launch", *options, EXAMPLE / "resume.py", tmp_path / folder, str(last))
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"^\[0\] step (\d+): loss (\S+), examples (.*)$", done.stdout, re.MULTILINE)

    resumed = [*steps("run", 2, 2), *steps("run", 4, 4), *steps("run", 1, 5)]
    alone = steps("alone", 1, 5)
    assert [number for number, _, _ in alone] == list("12345")
    for (number, loss, examples), (other, other_loss, other_examples) in zip(resumed, alone, strict=True):
        assert (number, examples) == (other, other_examples)
        assert float(loss) == pytest.approx(float(other_loss), rel=1e-5)


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
