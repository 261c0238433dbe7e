"""Damaged checkpoints and failing disks: refused with the name of the file, and nothing is overwritten."""

from __future__ import annotations

import enum
import errno
import functools
import hashlib
import json
import os
import random
import re
import resource
import shutil
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.checkpoint import files, folders, manifest, saving, sources, stores
from declax.checkpoint.manifest import _FIRST_LENGTH
from declax.checkpoint.safetensors import write_tensors
from declax.config._files import bounded_json
from declax.errors import CheckpointError


def items(value):
    model = dx.Module()
    model.w, model.b = dx.Param(jnp.full((4, 3), value)), dx.Param(jnp.full(3, value))
    return {"model": model, "tree": {"a": np.full(5, value)}, "step": int(value)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(saving, "FILE_SIZE", 60)
    dx.save(folder / "c", items(1.0))
    dx.save(folder / "d", items(2.0))
    monkeypatch.undo()
    return folder


def names_of(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name != folders.LOCK)


def assert_refused(folder, name=None):
    into = items(7.0)
    with pytest.raises(CheckpointError) as caught:
        dx.load(folder, into=into)
    assert str(folder / (name or "")) in str(caught.value)
    assert (into["model"].w.value == 7.0).all()
    assert (into["model"].b.value == 7.0).all()


CASES = [("flip", seed) for seed in range(110)] + [("cut", seed) for seed in range(50)]
CASES += [("missing", n) for n in range(3)] + [("swapped", n) for n in range(3)] + [("link", n) for n in range(3)]
CASES += (
    [("longer", n) for n in range(3)] + [("folder", n) for n in range(3)] + [("other checkpoint", n) for n in range(3)]
)


@pytest.mark.parametrize("first", range(0, len(CASES), 30))
def test_damage_is_refused_by_the_name_of_the_file(first, saved, tmp_path):
    for number, (kind, seed) in enumerate(CASES[first : first + 30]):
        folder = tmp_path / str(number)
        shutil.copytree(saved / "c", folder)
        chance = random.Random(seed)
        names = names_of(folder)
        name = names[seed % len(names)]
        file = folder / name
        content = bytearray(file.read_bytes())
        if kind == "flip":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        elif kind == "cut":
            file.write_bytes(content[: chance.randrange(len(content))])
        elif kind == "longer":
            file.write_bytes(content + b" ")
        elif kind == "missing":
            file.unlink()
        elif kind == "link":
            file.rename(tmp_path / f"elsewhere{number}")
            file.symlink_to(tmp_path / f"elsewhere{number}")
        elif kind == "folder":
            file.unlink()
            file.mkdir()
        elif kind == "swapped":
            arrays = [name for name in names if name.endswith("safetensors")]
            a, b = arrays[seed % len(arrays)], arrays[(seed + 1) % len(arrays)]
            (folder / a).rename(folder / "x")
            (folder / b).rename(folder / a)
            (folder / "x").rename(folder / b)
            name = None  # either of the two
        else:
            others = names_of(saved / "d")
            shutil.copy(saved / "d" / others[seed % len(others)], file)
            name = None  # of the manifest: its files; of a file: itself
        assert_refused(folder, name)


def test_the_digests_tell_a_changed_value(saved, tmp_path):
    for pattern, problem in [
        ("*.safetensors", "the file was changed or damaged"),
        ("*.json", "the manifest was changed"),
    ]:
        shutil.copytree(saved / "c", tmp_path / "c")
        file = min((tmp_path / "c").glob(pattern))
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=problem):
            dx.load(tmp_path / "c", into=items(7.0))
        shutil.rmtree(tmp_path / "c")


# --- files whose digests are right ---------------------------------------------------------


def resized(header, name, change):
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = change(begin, end)


def of_tensor(change):
    """A damage of the entry of one tensor."""
    return lambda header, name: change(header[name])


