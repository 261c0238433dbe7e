"""Places of values in files, against a second opinion; and what the formats share."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import config_models as models
import declax as dx
from declax.config._files import scanning
from declax.config._files.formats import FORMATS, read_document, read_text
from declax.config._files.json_format import format_json, parse_json
from declax.config._files.toml_format import TomlScan, format_toml, header_text, parse_toml
from declax.config._files.yaml_format import format_yaml, parse_yaml
from plain_data import TABLES, is_writable, paths_of

TOML = '''# places
kind = "Transformer"
dim.x = 3
a = [1, 2,
  # c ]
  {x = 1, y.z = [3]}, "]"]
s = """
[x]
b = 3
"""
t = \'\'\'it''s\'\'\'
[[blocks]]
kind = "A" # x
[blocks.mixer]
h = 1.5
d = 1979-05-27T07:32:00Z
[[blocks]]
q = { a = 1, "b c" = 2 }
[ blocks . mixer ]
"k.\\u0031" = -1e-3
[[blocks.mixer.heads]]
n = 1
[[blocks.mixer.heads]]
n = 2
[opt."a.b"]
x = [ [1], [2, 3] ]
'''

PLACES = {
    ("kind",): (2, 1),
    ("dim",): (3, 1),
    ("dim", "x"): (3, 1),
    ("a",): (4, 1),
    ("a", 0): (4, 6),
    ("a", 2): (6, 3),
    ("a", 2, "x"): (6, 4),
    ("a", 2, "y", "z", 0): (6, 18),
    ("a", 3): (6, 23),
    ("s",): (7, 1),
    ("t",): (11, 1),
    ("blocks",): (12, 1),
    ("blocks", 0): (12, 1),
    ("blocks", 0, "mixer"): (14, 1),
    ("blocks", 0, "mixer", "d"): (16, 1),
    ("blocks", 1): (17, 1),
    ("blocks", 1, "q", "b c"): (18, 14),
    ("blocks", 1, "mixer", "k.1"): (20, 1),
    ("blocks", 1, "mixer", "heads", 1, "n"): (24, 1),
    ("opt", "a.b"): (25, 1),
    ("opt", "a.b", "x", 1, 1): (26, 16),
}


def test_places_in_toml():
    document = parse_toml(TOML, "m.toml")
    assert document.data == tomllib.loads(TOML)
    found = {path: document.place_of(path) for path in PLACES}
    assert {path: (place.line, place.column) for path, place in found.items()} == PLACES


def problem_of(parse, text):
    """The one problem of a file of which nothing is read."""
    with pytest.raises(dx.ConfigError, match="m: the configuration has one problem") as caught:
        parse(text, "m")
    (problem,) = caught.value.problems
    return problem


def told(document):
    return [(p.path, p.place.line, p.place.column, p.message) for p in document.problems]


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_keys_that_are_given_twice_in_json_and_yaml(parse):
    document = parse('{"a": {"b": 1,\n "b": {"c": 2}},\n "a": 3, "d": 4}', "m")
    assert told(document) == [
        (("a", "b"), 2, 2, "the key is given twice; the first is in line 1"),
        (("a",), 3, 2, "the key is given twice; the first is in line 1"),
    ]
    assert document.data == {"a": {"b": 1}, "d": 4}
    assert not document.broken
    assert document.problems[0].hint == "remove one of the two"


REPEATED = {
    "a key": ("a = 1\nb = 2\na = 3\n", {"a": 1, "b": 2}, [(("a",), 3, 1)]),
    "a value of lines": ("a = 1\na = [1,\n 2]\nb = 2\n", {"a": 1, "b": 2}, [(("a",), 2, 1)]),
    "in a list": ("x = [{a = 1, a = 2, b = 3}]\n", {"x": [{"a": 1, "b": 3}]}, [(("x", 0, "a"), 1, 14)]),
    "a table": (
        "[a]\nx = 1\n[b]\n[a] # again\ny = 2\nx = 3\n[a.c]\nz = 1\n",
        {"a": {"x": 1, "y": 2, "c": {"z": 1}}, "b": {}},
        [(("a",), 4, 1), (("a", "x"), 6, 1)],
    ),
    "a table twice more": (
        "[a]\n[a]\nx = 1\n[a]\ny = 2\n",
        {"a": {"x": 1, "y": 2}},
        [(("a",), 2, 1), (("a",), 4, 1)],
    ),
    "a table as a value": ("a = 1\n[a]\nb = 2\n[c]\n", {"a": 1, "c": {}}, [(("a",), 2, 1)]),
    "a value as a table": ("[a]\nb.c = 1\nb = 2\n", {"a": {"b": {"c": 1}}}, [(("a", "b"), 3, 1)]),
    "a table in braces": ("a = {x = 1}\n[a.b]\ny = 2\n", {"a": {"x": 1, "b": {"y": 2}}}, [(("a", "b"), 2, 1)]),
    "a dotted key": ("a = {x = 1}\na.y = 2\nb = 1\n", {"a": {"x": 1}, "b": 1}, [(("a", "y"), 2, 1)]),
    "a dotted table": ("a.x = 1\n[a]\ny = 2\n", {"a": {"x": 1, "y": 2}}, [(("a",), 2, 1)]),
    "a list as a table": ("[[a]]\nx = 1\n[a]\ny = 2\n[b]\n", {"a": [{"x": 1}], "b": {}}, [(("a",), 3, 1)]),
    "a table as a list": ("[a]\nx = 1\n[[a]]\ny = 2\n", {"a": {"x": 1}}, [(("a",), 3, 1)]),
    "items": ("[[a]]\nx = 1\nx = 2\n[[a]]\nx = 1\n", {"a": [{"x": 1}, {"x": 1}]}, [(("a", 0, "x"), 3, 1)]),
    "windows": ("a = 1\r\na = 2\r\nb = 3\r\n", {"a": 1, "b": 3}, [(("a",), 2, 1)]),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_given_twice_in_toml(name):
    text, data, places = REPEATED[name]
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)
    document = parse_toml(text, "m")
    assert document.data == data
    assert [(p.path, p.place.line, p.place.column) for p in document.problems] == places
    for problem in document.problems:
        assert problem.code == "duplicate-key"
        assert re.search(r"(in|of) line 1", problem.message) or name in ("a table", "a value as a table", "items")
        assert problem.hint is not None


def test_a_syntax_error_behind_a_repeated_key_is_the_one_error():
    problem = problem_of(parse_toml, "a = 1\na = 2\nb = = 3\n")
    assert (problem.code, problem.place.line) == ("syntax", 3)
    problem = problem_of(parse_toml, "[a]\n[b]\n[a]\nx = 1\ny = = 3\n")
    assert (problem.code, problem.place.line) == ("syntax", 5)


def test_what_repeats_beyond_the_scan_is_told_with_the_rest(monkeypatch):
    text = "a = 1\na = 2\n" + "".join(f"k{i} = 1\n" for i in range(50)) + "a = 3\n"
    monkeypatch.setattr(scanning, "MAX_TOKENS", 100)
    with pytest.raises(dx.ConfigError) as caught:
        parse_toml(text, "m")
    assert [(p.code, p.place.line) for p in caught.value.problems] == [("duplicate-key", 2), ("syntax", 53)]
    text = json.dumps({f"k{i}": 1 for i in range(50)})[:-1] + ', "k1": 2}'
    (problem,) = parse_json(text, "m").problems
    assert problem.message == "a key is given twice, after the first 26 values"


def test_yaml_goes_on_behind_what_it_refuses():
    text = "a: &x {b: 1}\nc: *x\nd: [1, *x, 3]\ne: !int 3\n? [1]\n: 2\nf: 1e999\ng: 1\n---\nh: *x\n"
    document = parse_yaml(text, "m")
    assert document.data == {"a": {"b": 1}, "c": None, "d": [1, None, 3], "e": "3", "f": None, "g": 1} | {"e": 3}
    assert [(p.path, p.place.line, p.place.column) for p in document.problems] == [
        (("c",), 2, 4), (("d", 1), 3, 8), (("e",), 4, 4), ((), 5, 3), (("f",), 7, 4), ((), 9, 1),
    ]  # fmt: skip
    assert document.broken == {("c",), ("d", 1), ("e",), ("f",)}


def test_yaml_says_nothing_of_what_stands_in_a_repeated_key():
    document = parse_yaml("a: {b: 1}\na: {b: *x, c: !y 2, d: 1e999, d: 3}\n", "m")
    assert document.data == {"a": {"b": 1}}
    assert [p.path for p in document.problems] == [("a",)]


@pytest.mark.parametrize("end", range(1, 64))
def test_a_toml_file_that_ends_anywhere_is_told_so(end):
    text = "m={d={'e'=[1,{f=2.5,\"g\".h='x'}]},i=1}\n[[a.b]]\nc=[\n1,\n]\n[d]\n"
    for cut in (text[:end], "a = = 1\n" + text[:end]):
        try:
            data = tomllib.loads(cut)
        except tomllib.TOMLDecodeError:
            assert problem_of(parse_toml, cut).code == "syntax"
        else:
            assert parse_toml(cut, "m").data == data


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("a = 1\nb = [1, 2\nc = 3\nd = x\n", (3, 1), "Unclosed array"),
        ("a = 1\nb = x\nc = y\n", (2, 5), "Invalid value"),
        ('a = 1\nb = """x\n', (2, 5), "the string is not closed"),
    ],
)
def test_toml_that_cannot_be_parsed_is_the_one_error_of_the_parser(text, position, message):
    problem = problem_of(parse_toml, text)
    assert (problem.place.line, problem.place.column) == position
    assert problem.message.startswith(f"not valid TOML: {message}")


