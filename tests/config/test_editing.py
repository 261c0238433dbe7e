"""Edits of the text of a configuration: the data changes as told, and all other bytes stay."""

from __future__ import annotations

import collections
import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.config._files import scanning
from declax.config._files.editing import renamed, same, with_value, without
from declax.config._files.flow_edits import value_at
from declax.config._files.formats import format_of, read_text
from declax.config._files.toml_format import header_text, value_text
from declax.config._files.yaml_format import dumped
from plain_data import KEYS, SCALARS, TABLES, VALUES, is_writable, paths_of

# --- one edit, and the lines that differ -------------------------------------------

TOML = '''# top
rate = 0.1  # low
name = """
a
b"""

# about model
[model]
dim = 8   # d
opt.lr = 1 # dotted
sizes = [
  1, # one
  2, # two
]
last = [
  1,
  2 # two
]
inl = { a = 1, b.x = 2 }

[[blocks]]
kind = 'A'
[blocks.mixer]
h = 1
# tail of mixer

[[blocks]]
kind = "B"

[x.y.z]
q = 1
'''
YAML = """\
# top
rate: 0.1  # low
name: |
  a
  b

# about model
model:  # m
  dim: 8   # d
  sizes:
  - 1  # one
  - 2
  flow: { a: 1, b: [1, 2] }
  nested:
    - - 1
      - 2
    -
      k: v
  empty:
  multi: [
    1, # one
    2, # two
  ]
blocks:
  - kind: A
    mixer:
      h: 1
      # tail
  - kind: B
last: "x"
"""
JSON = """\
{
  "rate": 0.1,
  "model": {
    "dim": 8,
    "sizes": [1, 2],
    "long": [
      1,
      2
    ],
    "e": {},
    "one": { "x": 1 }
  },
  "blocks": [{"kind": "A"}, {"kind": "B"}]
}
"""
GONE = object()
EDITS = [
    # a value in its place
    (TOML, ("rate",), 1, ["rate = 0.1  # low"], ["rate = 1  # low"]),
    (TOML, ("name",), "x", ['name = """', "a", 'b"""'], ['name = "x"']),
    (TOML, ("model", "dim"), None, ["dim = 8   # d"], ['dim = { "$none" = true }   # d']),
    (TOML, ("model", "opt", "lr"), 2, ["opt.lr = 1 # dotted"], ["opt.lr = 2 # dotted"]),
    (TOML, ("model", "sizes", 0), 3, ["  1, # one"], ["  3, # one"]),
    (TOML, ("model", "inl", "b", "x"), 3, ["inl = { a = 1, b.x = 2 }"], ["inl = { a = 1, b.x = 3 }"]),
    (TOML, ("blocks", 0, "kind"), "C", ["kind = 'A'"], ['kind = "C"']),
    (TOML, ("blocks", 0, "mixer"), {"h": 2, "z": 1}, ["h = 1"], ["h = 2", "z = 1"]),
    (TOML, ("blocks", 0, "mixer"), 5, ["[blocks.mixer]", "h = 1"], ["mixer = 5"]),
    (YAML, ("rate",), "no", ["rate: 0.1  # low"], ["rate: 'no'  # low"]),
    (YAML, ("name",), "x", ["name: |", "  a", "  b"], ["name: x"]),
    (YAML, ("model", "sizes"), 5, ["  sizes:", "  - 1  # one", "  - 2"], ["  sizes: 5"]),
    (YAML, ("model", "nested", 0), 5, ["    - - 1", "      - 2"], ["    - 5"]),
    (YAML, ("model", "nested", 1), 5, ["    -", "      k: v"], ["    - 5"]),
    (YAML, ("model", "empty"), 1, ["  empty:"], ["  empty: 1"]),
    (YAML, ("blocks", 0, "mixer"), {"h": 2, "z": 1}, ["      h: 1"], ["      h: 2", "      z: 1"]),
    (JSON, ("rate",), 1, ['  "rate": 0.1,'], ['  "rate": 1,']),
    # a new key, item or table
    (TOML, ("new",), 1, [], ["new = 1"]),
    (TOML, ("model", "opt", "mu"), 2, [], ["opt.mu = 2"]),
    (TOML, ("model", "sizes", 2), 3, [], ["  3,"]),
    (TOML, ("model", "last", 2), 3, ["  2 # two"], ["  2, # two", "  3"]),
    (TOML, ("model", "inl", "d"), 3, ["inl = { a = 1, b.x = 2 }"], ["inl = { a = 1, b.x = 2, d = 3 }"]),
    (TOML, ("model", "inl", "b", "y"), 3, ["inl = { a = 1, b.x = 2 }"], ["inl = { a = 1, b.x = 2, b.y = 3 }"]),
    (TOML, ("model", "new"), {"kind": "A", "b": {}}, [], ["[model.new]", 'kind = "A"', "b = {}", ""]),
    (TOML, ("blocks", 0, "mixer", "k"), 2, [], ["k = 2"]),
    (TOML, ("blocks", 2), {"kind": "C"}, [], ["[[blocks]]", 'kind = "C"', ""]),
    (TOML, ("x", "y", "new"), 1, [], ["", "[x.y]", "new = 1"]),
    (TOML, ("a", "b", "c"), 1, [], ["", "[a]", "b = { c = 1 }"]),
    (YAML, ("new",), {"a": [{"b": 1}]}, [], ["new:", "  a:", "  - b: 1"]),
    (YAML, ("model", "sizes", 2), 3, [], ["  - 3"]),
    (YAML, ("model", "flow", "b", 2), 3, ["  flow: { a: 1, b: [1, 2] }"], ["  flow: { a: 1, b: [1, 2, 3] }"]),
    (YAML, ("model", "nested", 0, 2), 3, [], ["      - 3"]),
    (YAML, ("model", "nested", 2), {"a": 1}, [], ["    - a: 1"]),
    (YAML, ("model", "multi", 2), 3, [], ["    3,"]),
    (YAML, ("blocks", 0, "mixer", "k"), 2, [], ["      k: 2"]),
    (JSON, ("new",), [1, 2], ['  "blocks": [{"kind": "A"}, {"kind": "B"}]'],
     ['  "blocks": [{"kind": "A"}, {"kind": "B"}],', '  "new": [1, 2]']),
    (JSON, ("new",), {"a": {"b": 1}, "c": [1]}, ['  "blocks": [{"kind": "A"}, {"kind": "B"}]'],
     ['  "blocks": [{"kind": "A"}, {"kind": "B"}],', '  "new": {', '    "a": {', '      "b": 1', "    },",
      '    "c": [1]', "  }"]),
    (JSON, ("model", "long", 2), 3, ["      2"], ["      2,", "      3"]),
    (JSON, ("model", "e", "x"), 3, ['    "e": {},'], ['    "e": {"x": 3},']),
    (JSON, ("model", "one", "y"), 3, ['    "one": { "x": 1 }'], ['    "one": { "x": 1, "y": 3 }']),
    (JSON, ("blocks", 0, "x"), 1, ['  "blocks": [{"kind": "A"}, {"kind": "B"}]'],
     ['  "blocks": [{"kind": "A", "x": 1}, {"kind": "B"}]']),
    # nothing in its place
    (TOML, ("name",), GONE, ['name = """', "a", 'b"""'], []),
    (TOML, ("model", "sizes", 1), GONE, ["  2, # two"], []),
    (TOML, ("model", "inl", "a"), GONE, ["inl = { a = 1, b.x = 2 }"], ["inl = { b.x = 2 }"]),
    (TOML, ("model", "inl", "b", "x"), GONE, ["inl = { a = 1, b.x = 2 }"], ["inl = { a = 1, b = {} }"]),
    (TOML, ("model", "opt"), GONE, ["opt.lr = 1 # dotted"], []),
    (TOML, ("blocks", 0), GONE, ["[[blocks]]", "kind = 'A'", "[blocks.mixer]", "h = 1"], []),
    (TOML, ("x",), GONE, ["", "[x.y.z]", "q = 1"], []),
    (TOML, ("x", "y", "z"), GONE, ["[x.y.z]", "q = 1"], ["[x]", "y = {}"]),
    (YAML, ("rate",), GONE, ["rate: 0.1  # low"], []),
    (YAML, ("name",), GONE, ["name: |", "  a", "  b"], []),
    (YAML, ("model", "nested", 0, 0), GONE, ["    - - 1", "      - 2"], ["    - - 2"]),
    (YAML, ("model", "nested", 1, "k"), GONE, ["    -", "      k: v"], ["    - {}"]),
    (YAML, ("model", "multi", 0), GONE, ["    1, # one"], []),
    (YAML, ("blocks", 0, "kind"), GONE, ["  - kind: A", "    mixer:"], ["  - mixer:"]),
    (YAML, ("blocks", 0, "mixer", "h"), GONE, ["    mixer:", "      h: 1"], ["    mixer: {}"]),
    (JSON, ("rate",), GONE, ['  "rate": 0.1,'], []),
    (JSON, ("blocks",), GONE, ["  },", '  "blocks": [{"kind": "A"}, {"kind": "B"}]'], ["  }"]),
    (JSON, ("model", "long", 1), GONE, ["      1,", "      2"], ["      1"]),
    (JSON, ("blocks", 0, "kind"), GONE, ['  "blocks": [{"kind": "A"}, {"kind": "B"}]'],
     ['  "blocks": [{}, {"kind": "B"}]']),
]  # fmt: skip
SUFFIX_OF = {TOML: ".toml", YAML: ".yaml", JSON: ".json"}