HEADERS = {
    "no dtype": of_tensor(lambda entry: entry.pop("dtype")),
    "no shape": of_tensor(lambda entry: entry.pop("shape")),
    "no offsets": of_tensor(lambda entry: entry.pop("data_offsets")),
    "unknown dtype": of_tensor(lambda entry: entry.update(dtype="F31")),
    "dtype of another size": of_tensor(lambda entry: entry.update(dtype="I8")),
    "dtype of the same size": of_tensor(lambda entry: entry.update(dtype="I32")),
    "dtype is no text": of_tensor(lambda entry: entry.update(dtype=["F32"])),
    "one row more": of_tensor(lambda entry: entry["shape"].__setitem__(0, entry["shape"][0] + 1)),
    "one row less": of_tensor(lambda entry: entry["shape"].__setitem__(0, entry["shape"][0] - 1)),
    "flat": of_tensor(lambda entry: entry.update(shape=[*entry["shape"], 1])),
    "negative shape": of_tensor(lambda entry: entry.update(shape=[-size for size in entry["shape"]])),
    "endless shape": of_tensor(lambda entry: entry.update(shape=[1 << 62, 1 << 62])),
    "shape of fractions": of_tensor(lambda entry: entry.update(shape=[1.5])),
    "shape is no list": of_tensor(lambda entry: entry.update(shape={"0": 3})),
    "true for one": of_tensor(lambda entry: entry["shape"].__setitem__(0, True)),
    "entry is a list": lambda header, name: header.update({name: [1, 2]}),
    "entry is null": lambda header, name: header.update({name: None}),
    "begins later": lambda header, name: resized(header, name, lambda begin, end: [begin + 4, end]),
    "ends later": lambda header, name: resized(header, name, lambda begin, end: [begin, end + 4]),
    "ends earlier": lambda header, name: resized(header, name, lambda begin, end: [begin, end - 4]),
    "reversed": lambda header, name: resized(header, name, lambda begin, end: [end, begin]),
    "negative": lambda header, name: resized(header, name, lambda begin, end: [-4, end - begin - 4]),
    "far outside": lambda header, name: resized(header, name, lambda begin, end: [begin + (1 << 60), end + (1 << 60)]),
    "one offset": lambda header, name: resized(header, name, lambda begin, end: [begin]),
    "offsets are texts": lambda header, name: resized(header, name, lambda begin, end: [str(begin), str(end)]),
    "gone": lambda header, name: header.pop(name),
    "renamed": lambda header, name: header.update({f"{name}2": header.pop(name)}),
    "twice": lambda header, name: header.update({f"{name}2": header[name]}),
    "metadata": lambda header, name: header.update({"__metadata__": {"format": [name]}}),
}
TEXTS = {
    "no JSON": lambda text: text[:-1],
    "not UTF-8": lambda text: b"\xff" + text[1:],
    "a list": lambda text: b"[]".ljust(len(text)),
    "a number": lambda text: b"12".ljust(len(text)),
    "a key twice": lambda text: text.replace(b'{"', b'{"model.w": 1, "model.w": 1, "', 1),
    "deep": lambda text: b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "empty": lambda text: b"",
    "NaN": lambda text: b'{"a": NaN}',
}
LENGTHS = [0, 1, 7, 1 << 20, 1 << 40, (1 << 64) - 1]
ARRAYS = ("model.w", "model.b", "tree.a")


def damaged_files():
    """The content of a file of three tensors, damaged: by the kind of the damage."""
    header, data, at = {}, b"", 0
    for name, shape in zip(ARRAYS, ([4, 3], [3], [5]), strict=True):
        content = np.arange(np.prod(shape), dtype=np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(content)]}
        data, at = data + content, at + len(content)

    def file(text, length=None, rest=data):
        return (len(text) if length is None else length).to_bytes(8, "little") + text + rest

    for kind, change in HEADERS.items():
        for name in ARRAYS:
            table = json.loads(json.dumps(header))
            change(table, name)
            yield f"{kind}, {name}", file(json.dumps(table).encode())
    text = json.dumps(header).encode()
    yield from ((kind, file(change(text))) for kind, change in TEXTS.items())
    yield from ((f"length {length}", file(text, length)) for length in LENGTHS)
    yield from ((f"{count} bytes less", file(text, rest=data[:-count])) for count in range(1, 9))
    yield from ((f"{count} bytes more", file(text, rest=data + bytes(count))) for count in range(1, 5))


HEADER_CASES = dict(damaged_files())


def problem_of(call):
    """The text of the error of a call; None if it returns."""
    try:
        with warnings.catch_warnings(action="ignore"):
            call()
    except CheckpointError as error:
        return str(error)
    return None


def test_files_with_right_digests_are_refused_by_name(tmp_path):
    dx.save(tmp_path / "c", {**items(1.0), "tree": {"a": np.full(5, 1.0, np.float32)}})
    (file,) = (tmp_path / "c").glob("*.safetensors")
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    accepted = []
    for kind, content in HEADER_CASES.items():
        file.write_bytes(content)
        table["files"][file.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        with_manifest(tmp_path / "c", table)
        for into in ({"model": items(7.0)["model"], "tree": {"a": np.zeros(5, np.float32)}}, None):
            if into is None and kind.startswith("flat"):
                continue  # without a target, a file decides of shapes
            problem = problem_of(lambda into=into: dict(dx.load(tmp_path / "c", into=into)))
            accepted += [] if problem is not None and str(tmp_path / "c") in problem else [kind]
    assert not accepted


def test_no_json_in_a_manifest_breaks_a_load(tmp_path):
    """Each value of a manifest is replaced by others, with the right digest: it is refused, or loads."""
    dx.save(
        tmp_path / "c", {"model": dx.Sequential(dx.Linear(2, 3, rngs=dx.Rngs(0)), jnp.tanh), "tree": [1, {"a": "b"}]}
    )
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    refused = 0
    for path, value in values_in(table):
        for other in (None, -1, 1.5, "x", [], {}, [[]], {"object": 0}):
            if other == value:
                continue
            with_manifest(tmp_path / "c", changed(json.loads(json.dumps(table)), *path, to=other))
            problem = problem_of(lambda: dict(dx.load(tmp_path / "c")))
            assert problem is None or str(tmp_path / "c") in problem, path
            refused += problem is not None
    assert refused >= 300


def values_in(table, path=()):
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*path, key), value
        if isinstance(value, (dict, list)):
            yield from values_in(value, (*path, key))


