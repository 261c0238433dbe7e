"""Hostile and mutated files: bounded time and memory, and no error but the documented one."""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import config_models as models
import declax as dx
from declax.config._files.documents import MAX_BYTES
from declax.config._files.json_format import format_json, parse_json
from declax.config._files.toml_format import format_toml, parse_toml
from declax.config._files.yaml_format import format_yaml, parse_yaml
from declax.config._reading.readers import INVALID, Context

pytestmark = pytest.mark.sampled(6)

SECONDS = 60.0  # of the processor, with memory being traced
MEGABYTES = 400

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
KEYS = [
    "__class__",
    "__init__",
    "__dict__",
    "__globals__",
    "kind",
    "$ref",
    "$version",
    "rngs",
    "self",
    "../x",
    "",
    "\0",
]


@functools.lru_cache(maxsize=1)  # all are written for each: large ones take most of a second
def hostile_files(scale: float) -> dict[str, str]:
    """The texts by name; a scale of 1 makes them about as large as files may be."""

    def n(count: int) -> int:
        return int(count * scale)

    return {
        "lists.toml": "a = " + "[" * n(1_000_000),
        "closed_lists.toml": "a = " + "[" * n(100_000) + "]" * n(100_000),
        "tables.toml": "a = " + "{a=" * n(300_000),
        "dotted_key.toml": "a." * n(1_000_000) + "a = 1",
        "dotted_header.toml": "[" + "a." * n(1_000_000) + "a]",
        "dotted_inline.toml": "x = {" + "a." * n(1_000_000) + "a = 1}",
        "quoted_dots.toml": '"a".' * n(500_000) + "a = 1",
        "headers.toml": "".join(f"[{'a.' * 60}b{i}]\n" for i in range(n(25_000))),
        "number.toml": "a = " + "9" * n(1_000_000),
        "hexadecimal.toml": "dim = 0x" + "f" * n(1_000_000),
        "string.toml": 'note = "' + "x" * n(4_000_000) + '"',
        "escapes.toml": 'note = "' + "\\n" * n(1_500_000) + '"',
        "open_string.toml": 'note = """' + '"' * n(3_000_000),
        "key.toml": "x" * n(4_000_000) + " = 1",
        "keys.toml": "".join(f"k{i} = {i}\n" for i in range(n(200_000))),
        "repeated.toml": "a = 1\n" * n(500_000),
        "repeated_tables.toml": "[a]\nx = 1\n" * n(300_000),
        "repeated_items.toml": "x = [" + "{a = 1, a = 2}, " * n(200_000) + "]",
        "repeated.json": '{"a": [' + '{"b": 1, "b": 2},' * n(200_000) + "1]}",
        "repeated.yaml": "a: 1\n" * n(300_000),
        "aliases.yaml": "a: &a 1\nb: [" + "*a, " * n(300_000) + "]\n",
        "tags.yaml": "b: [" + "!x 1, " * n(300_000) + "]\n",
        "open_braces.toml": "a = [" + "{x = {" * 25 + "\n" * n(3_000_000),
        "open_quotes.toml": "a = ['x'," + "'y', " * n(700_000) + "'z",
        "trailing.json": "[" + "1, " * n(1_000_000) + "]",
        "broken.toml": "a = = 1\n" * n(500_000),
        "lists.json": "[" * n(2_000_000),
        "tables.json": '{"a":' * n(500_000),
        "quotes.json": '"' + "\\" * n(3_000_000),
        "number.json": "[" + "9" * n(1_000_000) + "]",
        "exponent.json": '{"dim": 1e999999999}',
        "items.json": '{"blocks": [' + ",".join("1" * n(1_500_000)) + "]}",
        "surrogate.json": '{"note": "\\ud800", "\\ud800": 1, "dim": "\\ud800"}',
        "key.json": json.dumps({"x" * n(3_000_000): 1, "kind": "y" * n(900_000)}),
        "lists.yaml": "[" * n(2_000_000),
        "tables.yaml": "{a: " * n(500_000),
        "dashes.yaml": "- " * n(1_000_000),
        "questions.yaml": "? " * n(1_000_000),
        "indents.yaml": "".join(f"{' ' * i}a:\n" for i in range(n(2_000))),
        "laughs.yaml": LAUGHS,
        "laughing_parts.yaml": LAUGHS.replace("x, x", "{kind: Block}, x") + "blocks: *a11\n",
        "self.yaml": "a: &a [*a]\n",
        "merge.yaml": "a: &a {b: 1}\nembed:\n  <<: *a\n",
        "object.yaml": "dim: !!python/object/apply:os.system ['exit 1']\n",
        "anchors.yaml": "".join(f"k{i}: &a{i} x\n" for i in range(n(100_000))),
        "number.yaml": "dim: " + "9" * n(1_000_000),
        "float.yaml": "dim: 1" + "e1" * n(1_000_000),
        "keys.json": json.dumps(dict.fromkeys(KEYS, 1)),
        "keys.yaml": "".join(f"{json.dumps(key)}: 1\n" for key in KEYS),
        "refs.json": json.dumps(
            {"blocks": [{"kind": "Block", "mixer": {"$ref": f"/blocks/{i}"}} for i in range(n(40_000))]}
        ),
        "circle.json": json.dumps(
            {
                "blocks": [
                    {"kind": "Block", "mixer": {"$ref": f"/blocks/{(i + 1) % n(20_000)}"}} for i in range(n(20_000))
                ]
            }
        ),
        "references.json": json.dumps({"head": {"$ref": "/" + "blocks/0/" * n(400_000)}}),
        "modules.toml": 'kind = "os.system"\nparam_dtype = "os.system"\n[embed]\nkind = "subprocess:Popen"\n',
    }


