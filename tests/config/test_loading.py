"""Models from files: what is read, what is built, and the report of everything that is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys

import jax.numpy as jnp
import pytest

import config_models as models
import declax as dx
from declax.config.loading import config_text, read_source

FILES = {".toml": models.TOML, ".json": models.JSON, ".yaml": models.YAML}


def test_a_mapping_stands_for_the_spec_of_the_same_arguments():
    assert dx.spec_from_config(models.Transformer, models.GOOD) == models.good_spec()


def test_a_mapping_builds_the_model_and_is_left_as_it_was():
    before = copy.deepcopy(models.GOOD)
    model = dx.from_config(models.Transformer, models.GOOD, rngs=dx.Rngs(0))
    assert models.GOOD == before
    assert model.head is model.embed
    assert isinstance(model.blocks[0].mixer, models.Attention)
    assert model.blocks[0].norm is models.Norm.RMS
    assert model.blocks[1].mixer.activation is dx.relu
    assert model.param_dtype == jnp.bfloat16
    assert model.embed.embedding.shape == (16, 8)


def test_to_config_is_the_way_back():
    assert dx.to_config(models.good_spec()) == models.GOOD


def test_a_model_is_written_with_its_sharing():
    model = dx.from_config(models.Transformer, models.GOOD, rngs=dx.Rngs(0))
    config = dx.to_config(model)
    assert config["head"] == {"$ref": "/embed"}
    again = dx.from_config(models.Transformer, config, rngs=dx.Rngs(0))
    assert again.head is again.embed
    assert dx.graphdef(again) == dx.graphdef(model)


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml", ".yml"])
@pytest.mark.parametrize("full", [False, True])
def test_files_hold_the_same_spec(suffix, full, tmp_path):
    path = tmp_path / f"model{suffix}"
    dx.write_config(path, models.good_spec(), full=full)
    assert dx.spec_from_config(models.Transformer, path) == models.good_spec()
    assert dx.from_config(models.Transformer, str(path), rngs=dx.Rngs(0)).dim == 8


def test_missing_rngs_name_the_call_that_reads_the_file():
    with pytest.raises(dx.ConfigError, match="Mlp: Mlp takes rngs, but none were passed") as caught:
        dx.from_config(models.Mlp, {"dim": 2, "hidden": 4})
    assert caught.value.fix == "dx.from_config(Mlp, ..., rngs=dx.Rngs(0))"


def test_the_full_form_says_the_defaults_and_the_version():
    full = dx.to_config(models.good_spec(), full=True)
    assert full["$version"] == 1
    assert full["sizes"] == [1, 2]
    assert full["note"] is None
    assert full["blocks"][0]["mixer"]["kernel_init"] == {
        "kind": "lecun_normal", "in_axis": -2, "out_axis": -1, "batch_axis": [], "dtype": None
    }  # fmt: skip
    assert "$version" not in dx.to_config(models.good_spec())


# --- the report ---------------------------------------------------------------

LINES = {".toml": 0, ".json": 1, ".yaml": 2}

# code, path, a part of the hint, and the lines in the TOML, JSON and YAML forms of one configuration
MISTAKES = [
    ("unknown-dtype", "param_dtype", "did you mean 'float32'?", (3, 4, 3)),
    ("missing-key", "embed.features", "features = ...", (7, 7, 7)),
    ("ref-to-nothing", "head", "did you mean '/embed'?", (12, 11, 12)),
    ("unknown-key", "blocks.0.nam", "did you mean 'name'?", (16, 15, 16)),
    ("wrong-type", "blocks.0.scales.1", "write a number", (17, 16, 17)),
    ("wrong-type", "blocks.0.mixer.dim", "write 8 without quotes", (20, 19, 20)),
    ("out-of-range", "blocks.0.mixer.heads", "the maximum is 64", (21, 20, 21)),
    ("unknown-key", "blocks.0.mixer.hidden", 'kind = "Mlp"', (22, 21, 22)),
    ("unknown-activation", "blocks.1.mixer.activation", "did you mean 'relu'?", (30, 30, 29)),
    ("wrong-type", "blocks.1.mixer.kernel_init.stddev", None, (33, 33, 32)),
    ("unknown-kind", "blocks.2.mixer.kind", "did you mean 'Attention'?", (38, 39, 36)),
    ("ref-to-nothing", "blocks.3.mixer", "did you mean '/blocks/2'?", (42, 43, 39)),
]


def report_of(path):
    with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
        dx.spec_from_config(models.Transformer, path)
    return caught.value


def summary_of(error):
    return [(p.code, ".".join(map(str, p.path)), p.place.line) for p in error.problems]


@pytest.mark.parametrize("suffix", FILES)
def test_every_mistake_is_in_one_report(suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    path.write_text(FILES[suffix], encoding="utf-8")
    error = report_of(path)
    assert summary_of(error) == [(code, at, lines[LINES[suffix]]) for code, at, _, lines in MISTAKES]
    for problem, (_, at, hint, lines) in zip(error.problems, MISTAKES, strict=True):
        assert problem.hint is hint is None or hint in problem.hint
        assert problem.place.file == str(path)
        assert problem.place.column is not None
        assert f"model{suffix}:{lines[LINES[suffix]]}:{problem.place.column} {at}: " in str(error)
    assert error.problems[7].message == "Attention has no parameter 'hidden'; it belongs to Mlp"


def test_a_file_that_is_no_toml_is_one_error(tmp_path):
    """The fourteenth mistake hides the thirteen others: what the parser cannot read says nothing."""
    path = tmp_path / "model.toml"
    path.write_text(models.TOML.replace("\n\n", "\nsizes = high\n", 1), encoding="utf-8")
    error = report_of(path)
    assert summary_of(error) == [("syntax", "", 5)]
    assert str(error).splitlines() == [
        f"{path}: the configuration has one problem. [config]",
        f"  {path}:5:9 (the root): not valid TOML: Invalid value",
        '    fix:      strings need quotes, bools are true and false, and None is { "$none" = true }',
    ]


@pytest.mark.parametrize(
    ("name", "text", "line", "said", "hint"),
    [
        ("a.toml", 'kind = "Data"\npath = \n', 2, "not valid TOML", None),
        ("a.toml", "path = 'x'\nbatch = True\n", 2, "not valid TOML", "bools are true and false"),
        ("a.toml", "path = null\n", 1, "not valid TOML", "None is {"),
        ("a.toml", "path = 'x'\n[options\na = 1\n", 2, "not valid TOML", None),
        ("a.toml", "path = 'x\n", 1, "not valid TOML", None),
        ("a.json", '{"path": "x",\n "batch": 3,}', 2, "not valid JSON", None),
        ("a.yaml", "path: x\nbatch: [1", 3, "not valid YAML", None),
        ("a.yaml", "path:\n\t- 1", 2, "not valid YAML", None),
        ("a.yaml", "path: x\n---\npath: y", 2, "two documents", None),
        ("a.yaml", "path: !!python/name:os.system x", 1, "YAML tags are not allowed", "kind: NAME"),
        ("a.yaml", "path: &x 1\nbatch: *x", 2, "YAML aliases are not allowed", "$ref: /path"),
        ("a.yaml", "? [1]\n: 2", 1, "a key must be a string", None),
        ("a.yaml", "a: &a x\n*a : 2", 2, "a key must be a string", None),
        ("a.yaml", "batch: " + "9" * 5000, 1, "not a number", None),
    ],
)
def test_broken_files(name, text, line, said, hint, tmp_path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
        dx.spec_from_config(models.Data, path)
    problem = next(problem for problem in caught.value.problems if said in problem.message)
    assert problem.place.line == line
    assert hint is None or hint in problem.hint


def test_the_error_pickles_with_its_problems(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(models.TOML, encoding="utf-8")
    error = report_of(path)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.problems == error.problems


def test_many_problems_are_counted(tmp_path):
    config = {**models.GOOD, "labels": {f"k{i}": "x" for i in range(500)}}
    with pytest.raises(
        dx.ConfigError, match="the configuration has 500 problems, of which the first 100 are shown"
    ) as e:
        dx.spec_from_config(models.Transformer, config)
    assert len(e.value.problems) == 100


def test_an_error_of_a_constructor_tells_where_its_arguments_are_written(tmp_path):
    path = tmp_path / "layer.toml"
    path.write_text('kind = "Block"\n\n[mixer]\nkind = "Picky"\nsize = 3\n', encoding="utf-8")

    class Picky(models.Attention):
        def __init__(self, size: int):
            raise RuntimeError("sizes are even")

    with pytest.raises(RuntimeError, match="sizes are even") as caught:
        dx.from_config(models.Block, path, extra=[Picky])
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"its arguments are written in .*layer.toml:3:1$", notes)


# --- files --------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(dx.ConfigError, match="the file cannot be read"):
        dx.from_config(models.Data, tmp_path / "no" / "modle.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(dx.ConfigError, match="the file cannot be read"):
        dx.from_config(models.Data, tmp_path / "folder.toml")


def test_a_suffix_that_is_no_format(tmp_path):
    with pytest.raises(dx.ConfigError, match="unknown suffix of a configuration file"):
        dx.from_config(models.Data, tmp_path / "model.ini")
    with pytest.raises(dx.ConfigError, match="unknown suffix of a configuration file"):
        dx.write_config(tmp_path / "model.tom", dx.spec(models.Data, "x"))


def test_a_file_in_another_encoding(tmp_path):
    path = tmp_path / "model.toml"
    path.write_bytes('# ä\npath = "ü"\n'.encode("latin-1"))
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.from_config(models.Data, path)
    assert "the file is not UTF-8" in str(caught.value)


def test_a_mark_of_the_byte_order_and_windows_lines_are_fine(tmp_path):
    path = tmp_path / "model.toml"
    path.write_bytes(b'\xef\xbb\xbfpath = "x"\r\nbatch = 3\r\n')
    assert dx.from_config(models.Data, path) == models.Data("x", 3)


def test_what_is_no_source():
    with pytest.raises(dx.ConfigError, match="not a configuration"):
        dx.from_config(models.Data, 3)


def test_an_annotation_that_is_no_class():
    assert dx.spec_from_config(models.Attention | models.Mlp, {"kind": "Mlp", "dim": 1, "hidden": 2}) == dx.spec(
        models.Mlp, 1, 2
    )
    with pytest.raises(dx.ConfigError, match="the configuration describes no object"):
        dx.spec_from_config(dict[str, int], {"a": 1})


def make_block(dim: int, hidden: int = 4):
    return models.Mlp(dim, hidden, rngs=dx.Rngs(0))


def test_a_function_may_be_what_is_described():
    assert dx.spec_from_config(make_block, {"dim": 2}) == dx.spec(make_block, 2)
    assert dx.from_config(make_block, {"kind": "make_block", "dim": 2}).dim == 2


def test_yaml_is_read_by_the_rules_of_1_2(tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(
        "path: no\nbatch: 0o17\nsplits: [1e-3, .5]\n"
        "options: {a: on, b: 010, c: 1_000, d: ~, e: 0xff, f: .inf, g: 2001-01-01, h: '1', j: TRUE,\n"
        "  k: +1.}\n"
    )
    data = dx.from_config(models.Data, path)
    assert (data.path, data.batch, data.splits) == ("no", 15, (0.001, 0.5))
    assert data.options == {
        "a": "on", "b": 10, "c": "1_000", "d": None, "e": 255, "f": float("inf"), "g": "2001-01-01", "h": "1",
        "j": True, "k": 1.0,
    }  # fmt: skip


def test_yaml_without_its_library_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "model.yaml"
    path.write_text("path: x\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(dx.DeclaxError, match="YAML files need PyYAML, which is not installed") as caught:
        dx.from_config(models.Data, path)
    assert 'pip install "declax[yaml]"' in str(caught.value)
    assert isinstance(caught.value, ImportError)


def test_editors_may_be_told_the_schema(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"$schema": "./data.schema.json", "path": "x"}))
    assert dx.from_config(models.Data, path).path == "x"
    with pytest.raises(dx.ConfigError, match="the configuration has one problem"):
        dx.from_config(models.Block, {"mixer": {"kind": "Mlp", "dim": 1, "hidden": 1, "$schema": "x"}}, rngs=dx.Rngs(0))


# --- writing ------------------------------------------------------------------


def test_what_has_no_name_cannot_be_written():
    spec = dx.spec(models.Mlp, 1, 2, activation=lambda x: x)
    with pytest.raises(dx.ConfigError, match="a configuration cannot represent this value") as caught:
        dx.to_config(spec)
    assert caught.value.where == "Mlp.activation"


def test_what_could_not_be_read_again_cannot_be_written():
    class Other(models.Attention):
        pass

    spec = dx.spec(models.Block, dx.spec(Other, 8))
    with pytest.raises(dx.ConfigError, match="Other could not be read back: it is not one of the choices here"):
        dx.to_config(spec)
    assert dx.to_config(spec, extra=[Other])["mixer"]["kind"] == "Other"
    assert dx.spec_from_config(models.Block, dx.to_config(spec, extra=[Other]), extra=[Other]) == spec


@dx.dataclass
class Nullable(dx.Module):
    size: int | None = 3
    sizes: list[int | None] = dx.static(default_factory=list)


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_none_is_written_in_all_formats(suffix, tmp_path):
    for number, spec in enumerate((dx.spec(Nullable, size=None), dx.spec(Nullable, sizes=[1, None]))):
        path = tmp_path / f"{number}{suffix}"
        dx.write_config(path, spec)
        assert dx.spec_from_config(Nullable, path) == spec
    assert 'size = { "$none" = true }\n' in config_text(dx.spec(Nullable, size=None), ".toml")


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_texts_of_all_kinds_come_back(suffix, tmp_path):
    texts = [
        *("", " ", "no", "1e3", "0x1", "~", "null", "a: b", "a #b", "- x", "'", '"', "\\", "\n", "\t", "\x00", "\x7f"),
        *("\x85", "\u2028", "ä", "日本", "😀", "{", "[1]", "&a", "*a", "!x", "%", "@", "`", "=", "y", "true", ".inf"),
        *("2001-01-01", "trailing ", "$ref", "a.b", "kind", "---", "...", "<<", "?"),
    ]
    spec = dx.spec(
        models.Data,
        "x",
        options={
            "list": texts,
            "table": {text: text for text in texts if text != "kind"},
            "floats": [1e22, -0.0, 1.5e-7],
        },
    )
    path = tmp_path / f"data{suffix}"
    dx.write_config(path, spec)
    assert dx.spec_from_config(models.Data, path) == spec


def test_a_document_knows_where_values_come_from(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text('path = "x"\n[options]\na = 1\n')
    document = read_source(path)
    assert str(document.place_of(("options", "a"))) == f"{path}:3:1"
    assert str(document.place_of(("options", "b"))) == f"{path}:2:1"
    assert document.place_of(()).line == 1
    assert not str(read_source({"path": "x"}).place_of(("path",)))


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_half_of_a_surrogate_pair_is_refused(suffix, tmp_path):
    path, spec = tmp_path / f"x{suffix}", dx.spec(models.Data, "\ud800")
    path.write_text("before")
    with pytest.raises(dx.ConfigError, match="a text has half of a surrogate pair") as caught:
        dx.write_config(path, spec, extra=[models.Data])
    assert str(path) in str(caught.value)
    assert path.read_text() == "before"
    assert spec.fingerprint() != dx.spec(models.Data, "\ud801").fingerprint()