def orbax_damage():
    """What happens to a file of a checkpoint of Orbax."""
    yield "missing", lambda file: file.unlink()
    yield "a folder", lambda file: (file.unlink(), file.mkdir())
    yield "empty", lambda file: file.write_bytes(b"")
    yield "half", lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    yield "no JSON", lambda file: file.write_bytes(b"{" + file.read_bytes())
    yield "zeros", lambda file: file.write_bytes(bytes(len(file.read_bytes())))


ORBAX = dict(orbax_damage())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the loop that Orbax closes early
def test_damaged_checkpoints_of_orbax_are_refused_by_name_or_right(tmp_path):
    """Orbax has files that a load does not need; without a digest of arrays, only lost bytes are seen."""
    pytest.importorskip("orbax.checkpoint")
    dx.save(tmp_path / "c", {"model": items(1.0)["model"]}, engine="orbax")
    names = [file.relative_to(tmp_path / "c") for file in sorted((tmp_path / "c").rglob("*")) if file.is_file()]
    refused = 0
    for name in names:
        for kind, damage in ORBAX.items():
            shutil.copytree(tmp_path / "c", tmp_path / "d")
            damage(tmp_path / "d" / name)
            into = {"model": items(7.0)["model"]}
            problem = problem_of(lambda into=into: into.update(dx.load(tmp_path / "d", into=into, engine="orbax")))
            refused += problem is not None
            expected = 1 if problem is None else 7
            assert problem is None or str(tmp_path / "d") in problem, (name, kind)
            assert (into["model"].w.value == expected).all(), (name, kind)
            shutil.rmtree(tmp_path / "d")
    assert refused >= 25


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_json_in_the_metadata_of_orbax_breaks_a_load(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    dx.save(tmp_path / "c", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0)), "tree": [1, np.zeros(0)]}, engine="orbax")
    file = tmp_path / "c" / "_CHECKPOINT_METADATA"
    table, refused = json.loads(file.read_bytes()), 0
    for number, (path, value) in enumerate(values_in(table["custom_metadata"], ("custom_metadata",))):
        other = [None, -1, "x", [], {}, [[]], {"object": 0}][number % 7]
        if other == value:
            continue
        file.write_text(json.dumps(changed(json.loads(json.dumps(table)), *path, to=other)))
        problem = problem_of(lambda: dict(dx.load(tmp_path / "c", engine="orbax")))
        assert problem is None or str(tmp_path / "c") in problem, path
        refused += problem is not None
    assert refused >= 20


def test_there_are_enough_damaged_files():
    assert len(CASES) + len(set(HEADER_CASES.values())) + 25 >= 300  # of Orbax the least number; and all JSON
    assert len(FAULTS) >= 54


# --- a failing disk ---------------------------------------------------------------------

CALLS = ["mkdir", "open", "fsync", "rename", "replace", "write"]
FAULTS = [(call, code, n) for call in CALLS for code in (errno.ENOSPC, errno.EACCES, errno.EIO) for n in range(3)]


def failing(real, code, number, calls):
    """A function that fails with an error of the system at its call of a number."""

    def call(*arguments, **options):
        calls.append(1)
        if len(calls) == number + 1:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    return call


