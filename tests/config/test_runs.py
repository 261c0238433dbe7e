"""Folders of runs: what they hold, their states, locks, resuming and running anew."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import declax as dx
from declax.config._cli.main import main
from declax.config._runs import locks, starting
from declax.config._runs.folders import find_folder, folders_in, make_folder
from declax.config._runs.locks import Lock, holder_of
from declax.config._runs.provenance import git_state, script_folder
from declax.config._runs.teams import Team


@dataclasses.dataclass
class Train:
    rate: float = 0.1
    steps: int = 3


@dataclasses.dataclass
class Seeded:
    seed: int = 0


class Noisy(dx.Module):
    def __init__(self, n: int = 2, *, rngs: dx.Rngs) -> None:
        if n == 13:
            raise dx.errors.ConstructionError("Noisy.n", "no such luck")
        self.w = dx.Param(rngs.params.normal((n,)))


@dataclasses.dataclass
class Built:
    model: Noisy
    rate: float = 0.1


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(*words: str, target: type[Any] = Train, **options: Any) -> dx.Run[Any]:
    return dx.cli(target, list(words), runs="runs", **options)


def completed(*words: str, target: type[Any] = Train, **options: Any) -> dx.Run[Any]:
    with begun(*words, target=target, **options) as run:
        pass
    return run


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2, target: type[Any] = Train) -> str:
    """What a command line that is refused prints."""
    with pytest.raises(SystemExit) as ended:
        begun(*words, target=target)
    assert ended.value.code == status
    return capsys.readouterr().err


def about(run: dx.Run[Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "run.json").read_text())
    return found


# --- what a folder holds -----------------------------------------------------------------


def test_a_run_has_a_folder_with_its_exact_record():
    run = begun("rate=0.5")
    assert run.config == Train(rate=0.5)
    assert run.spec == dx.spec(Train, rate=0.5)
    assert run.name == run.path.name
    fingerprint, _, time_ = run.name.partition("-")
    assert run.spec.fingerprint().startswith(fingerprint)
    assert time.strptime(time_, "%Y%m%dT%H%M%SZ")
    assert tomllib.loads((run.path / "config.toml").read_text()) == dx.to_config(run.spec, full=True)
    assert json.loads((run.path / "schema.json").read_text()) == dx.json_schema(Train)
    run.complete()


def test_the_record_of_a_run_says_where_it_came_from(folder: Path):
    (folder / "base.toml").write_text("steps = 5")
    run = completed("base.toml", "rate=0.5", "--seed", "3")
    found = about(run)
    assert (found["words"], found["files"], found["seed"]) == (["rate=0.5"], ["base.toml"], 3)
    assert (found["fingerprint"], found["class"]) == (run.spec.fingerprint(), "Train")
    assert found["versions"]["python"] == sys.version.split()[0]
    assert {"declax", "jax", "optax"} <= found["versions"].keys()
    assert found["said"] == {"kind": "Train", "rate": 0.5, "steps": 5}
    (attempt,) = found["attempts"]
    assert attempt["process"] == os.getpid()


def test_runs_of_one_second_have_folders_of_their_own():
    runs = [completed() for _ in range(4)]
    assert len({run.path for run in runs}) == 4
    assert len(folders_in(Path("runs"))) == 4


def test_a_folder_is_seen_whole_or_not_at_all(folder: Path):
    with pytest.raises(TypeError):
        make_folder(folder / "runs", "0" * 64, {"run.json": "{}", "config.toml": 3})  # type: ignore[dict-item]  # it fails on the way
    assert list((folder / "runs").iterdir()) == []


def test_show_makes_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        begun("--show", "rate=0.5")
    assert "rate = 0.5" in capsys.readouterr().out
    assert not (folder / "runs").exists()


def test_show_reads_the_default_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "run.toml").write_text("steps = 7")
    with pytest.raises(SystemExit):
        begun("--show", default="run.toml")
    assert "steps = 7" in capsys.readouterr().out


def test_a_wrong_configuration_makes_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert "the value has the wrong type" in refused(capsys, "rate=high", status=1)
    assert not (folder / "runs").exists()


def test_other_scripts_have_no_options_of_runs(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        dx.cli(Train, ["--resume", "ab"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --resume" in capsys.readouterr().err


def test_sweep_and_runs_exclude_each_other():
    with pytest.raises(dx.errors.ConstructionError, match="each run of a sweep is a process of its own"):
        dx.cli(Train, [], runs="runs", sweep=True)  # type: ignore[call-overload]  # as a program without types


@dataclasses.dataclass
class Secret:
    key: str = "none"
    rate: float = 0.1


def test_values_of_the_environment_are_recorded_by_their_names(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "s3cret")
    (folder / "run.toml").write_text('key = { "$env" = "API_KEY" }')
    run = completed("run.toml", "rate=0.5", target=Secret, env=["API_KEY"])
    assert run.config.key == "s3cret"
    files = [path for path in run.path.iterdir() if path.is_file()]
    assert len(files) == 4
    assert not [path.name for path in files if b"s3cret" in path.read_bytes()]
    monkeypatch.setenv("API_KEY", "another")
    again = completed("--rerun", run.name, "rate=0.25", target=Secret, env=["API_KEY"])
    assert again.config == Secret("another", 0.25)


def test_a_record_that_toml_cannot_say_is_json(monkeypatch: pytest.MonkeyPatch):
    def write(data: Any) -> str:
        raise dx.errors.ConfigError("a", "TOML has no such value")

    written = starting.FORMATS
    monkeypatch.setattr(starting, "FORMATS", {**written, ".toml": written[".toml"]._replace(write=write)})
    with pytest.raises(KeyboardInterrupt), begun("rate=0.5") as run:
        raise KeyboardInterrupt
    assert json.loads((run.path / "config.json").read_text()) == dx.to_config(run.spec, full=True)
    monkeypatch.setattr(starting, "FORMATS", written)
    again = completed("--resume", run.name, "steps=9")
    assert again.config == Train(0.5, 9)
    assert sorted(path.name for path in run.path.glob("config*")) == ["config.1.json", "config.toml"]


# --- git -----------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    setting = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *setting, *words], check=True, capture_output=True)


def test_git_says_the_commit_and_the_difference(folder: Path):
    assert git_state(folder).about == {"missing": "the script is in no repository of git"}
    git(folder, "init")
    assert git_state(folder).about == {"missing": "the repository has no commit"}
    (folder / "a.py").write_text("a = 1\n")
    git(folder, "add", "a.py")
    git(folder, "commit", "-m", "a")
    found = git_state(folder)
    assert (len(found.about["commit"]), found.about["is_dirty"], found.patch) == (40, False, None)
    (folder / "a.py").write_text("a = 2\n")
    (folder / "new.py").write_text("")
    found = git_state(folder)
    assert (found.about["is_dirty"], found.about["untracked"]) == (True, ["new.py"])
    assert found.patch is not None
    assert b"+a = 2" in found.patch
    (folder / "a.py").write_text("a = 2\n" * 400_000)
    found = git_state(folder)
    assert found.patch is None
    assert found.about["patch"].startswith("left out: it has")


def test_the_code_is_that_of_the_script_or_of_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "code").mkdir()
    (folder / "code" / "train.py").touch()
    for path, expected in (
        ("code/train.py", folder / "code"),
        ("nowhere.py", folder),
        ("", folder),
        (sys.executable, folder),  # as an installed program, or the kernel of a notebook
    ):
        monkeypatch.setattr(sys, "argv", [path])
        assert script_folder().resolve() == expected.resolve()


def test_git_need_not_be_installed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(folder).about == {"missing": "git is not installed"}


def test_the_patch_is_in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "a.py").write_text("a = 1\n")
    git(folder, "init")
    git(folder, "add", "a.py")
    git(folder, "commit", "-m", "a")
    (folder / "a.py").write_bytes(b"a = '\xff'\n")
    monkeypatch.setattr(sys, "argv", ["a.py"])
    run = completed()
    assert b"+a = '\xff'" in (run.path / "diff.patch").read_bytes()
    assert about(run)["git"]["is_dirty"] is True


# --- states --------------------------------------------------------------------------------


def test_a_run_is_running_until_it_is_complete():
    run = begun()
    assert run.status == "running"
    assert holder_of(run.path) is not None
    run.complete()
    run.complete()
    assert (run.status, holder_of(run.path)) == ("complete", None)
    assert "ended" in about(run)


def test_an_exception_in_the_block_makes_a_failed_run():
    with pytest.raises(ZeroDivisionError), begun() as run:
        1 / 0  # it raises
    assert run.status == "failed"
    assert "ZeroDivisionError" in (run.path / "error.txt").read_text()
    with begun("--resume", run.name):
        assert not (run.path / "error.txt").exists()


def test_an_exception_after_the_end_leaves_a_complete_run():
    run = begun()
    run.complete()
    with pytest.raises(ZeroDivisionError), run:
        1 / 0  # it raises
    assert run.status == "complete"
    assert not (run.path / "error.txt").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(SystemExit(0), "killed"), (SystemExit(), "killed"), (KeyboardInterrupt(), "killed"), (SystemExit(3), "failed")],
)
def test_a_run_that_leaves_its_block_early_can_be_resumed(error: BaseException, status: str):
    with pytest.raises(type(error)), begun() as run:
        raise error
    assert run.status == status
    again = begun("--resume", run.name)
    assert again.is_resumed
    again.complete()


def test_a_run_whose_object_cannot_be_built_failed(capsys: pytest.CaptureFixture[str]):
    assert "no such luck" in refused(capsys, "model.n=13", target=Built, status=1)
    (found,) = folders_in(Path("runs"))
    assert found.status == "failed"
    assert "no such luck" in (found.path / "error.txt").read_text()


# --- locks ---------------------------------------------------------------------------------


def test_two_processes_cannot_run_one_folder(capsys: pytest.CaptureFixture[str]):
    run = begun()
    said = refused(capsys, "--resume", run.name)
    assert "another process runs this folder" in said
    assert f"process {os.getpid()} on " in said
    run.complete()


def test_without_locks_the_file_names_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "_fcntl", lambda: None)
    lock = Lock(folder)
    assert str(holder_of(folder)).endswith("of a file system without locks")
    with pytest.raises(dx.errors.DeclaxError, match=r"delete .*lock"):
        Lock(folder)
    lock.release()
    assert holder_of(folder) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = locks.socket.gethostname()
    (folder / "lock").write_text(f"process {ended.pid} on {host}\n")
    assert holder_of(folder) is None
    Lock(folder).release()
    (folder / "lock").write_text(f"process {ended.pid} on elsewhere\n")
    assert holder_of(folder) == f"process {ended.pid} on elsewhere"


# --- resuming ------------------------------------------------------------------------------


def test_a_run_is_resumed_with_its_record_in_its_folder():
    run = begun("rate=0.5", "model.n=2", "--seed", "2", target=Built)
    with pytest.raises(KeyboardInterrupt), run:
        raise KeyboardInterrupt
    for word in (run.name, run.name[:10], f"runs/{run.name[:10]}", str(run.path), str(run.path.resolve())):
        with pytest.raises(KeyboardInterrupt), begun("--resume", word, target=Built) as again:
            raise KeyboardInterrupt
        assert (again.path.resolve(), again.config.rate, again.is_resumed) == (run.path.resolve(), 0.5, True)
        assert (again.config.model.w[...] == run.config.model.w[...]).all()
    assert len(about(run)["attempts"]) == 6


def test_a_default_file_is_not_read_again(folder: Path):
    (folder / "run.toml").write_text("steps = 7")
    run = begun(default="run.toml")
    with pytest.raises(KeyboardInterrupt), run:
        raise KeyboardInterrupt
    (folder / "run.toml").write_text("steps = 8")
    assert completed("--resume", run.name, default="run.toml").config.steps == 7
    assert completed("--rerun", run.name, default="run.toml").config.steps == 7


def test_words_and_files_change_a_run_that_is_resumed(folder: Path):
    (folder / "more.toml").write_text("steps = 9")
    with pytest.raises(KeyboardInterrupt), begun("rate=0.5", "steps=1") as run:
        raise KeyboardInterrupt
    again = completed("--resume", run.name, "more.toml", "rate=0.25")
    assert (again.path, again.config) == (run.path, Train(0.25, 9))
    assert tomllib.loads((run.path / "config.toml").read_text())["steps"] == 9
    assert tomllib.loads((run.path / "config.1.toml").read_text())["steps"] == 1
    found = about(run)
    assert (found["words"], found["files"]) == (["steps=1", "rate=0.25"], ["more.toml"])
    assert found["fingerprint"] == dx.spec(Train, 0.25, 9).fingerprint()


def test_a_complete_run_is_not_resumed(capsys: pytest.CaptureFixture[str]):
    run = completed("rate=0.5")
    for words in ([], ["rate=0.5"]):
        with pytest.raises(SystemExit) as ended:
            begun("--resume", run.name, *words)
        assert ended.value.code == 0
        assert "is complete: there is nothing to resume" in capsys.readouterr().out
    said = refused(capsys, "--resume", run.name, "rate=0.75")
    assert "the run is complete, and the words would change it" in said
    assert f"--rerun runs/{run.name} rate=0.75" in said
    assert "the run is complete" in refused(capsys, "--resume", run.name, "--seed", "7")


def test_a_run_is_run_anew_in_another_folder():
    run = completed("rate=0.5", "steps=4", "--seed", "3")
    again = completed("--rerun", run.name)
    assert (again.config, again.spec) == (run.config, run.spec)
    assert again.path != run.path
    assert not again.is_resumed
    found = about(again)
    assert (found["rerun_of"], found["seed"], found["words"]) == (run.name, 3, ["rate=0.5", "steps=4"])
    other = completed("--rerun", run.name, "rate=0.75", "--seed", "4")
    assert (other.config, about(other)["seed"]) == (Train(0.75, 4), 4)


def test_the_seed_of_a_class_is_part_of_its_record():
    run = completed("--seed", "3", target=Seeded)
    assert run.config == Seeded(3)
    assert completed("--rerun", run.name, target=Seeded).config == Seeded(3)
    assert completed("--rerun", run.name, "--seed", "5", target=Seeded).config == Seeded(5)


def test_show_shows_a_recorded_run(capsys: pytest.CaptureFixture[str]):
    run = completed("rate=0.5")
    with pytest.raises(SystemExit):
        begun("--show", "--resume", run.name, "steps=8")
    assert capsys.readouterr().out == 'kind = "Train"\nrate = 0.5\nsteps = 8\n'


def test_names_of_runs_that_are_wrong(capsys: pytest.CaptureFixture[str]):
    run, other = completed(), completed()
    said = refused(capsys, "--resume", run.name[:8])
    assert "several runs have names that begin so" in said
    assert other.name in said
    wrong = run.name[:6] + "zz"
    said = refused(capsys, "--resume", wrong)
    assert "there is no such run in runs" in said
    assert f"did you mean '{run.name[:8]}'?" in said
    assert "no run is there" in refused(capsys, "--resume", "elsewhere/ab")
    assert "either resumed or run anew" in refused(capsys, "--resume", run.name, "--rerun", run.name)
    assert "one run is resumed, and the values make several" in refused(capsys, "--resume", run.name, "rate=1,2")


MODELS = """
import dataclasses
import declax as dx

