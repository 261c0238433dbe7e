"""The safetensors format: a JSON header with dtypes, shapes and offsets, and the raw bytes of the arrays after it.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np

from declax.checkpoint.file_arrays import FileArray
from declax.checkpoint.files import Digests, OpenFile, new_file, parse_json
from declax.errors import CheckpointError

MAX_HEADER: Final = 100_000_000
"""How many bytes a header may have; the limit of the format's own library."""

MAX_TENSORS: Final = 1 << 18
"""How many arrays a file may have."""

MAX_DIMENSIONS: Final = 64
"""How many dimensions an array of numpy may have."""

INDEX_SUFFIX: Final = ".safetensors.index.json"

_LENGTH: Final = 8  # bytes that hold the length of the header
_ALIGNMENT: Final = 64  # of the first array, which lets devices use mapped memory
_CHUNK: Final = 1 << 24

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "F8_E5M2": np.dtype(jnp.float8_e5m2),
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E8M0": np.dtype(jnp.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(jnp.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(jnp.float8_e5m2fnuz),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "C64": np.dtype("<c8"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
}
"""The dtypes of the format by their names in it."""

_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


class TensorInfo(NamedTuple):
    """What a header says of an array.

    Attributes:
      dtype, shape: of the array.
      start, stop: its bytes in the file.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """The header of a file.

    Attributes:
      tensors: by name, in the order of their bytes.
      metadata: texts by name, which have no meaning to the format.
      size: of the whole file, in bytes.
    """

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    size: int


# --- reading ------------------------------------------------------------------------


def read_header(path: str | os.PathLike[str], *, follow_links: bool = True) -> Header:
    """Reads dtypes, shapes and offsets, and checks that they describe the file completely.

    Args:
      path: a ``.safetensors`` file.
      follow_links: False refuses a symbolic link.

    Raises:
      CheckpointError: the file cannot be opened, or is not a valid file of the format.

    >>> import numpy as np
    >>> _ = write_tensors("weights.safetensors", {"scale": np.ones(3, np.float32)})
    >>> read_header("weights.safetensors").tensors["scale"].shape
    (3,)
    """
    with OpenFile(path, follow_links=follow_links) as file:
        return _header_of(file)


def open_tensors(path: str | os.PathLike[str]) -> dict[str, FileArray]:
    """The arrays of a file by name; the bytes of an array are read when they are asked for.

    Raises:
      CheckpointError: the file cannot be opened, or is not a valid file of the format.

    >>> import numpy as np
    >>> _ = write_tensors("some.safetensors", {"scale": np.ones(3, np.float32)})
    >>> open_tensors("some.safetensors")["scale"][1:]
    array([1., 1.], dtype=float32)
    """
    return tensors_in(OpenFile(path))


def tensors_in(file: OpenFile) -> dict[str, FileArray]:
    """The arrays of an open file, as of `open_tensors`."""
    infos = _header_of(file).tensors
    return {name: FileArray(file, info.start, info.shape, info.dtype) for name, info in infos.items()}


def tensor_files(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The file of each array of a ``.safetensors`` file, of an index, or of a folder that has one of the two.

    Args:
      path: a ``.safetensors`` file; a ``.safetensors.index.json`` file, whose ``weight_map`` names the file of each
        array; or a folder with one index, or else with one file.

    Raises:
      CheckpointError: a file is missing or invalid, the folder has none or several, the index names a file outside
        of its folder, or an array that its file does not have.

    >>> import numpy as np
    >>> _ = write_tensors("one.safetensors", {"scale": np.ones(3, np.float32)})
    >>> tensor_files("one.safetensors")
    {'scale': PosixPath('one.safetensors')}
    """
    found = _file_in(Path(path)) if Path(path).is_dir() else Path(path)
    if found.name.endswith(INDEX_SUFFIX):
        return _files_of_index(found)
    return dict.fromkeys(read_header(found).tensors, found)


