"""The digits example: a short run from a fresh process, its claim, and what bad input gets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLE / "train.py"), *map(str, arguments)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120", "MPLBACKEND": "agg"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def config(folder: Path, **changes: str) -> Path:
    """A copy of the example's config with some lines changed."""
    lines = (EXAMPLE / "digits.toml").read_text().splitlines()
    for name, value in changes.items():
        matching = [i for i, line in enumerate(lines) if line.startswith(f"{name} =")]
        assert matching, name
        for index in matching:
            lines[index] = f"{name} = {value}"
    path = folder / "digits.toml"
    path.write_text("\n".join(lines))
    return path


def test_one_epoch_on_some_images(tmp_path: Path) -> None:
    settings = config(tmp_path, examples="320", channels="4", required_accuracy="0.0")
    done = run("--config", settings, "--epochs", "1", "--out", tmp_path / "new" / "report.png")
    assert done.returncode == 0, done.stderr
    assert "first.conv" in done.stdout  # the summary
    assert "4/4" in done.stdout  # the progress bar: 256 images in batches of 64
    assert "on 64 digits" in done.stdout
    assert (tmp_path / "new" / "report.png").read_bytes().startswith(PNG)


def test_the_exit_status_tells_of_an_accuracy_that_is_too_low(tmp_path: Path) -> None:
    settings = config(tmp_path, examples="320", channels="4", required_accuracy="1.01")
    done = run("--config", settings, "--epochs", "1", "--out", tmp_path / "report.png")
    assert done.returncode == 1
    assert "less than the 101.00% that the config requires" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data", "Expected"),
        ("[data]\nsize = 3\n[model]\n[training]", "data: unknown size; the names are examples, seed, shift"),
        ("[data]\n[model]\n", "missing training"),
        ("data = 3\nmodel = 3\ntraining = 3", "data should be DataSettings, and is 3"),
    ],
)
def test_a_bad_config_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    done = run("--config", path)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_missing_config_and_bad_epochs_are_said(tmp_path: Path) -> None:
    assert "No such file" in run("--config", tmp_path / "none.toml").stderr
    done = run("--epochs", "0")
    assert done.returncode == 2
    assert "epochs should be at least 1, and is 0" in done.stderr


@pytest.mark.slow
def test_the_claim_of_the_example(tmp_path: Path) -> None:
    """At least 97 % of the test digits, in under two minutes, start-up and compilation included."""
    started = time.perf_counter()
    done = run("--out", tmp_path / "report.png")
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - started < 120