def test_dots_in_strings_are_no_long_key():
    text = f"a = 'x.{'y.' * 100}'\n# {'z.' * 100}\nb = {'[' * 60}1{']' * 60}\n"
    assert parse_toml(text, None).data == tomllib.loads(text)
    for long in (
        "a." * 70 + "b = 1",
        "[" + "a . " * 70 + "b]",
        "x = {" + '"a".' * 70 + "b = 1}",
        "a = " + "[" * 70 + "]" * 70,
    ):
        assert "nested more than 64 levels deep" in problem_of(parse_toml, long).message


@pytest.mark.parametrize(
    ("parse", "text", "lines"),
    [
        (parse_toml, '[a]\n\n"$ref" = "/x"\n[[c]]\n\n"$ref"="/y"\n', [3, 6]),
        (parse_json, '{"a":\n{\n"$ref": "/x"},\n"c": [\n{\n"$ref": "/y"}]}', [3, 6]),
        (parse_yaml, "a:\n\n  $ref: /x\nc:\n  -\n    $ref: /y\n", [3, 6]),
    ],
)
def test_a_reference_to_nothing_is_reported_at_its_line(parse, text, lines):
    with pytest.raises(dx.ConfigError, match="the reference has no target") as caught:
        dx.spec_from_config(Parts, parse(text, "m"))
    assert [problem.place.line for problem in caught.value.problems] == lines


