"""Damaged checkpoints and failing disks: refused with the name of the file, and nothing is overwritten."""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import time

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


def test_there_are_enough_cases():
    assert len(CASES) + len(FAULTS) >= 200


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
    "structure": (("structure",), "0" * 64, "the structure has another digest"),
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
        rows = [
            [text, leaf.get("dtype", ""), leaf.get("kind", "")]
            for item in table["items"].values()
            for text, leaf in sorted(item.get("leaves", {}).items())
        ]
        table["structure"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
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
    "special name": ((*NODE, "__class__"), {"static": "x"}, "has no such attribute"),
    "layout": ((*NODE, "_pytree__layout"), {"static": 1}, "has no such attribute"),
    "method": ((*NODE, "train"), {"static": 1}, "has no such attribute"),
    "call": ((*NODE, "__call__"), {"static": 1}, "has no such attribute"),
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