def _header_of(file: OpenFile) -> Header:
    path, size = file.path, file.size
    if size < _LENGTH:
        raise _invalid(path, "the file is too short for a header", f"{size} bytes")
    length = int.from_bytes(file.read(0, _LENGTH), "little")
    if length > min(MAX_HEADER, size - _LENGTH):
        problem = "the header is larger than the file" if length > size - _LENGTH else "the header is too large"
        raise _invalid(path, problem, f"{length} bytes", f"at most {min(MAX_HEADER, size - _LENGTH)} bytes")
    text = file.read(_LENGTH, length)
    if text.count(b":") > 5 * MAX_TENSORS:  # four in each entry, before anything is allocated for them
        raise _invalid(path, "the header has too many entries", expected=f"at most {MAX_TENSORS} arrays")
    table = parse_json(path, text)
    if not isinstance(table, dict) or not text.startswith(b"{"):
        raise _invalid(path, "the header is not a JSON object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _invalid(path, "`__metadata__` must map names to texts")
    start = _LENGTH + length
    tensors = {name: _info_of(path, name, entry, start) for name, entry in table.items()}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    end = start
    for name, info in ordered.items():
        if info.start != end:
            problem = "the bytes of two arrays overlap" if info.start < end else "bytes between two arrays are unused"
            raise _invalid(path, problem, f"array {name!r} from byte {info.start}", f"from byte {end}")
        end = info.stop
    if end != size:
        raise _invalid(path, "the arrays do not fill the file", f"{size} bytes", f"{end} bytes")
    return Header(ordered, metadata, size)


def _info_of(path: Path, name: str, entry: object, start: int) -> TensorInfo:
    """One entry of a header; `start` is where the bytes of arrays begin in the file."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _invalid(path, f"array {name!r} must have dtype, shape and data_offsets, and nothing else")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise _invalid(path, f"array {name!r} has an unknown dtype", repr(entry["dtype"])[:80], ", ".join(DTYPES))
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS or not _can_be_indexed(shape, dtype):
        raise _invalid(path, f"array {name!r} has no valid shape", repr(shape)[:80], "a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _invalid(path, f"array {name!r} has no valid offsets", repr(offsets)[:80], "[begin, end]")
    begin, end = offsets
    if end - begin != prod(shape) * dtype.itemsize:
        expected = f"{prod(shape) * dtype.itemsize} bytes for shape {tuple(shape)} and dtype {dtype}"
        raise _invalid(path, f"the offsets of array {name!r} do not fit its shape", f"{end - begin} bytes", expected)
    return TensorInfo(dtype, tuple(shape), start + begin, start + end)


def _are_sizes(value: object) -> bool:
    """Whether a value is a list of integers that a file can have as sizes."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _can_be_indexed(shape: list[int], dtype: np.dtype[Any]) -> bool:
    """Whether numpy takes a shape; its strides are computed from the other sizes also if one of them is zero."""
    return prod(filter(None, shape)) * dtype.itemsize < 1 << 63


def _file_in(folder: Path) -> Path:
    """The index of a folder, or its only file."""
    for pattern in (f"*{INDEX_SUFFIX}", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(file.name for file in found[:5])
            raise CheckpointError(str(folder), f"the folder has several files {pattern}", got=names, fix="name one")
        if found:
            return found[0]
    raise CheckpointError(str(folder), "the folder has no safetensors file", expected="*.safetensors")


def _files_of_index(path: Path) -> dict[str, Path]:
    with OpenFile(path) as file:
        if file.size > MAX_HEADER:
            raise _invalid(path, "the index is too large", expected=f"at most {MAX_HEADER} bytes")
        index = parse_json(path, file.read(0, file.size))
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise _invalid(path, "the index has no weight_map of names of arrays and files")
    headers: dict[str, Header] = {}
    for name, file_name in found.items():
        if file_name in ("", ".", "..") or any(mark in file_name for mark in "/\\\0:"):
            raise _invalid(path, "the index names a file outside of its folder", repr(file_name)[:80])
        if file_name not in headers:
            headers[file_name] = read_header(path.with_name(file_name))
        if name not in headers[file_name].tensors:
            raise _invalid(path, f"the index places array {name[:80]!r} in {file_name}, which does not have it")
    return {name: path.with_name(file_name) for name, file_name in found.items()}


def _invalid(path: Path, problem: str, got: str | None = None, expected: str | None = None) -> CheckpointError:
    return CheckpointError(str(path), problem, got=got, expected=expected)


# --- writing ------------------------------------------------------------------------


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> str:
    """Creates a file with arrays, one after the other, and syncs it to the disk.

    Args:
      path: the file, which must not exist.
      tensors: arrays of numpy or JAX by name. An array on a device is fetched when its turn comes.
      metadata: texts by name.
      progress: called with the number of bytes after each piece that was written.

    Returns:
      The sha256 of the file, as 64 hexadecimal digits.

    Raises:
      CheckpointError: the file exists or cannot be written, or the format has no name for a dtype. The file is
        removed again.

    >>> import numpy as np
    >>> digest = write_tensors("new.safetensors", {"scale": np.ones(3, np.float32)}, metadata={"format": "np"})
    >>> len(digest), read_header("new.safetensors").metadata
    (64, {'format': 'np'})
    """
    # the largest items first, so that each array is aligned to its items
    ordered = dict(sorted(tensors.items(), key=lambda item: (-np.dtype(item[1].dtype).itemsize, item[0])))
    content = _pieces(_header_text(path, ordered, metadata or {}), ordered.values())
    with new_file(path) as file, Digests(hashlib.sha256()) as digests:
        for piece in content:
            digests.add(piece)
            file.write(piece)
            if progress is not None:
                progress(len(piece))
        return digests.hexdigest()


def write_index(path: str | os.PathLike[str], files: Mapping[str, str], total_size: int) -> None:
    """Creates the index of arrays in several files: `files` has the name of the file of each array.

    >>> write_index("model.safetensors.index.json", {"scale": "model-00001-of-00001.safetensors"}, 12)
    """
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(files)}
    with new_file(path) as file:
        file.write(json.dumps(index, indent=2).encode())


def _header_text(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The length of the header, and the header, padded so that the arrays are aligned."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        dtype = np.dtype(tensor.dtype)
        format_name = _NAMES.get(little(dtype))
        if format_name is None or name == "__metadata__":
            problem = f"safetensors cannot hold array {name!r}"
            raise CheckpointError(os.fspath(path), problem, got=f"dtype {dtype}", expected=", ".join(map(str, _NAMES)))
        begin, end = end, end + prod(tensor.shape) * dtype.itemsize
        table[name] = {"dtype": format_name, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(_LENGTH + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH, "little") + text


def _pieces(header: bytes, tensors: Iterable[Any]) -> Iterator[memoryview | bytes]:
    """The content of a file in pieces of about `_CHUNK` bytes: small arrays are joined, large ones are not copied."""
    joined = bytearray(header)
    for tensor in tensors:
        array = np.asarray(tensor)
        ordered = np.ascontiguousarray(array, little(array.dtype))
        content = ordered.reshape(-1).view(np.uint8).data
        if len(joined) + len(content) <= _CHUNK:
            joined += content
            continue
        yield bytes(joined)
        joined = bytearray()
        for start in range(0, len(content), _CHUNK):
            yield content[start : start + _CHUNK]
    yield bytes(joined)


def little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype with the byte order of the format."""
    return dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
