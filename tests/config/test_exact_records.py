"""Exact records build the same model after the code has changed, and fingerprints tell when it has."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import jax
import pytest

import declax as dx
from declax.config._cli.main import main
from declax.config._printing import canonical_text
from declax.errors import ConfigError, ConfigWarning

BEFORE = """
    import declax as dx

    @dx.dataclass
    class Feed(dx.Layer):
        dim: int = dx.field()
        rate: float = dx.field(default=0.5)
        up: dx.Linear = dx.Linear(dim, 2 * dim)

    @dx.dataclass
    class Mlp(dx.Layer):
        dim: int = dx.field()
        depth: int = dx.field(default=2)
        hidden: int = 4 * dim
        up: dx.Linear = dx.Linear(dim, hidden)
        blocks: list[Feed] = dx.repeat(depth, Feed(dim))
        pair: list[dx.Linear] = [dx.Linear(dim, 3), dx.Linear(3, dim)]
        hid = dx.Linear(hidden, dim)
"""


def module(text: str, *changes: tuple[str, str]) -> Any:
    """A module of a source, in which some texts are replaced, as a later version of the code."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    sys.modules["recorded_models"] = made = types.ModuleType("recorded_models")
    exec(compile(textwrap.dedent(text), "models.py", "exec"), made.__dict__)
    return made


def shapes(model: Any) -> Any:
    return jax.tree.map(lambda leaf: getattr(leaf, "shape", leaf), model)


@pytest.fixture
def old() -> Any:
    return module(BEFORE)


def test_a_record_has_every_value(old):
    record = dx.to_config(dx.spec(old.Mlp, 8), full=True)
    assert record["dim"] == 8
    assert record["depth"] == 2
    computed = record["$computed"]
    assert computed["/hidden"] == 32
    assert (computed["/up/in_features"], computed["/up/out_features"], computed["/up/use_bias"]) == (8, 32, True)
    assert (computed["/blocks/$length"], computed["/blocks/rate"], computed["/blocks/up/out_features"]) == (2, 0.5, 16)
    assert (computed["/pair/1/in_features"], computed["/hid/in_features"]) == (3, 32)
    given = dx.spec_from_config(old.Mlp, {"dim": 8, "hidden": 5, "blocks": {"rate": 0.1}})
    record = dx.to_config(given, full=True)
    assert (record["hidden"], record["blocks"]) == (5, {"rate": 0.1})
    assert "/hidden" not in record["$computed"]
    assert "/blocks/rate" not in record["$computed"]


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
def test_a_record_is_read_back_as_the_same_spec(old, tmp_path, suffix):
    for spec in (dx.spec(old.Mlp, 8), dx.spec_from_config(old.Mlp, {"dim": 8, "pair": [{"use_bias": False}, {}]})):
        dx.write_config(tmp_path / f"record{suffix}", spec, full=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dx.spec_from_config(old.Mlp, tmp_path / f"record{suffix}") == spec


@pytest.mark.parametrize(
    ("change", "path", "kept"),
    [
        (("hidden: int = 4 * dim", "hidden: int = 2 * dim"), "hidden", 32),
        (("default=0.5", "default=0.9"), "blocks.rate", 0.5),
        (("dx.Linear(dim, 2 * dim)", "dx.Linear(dim, 3 * dim)"), "blocks.up.out_features", 16),
        (("[dx.Linear(dim, 3)", "[dx.Linear(dim, 3, use_bias=False)"), "pair.0.use_bias", True),
        (("up: dx.Linear = dx.Linear(dim, hidden)", "up: dx.Linear = dx.Linear(dim, 7)"), "up.out_features", 32),
    ],
)
def test_a_record_builds_the_same_after_a_change_of_the_code(old, change, path, kept):
    spec = dx.spec(old.Mlp, 8)
    record = dx.to_config(spec, full=True)
    new = module(BEFORE, change)
    assert shapes(dx.spec(new.Mlp, 8).build(rngs=dx.Rngs(0))) != shapes(spec.build(rngs=dx.Rngs(0))) or path.endswith(
        "rate"
    )
    assert dx.spec(new.Mlp, 8).fingerprint() != spec.fingerprint()
    with pytest.warns(ConfigWarning, match=rf"{path}: {str(kept).lower()}, and not"):
        again = dx.spec_from_config(new.Mlp, record)
    assert jax.tree.leaves(shapes(again.build(rngs=dx.Rngs(0)))) == jax.tree.leaves(shapes(spec.build(rngs=dx.Rngs(0))))


def test_a_plain_default_that_changed_is_that_of_the_record(old):
    record = dx.to_config(dx.spec(old.Mlp, 8), full=True)
    new = module(BEFORE, ("default=2", "default=5"))
    assert dx.spec_from_config(new.Mlp, record)["depth"] == 2


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        (("hid = dx.Linear(hidden, dim)", "hid = dx.Linear(hidden, dim, use_bias=False)"), "hid"),
        (("hid = dx.Linear(hidden, dim)", ""), "hid"),
        (("dx.repeat(depth, Feed(dim))", "dx.repeat(3, Feed(dim))"), "length"),
    ],
)
def test_what_a_record_cannot_keep_is_an_error(old, change, piece):
    """The class body makes these parts, and no argument changes them."""
    record = dx.to_config(dx.spec(old.Mlp, 8), full=True)
    with pytest.raises(ConfigError, match=piece):
        dx.spec_from_config(module(BEFORE, change).Mlp, record)