NAMES_OF_FILES = list(hostile_files(0.01))


@pytest.mark.parametrize("name", NAMES_OF_FILES)
def test_hostile_files_are_refused(name, tmp_path):
    refuse(hostile_files(0.02)[name], tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES_OF_FILES)
def test_large_hostile_files_are_refused_in_bounded_time_and_memory(name, tmp_path):
    refuse(hostile_files(1.0)[name], tmp_path / name)


def refuse(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
    tracemalloc.start()
    start = time.process_time()  # other programs do not count
    try:
        with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
            dx.spec_from_config(models.Transformer, path)
        assert time.process_time() - start < SECONDS
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 200_000
    str(caught.value).encode("utf-8")


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.write(b'note = "')
        file.truncate(100 * 1024 * 1024)  # sparse: no such disk is needed
    tracemalloc.start()
    try:
        with pytest.raises(dx.ConfigError, match="the file is too large for a configuration"):
            dx.spec_from_config(models.Transformer, path)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()


def test_data_that_contains_itself_is_refused():
    loop: dict[str, Any] = {"path": "x"}
    loop["options"] = {"it": loop}
    items: list[Any] = []
    items.append(items)
    for data in (loop, {"path": "x", "options": {"a": items}}):
        with pytest.raises(dx.ConfigError, match="the configuration has"):
            dx.spec_from_config(models.Data, data)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.spec_from_config(models.Data, {"path": "x", "options": {"a": deep}})
    assert "tables and lists are nested more than 64 levels deep" in str(caught.value)


def test_no_file_can_load_a_module(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('loaded')")
    config = {"kind": "evil.Model", "dim": 1, "embed": {"kind": "evil:x"}, "blocks": [{"$ref": "/evil"}]}
    (tmp_path / "model.json").write_text(json.dumps(config))
    code = (
        "import sys, config_models as m, declax as dx\n"
        "try:\n    dx.from_config(m.Transformer, 'model.json')\n"
        "except dx.ConfigError:\n    sys.exit(3 if 'evil' not in sys.modules else 4)\n"
    )
    tests = Path(models.__file__).parent
    paths = os.pathsep.join([str(tmp_path), str(tests), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    assert run.returncode == 3


# --- mutations ----------------------------------------------------------------

POOL: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**63, 10**30, 0.5, -0.0, float("inf"), float("nan"), "", "x", "Attention", "Mlp"),
    *("relu", "bfloat16", "normal", "/embed", "/blocks/0", [], [1], [[]], {}, {"kind": "Mlp"}, {"$ref": "/embed"}),
    *({"$ref": "/blocks/1"}, {"$ref": 1}, {"kind": 3}, {"kind": "normal", "stddev": 1}, {"$version": 2}),
    *({"a": {"b": {"c": 1}}}, "\ud800", "é" * 50),
]
NAMES = (
    "kind $ref $version $schema dim heads hidden mixer blocks embed head __class__ rngs self name a.b Dim hiden norm "
    "data path options"
).split() + [""]


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a configuration with each of its keys."""
    found = []
    stack = [value]
    while stack:
        here = stack.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        for key in keys:
            found.append((here, key))
            stack.append(here[key])
    return found


def mutated(config: dict[str, Any], random_: random.Random) -> Any:
    """A configuration with one to four changes."""
    config = copy.deepcopy(config)
    for _ in range(random_.randint(1, 4)):
        places = places_in(config)
        if not places:
            return random_.choice(POOL)
        holder, key = random_.choice(places)
        match random_.randrange(7):
            case 0:
                holder[key] = copy.deepcopy(random_.choice(POOL))
            case 1:
                del holder[key]
            case 2 if isinstance(holder, dict):
                holder[random_.choice(NAMES)] = holder.pop(key)
            case 3 if isinstance(holder, dict):
                holder[random_.choice(NAMES)] = copy.deepcopy(random_.choice(POOL))
            case 4:
                other, at = random_.choice(places)
                holder[key] = copy.deepcopy(other[at])
            case 5:
                holder[key] = [holder[key]]
            case _ if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(random_.choice(POOL)))
    return config


def scrambled(text: str, random_: random.Random) -> str:
    """A text with one to four changes."""
    for _ in range(random_.randint(1, 4)):
        at, to = sorted(random_.randrange(len(text) + 1) for _ in range(2))
        match random_.randrange(5):
            case 0:
                text = text[:at] + random_.choice("[]{}\"'=:,#.\n\\&*!|>-?\t\0é0ax ") + text[at:]
            case 1:
                text = text[:at] + text[at + 1 :]
            case 2:
                text = text[:at] + text[min(to, at + 30) :]
            case 3:
                text = text[:at] + text[at : min(to, at + 60)] + text[at:]
            case _:
                lines = text.split("\n")
                random_.shuffle(lines) if random_.random() < 0.1 else lines.reverse()
                text = "\n".join(lines) if random_.random() < 0.2 else text
    return text


STARTS = [models.GOOD, {**models.GOOD, "data": {"kind": "Data", "path": "x", "options": {"a": [1, {"b": 2}]}}}]
TEXTS = [
    (parse, text)
    for parse, format_text, bad in (
        (parse_toml, format_toml, models.TOML),
        (parse_json, format_json, models.JSON),
        (parse_yaml, format_yaml, models.YAML),
    )
    for text in (format_text(STARTS[1]), bad)
]


def try_data(data: Any, place_of: Any = None) -> None:
    """Reads data; what is read can be written and read again, and what is wrong can be told."""
    context = Context()
    found = models.read_as(models.Transformer, data, context)
    if found is INVALID:
        assert context.count
        error = context.error("mutated", place_of)
        assert isinstance(error, dx.ConfigError)
        assert len(str(error)) < 100_000
        return
    assert not context.problems
    assert dx.spec_from_config(models.Transformer, dx.to_config(found)) == found


def try_mutation(seed: int) -> None:
    random_ = random.Random(seed)
    if random_.random() < 0.6:
        try_data(mutated(random_.choice(STARTS), random_))
        return
    parse, text = random_.choice(TEXTS)
    try:
        document = parse(scrambled(text, random_), "mutated")
    except dx.ConfigError:
        return
    try_data(document.data, document.place_of)


def test_mutated_configurations_give_the_documented_error_only():
    for seed in range(300):
        try_mutation(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_hundred_thousand_mutations(part):
    for seed in range(5_000):
        try_mutation(1_000 + 5_000 * part + seed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # KiB


# --- figures ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timed
def test_structuring_a_config_of_96_blocks_is_quick():
    """The bar is 10 ms, where the standard library parses the same file in 4.75 ms; here its time is the unit."""
    blocks = [copy.deepcopy(block) for _ in range(48) for block in models.GOOD["blocks"]]
    config = {**models.GOOD, "blocks": blocks}
    text = format_toml(config)
    assert len(dx.spec_from_config(models.Transformer, config).arguments["blocks"]) == 96
    assert tomllib.loads(text) == config
    ratios = []
    for _ in range(30):
        structuring = seconds(lambda: dx.spec_from_config(models.Transformer, config))
        ratios.append(structuring / seconds(lambda: tomllib.loads(text)))
    assert statistics.median(ratios) < 10 / 4.75


def seconds(work: Callable[[], object]) -> float:
    """The processor time of some work: other programs do not count."""
    start = time.process_time()
    work()
    return time.process_time() - start