def is_changed(text: str, new: str, before: list[str], after: list[str]) -> bool:
    """Whether the only difference between two texts is one group of lines."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if "\r\n" in text else "\n"
    old, made = ([line + end for line in group] for group in (before, after))
    starts = [i for i in range(len(lines) + 1) if lines[i : i + len(old)] == old]
    return any("".join([*lines[:i], *made, *lines[i + len(old) :]]) == new for i in starts)


@pytest.mark.parametrize("index", range(len(EDITS)))
def test_an_edit_changes_only_its_lines(index):
    text, path, value, before, after = EDITS[index]
    for written in (text, text.replace("\n", "\r\n"), "\ufeff" + text):
        if value is GONE:
            new = without(written, SUFFIX_OF[text], path)
        else:
            new = with_value(written, SUFFIX_OF[text], path, value)
        assert is_changed(written, new, before, after), new


RENAMED = [
    (TOML, ("blocks",), "n w", [("[[blocks]]", '[["n w"]]'), ("[blocks.mixer]", '["n w".mixer]')]),
    (TOML, ("x", "y"), "k", [("[x.y.z]", "[x.k.z]")]),
    (TOML, ("model", "opt"), "k", [("opt.lr", "k.lr")]),
    (YAML, ("model",), "1 x", [("model:", '"1 x":')]),
    (YAML, ("model", "flow", "a"), "no", [("{ a:", "{ 'no':")]),
    (JSON, ("model", "dim"), 'a"', [('"dim"', r'"a\""')]),
]


@pytest.mark.parametrize(("text", "path", "key", "changes"), RENAMED)
def test_a_key_is_renamed_wherever_it_is_written(text, path, key, changes):
    expected = text
    for old, new in changes:
        expected = expected.replace(old, new)
    assert renamed(text, SUFFIX_OF[text], path, key) == expected


@pytest.mark.parametrize(
    ("text", "suffix", "path", "value", "made"),
    [
        ("", ".toml", ("a",), 1, "a = 1\n"),
        ("# c", ".toml", ("a",), 1, "# c\na = 1\n"),
        ("# c\n[b]\nx = 1\n", ".toml", ("a",), 1, "a = 1\n\n# c\n[b]\nx = 1\n"),
        ("", ".toml", ("a",), {"kind": "A", "b": {}}, '[a]\nkind = "A"\nb = {}\n'),
        ("a = 1", ".toml", ("b",), 2, "a = 1\nb = 2"),
        ("a = {}\n", ".toml", ("a", "b"), 2, "a = { b = 2 }\n"),
        ("a = [ # c\n]\n", ".toml", ("a", 0), 2, "a = [ # c\n2]\n"),
        ("a.b = 1\n[c]\n", ".toml", ("a", "d"), {"k": [{}]}, "a.b = 1\n\n[a.d]\n\n[[a.d.k]]\n[c]\n"),
        ("[a]\n# c\n\n[b]\n", ".toml", ("a", "k"), [{}], "[a]\n# c\n\n[[a.k]]\n\n[b]\n"),
        ("[a]\n# c\n[b]\n", ".toml", ("a", "k"), [{}], "[a]\n\n[[a.k]]\n# c\n[b]\n"),
        ("[a]\n# c\n# d", ".toml", ("a", "k"), [{}], "[a]\n# c\n# d\n\n[[a.k]]"),
        ("[[a]]\n[[a]]\n", ".toml", ("a", 0), {"b": 1}, "[[a]]\nb = 1\n[[a]]\n"),
        ("[[a]]\nx = 1\n[[a]]\n", ".toml", ("a", 0), 1, "a = [1, {}]\n"),
        ("[a]\n# c\n[b]\n", ".toml", ("a",), {"k": 1}, "[a]\nk = 1\n# c\n[b]\n"),
        ("[[a]]\n[b]\n", ".toml", ("a", 1), 1, "a = [{}, 1]\n\n[b]\n"),
        ("", ".yaml", ("a",), 1, "a: 1\n"),
        ("# c", ".yaml", ("a",), 1, "# c\na: 1\n"),
        ("{}", ".yaml", ("a",), 1, "{a: 1}"),
        ("a: |\n  x\n\nb: 2\n", ".yaml", ("c",), 3, "a: |\n  x\n\nb: 2\nc: 3\n"),
        ("a:\n  b: |\n    x\nc: 2\n", ".yaml", ("a", "d"), 3, "a:\n  b: |\n    x\n  d: 3\nc: 2\n"),
        ("a: 1", ".yaml", ("b",), 2, "a: 1\nb: 2"),
        ("{}", ".json", ("a",), 1, '{"a": 1}'),
        ("{\n}\n", ".json", ("a", "b"), 1, '{"a": {"b": 1}}\n'),
    ],
)
def test_small_texts(text, suffix, path, value, made):
    assert with_value(text, suffix, path, value) == made


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda: with_value("a = 1\n", ".toml", (), 1), "an edit needs a path"),
        (lambda: with_value("a = 1\n", ".toml", ("a", "b"), 1), "nothing can be set at a"),
        (lambda: with_value("a = [1]\n", ".toml", ("a", 2), 1), "nothing can be set at a"),
        (lambda: with_value("a = [1]\n", ".toml", ("a", "b"), 1), "nothing can be set at a"),
        (lambda: with_value("a = 1\na = 2\n", ".toml", ("a",), 1), "the configuration has one problem"),
        (lambda: with_value("a: *x\n", ".yaml", ("b",), 1), "the configuration has one problem"),
        (lambda: with_value("a = [{}]\n[b]\n", ".ini", ("a",), 1), "unknown suffix"),
        (lambda: without("a = 1\n", ".toml", ("b",)), "the file has no such value"),
        (lambda: without("a = 1\n", ".toml", ()), "an edit needs a path"),
        (lambda: renamed("a = 1\nb = 2\n", ".toml", ("a",), "b"), "the key cannot be renamed"),
        (lambda: renamed("a = [1]\n", ".toml", ("a", 0), "b"), "the key cannot be renamed"),
        (lambda: with_value("a: 1\n", ".yaml", ("b",), {"c": float}), "a file cannot have this value"),
        (lambda: with_value("a: 1\n", ".yaml", ("b",), [{1: 2}]), "a file cannot have this value"),
        (lambda: with_value("a = 1\n", ".toml", ("b",), {"$none": True}), "no edit of the text changes this value"),
    ],
)
def test_edits_that_are_refused(edit, said):
    with pytest.raises(dx.ConfigError, match=said):
        edit()


def test_sections_with_empty_lines_between_them_are_removed_together():
    text = "a = 1\n\n[b]\n\n[b.c]\nx = 1\n\n[b.c.d]\n"
    assert without(text, ".toml", ("b",)) == "a = 1\n"
    assert without(text, ".toml", ("b", "c")) == "a = 1\n\n[b]\n"
    assert without(text + "[e]\n", ".toml", ("b", "c")) == "a = 1\n\n[b]\n\n[e]\n"


def test_a_text_that_is_too_long_for_its_places_is_not_edited(monkeypatch):
    monkeypatch.setattr(scanning, "MAX_TOKENS", 5)
    with pytest.raises(dx.ConfigError, match="no edit of the text changes this value"):
        with_value("a = 1\nb = 2\n", ".toml", ("a",), 3)


# --- any text and any edit ----------------------------------------------------------


def decorated(text: str, seed: int, *, has_comments: bool) -> str:
    """A text with comments of their own, and with the line breaks of one system."""
    chance = random.Random(seed)
    lines = []
    for number, line in enumerate(text.split("\n")[:-1]):
        if has_comments and chance.random() < 0.3:
            lines.append(f"{' ' * chance.randrange(4)}# above {number}")
        is_open = has_comments and line.strip() and chance.random() < 0.3
        lines.append(f"{line}  # behind {number}" if is_open else line)
    return "".join(line + chance.choice(["\n", "\r\n"][seed % 2 :]) for line in lines)


class Toml:
    """Writes TOML in all of its forms: dotted keys, headers, braces, lists in lines, texts in lines."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def table(self, table, path=()):
        later = {}
        for key, value in table.items():
            is_list = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
            if (isinstance(value, dict) or is_list) and self.chance.random() < 0.5:
                later[key] = value
            else:
                yield from self.statement((key,), value)
        for key, value in later.items():
            for item in value if isinstance(value, list) else [value]:
                head = header_text((*path, key))
                yield from ["", "# of the header"][: self.chance.randrange(3)]
                yield f"[[{head}]] # {key!a}" if isinstance(value, list) else f"[ {head} ]"
                yield from self.table(item, (*path, key))

    def statement(self, keys, value):
        if isinstance(value, dict) and value and self.chance.random() < 0.5 and value.keys() != {"$none"}:
            for key, item in value.items():
                yield from self.statement((*keys, key), item)
            return
        yield f"{header_text(keys)} = {self.value(value)}"

    def value(self, value):
        if isinstance(value, list):
            items = [self.value(item) for item in value]
            if self.chance.random() < 0.5:
                lines = "".join(f"\n  {item}, # {i}" for i, item in enumerate(items))
                return f"[{lines}\n]"
            return f"[{', '.join(items)}{',' if items and self.chance.random() < 0.3 else ''}]"
        if isinstance(value, dict) and value:
            return f"{{{', '.join(line for key, item in value.items() for line in self.statement((key,), item))}}}"
        if isinstance(value, str) and value.isalnum() and self.chance.random() < 0.5:
            return f'"""\n{value}"""'
        return value_text(value)


