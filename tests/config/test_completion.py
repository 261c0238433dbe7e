"""Scripts that complete what is typed, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import declax as dx
from declax.config._cli.completing import complete
from declax.config._cli.parsing import completion_script

CASES = [
    (
        "declax ",
        [
            "check",
            "show",
            "summary",
            "plan",
            "build",
            "schema",
            "diff",
            "set",
            "migrate",
            "rename",
            "runs",
            "completion",
            "-h",
            "--help",
            "--version",
        ],
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


MODELS = """
import dataclasses
import declax as dx
import optax

@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    kind_of_norm: str = dx.field(default="pre", choices=("pre", "post"))
    act: object = dx.relu
    feed: dx.Linear = dx.Linear(dim, dim)

@dataclasses.dataclass
class Train:
    block: Block
    optimizer: optax.GradientTransformation
    verbose: bool = False
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shell_models.py").write_text(MODELS)
    (tmp_path / "base.toml").write_text('optimizer = "adamw"\n[block]\ndim = 3\n')
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/adamw.toml").write_text('kind = "adamw"\nlearning_rate = 1\n')
    (tmp_path / "optimizer/lion.toml").write_text('kind = "lion"\nlearning_rate = 1\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


OFFERS = [
    ("blo", ["block="]),
    ("block.", ["block.dim=", "block.kind_of_norm=", "block.act=", "block.feed="]),
    ("block.feed.use", ["block.feed.use_bias="]),
    ("block.feed.use_bias=", ["block.feed.use_bias=true", "block.feed.use_bias=false"]),
    ("block.kind_of_norm=p", ["block.kind_of_norm=pre", "block.kind_of_norm=post"]),
    ("block.feed.param_dtype=bf", ["block.feed.param_dtype=bfloat16"]),
    ("optimizer=", ["optimizer=adamw", "optimizer=lion"]),
    ("optimizer.kind=adamw", ["optimizer.kind=adamw"]),
    ("optimizer.learn", ["optimizer.learning_rate="]),
    ("nothing.", []),
    ("a..b", []),
]


@pytest.mark.parametrize(("typed", "expected"), OFFERS)
def test_paths_kinds_and_values_are_offered(folder, typed, expected):
    assert complete(["shell_models.py:Train", "base.toml", typed]) == expected


def test_nothing_is_offered_for_what_cannot_be_read(folder):
    assert complete([]) == complete(["x"]) == complete(["nothing.py:Net", "a"]) == []
    assert complete(["shell_models.py:Train", "none.toml", "blo"]) == ["block="]


@pytest.mark.slow
def test_bash_offers_fields_and_values(folder):
    def offered(line):
        words = " ".join(f"'{word}'" for word in line.replace("=", " = ").replace(":", " : ").split(" "))
        code = f"declax() {{ '{sys.executable}' -m declax \"$@\"; }}\n{completion_script('bash')}"
        code += f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); "
        code += "COMP_CWORD=$((${#COMP_WORDS[@]}-1)); "
        code += "_declax; printf '%s\\n' \"${COMPREPLY[@]}\""
        env = {**os.environ, "PYTHONPATH": str(Path(dx.__file__).parents[1])}
        return subprocess.run(["bash", "-c", code], env=env, text=True, capture_output=True, check=True).stdout.split()

    assert offered("declax check shell_models.py:Train base.toml block.d") == ["block.dim="]
    assert offered("declax check shell_models.py:Train base.toml optimizer=l") == ["lion"]
