"""`Checkpoints`: which steps stay, and who may write."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import CheckpointError


def items(step):
    return {"a": {"w": np.full(10, step)}, "step": step}


def test_the_latest_and_the_best_stay(tmp_path):
    with dx.Checkpoints(tmp_path, keep=2, best="accuracy", best_mode="max") as checkpoints:
        for step, accuracy in enumerate([0.1, 0.9, 0.3, float("nan"), 0.2]):
            assert checkpoints.save(step, items(step), metrics={"accuracy": accuracy})
    assert checkpoints.steps() == [1, 3, 4]
    again = dx.Checkpoints(tmp_path, best="accuracy", best_mode="max")
    assert (again.latest, again.best) == (4, 1)
    assert again.load("best")["step"] == 1
    assert again.load()["step"] == again.load(4)["step"] == 4
    assert again.load("best").metrics == {"accuracy": 0.9}


def test_steps_between_are_not_saved(tmp_path):
    checkpoints = dx.Checkpoints(tmp_path, keep=None, every=3)
    assert [checkpoints.save(step, items(step)) for step in range(7)] == [True, False, False] * 2 + [True]
    assert checkpoints.save(7, items(7), force=True)
    assert checkpoints.steps() == [0, 3, 6, 7]
    assert checkpoints.best is None


def test_the_last_complete_checkpoint_is_never_removed(tmp_path):
    checkpoints = dx.Checkpoints(tmp_path, keep=1)
    checkpoints.save(0, items(0))
    for step in (1, 2):
        checkpoints.save(step, items(step))
        assert checkpoints.steps() == [step]
    (file,) = checkpoints.path(2).glob("*.safetensors")
    file.unlink()
    checkpoints.save(3, items(3))
    assert checkpoints.steps() == [2, 3]  # a damaged one is not counted, and stays for whoever wants to repair it


def test_what_is_refused(tmp_path):
    for options, problem in [
        ({"keep": 0}, "keep must be an int of at least 1"),
        ({"every": 1.5}, "every must be an int of at least 1"),
        ({"best_mode": "most"}, "best_mode must be 'min' or 'max'"),
        ({"best": ["loss"]}, "best must be the name of a metric"),
        ({"best": ""}, "best must be the name of a metric"),
    ]:
        with pytest.raises(CheckpointError, match=problem):
            dx.Checkpoints(tmp_path, **options)
    checkpoints = dx.Checkpoints(tmp_path, best="loss")
    with pytest.raises(CheckpointError, match="there is no checkpoint 'latest'") as caught:
        checkpoints.load()
    assert caught.value.got == "a folder without checkpoints"
    with pytest.raises(CheckpointError, match="the metric 'loss' is missing"):
        checkpoints.save(0, items(0))
    with pytest.raises(CheckpointError, match="a step must be an int of at least 0"):
        checkpoints.save(np.int64(3), items(0), metrics={"loss": 1.0})
    with pytest.raises(CheckpointError, match="progress is a function of two numbers"):
        checkpoints.save(0, items(0), metrics={"loss": 1.0}, progress="bar")
    checkpoints.save(5, items(5), metrics={"loss": 1.0})
    for step in (5, 4):
        with pytest.raises(CheckpointError, match=f"step {step} is not above the last one"):
            checkpoints.save(step, items(step), metrics={"loss": 1.0})
    for step in (3, "worst"):
        with pytest.raises(CheckpointError, match=f"there is no checkpoint {step!r}"):
            checkpoints.load(step)
    assert checkpoints.steps() == [5]
    with pytest.raises(CheckpointError, match="there is no checkpoint 'best'") as caught:
        dx.Checkpoints(tmp_path).load("best")
    assert 'best="loss"' in str(caught.value.fix)


def test_a_second_writer_gets_an_error(tmp_path):
    first, second = dx.Checkpoints(tmp_path), dx.Checkpoints(tmp_path)
    first.save(0, items(0))
    with pytest.raises(CheckpointError, match="another writer uses this folder") as caught:
        second.save(1, items(1))
    assert "process" in str(caught.value)
    assert "checkpoints.close()" in str(caught.value)
    assert second.load()["step"] == 0
    first.close()
    second.save(1, items(1))
    assert first.steps() == [0, 1]


def test_a_dropped_writer_frees_the_folder(tmp_path):
    checkpoints = dx.Checkpoints(tmp_path)
    checkpoints.save(0, items(0))
    checkpoints = dx.Checkpoints(tmp_path)  # as when a cell of a notebook runs again
    checkpoints.save(1, items(1))
    assert checkpoints.steps() == [0, 1]


def test_a_second_process_gets_an_error(tmp_path):
    program = (
        "import sys, numpy as np, declax as dx\n"
        "try:\n    dx.Checkpoints(sys.argv[1]).save(7, {'a': {'w': np.ones(3)}})\n"
        "except dx.CheckpointError as error:\n    print(error)\n"
    )
    with dx.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, items(0))
        done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert "another writer uses this folder" in done.stdout
    assert checkpoints.steps() == [0]


def test_a_forked_process_is_another_writer(tmp_path):
    program = (
        "import os, sys, numpy as np, declax as dx\n"
        "checkpoints = dx.Checkpoints(sys.argv[1])\n"
        "items = {'a': {'w': np.ones(3)}}\n"
        "checkpoints.save(0, items)\n"
        "ready, go = os.pipe(), os.pipe()\n"
        "if os.fork() == 0:\n"
        "    try:\n        checkpoints.save(1, items)\n"
        "    except dx.CheckpointError as error:\n        print(error, flush=True)\n"
        "    os.write(ready[1], b'.')\n"
        "    os.read(go[0], 1)\n"
        "    os._exit(0)\n"
        "os.read(ready[0], 1)\n"
        "checkpoints.save(2, items)\n"
        "checkpoints.close()\n"
        "dx.Checkpoints(sys.argv[1]).save(3, items)\n"  # while the other process lives
        "os.write(go[1], b'.')\n"
        "os.wait()\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "another writer uses this folder" in done.stdout
    assert dx.Checkpoints(tmp_path).steps() == [0, 2, 3]


def test_two_processes_that_save_one_path(tmp_path):
    program = (
        "import sys, numpy as np, declax as dx\n"
        "number = int(sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n    dx.save(sys.argv[1], {'a': {'w': np.full(100_000, number)}, 'number': number})\n"
        "except dx.CheckpointError as error:\n    print(error)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "c", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    (winner,) = [number for number, output in enumerate(outputs) if not output]
    assert re.search("the path exists already|another writer", outputs[1 - winner])
    found = dx.load(tmp_path / "c")
    assert found["number"] == winner
    assert (found["a"]["w"] == winner).all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_threads_that_save_one_path(tmp_path):
    outcomes: list[int | CheckpointError] = []
    barrier = threading.Barrier(8)

    def save(number):
        barrier.wait()
        try:
            dx.save(tmp_path / "c", {"a": {"w": np.full(1000, number)}, "number": number})
        except CheckpointError as error:
            outcomes.append(error)
        else:
            outcomes.append(number)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (number,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(outcomes) == 8
    found = dx.load(tmp_path / "c", into={"a": {"w": np.zeros(1000, int)}, "number": 0})
    assert found["number"] == number
    assert (found["a"]["w"] == number).all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_threads_that_share_checkpoints(tmp_path):
    checkpoints = dx.Checkpoints(tmp_path, keep=None)
    errors: list[CheckpointError] = []

    def save(step):
        try:
            checkpoints.save(step, {"a": {"w": jnp.full(10, step)}, "step": step})
        except CheckpointError as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(5,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checkpoints.steps() == [5]
    assert len(errors) == 3
    assert checkpoints.load()["step"] == 5