def test_values_that_follow_a_later_source_are_computed_again(old):
    record = dx.to_config(dx.spec(old.Mlp, 8), full=True)
    assert dx.spec_from_config(old.Mlp, record, "dim=4")["hidden"] == 16
    assert dx.spec_from_config(old.Mlp, record, "hidden=3")["up"]["out_features"] == 3
    new = module(BEFORE, ("hidden: int = 4 * dim", "hidden: int = 2 * dim"))
    assert dx.spec_from_config(new.Mlp, record, "dim=4")["hidden"] == 8
    with pytest.warns(ConfigWarning, match="hidden"):
        assert dx.spec_from_config(new.Mlp, record, "up.use_bias=false")["hidden"] == 32


def test_plain_dataclasses_have_exact_records():
    @dataclasses.dataclass
    class Run:
        steps: int = dx.static(default=100)
        warmup: int = steps // 10

    record = dx.to_config(dx.spec(Run, steps=50), full=True)
    assert record["$computed"] == {"/warmup": 5}

    @dataclasses.dataclass
    class Later:
        steps: int = dx.static(default=100)
        warmup: int = steps // 5

    with pytest.warns(ConfigWarning, match="warmup"):
        assert dx.spec_from_config(Later, {**record, "kind": "Later"}).build().warmup == 5


# ================================================================= fingerprints


def test_equal_models_have_equal_fingerprints(old):
    assert dx.spec(old.Mlp, 8).fingerprint() == dx.spec(old.Mlp, 8, hidden=32).fingerprint()
    assert dx.spec(old.Mlp, 8).fingerprint() == dx.spec(old.Mlp, 8, depth=2).fingerprint()
    assert dx.spec(old.Mlp, 8).fingerprint() != dx.spec(old.Mlp, 8, hidden=31).fingerprint()


@pytest.mark.parametrize("change", [("4 * dim", "2 * dim"), ("default=2", "default=3"), ("default=0.5", "default=0.1")])
def test_a_changed_default_changes_the_fingerprint(old, change):
    assert dx.spec(old.Mlp, 8).fingerprint() != dx.spec(module(BEFORE, change).Mlp, 8).fingerprint()


def test_a_new_version_of_a_class_changes_the_fingerprint(old):
    before = dx.spec(old.Feed, 8).fingerprint()
    old.Feed.config_version = 2
    assert dx.spec(old.Feed, 8).fingerprint() != before


def test_the_way_of_naming_a_module_does_not_count(tmp_path):
    (tmp_path / "named_twice").mkdir()
    (tmp_path / "named_twice/nets.py").write_text(textwrap.dedent(BEFORE))
    code = (
        "import sys; from declax.config._cli.main import main\n"
        "status = main(['check', sys.argv[1], 'dim=3', '--format', 'json'])"
    )
    env = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}

    def printed(word: str) -> str:
        command = [sys.executable, "-c", code, word]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        found: str = json.loads(done.stdout)["fingerprint"]
        return found

    assert printed("named_twice/nets.py:Mlp") == printed("named_twice.nets:Mlp")


def test_characters_of_any_unicode_version_have_one_text():
    """Python 3.13 prints the last one, and 3.11 escapes it."""

    spec = dx.spec(Tracked, data="\U0002ec38")
    assert spec.fingerprint() != dx.spec(Tracked, data="\\U0002ec38").fingerprint()
    assert "\\U0002ec38" in canonical_text(spec)


def test_what_is_copied_has_the_same_fingerprint(old):
    spec = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
    assert pickle.loads(pickle.dumps(spec)).fingerprint() == spec.fingerprint()


# ================================================================= secrets and variables