class Yaml:
    """Writes YAML with blocks in blocks, brackets in blocks, and texts in lines."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def inline(self, value):
        return dumped([value], flow=True).strip()[1:-1]

    def lines(self, value, indent):
        pad = " " * indent
        if isinstance(value, dict):
            for key, item in value.items():
                yield from self.entry(f"{pad}{self.inline(key)}:", item, indent + self.chance.choice([1, 2, 4]))
        else:
            for item in value:
                yield from self.entry(f"{pad}-", item, indent + 2)

    def entry(self, start, value, indent):
        if isinstance(value, (dict, list)) and value and self.chance.random() < 0.7:
            lines = list(self.lines(value, indent))
            if start.endswith("-") and self.chance.random() < 0.5 and not lines[0].lstrip().startswith("#"):
                yield f"{start} {lines.pop(0).strip()}"
            else:
                yield start + self.chance.choice(["", "  # block"])
            yield from lines
        elif isinstance(value, str) and value.isascii() and value.isalpha() and self.chance.random() < 0.5:
            yield from (f"{start} |-", " " * indent + value, *[""][: self.chance.randrange(2)])
        elif value is None and self.chance.random() < 0.5:
            yield start
        else:
            yield f"{start} {self.inline(value)}{self.chance.choice(['', ' # end'])}"
        yield from [f"{' ' * self.chance.randrange(6)}# between"][: self.chance.randrange(2)]


def written(data, form: str, seed: int) -> tuple[str, str]:
    if form == "toml":
        return "\n".join(Toml(seed).table(data)) + "\n"[: seed % 3], ".toml"
    if form == "yaml":
        return "\n".join(Yaml(seed).lines(data, 0)) + "\n"[: seed % 3], ".yaml"
    if form == "flow":
        return decorated(dumped(data, flow=True), seed, has_comments=False), ".yaml"
    text = format_of(form).write(data)
    return decorated(text, seed, has_comments=form != ".json"), form


def edited(data, path, value):
    """The data after an edit, as the text must say it."""
    made = copy.deepcopy(data)
    holder = value_at(made, path[:-1])
    if value is GONE:
        del holder[path[-1]]
    elif isinstance(holder, list) and path[-1] == len(holder):
        holder.append(value)
    else:
        holder[path[-1]] = value
    return made


def lost_lines(text: str, new: str, suffix: str, path) -> int:
    """How many lines outside of a value an edit has changed."""
    scan = format_of(suffix).scan(text)
    below = [offset for at, offset in scan.starts.items() if at[: len(path)] == path]
    below += [offset for at, span in scan.values.items() if at[: len(path)] == path for offset in span]
    first, last = (text.count("\n", 0, offset) for offset in (min(below), max(below))) if below else (1, 0)
    lines = text.split("\n")
    outside = [line for i, line in enumerate(lines) if line.strip() and not first <= i <= last]
    return sum((collections.Counter(outside) - collections.Counter(new.split("\n"))).values())


EDITED = TABLES.filter(lambda data: data and is_writable(data))
FORMS = st.sampled_from([".toml", "toml", ".yaml", "yaml", ".json", "flow"])


@given(EDITED, FORMS, st.integers(0, 99))
def test_the_texts_say_the_data(data, form, seed):
    text, suffix = written(data, form, seed)
    assert same(read_text(text, None, suffix).data, data)


@given(EDITED, FORMS, st.integers(0, 99), st.data())
def test_a_value_is_replaced(data, form, seed, chosen):
    text, suffix = written(data, form, seed)
    path = chosen.draw(st.sampled_from([path for path in paths_of(data) if path]))
    value = chosen.draw(VALUES.filter(is_writable))
    new = with_value(text, suffix, path, value)
    assert same(read_text(new, None, suffix).data, edited(data, path, value))
    assert lost_lines(text, new, suffix, path) <= 2
    is_scalar = not isinstance(value, (dict, list)) and not isinstance(value_at(data, path), (dict, list))
    assert not is_scalar or new.count("# ") == text.count("# ")


@given(EDITED, FORMS, st.integers(0, 99), st.data())
def test_a_value_is_added(data, form, seed, chosen):
    text, suffix = written(data, form, seed)
    holders = [path for path in paths_of(data) if isinstance(value_at(data, path), (dict, list))]
    above = chosen.draw(st.sampled_from(holders))
    holder = value_at(data, above)
    keys = KEYS.filter(lambda key: key not in holder and is_writable({key: 1}))
    path = (*above, chosen.draw(keys) if isinstance(holder, dict) else len(holder))
    is_list_of_tables = isinstance(holder, list) and holder and all(isinstance(item, dict) for item in holder)
    value = chosen.draw(st.dictionaries(st.sampled_from("abc"), SCALARS) if is_list_of_tables else VALUES)
    if not is_writable({"a": value}):
        return
    new = with_value(text, suffix, path, value)
    assert same(read_text(new, None, suffix).data, edited(data, path, value))
    assert lost_lines(text, new, suffix, path) <= 2
    assert all(line in new for line in text.split("\n") if line.lstrip().startswith("# above"))


@given(EDITED, FORMS, st.integers(0, 99), st.data())
def test_a_value_is_removed(data, form, seed, chosen):
    text, suffix = written(data, form, seed)
    path = chosen.draw(st.sampled_from([path for path in paths_of(data) if path]))
    new = without(text, suffix, path)
    assert same(read_text(new, None, suffix).data, edited(data, path, GONE))
    assert lost_lines(text, new, suffix, path) <= 2


@given(EDITED, FORMS, st.integers(0, 99), st.data())
def test_a_key_is_renamed(data, form, seed, chosen):
    text, suffix = written(data, form, seed)
    path = chosen.draw(st.sampled_from([path for path in paths_of(data) if path and isinstance(path[-1], str)]))
    holder = value_at(data, path[:-1])
    key = chosen.draw(KEYS.filter(lambda key: key not in holder and is_writable({key: 1})))
    new = renamed(text, suffix, path, key)
    expected = edited(edited(data, (*path[:-1], key), holder[path[-1]]), path, GONE)
    assert same(read_text(new, None, suffix).data, expected)
    assert text.count("\n") == new.count("\n")