@dx.dataclass
class Parts(dx.Module):
    a: dx.Linear
    c: list[dx.Linear]


# --- all mistakes in one report -------------------------------------------------

WRONG = {
    "kind": "Transformer",
    "dim": 8,
    "param_dtype": "float31",
    "notes": "a",
    "zzz": 1,
    "embed": {"kind": "Embed", "num_embeddings": 16, "embedding_init": {"kind": "normal", "std": 0.5}},
    "head": {"features": 3, "dtype": "float32"},
    "data": {"path": "x", "splits": [0.9], "batch": "8"},
    "blocks": [
        {"kind": "Block", "mode": "mid", "mixer": {"kind": "Attention", "dim": 8, "heads": 128}},
        {"kind": "Block", "mixer": {"kind": "Mlp", "dim": 8, "hidden": 16, "activation": "rellu"}},
        {"kind": "Block", "mixer": {"kind": "Attenton"}},
        {"kind": "Block", "mixer": {"$ref": "/blocks/7"}},
    ],
}
FOUND = {
    ("dim",): "duplicate-key",
    ("param_dtype",): "unknown-dtype",
    ("notes",): "unknown-key",
    ("zzz",): "unknown-key",
    ("embed", "features"): "missing-key",
    ("embed", "embedding_init", "std"): "unknown-key",
    ("head",): "missing-kind",
    ("data", "splits"): "wrong-type",
    ("data", "batch"): "wrong-type",
    ("blocks", 0, "mode"): "no-choice",
    ("blocks", 0, "mixer", "heads"): "out-of-range",
    ("blocks", 1, "mixer", "activation"): "unknown-activation",
    ("blocks", 2, "mixer", "kind"): "unknown-kind",
    ("blocks", 3, "mixer"): "ref-to-nothing",
}


