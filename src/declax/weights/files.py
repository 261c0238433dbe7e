"""Files of named arrays: safetensors files, also in several with an index, and `.npz` files of NumPy."""

from __future__ import annotations

import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from declax.checkpoint.files import naming, open_regular
from declax.checkpoint.safetensors import INDEX_SUFFIX, open_tensors, tensor_files, write_index, write_tensors
from declax.errors import WeightsError


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of a file or folder by name: shapes and dtypes are known, and values are read when numpy asks.

    Raises:
      CheckpointError: the files are missing or invalid.
      WeightsError: the file has another format.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _read_npz(path)
    if not path.is_dir() and not path.name.endswith((".safetensors", INDEX_SUFFIX)):
        with open_regular(path):  # a missing file is reported as such
            raise WeightsError(
                "load_weights",
                f"{path.name} does not have a format that declax reads",
                expected="a .safetensors or .npz file, a .safetensors.index.json file, or a folder with one of them",
                why="pickles, such as .bin and .pt files, can execute code",
                fix='safetensors.torch.save_file(torch.load("model.pt", weights_only=True), "model.safetensors")',
            )
    files = tensor_files(path)
    opened = {file: open_tensors(file) for file in set(files.values())}
    return {name: opened[file][name] for name, file in files.items()}


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any], max_file_size: int | None = None) -> None:
    """Writes new files under temporary names, and renames them; an index comes last.

    Raises:
      CheckpointError: a file cannot be written, or the format cannot hold a dtype.
      WeightsError: a file exists, or has another format.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise WeightsError(
            "save_weights",
            f"{path.name} does not have a format that declax writes",
            expected="a .safetensors or .npz file",
            fix=f'dx.save_weights(model, "{path.stem}.safetensors")',
        )
    groups = [dict(arrays)] if max_file_size is None else _groups(path, arrays, max_file_size)
    count = len(groups)
    names = [f"{path.stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    files = [path] if count == 1 else [path.with_name(name) for name in names]
    index = path.with_name(path.stem + INDEX_SUFFIX)
    # a folder with an index and a file would have two models
    for file in [*files, path, index] if path.suffix == ".safetensors" else [path]:
        if os.path.lexists(file):
            raise WeightsError("save_weights", f"{file} exists", fix="another name, or remove the file first")
    with _all_or_none() as publish:
        for file, group in zip(files, groups, strict=True):
            if path.suffix == ".npz":
                _write_npz(publish(file), group)
            else:
                write_tensors(publish(file), group, metadata={"format": "pt"})  # which transformers asks for
        if count > 1:
            places = {name: file.name for file, group in zip(files, groups, strict=True) for name in group}
            write_index(publish(index), places, sum(map(_size, arrays.values())))


@contextmanager
def _all_or_none() -> Generator[Callable[[Path], Path], None, None]:
    """Yields a function that gives files temporary names; after the block they are renamed, in their order."""
    temporary: dict[Path, Path] = {}

    def publish(path: Path) -> Path:
        temporary[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        return temporary[path]

    done: list[Path] = []
    try:
        yield publish
        for path, written in temporary.items():
            with naming(path, "renamed"):
                written.rename(path)
            done.append(path)
    except BaseException:
        _remove(done)
        raise
    finally:
        _remove(temporary.values())


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # the error of writing is the one that counts
            file.unlink(missing_ok=True)


def _groups(path: Path, arrays: Mapping[str, Any], max_file_size: Any) -> list[dict[str, Any]]:
    """The arrays of each file, in their order."""
    if type(max_file_size) is not int or max_file_size < 1 or path.suffix != ".safetensors":
        raise WeightsError(
            "save_weights, max_file_size",
            "several files are .safetensors files of some bytes",
            got=f"{max_file_size!r} for {path.name}",
            fix='dx.save_weights(model, "model.safetensors", max_file_size=5_000_000_000)',
        )
    groups: list[dict[str, Any]] = [{}]
    size = 0
    for name, array in arrays.items():
        if size and size + _size(array) > max_file_size:
            groups.append({})
            size = 0
        groups[-1][name] = array
        size += _size(array)
    return groups


def _size(array: Any) -> int:
    return int(prod(array.shape)) * int(array.dtype.itemsize)


def _write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    with naming(path, "written"), path.open("xb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                if array.dtype.isbuiltin != 1:  # as numpy marks those of other packages, such as bfloat16
                    raise WeightsError(
                        "save_weights",
                        f".npz files cannot hold {name!r}",
                        got=f"dtype {array.dtype}",
                        fix='dx.save_weights(..., dtype="float32")        # or a .safetensors file',
                    )
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


class _NpzArray:
    """An array of an `.npz` file, of which only the header was read."""

    def __init__(self, path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._path = path
        self._member = member
        self.shape = shape
        self.dtype = dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        with _reading_npz(self._path) as archive, archive.open(self._member) as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # the digest is compared at the end
                raise _invalid_npz(self._path, f"{self._member} has more bytes than its array")
        return found


def _read_npz(path: Path) -> dict[str, _NpzArray]:
    found = {}
    with _reading_npz(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                is_old = np.lib.format.read_magic(file) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
            found[member.removesuffix(".npy")] = _NpzArray(path, member, shape, dtype)
    return found


@contextmanager
def _reading_npz(path: Path) -> Generator[zipfile.ZipFile, None, None]:
    """The archive of a file, with the file in errors."""
    with open_regular(path) as opened, naming(path, "read"):
        try:
            with zipfile.ZipFile(opened) as archive:
                yield archive
        except WeightsError:
            raise
        except (ValueError, EOFError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
            raise _invalid_npz(path, str(error)[:200]) from error


def _invalid_npz(path: Path, got: str) -> WeightsError:
    return WeightsError("load_weights", f"{path} is not a valid .npz file", got=got)
