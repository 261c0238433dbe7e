"""Scripts that complete what is typed, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from declax.config._cli.parsing import completion_script

CASES = [
    (
        "declax ",
        ["check", "show", "summary", "plan", "build", "schema", "rename", "completion", "-h", "--help", "--version"],
    ),
    ("declax su", ["summary"]),
    ("declax --v", ["--version"]),
    ("declax show --f", ["--format", "--full"]),
    ("declax summary net.toml --inp", ["--input"]),
    ("declax show net", []),
    ("declax show ", []),
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_scripts_of_shells_are_read_by_them(shell):
    text = completion_script(shell)
    assert "--full" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line, expected):
    words = line.split(" ")
    typed = " ".join(f"'{word}'" for word in words)
    code = f"{completion_script('bash')}COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _declax; "
    code += "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", code], text=True, capture_output=True, check=False)
    assert done.stdout.split() == expected, done.stderr