def text_with_mistakes(suffix: str) -> str:
    text = FORMATS[suffix].write(WRONG)
    again = {".toml": "dim = 8\n", ".json": '  "dim": 8,\n', ".yaml": "dim: 8\n"}[suffix]
    return text.replace("\n" + again, "\n" + again + again.replace("8", "9"), 1)


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_fourteen_mistakes_of_one_file_are_in_one_report(suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    text = text_with_mistakes(suffix)
    found = dict(FOUND)
    if suffix == ".yaml":
        text = text.replace("zzz: 1\n", "zzz: 1\nnote: &it b\nsizes: *it\n") + "labels: !map {a: 1, b: x}\n"
        found |= {("sizes",): "syntax", ("labels",): "syntax", ("labels", "b"): "wrong-type"}
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dx.ConfigError, match=f"the configuration has {len(found)} problems") as caught:
        dx.spec_from_config(models.Transformer, path)
    problems = caught.value.problems
    assert {p.path: p.code for p in problems} == found
    assert len(problems) == len(found)
    lines = text.split("\n")
    for problem in problems:
        line, column = problem.place.line, problem.place.column
        assert problem.place.file == str(path)
        here = lines[line - 1][column - 1 :]
        key = problem.path[0] if problem.code == "missing-key" else problem.path[-1]
        if problem.code == "ref-to-nothing":
            assert "/blocks/7" in here
        elif problem.code == "syntax" and problem.path == ("sizes",):
            assert here == "*it"
        elif problem.code == "syntax":
            assert here.startswith("!map")
        else:
            assert here.lstrip("[\"'").removeprefix("blocks.").removeprefix("mixer.").startswith(key)
    again = next(p for p in problems if p.code == "duplicate-key")
    assert again.place.line == text[: text.index("9")].count("\n") + 1


def test_a_value_that_cannot_be_read_is_no_second_problem(tmp_path):
    path = tmp_path / "model.yaml"
    for text, count in {
        "path: &x y\nbatch: *x\n": 1,
        "path: *x\n": 1,
        "batch: 3\npath: !z [1]\n": 1,
        "kind: *x\n": 1,
        "path: y\nsplits: [0.5, *x]\n": 1,
        "path: y\nsplits: [*x, *y]\nbatch: x\n": 3,
        "path: y\npaht: *x\n": 2,  # the key is wrong too
    }.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(dx.ConfigError) as caught:
            dx.from_config(models.Data, path)
        assert len(caught.value.problems) == count, text
        assert str(caught.value).count("the configuration has " + ("one problem" if count == 1 else f"{count} ")) == 1


def test_overrides_keep_the_problems_of_the_file(tmp_path):
    path = tmp_path / "data.toml"
    path.write_text("path = 'x'\npath = 'y'\n", encoding="utf-8")

    @dataclasses.dataclass
    class Run:
        path: str
        steps: int = 1

    with pytest.raises(SystemExit):
        dx.cli(Run, [str(path), "steps=3"])


# --- messages -------------------------------------------------------------------

