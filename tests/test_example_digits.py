"""The digits example: a short run from a fresh process, its claim, and what bad input gets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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
    settings = config(tmp_path, examples="320", channels="4", required_accuracy="1.01")
    done = run("--config", settings, "--epochs", "1", "--out", tmp_path / "new" / "report.png")
    assert "first.conv" in done.stdout, done.stderr  # the summary
    assert "4/4" in done.stdout  # the progress bar: 256 images in batches of 64
    assert "on 64 digits" in done.stdout
    assert (tmp_path / "new" / "report.png").read_bytes().startswith(PNG)
    assert "less than the 101.00% that the config requires" in done.stderr
    assert done.returncode == 1


def test_a_bad_command_line_is_said(tmp_path: Path) -> None:
    done = run("--epochs", "0")
    assert done.returncode == 2
    assert "epochs should be at least 1, and is 0" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data", "Expected"),
        ("[data]\nsize = 3\n[model]\n[training]", "data: unknown size; the names are examples, seed, shift"),
        ("[data]\n[model]\n", "missing training"),
        (
            "[data]\nseed = 0\ntest_fraction = 2\nshift = 1\nexamples = 0\n[model]\n[training]",
            "test_fraction should be b",
        ),
        ("data = 3\nmodel = 3\ntraining = 3", "data should be DataSettings, and is 3"),
        (None, "No such file"),
    ],
)
def test_a_bad_config_is_said(settings: Any, tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(settings.SettingsError, match=message):
        settings.load_settings(path)


def test_the_config_of_the_example_is_read(settings: Any) -> None:
    found = settings.load_settings(EXAMPLE / "digits.toml")
    assert found.training.required_accuracy == 0.97
    assert found.training.learning_rate == 3e-3


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that reads the config, which needs no more than the standard library."""
    spec = importlib.util.spec_from_file_location("digits_settings", EXAMPLE / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_claim_of_the_example(tmp_path: Path) -> None:
    """At least 97 % of the test digits, in under two minutes, start-up and compilation included."""
    started = time.perf_counter()
    done = run("--out", tmp_path / "report.png")
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - started < 120
