"""Sweeps: their values in words and files, which runs they make, and running these in processes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import declax as dx
from declax.config._cli.main import main
from declax.config._runs import clusters, commands
from declax.config._runs.folders import folders_in
from declax.config._sources.sweeps import Plan, expand
from declax.config._sources.words import parse_word
from declax.errors import ConfigError, MissingExtraError

with contextlib.suppress(ImportError):
    importlib.import_module("submitit")  # it sets up logging, which must not happen while a test captures the output


@dataclasses.dataclass
class Train:
    rate: float = 0.1
    steps: int = 3
    name: str = "a"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(commands.LAUNCHED, raising=False)
    return tmp_path


def values(word: str) -> tuple[Any, ...]:
    return parse_word(word).values


def names(*words: str, **plan: Any) -> list[str]:
    return [run.name for run in expand([parse_word(word) for word in words], Plan(**plan))]


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int = 1, **options: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        dx.cli(Train, list(words), **(options or {"sweep": True}))
    assert ended.value.code == status
    return capsys.readouterr().err


# --- values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("n=range(3)", (0, 1, 2)),
        ("n=range(64,257,64)", (64, 128, 192, 256)),
        ("n=range(3, 0, -1)", (3, 2, 1)),
        ("n=lin(0.0,0.5,3)", (0.0, 0.25, 0.5)),
        ("n=lin(1,9,3)", (1, 5, 9)),
        ("n=lin(1,2,3)", (1.0, 1.5, 2.0)),
        ("n=lin(3,9,1)", (3,)),
        ("n=log(1e-4,1e-1,4)", (1e-4, 1e-3, 1e-2, 1e-1)),
        ("n=log(1,1000,4)", (1, 10, 100, 1000)),
        ("n=5,range(2)", (5, 0, 1)),
        # These are texts, as before.
        ("n='log(1,2,3)'", ("log(1,2,3)",)),
        ("n=f(1,2)", ("f(1,2)",)),
        ("n=Log(1,2,3)", ("Log(1,2,3)",)),
        ("n=[log(1,2,3)]", (["log(1,2,3)"],)),
    ],
)
def test_functions_give_values(word: str, expected: tuple[Any, ...]):
    assert values(word) == expected
    assert list(map(type, values(word))) == list(map(type, expected))


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("n=range()", "range(start, stop, step), with integers"),
        ("n=range(0.5)", "range(start, stop, step), with integers"),
        ("n=range(1,9,0)", "range(start, stop, step), with integers"),
        ("n=range(9,1)", "range(start, stop, step), with integers"),
        ("n=range(1000000000000)", "range(start, stop, step), with integers"),
        ("n=lin(0,1)", "lin(first, last, count)"),
        ("n=lin(0,1,0)", "lin(first, last, count)"),
        ("n=lin(0,inf,3)", "lin(first, last, count)"),
        ("n=lin(0,1,1000000000)", "lin(first, last, count)"),
        ("n=log(0,1,3)", "log(first, last, count), above 0"),
        ("n=log(a,b,3)", "log(first, last, count), above 0"),
        ("n=uniform(1,0)", "uniform(low, high)"),
        ("n=loguniform(0,1)", "loguniform(low, high), above 0"),
        ("n=randint(0.5,1)", "randint(low, high), with integers; both can come"),
        ("n=choice()", "choice(a, b, ...)"),
    ],
)
def test_wrong_functions_are_refused(word: str, form: str):
    with pytest.raises(ConfigError, match="these are no values of a sweep") as caught:
        parse_word(word)
    assert caught.value.expected == form


def test_random_values_depend_on_their_path_and_the_seed():
    few, many = names("rate=uniform(0,1)", samples=3), names("rate=uniform(0,1)", samples=5)
    assert many[:3] == few
    assert [name.split(",")[0] for name in names("rate=uniform(0,1)", "steps=randint(1,9)", samples=5)] == many
    assert names("rate=uniform(0,1)", samples=3, seed=1) != few
    drawn = [run.chosen[0][1] for run in expand([parse_word("n=loguniform(1e-4,1e-1)")], Plan(samples=400))]
    assert all(1e-4 <= value <= 1e-1 for value in drawn)
    assert 0.4 < sum(math.log10(value) < -2.5 for value in drawn) / 400 < 0.6
    drawn = [run.chosen[0][1] for run in expand([parse_word("n=choice(a, b)")], Plan(samples=50))]
    assert set(drawn) == {"a", "b"}
    drawn = [run.chosen[0][1] for run in expand([parse_word("n=randint(1,3)")], Plan(samples=50))]
    assert set(drawn) == {1, 2, 3}


def test_random_values_are_drawn_together_and_combined_with_others():
    found = names("rate=uniform(0,1)", "steps=1,2", "n=uniform(0,1)", samples=3)
    assert len(found) == 6
    assert len({name.split(",")[0] for name in found}) == 3


def test_values_that_go_together():
    words = ("rate=1,2", "steps=10,20", "name=a,b")
    assert names(*words, zipped=(("rate", "steps"),)) == [
        "rate=1,steps=10,name=a",
        "rate=1,steps=10,name=b",
        "rate=2,steps=20,name=a",
        "rate=2,steps=20,name=b",
    ]
    assert len(names(*words, zipped=(("name", "rate", "steps"),))) == 2
    assert names("a.0=1,2", "b=3,4", zipped=(("a[0]", "b"),)) == ["a.0=1,b=3", "a.0=2,b=4"]


@pytest.mark.parametrize(
    ("words", "plan", "message"),
    [
        (["rate=uniform(0,1)"], {}, "nobody says how many random values there are"),
        (["rate=uniform(0,1)"], {"samples": 0}, "--samples: not a number of values"),
        (["rate=1,2"], {"samples": 2}, "the number of random values is given, and no value is random"),
        (["rate=1,uniform(0,1)"], {"samples": 2}, "random values stand beside others"),
        (["rate=1,2", "steps=1,2,3"], {"zipped": (("rate", "steps"),)}, "are not equally many"),
        (["rate=1,2"], {"zipped": (("rate", "stesp"),)}, "no values of a sweep are given for a path of --zip"),
        (["a=1,2", "b=1,2", "c=1,2"], {"zipped": (("a", "b"), ("b", "c"))}, "a path is in two groups of --zip"),
        (["a=range(9000)", "b=range(9000)"], {}, "the sweep: it has too many runs"),
    ],
)
def test_plans_that_are_wrong(words: list[str], plan: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        names(*words, **plan)


def test_a_script_takes_the_options_of_a_sweep():
    words = ["rate=uniform(0,1)", "steps=1,2", "name=a,b", "--samples", "2", "--sweep-seed", "5", "--zip", "steps,name"]
    found = dx.cli(Train, words, sweep=True)
    assert [(run.config.steps, run.config.name) for run in found] == [(1, "a"), (2, "b")] * 2
    assert found[0].config.rate == found[1].config.rate != found[2].config.rate


def test_functions_are_values_of_one_object_nowhere_else():
    with pytest.raises(ConfigError, match="a word has several values"):
        dx.from_config(Train, "rate=log(1,10,2)")
    with pytest.raises(ConfigError, match="nobody says how many random values"):
        dx.from_config(Train, "rate=uniform(0,1)")


# --- tables of files ---------------------------------------------------------------------

TABLE = """
name = "x"