DEEP = 70
MESSAGES = [
    (".toml", "a = 1\nb = {\n  c = 1 }\n", (2, 5), "must end in the line in which it starts", "[header]"),
    (".toml", "b = { c = 1, # x\n d = 2 }\n", (1, 5), "must end in the line in which it starts", "[header]"),
    (".toml", "b = { c = 1, }\n", (1, 14), "no comma after its last value", "remove the comma"),
    (".toml", "a = 1\nb = 'x\nc = 1\n", (2, 5), "the string is not closed", "a ' at its end"),
    (".toml", 'a = 1\nb = ["x]\nc = 1\n', (2, 6), "the string is not closed", 'a " at its end'),
    (".toml", 'a = "x', (1, 5), "the string is not closed", 'a " at its end'),
    (".toml", 'b = """x\n\n', (1, 5), "the string is not closed", 'a " at its end'),
    (".toml", "a = [1, 2\nb = 3\n", (2, 1), "Unclosed array", "the list that starts in line 1"),
    (".toml", "a = 1\nb = 'x\0y'\n", (2, 7), "control character '\\x00'", "remove it"),
    (".toml", "a = 1\n\0b = 2\n", (2, 1), "control character '\\x00'", "remove it"),
    (".toml", "a = null\n", (1, 5), "Invalid value", '{ "$none" = true }'),
    (".toml", f"a = 1\nb = {'[' * DEEP}{']' * DEEP}\n", (2, 5 + 64), "more than 64 levels", "flatten"),
    (".toml", f"a = 1\n{'b.' * DEEP}c = 1\n", (2, 1), "more than 64 levels", "flatten"),
    (".toml", f"a = 1\n['x' .{'b.' * DEEP}c]\n", (2, 2), "more than 64 levels", "flatten"),
    (".toml", f"[{'b.' * 40}c]\na.x = {'[' * 30}{']' * 30}\n", (2, 29), "more than 64 levels", "flatten"),
    (".json", '{"a": 1,\n "b": 2,\n}', (2, 8), "a comma after the last value", "remove the comma"),
    (".json", '{"a": [1, 2, ]\n}', (1, 12), "a comma after the last value", "remove the comma"),
    (".json", '{"a": 1, // one\n "b": 2}', (1, 10), "JSON has no comments", "TOML or YAML"),
    (".json", '# x\n{"a": 1}', (1, 1), "JSON has no comments", "TOML or YAML"),
    (".json", '{"a": "x,\n "b": 2}', (1, 7), "the string is not closed", 'a " at its end'),
    (".json", '{"a": "x', (1, 7), "the string is not closed", 'a " at its end'),
    (".json", "{'a': 1}", (1, 2), "property name", "double quotes"),
    (".json", "{a: 1}", (1, 2), "property name", '"a"'),
    (".json", '{"a": True}', (1, 7), "Expecting value", "write true"),
    (".json", '{"a": abc}', (1, 7), "Expecting value", "strings have double quotes"),
    (".json", '{"a": 1\n "b": 2}', (2, 2), "delimiter", "a comma between"),
    (".json", '{"a": "x\0"}', (1, 9), "control character '\\x00'", "\\u0000"),
    (".json", f'{{"a":\n {"[" * DEEP}{"]" * DEEP}}}', (2, 2 + 63), "more than 64 levels", "flatten"),
    (".json", f'{{"a":\n {"[" * 3000}', (2, 2 + 63), "more than 64 levels", "flatten"),
    (".yaml", "a: 1\nb: 'x\nc: 2\n", (2, 4), "the string is not closed", "a quote"),
    (".yaml", "a: 1\nb: x\0y\n", (2, 5), "control character '\\x00'", "remove it"),
    (".yaml", "a:\n\tb: 1\n", (2, 1), "token", "indent with spaces"),
    (".yaml", "a: b: c\n", (1, 5), "mapping values are not allowed", "a line of its own"),
    (".toml", "a = 1\nb = 2 3\n", (2, 7), "Expected newline", "a line of its own for each key"),
    (".toml", 'a = 1\nb = "C:\\x"\n', (2, 10), "Unescaped", "single quotes"),
    (".toml", "a = 1\n[b\nc = 1\n", (2, 3), "Expected ']'", "[name]"),
    (".toml", "a = 1\nb\n", (2, 2), "Expected '='", "key = value"),
    (".json", '{"a": 1}\n}', (2, 1), "Extra data", "closes too early"),
    (".json", '{"a": "C:\\x"}', (1, 10), "Invalid", "in a string"),
    (".json", '{"a"\n 1}', (2, 2), "delimiter", '"key": value'),
    (".yaml", "a: 1\n b: 2\n", (2, 3), "mapping values", "a line of its own"),
    (".yaml", "a:\n  b: 1\n c: 2\n", (3, 2), "expected", "the same indentation"),
    (".yaml", "a: 1\nb\n", (3, 1), "could not find expected ':'", "a : and a space"),
    (".yaml", "a: [1 2\nb: 1\n", (2, 2), "expected ',' or", "a comma"),
    (".yaml", "a: 1\nb: @x\n", (2, 4), "cannot start any token", "quotes around"),
    (".yaml", f"a:\n {'[' * DEEP}{']' * DEEP}\n", (2, 2 + 63), "more than 64 levels", "flatten"),
]


