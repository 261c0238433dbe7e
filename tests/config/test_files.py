"""Places of values in files, against a second opinion; and what the formats share."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.config.files.formatting import format_json, format_toml, format_yaml
from declax.config.files.json_files import parse_json
from declax.config.files.toml_files import parse_toml
from declax.config.files.yaml_files import parse_yaml
from declax.config.problems import Place

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


@pytest.mark.parametrize(
    ("text", "data", "repeated"),
    [
        ("a = 1\na = 2\nb = 3", {"a": 1, "b": 3}, [(("a",), 2)]),
        ("a = 1\na = '''\nx\n'''\nb = 3", {"a": 1, "b": 3}, [(("a",), 2)]),
        ("[a]\nx = 1\n[a]\ny = 2\n[b]\nz = 3", {"a": {"x": 1}, "b": {"z": 3}}, [(("a",), 3)]),
        ("[a]\nx = 1\n[[b]]\nx = 1\nx = 2", {"a": {"x": 1}, "b": [{"x": 1}]}, [(("b", 0, "x"), 5)]),
        ("[a]\nx = 1\n[c]\n[[c]]\ny = 2", {"a": {"x": 1}, "c": {}}, [(("c",), 4)]),
        ("[a]\n[a]\nx = 1\n[a.b]\ny = 2", {"a": {"b": {"y": 2}}}, [(("a",), 2)]),
        ("m = 1\nm = {d = 1, d = 2}\nx = 3\n", {"m": 1, "x": 3}, [(("m",), 2)]),
        ("a.b = 1\n[a]\nc = 2", None, []),
        ("a = 1\n[a]\nb = 2", {"a": 1}, [(("a",), 2)]),
        ("[a.b]\nx = 1\n[a]\ny = 1", {"a": {"b": {"x": 1}, "y": 1}}, []),
    ],
)
def test_keys_that_are_given_twice_in_toml(text, data, repeated):
    document = parse_toml(text, "m.toml")
    found = [(p.path, p.place.line) for p in document.problems if p.code == "duplicate-key"]
    assert found == repeated
    if data is None:
        assert document.problems
    else:
        assert document.data == data


def test_keys_that_are_given_twice_in_json_and_yaml():
    text = '{"a": {"b": 1,\n "b": {"c": 2}},\n "a": 3}'
    for parse in (parse_json, parse_yaml):
        found = [(p.path, p.place.line) for p in parse(text, "m").problems]
        assert sorted(found) == [(("a",), 3), (("a", "b"), 2)]


@pytest.mark.parametrize("end", range(1, 64))
def test_a_toml_file_that_ends_anywhere_is_told_so(end):
    text = "m={d={'e'=[1,{f=2.5,\"g\".h='x'}]},i=1}\n[[a.b]]\nc=[\n1,\n]\n[d]\n"
    for cut in (text[:end], "a = = 1\n" + text[:end]):
        document = parse_toml(cut, "m.toml")
        assert isinstance(document.place_of(("m", "d")), Place)
        try:
            data = tomllib.loads(cut)
        except tomllib.TOMLDecodeError:
            assert document.problems
        else:
            assert document.data == data
            assert not document.problems


def test_a_broken_statement_leaves_the_rest_of_a_toml_file():
    document = parse_toml("a = 1\n[b]\nc = [\n 1,\n x]\nd = 3\ne = x\nf = {d = 1, d = 2}\ng.h = ?\n", "m.toml")
    assert document.data == {"a": 1, "b": {"d": 3}}
    assert document.broken >= {("b", "c"), ("b", "e"), ("b", "f"), ("b", "g")}
    assert [(p.place.line, p.path[-1]) for p in document.problems] == [(5, "c"), (7, "e"), (8, "f"), (9, "h")]
    assert "not valid TOML: Duplicate inline table key 'd'" in str(document.problems[2])


def test_a_number_of_too_many_digits_is_reported_at_its_line():
    document = parse_toml(f"a = 1\nb = {'9' * 5000}\nc = 3\n", "m.toml")
    assert document.data == {"a": 1, "c": 3}
    assert [(p.place.line, p.path) for p in document.problems] == [(2, ("b",))]


@pytest.mark.parametrize(
    ("text", "place", "path"),
    [
        ("a = [1, 2\nb = 3\nc = [4]\n", (1, 5), ("a",)),
        ("a = [1, [2, 3]\n[b]\nc = [\n1]\n", (1, 5), ("a",)),
        ("[[blocks]]\nx = { y = [1, 2 }\n[[blocks]]\ny = 3\n", (2, 11), ("blocks", 0, "x", "y")),
        ("a = { x = 1\n[b]\nc = 2\nd = [3]\n", (1, 5), ("a",)),
        ('a = """x\nb = 1\n[c]\nd = 2\n', (1, 5), ("a",)),
        ("a = [\n'''x\n]\n[c]\n", (2, 1), ("a", 0)),
        ("[a\nb = 1\n[c]\nd = 2\n", (1, None), ("a",)),
        ("[[a]\nb = 1\n[c]\nd = 2\n", (1, 4), ("a", 0)),
    ],
)
def test_an_unclosed_bracket_is_one_problem(text, place, path):
    """Nothing after it is known, so nothing is read."""
    document = parse_toml(text, "m.toml")
    assert document.data is None
    (problem,) = document.problems
    assert (problem.code, problem.place.line, problem.place.column, problem.path) == ("syntax", *place, path)
    with pytest.raises(dx.ConfigError, match=r"the configuration has one problem.*\n  m.toml:\d.*: not valid TOML: "):
        dx.spec_from_config(dx.Linear, document)


