"""Hostile sources: files, folders, words and records that name others. Nothing outside of the folder is read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax
import pytest

import declax as dx

SECONDS = 20.0  # of the processor, while memory is traced
MEGABYTES = 300


@dx.dataclass
class Feed(dx.Layer):
    dim: int = dx.field()
    hidden: int = 4 * dim
    up: dx.Linear = dx.Linear(dim, hidden)


@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(default=8, ge=1, le=64)
    feed: Feed = Feed(dim)
    many: list[Feed] = dx.repeat(2, Feed(dim))


@dataclasses.dataclass
class Train:
    model: dx.Spec[Model]
    optimizer: optax.GradientTransformation | None = None
    steps: int = 100
    rates: list[float] = dataclasses.field(default_factory=list)
    named: dict[str, optax.GradientTransformation] = dataclasses.field(default_factory=dict)
    several: list[optax.GradientTransformation] = dataclasses.field(default_factory=list)
    data: str = dx.static(default="data", env="HOSTILE_DATA")
    token: str | None = dx.static(default=None, secret=True)
    notes: Any = None


opened: list[str] = []
"""The files that were opened while `is_recording` had an item: a hook cannot be removed."""
is_recording: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if is_recording and event == "open" and isinstance(arguments[0], (str, bytes)):
        name = os.fsdecode(arguments[0])
        if not name.endswith((".py", ".pyc")):  # modules of layers are imported when a field first needs them
            opened.append(name)
    elif is_recording and event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect"):
        opened.append(f"event {event} {arguments[0]}")


sys.addaudithook(_hook)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inside = tmp_path / "inside"
    for name, text in {
        "inside/base.toml": "[model]\n", "inside/optimizer/lion.toml": 'kind = "lion"\nlearning_rate = 1.0\n',
        "outside/secret.toml": 'kind = "sgd"\nlearning_rate = 2.0\n', "outside/lion.toml": 'kind = "sgd"\n',
        "inside/token.txt": "abc\n", "inside/several/lion.toml": 'kind = "lion"\nlearning_rate = 1.0\n',
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("HOSTILE_DATA", "here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dx.spec_from_config(Train, "base.toml", {"optimizer": "lion"})  # makes the readers, which import modules
    return inside


def attempt(*sources: Any, words: tuple[str, ...] = ()) -> str:
    """Reads sources; returns the error, or an empty text. No other file is opened, and no error is a raw one."""
    opened.clear()
    is_recording.append(True)
    begun = time.process_time()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dx.spec_from_config(Train, *sources, words=words)
    except dx.ConfigError as error:
        told = str(error)
    else:
        told = ""
    finally:
        is_recording.clear()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    assert time.process_time() - begun < SECONDS
    assert peak < MEGABYTES
    here = Path.cwd()
    for name in opened:
        assert not name.startswith("event"), name
        assert Path(name).resolve().is_relative_to(here), name
    assert len(told) < 200_000
    return told


def value(text: Any) -> dict[str, Any]:
    return {"$value": text}


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def loop(*keys: str) -> dict[str, Any]:
    found: dict[str, Any] = {"model": {}}
    for key in keys:
        found[key] = found
    return found


def fan(depth: int) -> Any:
    found: Any = 1.0
    for _ in range(depth):
        found = [found, found]
    return found


REFUSED: dict[str, tuple[Any, ...]] = {
    # names of alternatives
    "parent": ({"optimizer": "../../outside/secret"},),
    "parent of use": ({"optimizer": {"$use": "../../outside/secret.toml"}},),
    "absolute": ({"optimizer": "/etc/passwd"},),
    "dots": ({"optimizer": ".."},),
    "nothing": ({"optimizer": ""},),
    "nul": ({"optimizer": "a\0b"},),
    "long name": ({"optimizer": "x" * 1_000_000},),
    "many steps": ({"optimizer": "a/" * 100_000},),
    "surrogate": ({"optimizer": "\udce4"},),
    "number": ({"optimizer": {"$use": 3}},),
    "list": ({"optimizer": {"$use": ["lion", "lion"]}},),
    "table": ({"optimizer": {"$use": {"$use": "lion"}}},),
    "root": ({"$use": "../outside/secret"},),
    "root of nothing": ({"$use": None},),
    "itself": ({"$use": "base", "optimizer": {"$use": "../base"}},),
    "many missing": ({"several": [f"x{i}" for i in range(3000)]},),
    "many": ({"several": ["lion"] * 3000},),
    # names of folders
    "absolute key": ({"named": {"/etc": "passwd"}},),
    "parent key": ({"named": {"..": "secret"}},),
    "outside key": ({"named": {"../outside": "lion"}},),
    "nul key": ({"named": {"a\0": "lion"}},),
    "long key": ({"named": {"x" * 5000: "lion"}},),
    "empty key": ({"named": {"": "lion"}},),
    "dot key": ({"named": {".": "base"}},),
    # names in Python
    **{
        f"key {key}": ({key: {"x": 1}},)
        for key in ("__class__", "__init__", "__globals__", "model.__class__", "self", "rngs", "\0", "x" * 1_000_000)
    },
    **{f"inner {key}": ({"model": {key: 1}},) for key in ("__class__", "__mro__", "kind.x", "$use ", "$", "$$use")},
    **{
        f"kind {kind}": ({"model": {"kind": kind}},) for kind in ("os.system", "__import__", "builtins:eval", 3, [], {})
    },
    # expressions
    "calls": ({"steps": value("__import__('os').system('true')")},),
    "call": ({"steps": value("exit()")},),
    "attribute": ({"steps": value("rates.__class__.__mro__")},),
    "index": ({"steps": value("rates[99999999999999999999]")},),
    "many dots": ({"steps": value("." * 1_000_000 + "x")},),
    "long path": ({"steps": value(".".join(["model"] * 100_000))},),
    "long index": ({"steps": value("rates" + "[0]" * 100_000)},),
    "long word": ({"steps": value("x" * 1_000_000)},),
    "long number": ({"steps": value("9" * 1_000_000)},),
    "spaces": ({"steps": value(" " * 1_000_000 + "?")},),
    "parentheses": ({"steps": value("(" * 100_000)},),
    "signs": ({"steps": value("-" * 100_000 + "1")},),
    "power": ({"steps": value("9 ** 9 ** 9 ** 9")},),
    "float power": ({"steps": value("1e300 ** 1e300")},),
    "root of negative": ({"steps": value("(-1) ** 0.5")},),
    "zero": ({"steps": value("0 ** -1 + 1 // 0")},),
    "modulo": ({"steps": value("1 % 0")},),
    "bits": ({"steps": value(" * ".join(["10 ** 30"] * 9))},),
    "no text": ({"steps": value([1])},),
    "deep": ({"steps": value(nested(60))},),
    "more keys": ({"steps": {"$value": "1", "x": 2}},),
    "circle": ({"rates": [value(f"rates[{(i + 1) % 10_000}]") for i in range(10_000)]},),
    "chain without end": ({"rates": [value(f"rates[{i + 1}]") for i in range(10_000)]},),
    "of a class": ({"model": {"dim": value("model.many[0].hidden")}},),
    "own class": ({"model": {"dim": value("model.feed.dim")}},),
    "root value": (value("1"),),
    "value of a list": ({"rates": value("rates")},),
    # the environment and secrets
    "not allowed": ({"data": {"$env": "HOME"}},),
    "not here": ({"steps": {"$env": "HOSTILE_DATA"}},),
    "no name": ({"data": {"$env": ["HOSTILE_DATA"]}},),
    "more": ({"data": {"$env": "HOSTILE_DATA", "x": 1}},),
    "equals": ({"data": {"$env": "HOSTILE_DATA=1"}},),
    "root env": ({"$env": "HOME"},),
    "root file": ({"$file": "token.txt"},),
    "file of no secret": ({"data": {"$file": "token.txt"}},),
    **{
        f"file {name}": ({"token": {"$file": name}},)
        for name in ("../outside/secret.toml", "/etc/passwd", "/dev/zero", ".", "a\0", "x" * 10_000, "~/x", "", 3)
    },
    # words
    "word of nothing": ("**=3",),
    "word of stars": ("**.*.*=3",),
    "word of a class": ("**.__class__=3",),
    "word of no index": ("rates.99999999999=3",),
    "word of an item": ("~rates.99999999999",),
    "long value": ("steps=" + "9" * 1_000_000,),
    "brackets": ("steps=" + "[" * 10_000,),
    "long words": ("steps=" + "x" * 1_000_000,),
    "word of steps": ("a" + ".a" * 1000 + "=3",),
    "word below": ("steps.x.y=3",),
    # shapes
    "loop": (loop("notes"),),
    "loops": (loop("notes", "model", "named"),),
    "shared": ({"rates": fan(60)},),
    "deep tables": ({"model": nested(64)},),
    "deeper tables": ({"model": nested(1000)},),
    "deep notes": ({"notes": nested(66)},),
    "no keys": ({1: 2, None: 3, ("a",): 4},),
    # exact records
    "no table": ({"$computed": 3},),
    "later": ({"steps": 3}, {"$computed": {"/model/dim": 3}}),
    **{
        f"computed {key}": ({"model": {}, "$computed": {key: 3}},)
        for key in (
            "",
            "x",
            "/",
            "//",
            "/steps/x",
            "/rates/99999999",
            "/rates/-1",
            "/model/feed",
            "/model/feed/$length",
            1,
            "/model/many/7/dim",
            "/model/many/x",
            "/model/__class__",
            "/~",
            "/~2",
            "/kind",
            "/model/kind",
            "/" * 10_000,
            "/a" * 1000,
            "/model/feed/hidden/x",
            "/optimizer/b1",
            "/$computed/x",
        )
    },
    "computed tables": ({"model": {}, "$computed": {"/model/feed/hidden": nested(60)}},),
    "computed loops": ({"model": {}, "$computed": {"/model/feed/hidden": loop("x", "y")}},),
    "many computed": ({"model": {}, "$computed": {f"/model/feed/x{i}": i for i in range(5000)}},),
    "many lists": ({"model": {}, "$computed": {f"/model/x{i}/0/a": i for i in range(3000)}},),
}


SLOW = {"many missing", "many", "chain"}
"""Of which memory is traced for ten seconds and more; the small ones of their kind run every day."""


def cases(names, name_of=str):
    return [
        pytest.param(one, marks=[pytest.mark.slow] if name_of(one) in SLOW else [], id=name_of(one)) for one in names
    ]


@pytest.mark.parametrize("name", cases(REFUSED))
def test_hostile_sources_are_refused(name):
    words = tuple(one for one in REFUSED[name] if isinstance(one, str))
    sources = [one for one in REFUSED[name] if not isinstance(one, str)]
    first = [] if any("$computed" in one for one in sources) else ["base.toml"]
    assert "problem" in attempt(*first, *sources, words=words)


ACCEPTED: dict[str, tuple[Any, ...]] = {
    "chain": ({"rates": [*(value(f"rates[{i + 1}]") for i in range(10_000)), 1.0]},),
    "defaults": ({"rates": [value("steps")] * 5000},),
    "computed defaults": ({"rates": [value("model.feed.hidden")] * 5000},),
    "data": ({"notes": {"$use": "x", "$env": "HOME", "$file": "/etc/passwd", "$value": "exit()"}},),
    "alternatives": ({"several": ["lion"] * 900},),
    "text": ({"data": "x" * 1_000_000},),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_large_sources_are_read_in_bounded_time(name):
    assert attempt("base.toml", *ACCEPTED[name]) == ""


# ================================================================= folders


def linked(folder: Path) -> None:
    (folder / "optimizer/out.toml").symlink_to(folder.parent / "outside/secret.toml")


def linked_folder(folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent / "outside")


def linked_circle(folder: Path) -> None:
    (folder / "optimizer/out.toml").symlink_to(folder / "optimizer/back.toml")
    (folder / "optimizer/back.toml").symlink_to(folder / "optimizer/out.toml")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "optimizer/out.toml")


def directory(folder: Path) -> None:
    (folder / "optimizer/out.toml").mkdir()


def device(folder: Path) -> None:
    (folder / "optimizer/out.toml").symlink_to("/dev/zero")


def binary(folder: Path) -> None:
    (folder / "optimizer/out.toml").write_bytes(bytes(range(256)))


def huge(folder: Path) -> None:
    (folder / "optimizer/out.toml").write_text("# " + "x" * 5_000_000)


def no_table(folder: Path) -> None:
    (folder / "optimizer/out.json").write_text("[1, 2]")


def empty(folder: Path) -> None:
    (folder / "optimizer/out.yaml").write_text("")


def itself(folder: Path) -> None:
    (folder / "optimizer/out.toml").write_text('"$use" = "out"\n')


def text_of_itself(folder: Path) -> None:
    (folder / "optimizer/out.json").write_text('"out"')


def circle(folder: Path) -> None:
    for index in range(5):
        (folder / f"optimizer/c{index}.toml").write_text(f'"$use" = "c{(index + 1) % 5}"\n')
    (folder / "optimizer/out.toml").write_text('"$use" = "c0"\n')


def chain(folder: Path) -> None:
    for index in range(1500):
        (folder / f"optimizer/c{index}.toml").write_text(f'"$use" = "c{index + 1}"\n')
    (folder / "optimizer/out.toml").write_text('"$use" = "c0"\n')


FOLDERS: list[Callable[[Path], None]] = [
    linked, linked_folder, linked_circle, pipe, directory, device, binary, huge, no_table, empty, itself,
    text_of_itself, circle, chain,
]  # fmt: skip


@pytest.mark.parametrize("make", cases(FOLDERS, lambda make: make.__name__))
def test_hostile_folders_are_refused(make, folder):
    make(folder)
    for source in ({"optimizer": "out"}, {"optimizer": {"$use": "out", "b1": 0.5}}, {"named": {"out": "lion"}}):
        if (make is linked_folder) == ("named" in source):
            told = attempt("base.toml", source)
            assert "problem" in told
            assert "secret" not in told, "the files of another folder are not listed"
    if make is not linked_folder:
        attempt("base.toml", {"optimizer": {"$use": "lion"}}, words=("optimizer=out", "optimizer.b1=0.5"))


@pytest.mark.parametrize("make", cases(["chain", "fan", "circle", "many"]))
def test_hostile_files_that_include_others(make, folder):
    for index in range(400):
        after = {"chain": [index + 1], "fan": [index + 1] * 2, "circle": [(index + 1) % 7], "many": [399] * 5000}[make]
        text = json.dumps({"$use": [f"r{one}" for one in after], f"x{index}": 1} if index < 399 else {})
        (folder / f"r{index}.json").write_text(text)
    assert "problem" in attempt("r0.json")


@pytest.mark.slow
def test_large_alternatives_are_not_named_many_times(folder):
    (folder / "several/big.json").write_text('{"kind": "sgd", "x": [' + "1, " * 500_000 + "1]}")
    assert "alternatives of more than 4 MiB are named" in attempt("base.toml", {"several": ["big"] * 900})


def test_hostile_secrets(folder):
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    for name in ("pipe", "zero", "loop", "bytes", "optimizer"):
        assert "problem" in attempt("base.toml", {"token": {"$file": name}}), name
    assert attempt("base.toml", {"token": {"$file": "token.txt"}}) == ""


def test_a_root_that_is_no_table(folder):
    for root, later in itertools.product(("[1]", '"x"', "3", "null"), ({"steps": 3}, {"model": {}}, {})):
        (folder / "root.json").write_text(root)
        attempt("root.json", later)
        attempt("base.toml", "root.json", words=("steps=3",))


def test_words_with_stars_change_the_items_that_were_there():
    read = dx.spec_from_config
    assert list(read(Train, "base.toml", {"rates": [1.0, 2.0]}, "~rates[*]")["rates"]) == []
    assert list(read(Train, "base.toml", {"rates": [1.0, 2.0]}, "rates[*]+=3")["rates"]) == [3.0, 1.0, 3.0, 2.0]


def test_a_value_that_follows_another_one_and_a_default_is_no_circle():
    data = {"steps": value("model.feed.hidden"), "rates": [value("steps"), value("data_"), value("model.dim")]}
    data["rates"].pop(1)
    spec = dx.spec_from_config(Train, "base.toml", data)
    assert (spec["steps"], list(spec["rates"])) == (32, [32.0, 8.0])
    data = {"model": {"dim": value("steps // 10")}, "steps": 20, "rates": [value("model.feed.hidden")]}
    assert list(dx.spec_from_config(Train, data)["rates"]) == [8.0]
