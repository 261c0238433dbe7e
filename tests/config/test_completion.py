"""Scripts that complete what is typed, in the shells themselves."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

import declax as dx
from declax.command_line.completion import script


@dx.dataclass
class Attention(dx.Module):
    heads: int = 4
    hidden: int = 8


@dx.dataclass
class Mlp(dx.Module):
    hidden: int = 8


@dx.dataclass
class Net(dx.Module):
    blocks: list[Attention | Mlp]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_shells_are_read_by_them(shell):
    text = script(shell, "./train.py", "net.schema.json")
    assert "./train.py" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.toml").write_text("")
    return tmp_path


@pytest.fixture
def completing(folder):
    """A folder with a command `declax`, and a schema with a name that shells have to be told of in quotes."""
    schema = dx.json_schema(Net)
    (folder / "it's $HOME's.json").write_text(json.dumps(schema))
    (folder / "declax").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m declax "$@"\n')
    (folder / "declax").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}


SCHEMA = "it's $HOME's.json"


def test_bash_completes(folder, completing):
    typed = 'COMP_LINE="declax show blocks[0].he"; COMP_POINT=${#COMP_LINE}'
    code = f'{script("bash", "declax", SCHEMA)}\n{typed}; _declax_declax; echo "${{COMPREPLY[@]}}"'
    command = ["bash", "-c", code]
    done = subprocess.run(command, env=completing, text=True, capture_output=True, check=False, cwd=folder)
    assert done.stdout.split() == ["blocks[0].heads="], done.stderr


def test_bash_completes_commands_without_a_schema(folder, completing):
    typed = 'COMP_LINE="declax summ"; COMP_POINT=${#COMP_LINE}'
    code = f'{script("bash", "declax", None)}\n{typed}; _declax_declax; echo "<${{COMPREPLY[@]}}>"'
    done = subprocess.run(["bash", "-c", code], env=completing, text=True, capture_output=True, check=False, cwd=folder)
    assert done.stdout == "<summary >\n", done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(folder, completing):
    typed = ["blocks[0].h", "blocks.0.kind=A", "net.to"]
    code = script("fish", "declax", SCHEMA) + "".join(f"complete -C 'declax show {word}'\n" for word in typed)
    command = ["fish", "-N", "-c", code]
    done = subprocess.run(command, env=completing, text=True, capture_output=True, check=False, cwd=folder)
    expected = ["blocks[0].heads=", "blocks[0].hidden=", "blocks.0.kind=Attention", "net.toml"]
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("blocks[0].he", "blocks[0].heads="), ("blocks.0.kind=A", "blocks.0.kind=Attention"), ("net.t", "net.toml")],
)
def test_zsh_completes(folder, completing, typed, completed):
    setup = [
        "PS1=",
        "setopt nonomatch",
        "autoload -U compinit",
        "compinit -u -D",
        script("zsh", "declax", SCHEMA).replace("$(declax", "$(command declax"),
        'declax() { print -r -- "<$2>"; exit }',
    ]
    (folder / "setup.zsh").write_text("\n".join(setup))
    keys = b"source ./setup.zsh; print -r 'READ'Y\n", f"declax show {typed}\t".encode(), b"\n"
    assert f"<{completed}>" in in_terminal(["zsh", "-f", "-i"], keys, completing, folder)


def in_terminal(command, keys, environment, folder):
    """What a program shows in a terminal; it is given the first keys, and the others once it says READY."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder, start_new_session=True
    )
    os.close(theirs)
    shown, waiting = b"", list(keys)
    os.write(ours, waiting.pop(0))
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if waiting and b"READY" in shown:
            os.write(ours, b"".join(waiting))
            waiting = []
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            shown += os.read(ours, 4096)
        except OSError:  # it has ended
            break
    process.kill()
    process.wait()
    os.close(ours)
    return shown.decode(errors="replace")