@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field(default=4)
    hidden: int = dx.field(default=dim * {factor})
    layer: dx.Linear = dx.Linear(dim, hidden)

@dataclasses.dataclass
class Train:
    model: dx.Spec[Net] = dx.spec(Net)
    rate: float = {rate}
"""


def test_a_changed_default_is_reported_and_the_record_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(folder))

    def loaded(**values: Any) -> Any:
        (folder / "changing.py").write_text(MODELS.format(**values))
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()
        return importlib.import_module("changing").Train

    with pytest.raises(KeyboardInterrupt), begun(target=loaded(factor=2, rate=0.1)) as run:
        raise KeyboardInterrupt
    changed = loaded(factor=3, rate=0.25555)
    again = completed("--resume", run.name, target=changed)
    assert again.config.rate == 0.1
    assert again.config.model.build(rngs=dx.Rngs(0)).layer.kernel.shape == (4, 8)
    text = capsys.readouterr().err
    assert "rate: 0.1, and not 0.25555" in text
    assert "8, and not 12" in text
    sys.modules.pop("changing", None)


def test_other_processes_get_the_run_of_the_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    first = begun("rate=0.5", "--seed", "3")
    before = about(first)
    monkeypatch.setattr(starting, "team_of_process", lambda: Team(1, 2))
    monkeypatch.setattr(starting, "agreed", lambda text: str(first.path.resolve()))
    with begun("rate=0.25") as other:
        assert (other.path.resolve(), other.config, other.is_resumed) == (first.path.resolve(), Train(0.5), False)
    with pytest.raises(ZeroDivisionError), other:
        1 / 0  # it raises
    assert (first.status, about(first)) == ("running", before)
    monkeypatch.setattr(starting, "agreed", lambda text: "")
    assert "the first process could not begin the run, and says why" in refused(capsys, "rate=0.5")
    monkeypatch.setattr(starting, "agreed", lambda text: "-")
    with pytest.raises(SystemExit) as ended:
        begun("rate=0.5")
    assert ended.value.code == 0
    first.complete()


# --- the table -----------------------------------------------------------------------------


def test_status_lists_the_runs_of_a_folder(capsys: pytest.CaptureFixture[str]):
    completed("rate=0.5")
    with pytest.raises(ZeroDivisionError), begun("steps=2"):
        1 / 0  # it raises
    (Path("runs") / "notes").mkdir()
    for words in (["--status"], ["--status", "runs/"]):
        with pytest.raises(SystemExit) as ended:
            begun(*words)
        assert ended.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines[2:4]] == ["complete", "failed"] or len(lines) == 6
        assert "1 complete, 1 failed" in lines[-1]
    assert main(["runs", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(one["status"], *one["words"]) for one in found} == {("complete", "rate=0.5"), ("failed", "steps=2")}
    assert main(["runs", "nowhere"]) == 2
    assert "there is no such folder of runs" in capsys.readouterr().err


def test_a_record_that_cannot_be_read_is_a_row_of_the_table(capsys: pytest.CaptureFixture[str]):
    run = completed()
    for text in ("{", "[]"):
        (run.path / "run.json").write_text(text)
        assert main(["runs"]) == 0
        assert "unreadable" in capsys.readouterr().out
        assert "the record of a run cannot be read" in refused(capsys, "--resume", run.name)


# --- processes -------------------------------------------------------------------------------

SCRIPT = """
    import dataclasses, time
    import declax as dx

    @dataclasses.dataclass
    class Train:
        rate: float = 0.1
        steps: int = 3

    if __name__ == "__main__":
        with dx.cli(Train, runs="runs") as run:
            print("begun", run.name, run.config.rate, flush=True)
            for step in range(run.config.steps):
                time.sleep(0.01)
