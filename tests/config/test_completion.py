"""Scripts that complete what is typed, in the shells themselves."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from declax.config._cli.parsing import completion_script

CASES = [
    ("su", ["summary"]),
    ("c", ["check", "completion"]),
    ("--v", ["--version"]),
    ("--f", ["--format", "--full"]),
    ("--inp", ["--input"]),
    ("net", []),
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_scripts_of_shells_are_read_by_them(shell):
    text = completion_script(shell)
    assert "--full" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("word", "expected"), CASES)
def test_bash_completes(word, expected):
    script = completion_script("bash")
    words = shlex.split(script)[shlex.split(script).index("-W") + 1]
    code = f"{script}compgen -W '{words}' -- '{word}'"
    done = subprocess.run(["bash", "-c", code], text=True, capture_output=True, check=False)
    assert (done.stdout.split(), done.stderr) == (expected, "")