@pytest.mark.parametrize(("suffix", "text", "position", "message", "hint"), MESSAGES)
def test_a_wrong_text_is_told_with_its_place_and_the_fix(suffix, text, position, message, hint):
    for written in (text, text.replace("\n", "\r\n")):
        with pytest.raises(dx.ConfigError, match="one problem") as caught:
            read_text(written, "m", suffix)
        (problem,) = caught.value.problems
        assert message in problem.message
        assert problem.hint is not None
        assert hint in problem.hint
        assert (problem.place.line, problem.place.column) == position


def test_a_file_in_another_encoding_has_a_column(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"a = 1\nb = '\xc3\xa9\xff'\n")
    with pytest.raises(dx.ConfigError) as caught:
        read_document(path)
    (problem,) = caught.value.problems
    assert (problem.place.line, problem.place.column) == (2, 7)
    assert "UTF-8" in problem.hint


def test_texts_from_elsewhere():
    document = read_text("\ufeffa: 1\n", "<stdin>", ".yml")
    assert document.data == {"a": 1}
    assert str(document.place_of(("a",))) == "<stdin>:1:1"
    with pytest.raises(dx.ConfigError, match="unknown suffix of a configuration file"):
        read_text("", None, ".ini")
    with pytest.raises(dx.ConfigError, match="the file is too large for a configuration"):
        read_text(" " * (5 << 20), None, ".toml")


# --- None in TOML -----------------------------------------------------------------


def test_none_in_toml():
    text = 'a = { "$none" = true }\nb = [1, { "$none" = true }]\n[c]\n"$none" = true\n[d]\n"$none" = false\n'
    assert parse_toml(text, None).data == {"a": None, "b": [1, None], "c": None, "d": {"$none": False}}
    assert parse_toml('"$none" = true\n', None).data == {"$none": True}
    assert parse_toml('a = { "$none" = true, b = 1 }\n', None).data == {"a": {"$none": True, "b": 1}}
    data = {"a": None, "b": [None, {"c": None, "d": [{"e": None}]}]}
    assert parse_toml(format_toml(data), None).data == data
    with pytest.raises(dx.ConfigError, match="would be read as None"):
        format_toml({"a": {"$none": True}})
    assert parse_json(format_json({"a": {"$none": True}}), None).data == {"a": {"$none": True}}


def test_an_empty_file_is_an_empty_table():
    assert parse_toml("", None).data == {}
    assert parse_yaml("# nothing\n", None).data == {}


# --- properties ---------------------------------------------------------------