def contents(folder):
    return {name: (folder / name).read_bytes() for name in names_of(folder)}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_call_leaves_everything_as_it_was(call, overwrite, tmp_path, monkeypatch):
    owner, name = (files.Output, call) if call == "write" else (os, call)
    failed = 0
    for _, code, number in [fault for fault in FAULTS if fault[0] == call]:
        folder = tmp_path / f"{code}-{number}"
        folder.mkdir()
        if overwrite:
            dx.save(folder / "c", items(1.0))
        before = contents(folder / "c") if overwrite else {}
        problem = None
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name), code, number, []))
            try:
                dx.save(folder / "c", items(2.0), overwrite=overwrite)
            except CheckpointError as error:
                problem = str(error)
        if problem is not None:
            failed += 1
            assert str(folder) in problem
            assert os.strerror(code) in problem
        step = dx.load(folder / "c", into=items(0.0))["step"] if (folder / "c").exists() else 0
        if problem is None:
            assert step == 2
        elif step == 2:  # complete before the call that failed
            assert call in ("fsync", "open")
        else:
            assert contents(folder / "c") == before if overwrite else not list(folder.iterdir())
        dx.save(folder / "c", items(3.0), overwrite=True)
        assert dx.load(folder / "c", into=items(0.0))["step"] == 3
        assert len(names_of(folder / "c")) == 2
        assert [entry.name for entry in folder.iterdir()] == ["c"]
    assert failed or (overwrite and call in ("rename", "mkdir"))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "call", ["stat", "scandir", "listdir", "ftruncate", "pwrite", "unlink", "rmdir", "open", "fsync"]
)
def test_an_error_names_the_path_and_says_whether_it_is_saved(call, overwrite, tmp_path, monkeypatch):
    real, number, was_saved = getattr(os, call), 0, False
    while True:
        calls = []
        folder = tmp_path / f"{number}"
        folder.mkdir()
        if overwrite:
            dx.save(folder / "c", items(1.0))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(real, errno.EIO, number, calls))
            try:
                dx.save(folder / "c", items(2.0), overwrite=overwrite)
                problem = None
            except CheckpointError as error:
                problem = str(error)
        if len(calls) <= number:
            break
        step = dx.load(folder / "c", into=items(0.0))["step"] if (folder / "c").exists() else int(overwrite)
        if problem is not None:
            assert str(folder) in problem
            assert os.strerror(errno.EIO) in problem
            assert ("the checkpoint is saved, but" in problem) == (step == 2)
            was_saved |= step == 2
        else:
            assert step == 2
        number += 1
    assert was_saved or call not in ("fsync", "open")


def test_an_old_step_that_cannot_be_removed(tmp_path, monkeypatch):
    checkpoints = dx.Checkpoints(tmp_path / "run", keep=1)
    checkpoints.save(1, items(1.0))
    monkeypatch.setattr(stores, "remove_folder", failing(folders.remove_folder, errno.EACCES, 0, []))
    with pytest.raises(CheckpointError, match="the checkpoint is saved, but step 1 cannot be removed") as caught:
        checkpoints.save(2, items(2.0))
    assert str(checkpoints.path(2)) in str(caught.value)
    assert checkpoints.steps() == [1, 2]
    checkpoints.save(3, items(3.0))
    assert checkpoints.steps() == [3]


def recorded(real, calls, shown):
    """A function that notes its name and what it was called with."""

    def call(*arguments, **options):
        calls.append((real.__name__, *map(shown, arguments)))
        return real(*arguments, **options)

    return call


def test_everything_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    calls: list[tuple[str, ...]] = []

    def shown(argument):
        path = os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else os.fspath(argument)
        kinds = [("arrays", r"arrays-\w+-\d+\.safetensors"), (".tmp", r"\.c\.tmp-\w+")]
        for short, pattern in kinds:
            path = re.sub(pattern, short, path)
        return os.path.relpath(path, tmp_path)

    for name in ("fsync", "rename", "replace"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name), calls, shown))
    dx.save(tmp_path / "runs" / "today" / "c", items(1.0))
    assert calls == [
        ("fsync", "runs"),
        ("fsync", "."),
        ("fsync", "runs/today/.tmp/arrays"),
        ("fsync", "runs/today/.tmp/.manifest.json.new"),
        ("replace", "runs/today/.tmp/.manifest.json.new", "runs/today/.tmp/manifest.json"),
        ("fsync", "runs/today/.tmp"),
        ("rename", "runs/today/.tmp", "runs/today/c"),
        ("fsync", "runs/today"),
    ]
    calls.clear()
    dx.save(tmp_path / "runs" / "today" / "c", items(2.0), overwrite=True)
    published = calls.index(("replace", "runs/today/c/.manifest.json.new", "runs/today/c/manifest.json"))
    assert ("fsync", "runs/today/c/arrays") in calls[:published]
    assert ("fsync", "runs/today/c/.manifest.json.new") in calls[:published]
    assert ("fsync", "runs/today/c") in calls[:published]
    assert calls[published + 1] == ("fsync", "runs/today/c")
    calls.clear()
    dx.Checkpoints(tmp_path / "others" / "run")
    assert calls == [("fsync", "others"), ("fsync", ".")]