@pytest.mark.parametrize(
    ("parse", "text", "lines"),
    [
        (parse_toml, '[a]\n\n"$ref" = "/x"\n[[c]]\n\n"$ref"="/y"\n', [3, 6]),
        (parse_json, '{"a":\n{\n"$ref": "/x"},\n"c": [\n{\n"$ref": "/y"}]}', [3, 6]),
        (parse_yaml, "a:\n\n  $ref: /x\nc:\n  -\n    $ref: /y\n", [3, 6]),
    ],
)
def test_a_reference_to_nothing_is_reported_at_its_line(parse, text, lines):
    with pytest.raises(dx.ConfigError, match="the reference leads to no part") as caught:
        dx.spec_from_config(Parts, parse(text, "m"))
    assert [problem.place.line for problem in caught.value.problems] == lines


@dx.dataclass
class Parts(dx.Module):
    a: dx.Linear
    c: list[dx.Linear]


def test_an_empty_file_is_an_empty_table():
    assert parse_toml("", None).data == {}
    assert parse_yaml("# nothing\n", None).data == {}


# --- properties ---------------------------------------------------------------

KEYS = st.text(min_size=1, max_size=6) | st.sampled_from(["kind", "a", "b c", "1", "no", '"', "é", "a.b", "-"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
TABLES = st.dictionaries(KEYS.filter(lambda key: key.encode("utf-8", "ignore").decode() == key), VALUES, max_size=5)


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_of(item, (*path, index))


def is_writable(data) -> bool:
    return "\\ud" not in json.dumps(data).lower() or not re.search(r"\\ud[89a-f]", json.dumps(data))


def same(a, b) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@given(TABLES.filter(is_writable))
def test_what_is_written_is_read(data):
    for format_text, parse in ((format_toml, parse_toml), (format_json, parse_json), (format_yaml, parse_yaml)):
        document = parse(format_text(data), "m")
        assert not document.problems
        assert same(document.data, data)


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


def test_what_else_is_wrong_is_reported_next_to_a_key_given_twice():
    document = parse_toml("in_features = 1\nin_features = 2\nout_features = 'x'\n", "layer.toml")
    with pytest.raises(dx.ConfigError, match="the configuration has 2 problems"):
        dx.from_config(dx.Linear, document)


@dx.dataclass
class Numbers(dx.Module):
    number: float
    either: float | str | None = None
    several: list[float] = dx.static(default_factory=list)
    anything: Any = None


LOST = ["1e400", "-1e400", "1e-400", "1.5E999"]


@pytest.mark.parametrize("text", LOST)
@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        (".toml", "number = {0}\neither = {0}\nseveral = [1.0, {0}]\nanything = {0}\n"),
        (".json", '{{"number": {0},\n"either": {0},\n"several": [1.0, {0}],\n"anything": {0}}}\n'),
        (".yaml", "number: {0}\neither: {0}\nseveral: [1.0, {0}]\nanything: {0}\n"),
    ],
)
def test_numbers_that_no_float_holds(text, suffix, form, tmp_path):
    path = tmp_path / f"numbers{suffix}"
    path.write_text(form.format(text))
    with pytest.raises(dx.ConfigError, match="no float holds this number: it would be read as") as caught:
        dx.spec_from_config(Numbers, path)
    found = [(p.path, p.place.line, p.got) for p in caught.value.problems]
    assert found == [
        (("number",), 1, text), (("either",), 2, text), (("several", 1), 3, text), (("anything",), 4, text)
    ]  # fmt: skip


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


def test_a_broken_line_hides_no_lost_number(tmp_path):
    path = tmp_path / "numbers.toml"
    path.write_text("number = 1e400\neither = yes\n")
    with pytest.raises(dx.ConfigError, match="no float holds this number") as caught:
        dx.spec_from_config(Numbers, path)
    assert {problem.code: problem.place.line for problem in caught.value.problems} == {"syntax": 2, "out-of-range": 1}
