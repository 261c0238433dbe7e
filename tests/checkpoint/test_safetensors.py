"""Files of arrays: what the format's own library reads and writes, and files that are refused."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declax.checkpoint import file_arrays
from declax.checkpoint import safetensors as own
from declax.checkpoint.files import OpenFile
from declax.errors import CheckpointError


def arrays():
    """An array of each dtype; shapes without elements, without dimensions, and of odd sizes."""
    shapes = [(), (3,), (0, 4), (2, 3, 5)]
    made = {}
    for number, (name, dtype) in enumerate(own.DTYPES.items()):
        shape = shapes[number % len(shapes)]
        bits = np.arange(np.prod(shape, dtype=int) * dtype.itemsize, dtype=np.uint8) % 2
        made[name.lower()] = bits.view(dtype).reshape(shape)
    return made


def same(a, b):
    a = np.asarray(a)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_files_read_back(tmp_path):
    path, given = tmp_path / "a.safetensors", arrays()
    own.write_tensors(path, given, metadata={"made": "here"})
    found = own.open_tensors(path)
    assert found.keys() == given.keys()
    assert all(same(found[name], given[name]) for name in given)
    assert own.read_header(path).metadata == {"made": "here"}


def test_arrays_are_read_into_memory_that_jax_takes_as_it_is(tmp_path):
    own.write_tensors(tmp_path / "a.safetensors", arrays())
    read = [array[...] for array in own.open_tensors(tmp_path / "a.safetensors").values()]
    assert all(array.ctypes.data % 64 == 0 for array in read if array.size)


@settings(deadline=None)
@given(data=st.data(), block=st.sampled_from([1, 8, 50, 1 << 20]))
def test_a_part_of_an_array_is_that_of_numpy(data, block, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "a.safetensors"
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    own.write_tensors(path, {"before": np.ones(3, np.uint8), "a": array})
    index = tuple([data.draw(st.slices(size).filter(lambda part: part.step in (None, 1))) for size in shape])
    index = index[: data.draw(st.integers(0, len(shape)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_arrays, "_BLOCK", block)
        assert same(own.open_tensors(path)["a"][index], array[index])


def test_a_part_of_an_array_reads_only_its_rows(tmp_path, monkeypatch):
    own.write_tensors(tmp_path / "a.safetensors", {"a": np.zeros((100, 1000), np.float32)})
    array, sizes = own.open_tensors(tmp_path / "a.safetensors")["a"], []
    monkeypatch.setattr(OpenFile, "read_into", lambda file, buffer, start: sizes.append(len(buffer)))
    array[10:20]
    assert sizes == [40_000]
    monkeypatch.setattr(file_arrays, "_BLOCK", 1000)
    sizes.clear()
    array[10:20, 5:8]
    assert sizes == [12] * 10


def test_the_library_of_the_format_reads_what_is_written(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    given = {"a": np.arange(6.0).reshape(2, 3), "b/é": np.array(7, np.int64), "none": np.zeros((0, 2), np.float16)}
    own.write_tensors(tmp_path / "a.safetensors", given, metadata={"x": "y"})
    found = library.load_file(tmp_path / "a.safetensors")
    assert found.keys() == given.keys()
    assert all(same(found[name], given[name]) for name in given)


def test_what_the_library_of_the_format_writes_is_read(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    given = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c": np.ones((2, 0), np.uint8)}
    library.save_file(given, tmp_path / "a.safetensors")
    found = own.open_tensors(tmp_path / "a.safetensors")
    assert all(same(found[name], given[name]) for name in given)


def test_the_digest_is_that_of_the_file(tmp_path):
    seen = []
    big = np.arange(6_000_001, dtype=np.float64)  # of several pieces
    digest = own.write_tensors(tmp_path / "a.safetensors", {"big": big, "small": big[:3]}, progress=seen.append)
    content = (tmp_path / "a.safetensors").read_bytes()
    assert digest == hashlib.sha256(content).hexdigest()
    assert sum(seen) == len(content)
    assert len(seen) > 2
    assert same(own.open_tensors(tmp_path / "a.safetensors")["big"], big)


def test_arrays_of_jax_and_of_any_memory_order(tmp_path):
    given = {"jax": jnp.ones((2, 3), jnp.bfloat16), "f": np.asfortranarray(np.arange(6).reshape(2, 3))}
    given["big"] = np.arange(4, dtype=">i4")
    own.write_tensors(tmp_path / "a.safetensors", given)
    found = own.open_tensors(tmp_path / "a.safetensors")
    assert same(found["jax"], np.asarray(given["jax"]))
    assert (found["f"] == given["f"]).all()
    assert (found["big"] == given["big"]).all()


def test_a_file_that_exists_is_not_overwritten(tmp_path):
    path = tmp_path / "a.safetensors"
    own.write_tensors(path, {"a": np.ones(3)})
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="the file cannot be created") as caught:
        own.write_tensors(path, {"a": np.zeros(3)})
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_dtype_without_a_name_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="safetensors cannot hold array 'c'"):
        own.write_tensors(tmp_path / "a.safetensors", {"c": np.ones(2, np.complex128)})
    assert not list(tmp_path.iterdir())


def test_a_file_is_removed_where_writing_fails(tmp_path):
    class Broken:
        shape, dtype = (2,), np.dtype(np.float32)

        def __array__(self, *args, **kwargs):
            raise RuntimeError("no such device")

    with pytest.raises(RuntimeError, match="no such device"):
        own.write_tensors(tmp_path / "a.safetensors", {"a": Broken()})
    assert not list(tmp_path.iterdir())


# --- files that are refused ---------------------------------------------------------


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DEEP = b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
MANY = b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(400_000)) + b"}"
INVALID = {
    "short": (b"1234567", "too short for a header"),
    "empty": (b"", "too short for a header"),
    "huge header": (file_of({}, length=1 << 60), "the header is larger than the file"),
    "header beyond the file": (file_of({}, length=3), "the header is larger than the file"),
    "no JSON": (file_of(b"{nonsense"), "the JSON is invalid"),
    "no UTF-8": (file_of(b'{"\xff": 1}'), "the JSON is invalid"),
    "surrogate": (file_of(b'{"\\ud800": 1}'), "the JSON is invalid"),
    "long number": (file_of(b'{"a": ' + b"9" * 10_000 + b"}"), "the JSON is invalid"),
    "twice": (file_of(b'{"a": 1, "a": 1}'), "a key occurs twice"),
    "deep": (file_of(DEEP), "nested too deeply"),
    "lists": (file_of(b'{"a":[' + b"[]," * 2_000_000 + b"0]}"), "the JSON takes too much memory"),
    "many": (file_of(MANY), "the header has too many entries"),
    "list": (file_of([]), "the header is not a JSON object"),
    "padded before": (file_of(b" {}"), "the header is not a JSON object"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "`__metadata__` must map names to texts"),
    "keys of an entry": (file_of({"a": {"dtype": "U8"}}), "must have dtype, shape and data_offsets"),
    "dtype": (file_of({"a": entry(dtype="U9")}, b"ab"), "'a' has an unknown dtype"),
    "dtype of another type": (file_of({"a": entry(dtype=["U8"])}, b"ab"), "'a' has an unknown dtype"),
    "negative size": (file_of({"a": entry(shape=[-2])}, b"ab"), "'a' has no valid shape"),
    "true as size": (file_of({"a": entry(shape=[True])}, b"ab"), "'a' has no valid shape"),
    "dimensions": (file_of({"a": entry(shape=[1] * 65)}, b"ab"), "'a' has no valid shape"),
    "overflow": (file_of({"a": entry(shape=[1 << 62, 4])}, b"ab"), "'a' has no valid shape"),
    "zero and overflow": (file_of({"a": entry("F32", [0, (1 << 63) - 1], [0, 0])}), "'a' has no valid shape"),
    "more than its bytes": (file_of({"a": entry(shape=[1 << 40])}, b"ab"), "do not fit its shape"),
    "offsets": (file_of({"a": entry(offsets=[0])}, b"ab"), "'a' has no valid offsets"),
    "backwards": (file_of({"a": entry(offsets=[2, 0])}, b"ab"), "do not fit its shape"),
    "overlap": (file_of({"a": entry(), "b": entry(offsets=[1, 3])}, b"abc"), "the bytes of two arrays overlap"),
    "gap": (file_of({"a": entry(), "b": entry(offsets=[3, 5])}, b"abcde"), "bytes between two arrays are unused"),
    "truncated": (file_of({"a": entry()}, b"a"), "the arrays do not fill the file"),
    "extended": (file_of({"a": entry()}, b"abc"), "the arrays do not fill the file"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_files_are_refused_by_name(case, tmp_path):
    content, problem = INVALID[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=problem) as caught:
        own.open_tensors(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert time.process_time() - begun < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_header_above_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write((1 << 30).to_bytes(8, "little"))
        file.truncate(1 << 31)
    with pytest.raises(CheckpointError, match="the header is too large"):
        own.read_header(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    own.write_tensors(path, {"a": np.ones(1000)})
    array = own.open_tensors(path)["a"]
    os.truncate(path, 100)
    with pytest.raises(CheckpointError, match="the file ended while it was read") as caught:
        array[...]
    assert str(path) in str(caught.value)


@settings(deadline=None)
@given(data=st.data())
def test_a_file_with_other_bytes_is_read_as_valid_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("f") / "a.safetensors"
    own.write_tensors(path, {"a": np.arange(3, dtype=np.int16), "b": np.ones((2, 2), np.float32)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = own.open_tensors(path)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017  # either outcome is right
    else:
        assert sum(array.nbytes for array in found.values()) == 22


def test_folders_pipes_and_missing_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(CheckpointError, match="this is not a regular file"):
            own.read_header(tmp_path / name)
    with pytest.raises(CheckpointError, match="the file cannot be opened"):
        own.read_header(tmp_path / "missing.safetensors")


def test_links_are_followed_on_request(tmp_path):
    own.write_tensors(tmp_path / "a.safetensors", {"a": np.ones(2)})
    (tmp_path / "link.safetensors").symlink_to("a.safetensors")
    assert "a" in own.open_tensors(tmp_path / "link.safetensors")
    with pytest.raises(CheckpointError, match="the file cannot be opened"):
        own.read_header(tmp_path / "link.safetensors", follow_links=False)


# --- several files ------------------------------------------------------------------


def test_arrays_in_several_files(tmp_path):
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name, file in files.items():
        own.write_tensors(tmp_path / file, {name: np.ones(2)})
    own.write_index(tmp_path / "model.safetensors.index.json", files, 32)
    expected = {name: tmp_path / file for name, file in files.items()}
    assert own.tensor_files(tmp_path) == expected
    assert own.tensor_files(tmp_path / "model.safetensors.index.json") == expected


def test_a_folder_must_tell_which_file(tmp_path):
    with pytest.raises(CheckpointError, match="the folder has no safetensors file"):
        own.tensor_files(tmp_path)
    own.write_tensors(tmp_path / "a.safetensors", {"a": np.ones(2)})
    assert own.tensor_files(tmp_path) == {"a": tmp_path / "a.safetensors"}
    own.write_tensors(tmp_path / "b.safetensors", {"a": np.ones(2)})
    with pytest.raises(CheckpointError, match=r"the folder has several files \*.safetensors"):
        own.tensor_files(tmp_path)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "..", "", "sub/a.safetensors", "a\\b", "a\0b"])
def test_an_index_stays_in_its_folder(name, tmp_path):
    own.write_index(tmp_path / "model.safetensors.index.json", {"a": name}, 0)
    with pytest.raises(CheckpointError, match="the index names a file outside of its folder"):
        own.tensor_files(tmp_path)


def test_invalid_indexes(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    for content in ("[]", "{}", '{"weight_map": {"a": 1}}'):
        index.write_text(content)
        with pytest.raises(CheckpointError, match="the index has no weight_map"):
            own.tensor_files(index)
    own.write_tensors(tmp_path / "a.safetensors", {"a": np.ones(2)})
    index.write_text('{"weight_map": {"b": "a.safetensors"}}')
    with pytest.raises(CheckpointError, match="which does not have it"):
        own.tensor_files(index)
    with index.open("wb") as file:
        file.truncate(own.MAX_HEADER + 1)
    with pytest.raises(CheckpointError, match="the index is too large"):
        own.tensor_files(index)