def same(a, b) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@given(TABLES.filter(is_writable))
def test_what_is_written_is_read(data):
    for format_text, parse in ((format_toml, parse_toml), (format_json, parse_json), (format_yaml, parse_yaml)):
        document = parse(format_text(data), "m")
        assert not document.problems
        assert same(document.data, data)


@given(TABLES.filter(is_writable), st.data())
def test_of_a_statement_that_is_given_twice_the_first_counts(data, chosen):
    text = format_toml(data)
    statements = [statement for section in TomlScan(text).sections for statement in section.statements]
    if not statements:
        return
    path, start, end = chosen.draw(st.sampled_from(statements))
    key = text[start : text.index(" = ", start)] if isinstance(path[-1], str) and path[-1].isalnum() else None
    if key is None:
        return
    document = parse_toml(f"{text[:end]}\n{key} = [{{x = 1}},\n 2]{text[end:]}", "m")
    assert same(document.data, data)
    (problem,) = document.problems
    assert (problem.path, problem.place.line) == (path, text.count("\n", 0, end) + 2)


@given(TABLES.filter(is_writable), st.data())
def test_a_table_that_is_declared_twice_gets_the_keys_of_both(data, chosen):
    text = format_toml(data)
    sections = [s for s in TomlScan(text).sections[1:] if not any(isinstance(key, int) for key in s.path)]
    if not sections:
        return
    section = chosen.draw(st.sampled_from(sections))
    document = parse_toml(f"{text}[{header_text(section.path)}]\nnew_key = 1\n", "m")
    table = document.data
    for key in section.path:
        table = table[key]
    assert table.pop("new_key") == 1
    assert same(document.data, data)
    (problem,) = document.problems
    assert (problem.path, problem.place.line) == (section.path, text.count("\n") + 1)


@given(TABLES.filter(is_writable))
def test_every_value_has_a_place_of_its_own(data):
    """Each path is found by the scan: none is told at the place of what contains it for want of a better one."""
    for format_text, parse in ((format_toml, parse_toml), (format_json, parse_json), (format_yaml, parse_yaml)):
        text = format_text(data)
        places = parse(text, "m").find_places()
        missing = [path for path in paths_of(data) if path and path not in places]
        assert not missing
        lines = text.split("\n")
        for path, (line, column) in places.items():
            assert column is not None
            assert 1 <= line <= len(lines)
            assert column <= len(lines[line - 1]) + 1
            if path and isinstance(path[-1], str) and path[-1].isalpha() and path[-1].isascii():
                assert path[-1] in lines[line - 1]


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "1.5E999", "9" * 5000])
@pytest.mark.parametrize(
    ("parse", "form"),
    [
        (parse_toml, "x = 1\nnumber = [{0}]"),
        (parse_json, '{{"x": 1,\n"number": [{0}]}}'),
        (parse_yaml, "x: 1\nnumber: [{0}]"),
    ],
)
def test_numbers_that_no_float_holds(text, parse, form):
    written = form.format(text)
    document = parse(written, "m")
    assert document.data == {"x": 1, "number": [None]}
    (problem,) = document.problems
    assert problem.message.startswith("not a number: ")
    assert "a number that a float can hold" in problem.hint
    assert len(text) > 4000 or f"{text} is out of the range of floats" in problem.message
    assert (problem.path, problem.place.line, problem.place.column) == (
        ("number", 0),
        2,
        written.split("\n")[1].index("[") + 2,
    )
    assert document.broken == {("number", 0)}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_toml, "number = [inf, -inf, 0.0, -0e9, 0e-500, 1_0.5, 5e-324, 1e308]"),
        (parse_json, '{"number": [Infinity, -Infinity, 0.0, -0e9, 0e-500, 10.5, 5e-324, 1e308]}'),
        (parse_yaml, "number: [.inf, -.inf, 0.0, -0e9, 0e-500, 10.5, 5e-324, 1e308]"),
    ],
)
def test_numbers_that_floats_hold(parse, text):
    inf = float("inf")
    assert parse(text, None).data == {"number": [inf, -inf, 0.0, 0.0, 0.0, 10.5, 5e-324, 1e308]}