"""


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def started(script: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(script), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("begun"), line + process.stdout.read()
    return process


@pytest.mark.slow
def test_a_run_that_is_killed_is_known_and_resumed(script: Path):
    process = started(script, "rate=0.5", "steps=100000")
    (found,) = folders_in(Path("runs"))
    assert found.status == "running"
    second = subprocess.run(
        [sys.executable, str(script), "--resume", found.path.name], capture_output=True, text=True, check=False
    )
    assert second.returncode == 2
    assert f"process {process.pid} on " in second.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert found.status == "killed"
    assert found.about["status"] == "running"
    again = started(script, "--resume", found.path.name, "steps=1")
    again.communicate()
    assert again.returncode == 0
    assert find_folder(found.path.name, Path("runs")).status == "complete"
    assert len(folders_in(Path("runs"))) == 1


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_lock(folder: Path):
    program = """
        import os, time
        from pathlib import Path
        from declax.config._runs.locks import Lock
        lock = Lock(Path())
        if os.fork() == 0:
            time.sleep(20)
        else:
            os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 5
    while holder_of(folder) is not None and time.monotonic() < until:
        time.sleep(0.05)  # the child has to come so far
    assert holder_of(folder) is None


@pytest.mark.slow
def test_processes_of_one_program_have_one_run(folder: Path):
    connected = """
    import sys
    if sys.argv[1] != "late":
        dx.launch.initialize()
    words = [word for word in sys.argv[1:] if word != "late"]
    """
    text = textwrap.dedent(SCRIPT).replace(
        "import declax as dx\n", f"import declax as dx\n{textwrap.dedent(connected)}"
    )
    (folder / "train.py").write_text(text.replace("dx.cli(Train, runs", "dx.cli(Train, words, runs"))
    command = [sys.executable, "-m", "declax.launch", "--processes", "2", "--devices", "1", "train.py"]

    def ran(*words: str) -> tuple[int, str]:
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    status, said = ran("rate=0.5")
    assert status == 0, said
    (found,) = folders_in(Path("runs"))
    assert found.status == "complete"
    assert said.count(f"begun {found.path.name} 0.5") == 2
    status, said = ran("--resume", found.path.name)
    assert status == 0, said
    assert "there is nothing to resume" in said
    status, said = ran("rate=high")
    assert status != 0
    assert "the value has the wrong type" in said
    status, said = ran("rate=1,2")
    assert status != 0
    assert "several processes make one run, and no sweep" in said
    status, said = ran("late", "rate=0.5")
    assert status != 0
    assert "these processes make one run, and are not connected yet" in said
    assert len(folders_in(Path("runs"))) == 1


@dataclasses.dataclass
class Following:
    steps: int = 100
    warmup: int = 10


def test_a_record_keeps_what_values_follow(folder: Path):
    (folder / "base.toml").write_text('steps = 50\nwarmup = { "$value" = "steps // 10" }\n')
    with pytest.raises(KeyboardInterrupt), begun("base.toml", target=Following) as run:
        raise KeyboardInterrupt
    assert run.config.warmup == 5
    again = completed("--resume", run.name, "steps=200", target=Following)
    assert (again.config.steps, again.config.warmup) == (200, 20)
    assert completed("--rerun", run.name, target=Following).config.warmup == 20
