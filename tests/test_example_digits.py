"""The digits example: short runs from fresh processes, its files, its claim, and what bad input gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
FILES = ("cnn.toml", "mlp.toml", "mixer.toml")
PNG = b"\x89PNG\r\n\x1a\n"
SHORT = ("training.epochs=1", "data.examples=320")
OPTAX = "0.2.8"
"""The version whose transformations and schedules the saved schema describes."""


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *map(str, words)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120", "MPLBACKEND": "agg"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return python(EXAMPLE / "train.py", *words)


def test_one_epoch_on_some_images(tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.png"
    done = run(*SHORT, "model.channels=4", "training.required_accuracy=1.01", f"out={out}")
    assert "first.conv" in done.stdout, done.stderr  # the summary
    assert "4/4" in done.stdout  # the progress bar: 256 images in batches of 64
    assert "on 64 digits" in done.stdout
    assert out.read_bytes().startswith(PNG)
    assert "less than the 101.00% that the configuration requires\n" in done.stderr
    assert done.returncode == 1


def test_a_sweep_over_two_fields_ends_in_a_table(tmp_path: Path) -> None:
    words = (*SHORT, "training.required_accuracy=0", f"out={tmp_path / 'report.png'}")
    done = run(str(EXAMPLE / "mlp.toml"), "model.hidden=8,16", "training.seed=0,1", *words)
    assert done.returncode == 0, done.stderr
    _, _, table = done.stdout.partition("4 runs")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [
        [f"model.hidden={hidden},training.seed={seed}", parameters]
        for hidden, parameters in (("8", "682"), ("16", "1,482"))
        for seed in (0, 1)
    ]
    assert [row[3][-1] for row in rows] == ["%"] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"report-{n}.png" for n in (1, 2, 3, 4)]


def test_another_model_is_chosen_by_its_tag(tmp_path: Path) -> None:
    """A sweep over the tag; what a run requires is said of the run."""
    words = ("model.kind=MLP,Mixer", "training.required_accuracy=1.01", f"out={tmp_path / 'report.png'}")
    done = run(str(EXAMPLE / "mixer.toml"), *SHORT, *words)
    assert done.returncode == 1
    assert "blocks[0:2].over_patches.up" in done.stdout
    assert "│ model.kind=MLP   │" in done.stdout
    assert "requires (model.kind=Mixer)" in done.stderr


BAD_LINES: list[tuple[list[str], int, list[str]]] = [
    (["training.epochs=0", "modl=3"], 1, ["training.epochs: the value is out of range", "did you mean 'model'?"]),
    (["model.kind=RNN"], 1, ["command line: model.kind=RNN", "one of CNN, MLP, Mixer"]),
    (["nothing.toml"], 2, ["there is no such file", "nothing.toml"]),
    (["--epochs", "3"], 2, ["unrecognized arguments: --epochs"]),
    (["--help"], 0, []),
]


def test_a_bad_command_line_is_said() -> None:
    """One process for all: most of what a process takes is its imports."""
    code = f"""
import contextlib, io, json, sys
sys.path.insert(0, {str(EXAMPLE)!r})
from train import main
for words in json.loads(sys.argv[1]):
    said, status = io.StringIO(), "ran"
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words)
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, said.getvalue()]))
"""
    done = python("-c", code, json.dumps([words for words, _, _ in BAD_LINES]))
    assert done.returncode == 0, done.stderr
    for (words, status, pieces), line in zip(BAD_LINES, done.stdout.splitlines(), strict=True):
        got, said = json.loads(line)
        assert (got or 0) == status, (words, said)
        assert [piece for piece in pieces if piece not in said] == [], words


@pytest.mark.parametrize("file", FILES)
def test_each_file_is_as_its_schema_has_it(file: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert (EXAMPLE / file).read_text(encoding="utf-8").startswith("#:schema digits.schema.json\n")
    validator = jsonschema.Draft7Validator(json.loads((EXAMPLE / "digits.schema.json").read_text(encoding="utf-8")))
    data = tomllib.loads((EXAMPLE / file).read_text(encoding="utf-8"))
    assert validator.is_valid(data)
    assert not validator.is_valid({**data, "training": {"epochs": "x"}})


def test_the_saved_schema_is_that_of_the_class() -> None:
    optax = pytest.importorskip("optax")
    done = python("-m", "declax", "schema", f"{EXAMPLE / 'settings.py'}:Run")
    made, saved = json.loads(done.stdout), json.loads((EXAMPLE / "digits.schema.json").read_text(encoding="utf-8"))
    if optax.__version__ != OPTAX:  # its functions may have other parameters
        for schema in (made, saved):
            schema["definitions"] = {name: schema["definitions"][name] for name in ("CNN", "MLP", "Mixer", "Data")}
    assert made == saved, "declax schema examples/digits/settings.py:Run -o examples/digits/digits.schema.json"


@pytest.mark.timed
@pytest.mark.parametrize("file", [None, "mlp.toml", "mixer.toml"])
def test_the_claim_of_the_example(file: str | None, tmp_path: Path) -> None:
    """What the file requires (the CNN: 97 %), in under two minutes, start-up and compilation included."""
    started = time.perf_counter()
    done = run(*([str(EXAMPLE / file)] if file else []), f"out={tmp_path / 'report.png'}")
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - started < 120