def test_a_file_that_cannot_grow(tmp_path):
    dx.save(tmp_path / "c", items(1.0))
    before = contents(tmp_path / "c")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))  # the system writes a part, and then refuses
    try:
        for name, overwrite in (("c", True), ("d", False)):
            with pytest.raises(CheckpointError, match="File too large") as caught:
                dx.save(tmp_path / name, {"a": np.ones(50_000)}, overwrite=overwrite)
            assert str(tmp_path) in str(caught.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert contents(tmp_path / "c") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


# --- files that change while they are read -------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 300])
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_shrinks_while_it_is_loaded(size, verify, saved, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    shutil.copytree(saved / "c", folder)
    file = max(folder.glob("*.safetensors"))
    stored = sources._stored

    def shrink(*arguments):
        os.truncate(file, min(size, file.stat().st_size - 1))
        return stored(*arguments)

    monkeypatch.setattr(sources, "_stored", shrink)
    into = items(7.0)
    with pytest.raises(CheckpointError, match="the file ended while it was read") as caught:
        dx.load(folder, into=into, verify=verify)
    assert str(file) in str(caught.value)
    assert (into["model"].w.value == 7.0).all()


# --- hostile manifests --------------------------------------------------------------------


def with_manifest(folder, text):
    """Replaces the manifest by one whose digest is right."""
    rest = text if isinstance(text, bytes) else json.dumps(text).encode()[1:]
    first = b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n'
    (folder / "manifest.json").write_bytes(first + rest)


def changed(table, *path, to):
    *above, last = path
    inner = table
    for key in above:
        inner = inner[key]
    inner[last] = to
    return table


LEAF = ("items", "model", "leaves", "model.w")
OUTSIDE = "is not the name of a file of arrays"
HOSTILE = {
    "format": (("format",), "pickle", "this is not a manifest of declax"),
    "version": (("version",), 99, "another version of declax wrote this checkpoint"),
    "file above": (
        ("files",),
        {"../a.safetensors": {"size": 1, "sha256": "0" * 64}},
        "is not the name of a file of arrays",
    ),
    "absolute file": (
        ("files",),
        {"/etc/a.safetensors": {"size": 1, "sha256": "0" * 64}},
        "is not the name of a file of arrays",
    ),
    "hidden file": (
        ("files",),
        {".a.safetensors": {"size": 1, "sha256": "0" * 64}},
        "is not the name of a file of arrays",
    ),
    "other file": (("files",), {"a.pickle": {"size": 1, "sha256": "0" * 64}}, OUTSIDE),
    "negative size": (("files",), {"a.safetensors": {"size": -1, "sha256": "0" * 64}}, "-1 is not a size"),
    "no digest": (("files",), {"a.safetensors": {"size": 1, "sha256": "0"}}, "'0' is not a sha256"),
    "items": (("items",), [], "the manifest is invalid"),
    "spec": (("items", "model", "spec"), "Net", "a spec must be a table"),
    "structure of items": (("items", "model", "structure"), "Net", "a structure must be a table"),
    "plan": (("plan",), 3, "a plan must be a table"),
    "plan of nothing": (("plan",), {"mesh": {"data": 0}}, "the plan of the checkpoint is invalid"),
    "versions": (("items", "model", "versions"), {"model": "2"}, "'2' is not a size"),
    "path": ((*LEAF, "path"), [[["w"]]], "the keys of a path must be texts, integers, or tuples of them"),
    "empty key": ((*LEAF, "path"), [[]], "the keys of a path must be texts, integers, or tuples of them"),
    "tree": (("items", "tree", "tree"), ["set", "tree.a"], "'set' is not the kind of a tree"),
    "tree of others": (
        ("items", "tree", "tree"),
        ["dict", ["a", "model.w"]],
        "the tree of the item 'tree' has other leaves",
    ),
    "equal keys": (("items", "tree", "tree"), ["dict", ["a", "tree.a"], ["a", None]], "a key occurs twice in a tree"),
    "static value": (("items", "model", "nodes"), {"model": ["Module", {"a": [1]}]}, "the manifest is invalid"),
    "another path": ((*LEAF, "path"), ["v"], "the manifest gives 'model.w' another path"),
    "two values": ((*LEAF, "value"), 3, "a leaf must have a dtype or a value"),
    "kind": ((*LEAF, "kind"), 3, "3 is not a text"),
    "metrics": (("metrics",), {"loss": "low"}, "the manifest is invalid"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifests(case, saved, tmp_path):
    path, to, problem = HOSTILE[case]
    shutil.copytree(saved / "c", tmp_path / "c")
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    with_manifest(tmp_path / "c", changed(table, *path, to=to))
    with pytest.raises(dx.DeclaxError, match=problem):
        dx.load(tmp_path / "c")


@pytest.mark.parametrize("size", ["deep", "sparse", "lists", "many", pytest.param("long", marks=pytest.mark.slow)])
def test_large_manifests_take_bounded_time_and_memory(size, saved, tmp_path):
    shutil.copytree(saved / "c", tmp_path / "c")
    path = tmp_path / "c" / "manifest.json"
    if size == "deep":
        with_manifest(tmp_path / "c", b'"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
    elif size == "lists":
        with_manifest(tmp_path / "c", b'"a":[' + b"{}," * 10_000_000 + b"{}]}")
    elif size == "many":
        with_manifest(tmp_path / "c", b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}")
    elif size == "long":
        with_manifest(tmp_path / "c", b",".join(b'"a name of some length %d":1' % n for n in range(1_000_000)) + b"}")
    else:
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = {"deep": "the JSON is nested too deeply", "sparse": "the manifest is too large"}
    problems |= dict.fromkeys(("lists", "many"), "the JSON takes too much memory")
    with pytest.raises(CheckpointError, match=problems.get(size, "this is not a manifest of declax")) as caught:
        dx.load(tmp_path / "c")
    assert str(path) in str(caught.value)
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB


def test_a_manifest_that_could_not_be_read_is_not_written(saved, tmp_path, monkeypatch):
    shutil.copytree(saved / "c", tmp_path / "c")
    limits = [(manifest, "MAX_SIZE", 100), (bounded_json, "MAX_RATIO", 0)]
    for (module, name, limit), problem in zip(limits, ["the manifest is too large", "too much memory"], strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(bounded_json, "_SMALL", 0)
            patch.setattr(module, name, limit)
            with pytest.raises(CheckpointError, match=problem) as caught:
                dx.save(tmp_path / "c", items(2.0), overwrite=True)
        assert str(tmp_path / "c") in str(caught.value)
    assert dx.load(tmp_path / "c", into=items(0.0))["step"] == 1


@pytest.mark.parametrize("depth", [5000, 50_000])
def test_deep_trees(depth, saved, tmp_path):
    shutil.copytree(saved / "c", tmp_path / "c")
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    table["items"]["tree"]["tree"] = "DEEP"
    text = json.dumps(table)[1:].replace('"DEEP"', '["list",' * depth + '"tree.a"' + "]" * depth)
    with_manifest(tmp_path / "c", text.encode())
    with pytest.raises(CheckpointError, match=r"the manifest is invalid|the JSON is nested too deeply"):
        dx.load(tmp_path / "c", into={})


def test_the_files_must_have_the_arrays_of_the_manifest(saved, tmp_path):
    for change, problem in [
        (lambda leaves: leaves.pop("model.w"), "the manifest does not name the array 'model.w'"),
        (
            lambda leaves: leaves.update({"model.x": {**leaves["model.w"], "path": ["x"]}}),
            "no file has the array 'model.x'",
        ),
        (lambda leaves: leaves["model.w"].update(dtype="float16"), "the file and the manifest have different dtypes"),
        (lambda leaves: leaves["model.w"].update(dtype="key<none>"), "unknown implementation of random keys"),
        (lambda leaves: leaves["model.w"].update(dtype="key<rbg>"), "the data are not those of random keys"),
    ]:
        shutil.copytree(saved / "c", tmp_path / "c")
        table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
        del table["sha256"]
        change(table["items"]["model"]["leaves"])
        with_manifest(tmp_path / "c", table)
        with pytest.raises(CheckpointError, match=problem):
            dx.load(tmp_path / "c", into={"model": items(0.0)["model"]})
        shutil.rmtree(tmp_path / "c")


def test_one_array_in_two_files(saved, tmp_path):
    shutil.copytree(saved / "c", tmp_path / "c")
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    name = next(iter(table["files"]))
    for copy in ("first.safetensors", "second.safetensors"):
        shutil.copy(tmp_path / "c" / name, tmp_path / "c" / copy)
        table["files"][copy] = table["files"][name]
    del table["files"][name]
    with_manifest(tmp_path / "c", table)
    with pytest.raises(CheckpointError, match=r"first.safetensors has the array 'model.b' too"):
        dx.load(tmp_path / "c", into={"model": items(0.0)["model"]})


@pytest.mark.parametrize("verify", [True, False])
def test_a_valid_file_of_another_size(verify, saved, tmp_path):
    shutil.copytree(saved / "c", tmp_path / "c")
    file = min((tmp_path / "c").glob("*.safetensors"))
    file.unlink()
    write_tensors(file, {"model.w": np.ones(3)})
    with pytest.raises(CheckpointError, match="the file has another size") as caught:
        dx.load(tmp_path / "c", verify=verify)
    assert str(file) in str(caught.value)


STATIC = ("objects", 0, "attributes", "in_features", "static")
NODE = ("objects", 0, "attributes")
HOSTILE_STRUCTURES = {
    "class of code": (("objects", 0, "class"), "os.system", "os.system"),
    "module": (("objects", 0, "class"), "declax.config.registry.sys", "declax.config.registry.sys"),
    "function": (("objects", 0, "class"), "declax.load", "declax.load"),
    "not a model": (("objects", 0, "class"), "declax.Policy", "is not a class of models"),
    "no class": (("objects", 0, "class"), ["declax.Linear"], "is invalid"),
    "kind": (("objects", 1, "variable"), "declax.Linear", "is not a kind of Variables"),
    "special name": ((*NODE, "__class__"), {"static": "x"}, "begins with __ or _pytree__"),
    "layout": ((*NODE, "_pytree__layout"), {"static": 1}, "begins with __ or _pytree__"),
    "method": ((*NODE, "train"), {"static": 1}, "Linear has a method or property of this name"),
    "call": ((*NODE, "__call__"), {"static": 1}, "begins with __ or _pytree__"),
    "type of a field": (STATIC, "three", "in_features cannot be"),
    "text for a function": ((*NODE, "promote_dtype"), {"static": "eval"}, "promote_dtype cannot be"),
    "builtin function": ((*NODE, "promote_dtype"), {"static": {"name": "builtins.eval"}}, "builtins.eval"),
    "function of files": ((*NODE, "promote_dtype"), {"static": {"name": "jax.numpy.load"}}, "jax.numpy.load"),
    "private function": ((*NODE, "promote_dtype"), {"static": {"name": "jax.numpy._where"}}, "jax.numpy._where"),
    "other library": ((*NODE, "promote_dtype"), {"static": {"name": "subprocess.run"}}, "subprocess.run"),
    "call of a class": (STATIC, {"call": "subprocess.Popen", "arguments": {}}, "subprocess.Popen"),
    "object": (STATIC, {"object": "subprocess.Popen", "attributes": {}}, "subprocess.Popen"),
    "constructor": (
        STATIC,
        {
            "object": "declax.training._transformation.StaticTransformation",
            "attributes": {
                "description": {"call": "declax.Linear", "arguments": {"in_features": 1, "out_features": 1}}
            },
        },
        "this calls a function that is not of optax",
    ),
    "call of a class as a transformation": (
        STATIC,
        {"transformation": {"call": "declax.Linear", "arguments": {"in_features": 1, "out_features": 1}}},
        "this calls a function that is not of optax",
    ),
    "no call as a transformation": (STATIC, {"transformation": {"name": "declax.Linear"}}, "this calls a function"),
    "class in a GraphDef": (
        STATIC,
        {"graphdef": {"format": 3, "root": {"object": 0}, "objects": [{"class": "os.Popen", "attributes": {}}]}},
        "os.Popen",
    ),
    "attribute in a GraphDef": (
        STATIC,
        {
            "graphdef": {
                "format": 3,
                "root": {"object": 0},
                "objects": [{"class": "declax.Module", "attributes": {"train": {"static": 1}}}],
            }
        },
        "model.in_features.train: Module has a method or property of this name",
    ),
    "no GraphDef": (STATIC, {"graphdef": 3}, "this is not the form of a value"),
    "object of a model": (STATIC, {"object": "declax.Linear", "attributes": {}}, "is not a class of values"),
    "fields of a tuple": (STATIC, {"object": "optax.EmptyState", "items": [1], "fields": ["a"]}, "has other fields"),
    "unknown form": (STATIC, {"pickle": "x"}, "a newer version of declax"),
    "form without content": (STATIC, {"partial": 3}, "this is not the form of a value"),
    "registered container": ((*NODE, "x"), {"node": "os.system", "keys": [], "children": []}, "os.system"),
    "reference": ((*NODE, "x"), {"object": 99}, "the structure of the item 'model' is invalid"),
    "attributes": (NODE, [], "the structure of the item 'model' is invalid"),
    "objects": (("objects",), 3, "the structure of the item 'model' is invalid"),
    "leaf": ((*NODE, "x"), {"leaf": "array"}, "the checkpoint has no array or number for it"),
}


@pytest.mark.parametrize("case", HOSTILE_STRUCTURES)
def test_hostile_structures(case, tmp_path):
    """A structure makes objects of known classes with attributes that their classes allow, and nothing else."""
    path, to, problem = HOSTILE_STRUCTURES[case]
    dx.save(tmp_path / "c", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0)), "step": 3})
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    del table["sha256"]
    with_manifest(tmp_path / "c", changed(table, "items", "model", "structure", *path, to=to))
    found = dx.load(tmp_path / "c")
    assert found["step"] == 3
    with pytest.raises(CheckpointError) as caught:
        found["model"]
    assert problem in str(caught.value)


def test_the_first_line_has_a_fixed_length(saved):
    assert (saved / "c" / "manifest.json").read_bytes()[_FIRST_LENGTH - 1 : _FIRST_LENGTH] == b"\n"


# --- keys and texts that files cannot hold ---------------------------------------------------


class Color(enum.Enum):
    RED = 1


HALF = "a key has half of a surrogate pair"
KEYS = {
    "True": ({True: np.ones(2)}, "a path must consist of texts, integers"),
    "None": ({None: np.ones(2)}, "a path must consist of texts, integers"),
    "float": ({1.5: np.ones(2)}, "a path must consist of texts, integers"),
    "enum": ({Color.RED: np.ones(2)}, "a path must consist of texts, integers"),
    "number of numpy": ({np.int64(3): np.ones(2)}, "a path must consist of texts, integers"),
    "dots": ({"a.b": np.ones(2), "a": {"b": np.ones(3)}}, "another path has the same text"),
    "index and digit": ({1: np.ones(2), "1": np.ones(3)}, "JAX cannot flatten the item"),
    "half of a pair": ({"\ud800": np.ones(2)}, HALF),
    "half of a pair in data": ({"a": {"\udfff": 1}}, HALF),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_that_cannot_be_saved_are_refused_by_name(case, tmp_path):
    value, problem = KEYS[case]
    with pytest.raises(CheckpointError, match=problem) as caught:
        dx.save(tmp_path / "c", {"tree": value})
    assert f"{tmp_path / 'c'}, " in str(caught.value)
    assert "tree" in str(caught.value)
    str(caught.value).encode()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [{"": np.ones(2)}, {"é\0": np.ones(2)}, {(1, "a"): np.ones(2)}, {-3: np.ones(2)}])
def test_keys_that_can_be_saved(value, tmp_path):
    dx.save(tmp_path / "c", {"tree": value})
    assert dx.load(tmp_path / "c")["tree"].keys() == value.keys()


def test_halves_of_surrogate_pairs(tmp_path):
    dx.save(tmp_path / "c", {"text": {"a": "\ud800", "\U0001f600": 1}})
    assert dx.load(tmp_path / "c")["text"] == {"a": "\ud800", "\U0001f600": 1}
    with pytest.raises(CheckpointError, match="a text without dots"):
        dx.save(tmp_path / "d", {"\ud800": 1})
    with pytest.raises(CheckpointError, match="has half of a surrogate pair"):
        dx.save(tmp_path / "d", {"a": 1}, metrics={"\ud800": 1.0})
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


NAMED_BY_HALVES = {
    "an attribute": lambda model: setattr(model, "a\ud800", 3),
    "an empty object": lambda model: setattr(model, "a\ud800", dx.Module()),
    "metadata": lambda model: setattr(model, "p", dx.Param(np.ones(2), **{"a\ud800": 1})),
    "an argument": lambda model: setattr(model, "f", functools.partial(np.exp, **{"a\ud800": 1})),
}


@pytest.mark.parametrize("engine", ["declax", "orbax"])
@pytest.mark.parametrize("case", NAMED_BY_HALVES)
def test_names_with_halves_of_surrogate_pairs(case, engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    model = dx.Module()
    NAMED_BY_HALVES[case](model)
    with pytest.raises(CheckpointError, match="has half of a surrogate pair") as caught:
        dx.save(tmp_path / "c", {"model": model}, engine=engine)
    text = str(caught.value)
    text.encode()
    assert str(tmp_path / "c") in text
    assert case == "an argument" or "'model." in text
    assert not list(tmp_path.iterdir())


# --- locks ----------------------------------------------------------------------------------


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(CheckpointError, match="the file cannot be locked"):
        dx.save(tmp_path / "c", {"a": 1})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_removed_while_it_is_claimed(tmp_path, monkeypatch):
    import fcntl

    def remove(*_):
        (tmp_path / folders.LOCK).unlink()
        (tmp_path / folders.LOCK).touch()

    monkeypatch.setattr(fcntl, "flock", remove)
    with pytest.raises(CheckpointError, match="another writer removed this folder"):
        folders.Claim(tmp_path)


def test_rests_of_other_writers_stay(tmp_path):
    mine, theirs = tmp_path / ".c.tmp-0123456789abcdef", tmp_path / ".c.tmp-notes"
    live = tmp_path / ".c.tmp-fedcba9876543210"
    for folder in (mine, theirs, live):
        folder.mkdir()
    with folders.Claim(live):
        dx.save(tmp_path / "c", {"a": 1})
        assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([live.name, theirs.name, "c"])


def test_rests_of_other_names_are_removed_if_they_are_of_this_machine(tmp_path, monkeypatch):
    rests = {name: tmp_path / f".{name}.tmp-0123456789abcdef" for name in ("mine", "theirs", "unclaimed", "linked")}
    for name in ("mine", "theirs", "unclaimed"):
        rests[name].mkdir()
    folders.Claim(rests["mine"]).release()
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "another")
        folders.Claim(rests["theirs"]).release()
    (tmp_path / "elsewhere").mkdir()
    rests["linked"].symlink_to(tmp_path / "elsewhere")
    dx.save(tmp_path / "c", {"a": 1})
    assert [name for name, rest in rests.items() if not rest.exists()] == ["mine"]
    dx.save(tmp_path / "theirs", {"a": 1})
    assert not rests["theirs"].exists()