["$sweep"]
rate = { log = [1e-3, 1e-1, 3] }
"steps" = [1, 2, 3]
"$zip" = ["rate", "steps"]
"""


def test_a_file_has_a_sweep(folder: Path):
    (folder / "run.toml").write_text(TABLE)
    assert [run.config for run in dx.cli(Train, ["run.toml"], sweep=True)] == [
        Train(0.001, 1, "x"),
        Train(0.01, 2, "x"),
        Train(0.1, 3, "x"),
    ]
    (folder / "run.json").write_text(json.dumps({"$sweep": {"steps": {"range": 3}, "name": ["a", "b"]}}))
    assert len(dx.cli(Train, ["run.json"], sweep=True)) == 6


def test_words_win_over_the_sweep_of_a_file(folder: Path):
    (folder / "run.toml").write_text('["$sweep"]\nrate = [1, 2]\nsteps = [3, 4]')
    (folder / "more.toml").write_text('["$sweep"]\nsteps = [5]')
    found = dx.cli(Train, ["run.toml", "more.toml", "rate=7"], sweep=True)
    assert [(run.config.rate, run.config.steps) for run in found] == [(7, 5)]


def test_a_file_has_random_values(folder: Path):
    (folder / "run.toml").write_text('["$sweep"]\nrate = { uniform = [0, 1] }\n"$samples" = 4\n"$seed" = 3')
    found = dx.cli(Train, ["run.toml"], sweep=True)
    assert len(found) == 4
    assert dx.cli(Train, ["rate=uniform(0,1)", "--samples", "4", "--sweep-seed", "3"], sweep=True).names == found.names
    assert len(dx.cli(Train, ["run.toml", "--samples", "2"], sweep=True)) == 2


def test_all_mistakes_of_a_sweep_are_in_one_report(folder: Path, capsys: pytest.CaptureFixture[str]):
    text = """
