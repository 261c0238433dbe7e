"""The examples of runs: a sweep, a search with Optuna, and a run that wandb follows."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import declax as dx
from declax.config._cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples" / "runs"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield tmp_path
    for name in ("curve", "sweep_optuna", "tracked_wandb"):
        sys.modules.pop(name, None)


def loaded(name: str, needed: str | None = None) -> Any:
    if needed is not None:
        pytest.importorskip(needed)
    module: ModuleType = importlib.import_module(name)
    return module


def test_a_run_learns_the_curve_and_goes_on_from_its_checkpoint() -> None:
    curve = loaded("curve")
    seen: list[int] = []

    def log(step: int, loss: float) -> None:
        seen.append(step)
        if step == 120 and 121 not in seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), dx.cli(curve.Train, [], runs="runs") as run:
        curve.train(run, log)
    seen[:] = [121]
    with dx.cli(curve.Train, ["--resume", run.name], runs="runs") as again:
        loss = curve.train(again, log)
    assert seen[1] == 101
    assert loss < 0.1
    assert json.loads((run.path / "result.json").read_text()) == {"loss": loss}


def test_a_search_makes_a_run_of_each_trial_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = loaded("sweep_optuna", "optuna")
    assert len(found.search(found.Search(trials=2, steps=3)).trials) == 2
    study = found.search(found.Search(trials=3, steps=3))
    assert main(["runs", "--format", "json"]) == 0
    runs = {run["run"]: run for run in json.loads(capsys.readouterr().out)}
    assert {trial.user_attrs["run"] for trial in study.trials} == runs.keys()
    assert {run["status"] for run in runs.values()} == {"complete"}
    for trial in study.trials:
        spec = dx.spec_from_config(sys.modules["curve"].Train, f"runs/{trial.user_attrs['run']}/config.toml")
        assert (spec["rate"], spec["hidden"]) == (trial.params["rate"], trial.params["hidden"])


def test_wandb_follows_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracked = loaded("tracked_wandb", "wandb")
    with dx.cli(tracked.Train, ["steps=3"], runs="runs") as run:
        tracked.main(run)
    (kept,) = (run.path / "wandb").glob("offline-run-*")
    assert run.name in kept.name
