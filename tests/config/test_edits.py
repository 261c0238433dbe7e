"""``declax set`` and ``declax migrate``: a change of a file leaves all of its other bytes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import declax as dx
from declax.config._cli.main import main

TOML = """# the run
steps = 1000   # many
rates = [0.1,
  0.2]  # two

[model]
dim = 16  # wide
[[blocks]]
hidden = 3 # first
[[blocks]]
hidden = 4 # second
"""
YAML = "# the run\nsteps:   1000   # many\nempty: ~\nblocks:\n    - hidden: 3 # first\n    - {hidden: 4}\n"
JSON = '{"steps": 1000,\n   "blocks": [{"hidden":3}, {"hidden": 4}]}\n'
MODELS = """
import declax as dx

@dx.dataclass
class Block(dx.Layer):
    config_version = 3
    config_upgrades = {
        1: lambda table: {"hidden": table.pop("size"), **table},
        2: lambda table: {"scale" if key == "factor" else key: value for key, value in table.items()},
    }
    hidden: int = dx.field(ge=1)
    scale: float = 1.0

@dx.dataclass
class Net(dx.Layer):
    blocks: list[Block]
    width: int = dx.field(default=3, renamed_from="breadth")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited_models", raising=False)
    for name, text in {"run.toml": TOML, "run.yaml": YAML, "run.json": JSON, "edited_models.py": MODELS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ["run.toml", "run.yaml", "run.json"])
def test_values_change_and_all_other_bytes_stay(folder, name):
    before = (folder / name).read_text()
    assert main(["set", name, "blocks[*].hidden=128", "steps=7"]) == 0
    expected = before.replace("1000", "7")
    for old in ("hidden = 3", "hidden = 4", "hidden: 3", "hidden: 4", '"hidden":3', '"hidden": 4'):
        expected = expected.replace(old, f"{old[:-1]}128")
    assert (folder / name).read_text() == expected


def test_keys_and_items_are_added_and_removed(folder):
    assert main(["set", "run.toml", "model.heads=2", "~steps", "rates+=0.3", "~blocks.0", "name=x"]) == 0
    text = (folder / "run.toml").read_text()
    for line in ("# the run", "dim = 16  # wide", "heads = 2", "hidden = 4 # second"):
        assert line in text.splitlines()
    assert "steps" not in text
    assert "first" not in text
    assert "  0.2,\n  0.3]  # two" in text


def test_ends_of_lines_and_the_mark_of_the_encoding_stay(folder):
    (folder / "dos.toml").write_bytes(b"\xef\xbb\xbfsteps = 1\r\n# end\r\n")
    assert main(["set", "dos.toml", "steps=22"]) == 0
    assert (folder / "dos.toml").read_bytes() == b"\xef\xbb\xbfsteps = 22\r\n# end\r\n"


def test_a_file_is_only_written_if_its_class_accepts_it(folder, capsys):
    (folder / "net.toml").write_text("[[blocks]]\nhidden = 3  # small\n")
    assert main(["set", "edited_models.py:Net", "net.toml", "blocks.0.hidden=0"]) == 1
    assert "the minimum is 1" in capsys.readouterr().err
    assert main(["set", "edited_models.py:Net", "net.toml", "blocks.0.hidden=9"]) == 0
    assert (folder / "net.toml").read_text() == "[[blocks]]\nhidden = 9  # small\n"


def test_the_difference_is_shown_and_not_written(folder, capsys):
    assert main(["set", "run.json", "steps=7", "--diff", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_changed"]
    assert '+{"steps": 7,' in found["diff"]
    assert (folder / "run.json").read_text() == JSON
    assert main(["set", "run.json", "steps=1000"]) == 0
    assert "nothing to change" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "piece"),
    [
        (["run.toml"], 2, "no word says what to change"), (["steps=3"], 2, "the file is missing"),
        (["run.toml", "steps=1,2"], 2, "set: a word has several values"), (["run.toml", "~no"], 1, "nothing at no"),
        (["none.toml", "steps=3"], 2, "no such file"), (["run.toml", "steps.x=3"], 1, "steps"),
        (["run.toml", "blocks.7.hidden=3"], 1, "nothing at blocks.7.hidden"), (["run.toml", "steps+=3"], 1, "inserted"),
    ],
)  # fmt: skip
def test_what_cannot_be_set(folder, capsys, words, status, piece):
    assert main(["set", *words]) == status
    assert piece in capsys.readouterr().err
    assert (folder / "run.toml").read_text() == TOML


def test_set_does_not_load_jax(folder):
    code = "import sys; from declax.config._cli.main import main; main(['set', 'run.toml', 'steps=3']); "
    code += "print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


# ================================================================= migrating


def test_renamed_fields_and_versions_are_brought_up_to_date(folder):
    text = (
        "# old\nbreadth = 5  # of all\n\n[[blocks]]\nsize = 3 # small\nfactor = 2.0\n\n"
        '[[blocks]]\n"$version" = 3\nhidden = 4\n'
    )
    (folder / "net.toml").write_text(text)
    with pytest.raises(dx.ConfigError):
        dx.spec_from_config(models().Net, "net.toml")
    assert main(["migrate", "edited_models.py:Net", "net.toml"]) == 0
    made = (folder / "net.toml").read_text()
    spec = dx.spec_from_config(models().Net, "net.toml")
    assert (spec["width"], spec["blocks.0.hidden"], spec["blocks.0.scale"], spec["blocks.1.hidden"]) == (5, 3, 2.0, 4)
    for line in ("# old", "width = 5  # of all", "hidden = 4"):
        assert line in made.splitlines()
    assert main(["migrate", "edited_models.py:Net", "net.toml"]) == 0
    assert (folder / "net.toml").read_text() == made


def test_a_file_that_cannot_be_migrated_stays(folder, capsys):
    (folder / "net.toml").write_text("[[blocks]]\nhidden = 0\n")
    assert main(["migrate", "edited_models.py:Net", "net.toml"]) == 1
    assert (folder / "net.toml").read_text() == "[[blocks]]\nhidden = 0\n"
    assert main(["migrate", "net.toml"]) == 2
    assert "the class is missing" in capsys.readouterr().err


def models() -> Any:
    return importlib.import_module("edited_models")