stepz = 3
["$sweep"]
rate = { lug = [1, 2, 3] }
steps = 4
name = []
"a..b" = [1]
"$zap" = 1
"$samples" = "many"
"""
    (folder / "run.toml").write_text(text)
    said = refused(capsys, "run.toml")
    for line in (
        "run.toml:2:1 stepz: Train has no parameter 'stepz'",
        "run.toml:4:1 $sweep.rate: a sweep has no function 'lug'",
        "did you mean 'log'?",
        "run.toml:5:1 $sweep.steps: these are no values of a sweep",
        "run.toml:6:1 $sweep.name: these are no values of a sweep",
        "run.toml:7:1 $sweep.'a..b': not a path of a value",
        "run.toml:8:1 $sweep.$zap: a sweep has no such key",
        "run.toml:9:1 $sweep.$samples: not a number",
    ):
        assert line in said
    (folder / "run.toml").write_text('"$sweep" = 3')
    assert "the sweep has to be a table" in refused(capsys, "run.toml")
    (folder / "run.toml").write_text('["$sweep"]\n"$zip" = 3')
    assert "not paths that go together" in refused(capsys, "run.toml")


def test_wrong_values_of_a_sweep_are_told_before_a_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "run.toml").write_text('["$sweep"]\nsteps = [1, "high"]')
    assert "run.toml:2:1" in refused(capsys, "run.toml", runs="runs")
    assert not (folder / "runs").exists()


def test_a_sweep_of_a_file_is_refused_where_one_object_is_made(folder: Path):
    (folder / "run.toml").write_text('["$sweep"]\nsteps = [1, 2]')
    with pytest.raises(ConfigError, match="a word has several values"):
        dx.from_config(Train, "run.toml")


def test_files_with_sweeps_are_edited_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "models.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Train:\n    rate: float = 0.1\n    steps: int = 3\n"
    )
    (folder / "run.toml").write_text('steps = 2\n["$sweep"]\nrate = [1, 2]\n')
    (folder / "other.toml").write_text('steps = 4\n["$sweep"]\nrate = [1, 2]\n')
    assert main(["diff", "models.py:Train", "run.toml", "other.toml"]) == 0
    assert "steps: 2 -> 4" in capsys.readouterr().out
    assert main(["migrate", "models.py:Train", "run.toml"]) == 0
    assert main(["set", "models.py:Train", "run.toml", "steps=7"]) == 0
    assert (folder / "run.toml").read_text() == 'steps = 7\n["$sweep"]\nrate = [1, 2]\n'


# --- processes -----------------------------------------------------------------------------

SCRIPT = """
    import dataclasses, sys, time
    import declax as dx

    @dataclasses.dataclass
    class Train:
        rate: float = 0.1
        steps: int = 3

    if __name__ == "__main__":
        with dx.cli(Train, {argv}, runs="runs") as run:
            print("rate", run.config.rate, flush=True)
            (run.path / "began").touch()
            try:
                for step in range(run.config.steps):
                    time.sleep(0.01)
                if run.config.steps == 0:
                    sys.exit("no steps")
            finally:
                (run.path / "cleaned").touch()
