"""Places of values in files, against a second opinion; and what the formats share."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.config._files.formatting import format_json, format_toml, format_yaml
from declax.config._files.reading import parse_json, parse_toml, parse_yaml

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


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_keys_that_are_given_twice_in_json_and_yaml(parse):
    problem = problem_of(parse, '{"a": {"b": 1,\n "b": {"c": 2}},\n "a": 3}')
    assert (problem.path, problem.place.line, problem.place.column) == (("a", "b"), 2, 2)
    assert problem.message == "the key is given twice"


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
        ("a = 1\na = 2\n", (2, 6), "Cannot overwrite a value"),
        ("[a]\n[b]\n[a]\n", (3, 3), "Cannot declare ('a',) twice"),
        ('a = 1\nb = """x\n', (2, None), "Unterminated string"),
        (f"b = {'9' * 5000}\n", (None, None), "Exceeds the limit"),
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


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "1.5E999"])
@pytest.mark.parametrize(
    ("parse", "form"), [(parse_toml, "number = {0}"), (parse_json, '{{"number": [{0}]}}'), (parse_yaml, "number: {0}")]
)
def test_numbers_that_no_float_holds(text, parse, form):
    assert f"{text} is out of the range of floats" in problem_of(parse, form.format(text)).message


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
