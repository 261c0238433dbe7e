"""JSON texts that are made to fill the memory are refused before they are parsed, and no others."""

from __future__ import annotations

import json
import random
import tracemalloc

import numpy as np
import pytest

from declax.checkpoint.files import parse_json
from declax.checkpoint.safetensors import open_tensors, write_tensors
from declax.config._files import bounded_json, json_format
from declax.config._files.bounded_json import MAX_RATIO, takes_too_much
from declax.errors import CheckpointError, ConfigError

COUNT = 30_000
ELEMENTS = {
    "lists": "[]",
    "lists in lists": "[[]]",
    "deep lists": "[" * 20 + "]" * 20,
    "lists of one": "[1]",
    "dicts": "{}",
    "dicts of one": '{"":1}',
    "deep dicts": '{"":' * 20 + "0" + "}" * 20,
    "digits": "0",
    "numbers": "999",
    "floats": "1e9",
    "texts": '"ab"',
    "wide texts": '"\u0101b"',
    "wider texts": '"\U0001f600"',
    "escapes": r'"\u0101"',
    "wide text beside narrow ones": '"aaaaaaaaaaaaaaaaaaaaaaaaa\U0001f600"',
    "pairs of escapes": r'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\ud83d\ude00"',
}


def texts_of(element: str, count: int) -> str:
    return "[" + ",".join([element] * count) + "]"


def flat(count: int, form: str) -> str:
    return "{" + ",".join(f'"{number:{form}}":0' for number in range(count)) + "}"


def peak_of(text: str) -> int:
    content = text.encode()
    tracemalloc.start()
    json.loads(content.decode(), object_pairs_hook=dict)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak + len(content)


def is_refused(text: str) -> bool:
    return takes_too_much(text.encode())


def check(text: str) -> None:
    """A text is refused, or takes what it may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "_SMALL", 1 << 18)
        assert is_refused(text) or peak_of(text) <= max(1 << 18, (MAX_RATIO + 1) * len(text.encode()))


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_text_is_refused_or_takes_bounded_memory(name):
    check(texts_of(ELEMENTS[name], COUNT))


@pytest.mark.parametrize("form", ["x", "d", "08d", "012d"])
@pytest.mark.parametrize("count", [10_923, 15_000, 21_846, 87_382])
def test_large_objects(form, count):
    check(flat(count, form))


@pytest.mark.parametrize("seed", range(12))
def test_mixtures(seed):
    chance = random.Random(seed)
    parts = [texts_of(chance.choice([*ELEMENTS.values()]), chance.randrange(COUNT)) for _ in range(3)]
    check("[" + ",".join([*parts, flat(chance.randrange(1, COUNT), "x")]) + "]")


@pytest.mark.parametrize("name", ["lists", "lists in lists", "deep lists", "lists of one", "dicts", "dicts of one"])
def test_bombs_are_refused_by_each_reader(name, tmp_path):
    bomb = texts_of(ELEMENTS[name], COUNT)
    assert peak_of(bomb) > MAX_RATIO * len(bomb)
    text = f'{{"a": {texts_of(ELEMENTS[name], 10 * COUNT)}}}'
    with pytest.raises(CheckpointError, match="the JSON takes too much memory") as caught:
        parse_json(tmp_path / "manifest.json", text.encode())
    assert str(tmp_path / "manifest.json") in str(caught.value)
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(CheckpointError, match="the JSON takes too much memory") as caught:
        open_tensors(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="its values may take more than 20 times the memory"):
        json_format.parse_json(text, "a.json")


def test_brackets_in_strings_do_not_count(tmp_path):
    inner = json.dumps([{"a": []}] * (10 * COUNT), separators=(",", ":"))
    assert is_refused(inner)
    for text in (json.dumps({"metadata": inner}), json.dumps({"metadata": rf'"\{inner}\\"\\\\'})):
        assert not is_refused(text)
        assert len(parse_json(tmp_path / "a.json", text.encode())) == 1
    assert is_refused(json.dumps({"metadata": '\\"\\'})[:-1] + f', "a": {inner}}}')


@pytest.mark.parametrize("name", ["blocks.{}.w", "model.layers.{}.attention.é.kernel"])
def test_headers_of_many_small_arrays_are_read(name, tmp_path):
    given = {name.format(number): np.zeros((3, 4), np.float32) for number in range(20_000)}
    write_tensors(tmp_path / "a.safetensors", given)
    assert open_tensors(tmp_path / "a.safetensors").keys() == given.keys()


def test_ordinary_data_is_read():
    rows = [{"id": number, "name": f"row {number}", "loss": 0.125, "tags": ["a", "b"]} for number in range(50_000)]
    for data in (rows, list(range(1_000_000)), {f"token {number}": number for number in range(200_000)}):
        assert not is_refused(json.dumps(data, indent=1))  # as manifests have it