"""


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT).format(argv=None))
    return path


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def statuses() -> list[str]:
    return sorted(folder.status for folder in folders_in(Path("runs")))


@pytest.mark.slow
def test_a_sweep_runs_in_processes_and_goes_on(script: Path):
    first = ran("train.py", "rate=0.1,0.2", "steps=1,0", "--jobs", "2")
    assert first.returncode == 1, first.stderr
    assert "4 runs: 4 to run" in first.stdout
    assert statuses() == ["complete", "complete", "failed", "failed"]
    for found in folders_in(Path("runs")):
        assert (found.path / "output.txt").read_text().startswith("rate 0.")
    second = ran("train.py", "rate=0.1,0.2,0.3", "steps=1")
    assert second.returncode == 0, second.stderr
    assert "3 runs: 2 complete, 1 to run" in second.stdout
    third = ran("train.py", "rate=0.1,0.2,0.3", "steps=1")
    assert (third.returncode, third.stdout) == (0, "3 runs: 3 complete\n")
    fourth = ran("train.py", "rate=0.1,0.2", "steps=1", "--seed", "4")
    assert "2 runs: 2 to run" in fourth.stdout
    assert len(folders_in(Path("runs"))) == 7


@pytest.mark.slow
def test_a_module_is_executed_again_as_a_module(script: Path, folder: Path):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    script.rename(folder / "package" / "__main__.py")
    found = ran("-m", "package", "rate=0.1,0.2", "steps=1")
    assert found.returncode == 0, found.stdout + found.stderr
    assert statuses() == ["complete", "complete"]


@pytest.mark.slow
def test_a_script_with_words_of_its_own_does_not_launch_itself_for_ever(script: Path):
    script.write_text(textwrap.dedent(SCRIPT).format(argv='["rate=0.1,0.2"]'))
    found = ran("train.py")
    assert found.returncode == 1
    assert statuses() == ["prepared", "prepared"]
    assert "gives dx.cli other words than those of its process" in found.stdout
    output = (folders_in(Path("runs"))[0].path / "output.txt").read_text()
    assert "its script does not pass on its words" in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_runs(script: Path, number: signal.Signals):
    process = subprocess.Popen([sys.executable, "train.py", "rate=1,2,3", "steps=100000", "--jobs", "2"])
    until = time.monotonic() + 60
    while len(list(Path("runs").glob("*/began"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert statuses() == ["killed", "killed", "prepared"]
    assert len(list(Path("runs").glob("*/cleaned"))) == 2
    again = ran("train.py", "rate=1,2,3", "steps=100000", "--show")
    assert again.returncode == 0
    assert len(folders_in(Path("runs"))) == 3


@pytest.mark.slow
def test_submitit_runs_a_sweep(script: Path):
    pytest.importorskip("submitit")
    found = ran("train.py", "rate=0.1,0.2", "steps=1", "--launch", "local", "--launch-option", "timeout_min=5")
    assert found.returncode == 0, found.stdout + found.stderr
    assert statuses() == ["complete", "complete"]
    assert found.stdout.count("job ") == 2
    failing = ran("train.py", "steps=0", "--launch", "local")
    assert failing.returncode == 1
    assert statuses() == ["complete", "complete", "failed"]
    name = next(one.path.name for one in folders_in(Path("runs")) if one.status == "failed")
    again = ran("train.py", "--resume", name, "steps=1", "--launch", "local")
    assert again.returncode == 0, again.stderr
    assert statuses() == ["complete"] * 3


def test_options_of_launching_that_are_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (folder / "train.py").touch()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert "--jobs: not a number of runs" in refused(capsys, "--jobs", "0", status=2, runs="runs")
    words = ["rate=1,2", "--launch", "local", "--launch-option"]
    monkeypatch.setattr(sys, "argv", ["nowhere.py"])
    assert "this process has none" in refused(capsys, "rate=1,2", status=2, runs="runs")
    assert not (folder / "runs").exists()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"declax\[slurm\]"):
        clusters.executor_of("slurm", folder, 1, [])
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    pytest.importorskip("submitit")
    assert "not a name with a value" in refused(capsys, *words, "fast", status=2, runs="runs")
    assert "submitit refuses it" in refused(capsys, *words, "nonsense=1", status=2, runs="runs")
    monkeypatch.setenv("PATH", "")
    assert "submitit finds no such cluster here" in refused(capsys, "--launch", "slurm", status=2, runs="runs")
    assert folders_in(folder / "runs") == []


@dataclasses.dataclass
class Pooled:
    jobs: int = 1
    samples: int = 1


def test_options_with_the_names_of_fields_do_not_pass_for_these(capsys: pytest.CaptureFixture[str]):
    for words, fix, status in ((["--jobs", "4"], "jobs=4", 2), (["--samples", "4"], "no value is random", 1)):
        with pytest.raises(SystemExit) as ended:
            dx.cli(Pooled, words, runs="runs")
        assert ended.value.code == status
        assert fix in capsys.readouterr().err
    with dx.cli(Pooled, ["jobs=4", "samples=3"], runs="runs") as run:
        assert run.config == Pooled(4, 3)


def test_the_command_of_a_job_is_sent_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    (folder / "train.py").touch()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    job = clusters.Job(Path("runs/ab"))
    assert job.command == [sys.executable, "train.py", "--resume", "runs/ab"]
    assert type(job.checkpoint()).__name__ == "DelayedSubmission"
    assert os.environ.get(commands.LAUNCHED) is None
