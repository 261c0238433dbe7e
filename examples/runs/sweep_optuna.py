"""Searches for the best run with Optuna. Each trial has the folder of a run, and a search goes on where it ended.

python examples/runs/sweep_optuna.py [trials=20] [folder=runs]
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import declax as dx
from curve import Train, train


@dataclasses.dataclass(kw_only=True)
class Search:
    """A search.

    Attributes:
      trials: how many runs there are in the end, with those of earlier calls.
      steps: of each run.
      folder: of all runs, and of the study.
    """

    trials: int = dx.field(default=20, ge=1)
    steps: int = dx.field(default=200, ge=1)
    folder: str = "runs"


def search(settings: Search) -> optuna.Study:
    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        hidden = trial.suggest_int("hidden", 4, 64, log=True)
        # The words of a command line: the record, `declax runs` and `--rerun` are those of any run.
        words = [f"rate={rate}", f"hidden={hidden}", f"steps={settings.steps}"]
        with dx.cli(Train, words, runs=settings.folder) as run:
            trial.set_user_attr("run", run.name)
            return train(run)

    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="curve",
        storage=JournalStorage(JournalFileBackend(f"{settings.folder}/study.log")),  # without connections to close
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=0),
    )
    study.optimize(objective, n_trials=max(0, settings.trials - len(study.trials)))
    return study


if __name__ == "__main__":
    best = search(dx.cli(Search)).best_trial
    print(f"the best of all runs is {best.user_attrs['run']}: loss {best.value:.4f}, {best.params}")
