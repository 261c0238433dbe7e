"""Saving from several processes: all to one path is an error with its cure; one process, and a path each, are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import declax as dx

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("by_processes.py")
CURE = "if jax.process_index() == 0: dx.save(path, items) # one process writes; each has the whole arrays"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, list[str]]:
    """What the processes say of each case."""
    options = ["--processes", "2", "--devices", "1", "--timeout", "200"]
    command = [sys.executable, "-m", "declax.launch", *options, str(PROGRAM), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, colon, said = line.partition("] ")[2].partition(": ")
        if colon:
            found.setdefault(name, []).append(" ".join(said.split()))
    return found


@pytest.mark.parametrize("case", ["new", "replaced", "again"])
def test_all_processes_save_to_one_path(printed, case):
    refused, saved = sorted(printed[case], key="saved".__eq__)
    assert saved == "saved"
    assert "saves to this path too" in refused
    assert CURE in refused
    assert 'dx.save(path, items, engine="orbax") # all processes write' in refused


def test_the_first_may_be_done(printed):
    assert len(printed["in turn"]) == 1
    assert "process 0 saves to this path too" in printed["in turn"][0]


@pytest.mark.parametrize("case", ["one process, first", "one process, second", "a path each", "orbax"])
def test_what_is_not_refused(printed, case):
    assert printed[case] == ["saved", "saved"]


def test_all_processes_save_steps_of_one_run(printed):
    """The one that is first writes all steps."""
    refused = [said for said in printed["steps"] if said != "saved"]
    assert len(refused) == 2
    for said in refused:
        assert "another writer uses this folder" in said
        assert "if jax.process_index() == 0: checkpoints.save(step, items)" in said
        assert 'dx.Checkpoints(folder, engine="orbax")' in said


@pytest.mark.parametrize("name", ["new", "replaced", "one", "of 0", "of 1"])
def test_what_is_saved_is_complete(printed, folder, name):
    assert dx.load(folder / name)["model"].kernel.shape == (2, 2)
