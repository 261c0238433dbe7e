"""Scripts that complete what is typed, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from declax.config._cli.parsing import completion_script

CASES = [
    ("declax ", ["check", "show", "summary", "build", "schema", "completion"]),
    ("declax su", ["summary"]),
    ("declax --v", ["--version"]),
    ("declax show --f", ["--format", "--full"]),
    ("declax show net.toml --format ", ["toml", "json", "yaml"]),
    ("declax check --format ", ["text", "json"]),
    ("declax completion z", ["zsh"]),
    ("declax summary --input ", []),
    ("declax show net", []),
    ("./train.py run.toml --sc", ["--schema"]),
    ("./train.py sh", []),
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", ["declax", "./train it's.py"])
def test_scripts_of_shells_are_read_by_them(shell, program):
    text = completion_script(shell, program)
    assert "--full" in text or "-l full" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line, expected):
    *words, last = line.split(" ")
    typed = " ".join(f"'{word}'" for word in [*words, last])
    text = completion_script("bash", words[0])
    function = text.partition("()")[0]
    code = f"{text}COMP_WORDS=({typed}); COMP_CWORD={len(words)}; {function}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], text=True, capture_output=True, check=False)
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "expected"), CASES[1:7])
def test_fish_completes(line, expected):
    code = f"{completion_script('fish', 'declax')}complete -C '{line}'"
    done = subprocess.run(["fish", "-N", "-c", code], text=True, capture_output=True, check=False)
    assert {word.split("\t")[0] for word in done.stdout.splitlines()} >= set(expected), done.stderr
