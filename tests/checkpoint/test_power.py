"""A failure of power at any moment leaves the old checkpoint or the new one, on any order of the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import declax as dx
import power_failures
from declax.checkpoint import folders, saving
from declax.errors import CheckpointError


def items(step: int) -> dict[str, object]:
    return {"a": {"x": np.full(3, float(step)), "y": np.full(2, step)}, "step": step}


def states_of(disk: power_failures.Disk, folder: Path) -> Iterator[Path]:
    """Each state of a disk as a folder."""
    for number, state in enumerate(disk.states):
        power_failures.write(state, folder / str(number))
        yield folder / str(number)
        shutil.rmtree(folder / str(number))


def step_at(path: Path) -> int | None:
    """The step of a checkpoint, whose arrays are those of it; None if there is none."""
    if not (path / "manifest.json").exists():
        return None
    found = dx.load(path)
    assert (found["a"]["x"] == found["step"]).all()
    assert (found["a"]["y"] == found["step"]).all()
    return found["step"]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "FILE_SIZE", 20)  # a file for each array
    (tmp_path / "disk").mkdir()
    (tmp_path / "states").mkdir()
    return power_failures.Disk(tmp_path / "disk")


def run(
    disk: power_failures.Disk, folder: Path, action: Callable[[], object], read: Callable[[Path], object]
) -> list[object]:
    """What `read` finds in each state while an action runs, and in those when it has returned."""
    disk.states.clear()
    with disk.logging():
        action()
    found = [read(state) for state in states_of(disk, folder / "states")]
    disk.states.clear()
    disk.note()
    after = {read(state) for state in states_of(disk, folder / "states")}
    assert len(after) == 1, "an acknowledged checkpoint is certain"
    return [*dict.fromkeys(found), *after]


def test_saving_and_replacing(disk, tmp_path):
    def save(step, **options):
        return lambda: dx.save(disk.root / "runs" / "c", items(step), **options)

    def read(state):
        return step_at(state / "runs" / "c")

    assert run(disk, tmp_path, save(1), read) == [None, 1, 1]
    assert run(disk, tmp_path, save(2, overwrite=True), read) == [1, 2, 2]
    assert run(disk, tmp_path, save(3, overwrite=True), read) == [2, 3, 3]


def test_steps(disk, tmp_path):
    def read(state):
        if not (state / "run").exists():
            return ()
        checkpoints = dx.Checkpoints(state / "run")
        for step in checkpoints.steps():
            assert step_at(checkpoints.path(step)) == step
        return tuple(checkpoints.steps())

    def save(step):
        with dx.Checkpoints(disk.root / "run", keep=2) as checkpoints:
            checkpoints.save(step, items(step))

    assert run(disk, tmp_path, lambda: save(1), read) == [(), (1,), (1,)]
    assert run(disk, tmp_path, lambda: save(2), read) == [(1,), (1, 2), (1, 2)]
    assert run(disk, tmp_path, lambda: save(3), read) == [(1, 2), (1, 2, 3), (2, 3), (2, 3)]
    assert run(disk, tmp_path, lambda: save(4), read) == [(2, 3), (2, 3, 4), (3, 4), (3, 4)]


@pytest.mark.parametrize("module", [saving, folders])
def test_the_disk_finds_a_missing_sync(module, disk, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "sync_folder", lambda _: None)
    with pytest.raises((AssertionError, CheckpointError)):
        (test_saving_and_replacing if module is saving else test_steps)(disk, tmp_path)