@dataclasses.dataclass
class Tracked:
    token: str | None = dx.field(default=None, secret=True, env=["TOKEN", "OTHER"])
    data: str = dx.field(default="data", env="DATA")
    shards: int = dx.field(default=1, env="SHARDS", ge=1)
    cache: str = data + "/cache"


@pytest.fixture
def variables(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('token = { "$env" = "TOKEN" }\ndata = { "$env" = "DATA", default = "here" }\n')
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("SHARDS", "8")
    monkeypatch.delenv("DATA", raising=False)


def test_a_variable_is_read_where_its_field_allows_it(variables, monkeypatch):
    run = dx.from_config(Tracked, "run.toml", {"shards": {"$env": "SHARDS"}})
    assert (run.token, run.data, run.shards, run.cache) == ("hunter2", "here", 8, "here/cache")
    monkeypatch.setenv("DATA", "there")
    assert dx.from_config(Tracked, "run.toml").cache == "there/cache"
    for name, piece in (("HOME", "not allowed here"), ("OTHER", "is not set"), (3, "not a variable")):
        with pytest.raises(ConfigError, match=piece):
            dx.from_config(Tracked, "run.toml", {"token": {"$env": name}})
    with pytest.raises(ConfigError, match="not allowed here"):
        dx.from_config(Tracked, {"cache": {"$env": "SHARDS"}})
    assert dx.from_config(Tracked, {"cache": {"$env": "SHARDS"}}, env=["SHARDS"]).cache == "8"
    monkeypatch.setenv("SHARDS", "0")
    with pytest.raises(ConfigError, match="the minimum is 1"):
        dx.from_config(Tracked, {"shards": {"$env": "SHARDS"}})


def test_a_secret_is_never_shown(variables, capsys):
    spec = dx.spec_from_config(Tracked, "run.toml")
    shown = [repr(spec), str(spec), repr(spec["token"]), json.dumps(dx.to_config(spec)), repr(spec.build())]
    dx.write_config("record.toml", spec, full=True)
    shown.append(Path("record.toml").read_text())
    assert not any("hunter2" in text for text in shown)
    assert dx.to_config(spec)["token"] == {"$env": "TOKEN"}
    assert dx.from_config(Tracked, "record.toml").token == "hunter2"
    with pytest.raises(ConfigError) as caught:
        dx.spec_from_config(Tracked, "run.toml", {"token": {"$env": "TOKEN"}}, "shards=x")
    assert "hunter2" not in str(caught.value)


def test_origins_and_differences_show_no_secret(variables, capsys):
    Path("other.toml").write_text("shards = 2")
    assert main(["show", f"{__file__}:Tracked", "run.toml", "--origins"]) == 0
    assert main(["diff", f"{__file__}:Tracked", "run.toml", "other.toml"]) == 0
    printed = capsys.readouterr().out
    assert "token = a secret  run.toml:1:1; = {'$env': 'TOKEN'}" in printed
    assert "data = 'here'  run.toml:2:1; = {'$env': 'DATA', 'default': 'here'}" in printed
    assert "hunter2" not in printed


def test_fingerprints_and_records_have_references(variables, monkeypatch):
    spec = dx.spec_from_config(Tracked, "run.toml")
    record = dx.to_config(spec, full=True)
    monkeypatch.setenv("TOKEN", "other")
    monkeypatch.setenv("DATA", "/elsewhere")
    again = dx.spec_from_config(Tracked, "run.toml")
    assert again.fingerprint() == spec.fingerprint()
    assert dx.to_config(again, full=True) == record
    assert dx.from_config(Tracked, record).cache == "/elsewhere/cache"


def test_secrets_in_files_and_in_python(variables, tmp_path):
    Path("token.txt").write_text("from a file\n")
    (tmp_path.parent / "outside.txt").write_text("x")
    assert dx.from_config(Tracked, "run.toml", {"token": {"$file": "token.txt"}}).token == "from a file"
    for table, piece in (
        ({"token": {"$file": "../outside.txt"}}, "outside of the folder"),
        ({"token": {"$file": "none.txt"}}, "cannot be read"),
        ({"data": {"$file": "token.txt"}}, "for secrets only"),
        ({"token": "hunter2"}, "does not say a secret itself"),
    ):
        with pytest.raises(ConfigError, match=piece) as caught:
            dx.from_config(Tracked, "run.toml", table)
        assert "hunter2" not in str(caught.value)
    spec = dx.spec(Tracked, token="hunter2")
    assert "hunter2" not in repr(spec)
    assert spec.build().token == "hunter2"
    with pytest.raises(ConfigError, match="given in Python cannot be written"):
        dx.to_config(spec)
