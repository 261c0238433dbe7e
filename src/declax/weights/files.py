"""Files of named arrays: safetensors files, also in several with an index, and `.npz` files of NumPy."""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from declax.checkpoint.files import naming, open_regular
from declax.checkpoint.safetensors import INDEX_SUFFIX, map_tensors, tensor_files, write_tensors
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
        raise _unknown_format("load_weights", path)
    files = tensor_files(path)
    mapped = {file: map_tensors(file) for file in set(files.values())}
    return {name: mapped[file][name] for name, file in files.items()}


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Writes a new file under a temporary name, and renames it.

    Raises:
      CheckpointError: the file cannot be written, or the format cannot hold a dtype.
      WeightsError: the file exists, or has another format.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise _unknown_format("save_weights", path)
    if os.path.lexists(path):
        raise WeightsError("save_weights", f"{path} exists", fix="another name, or remove the file first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if path.suffix == ".npz":
            _write_npz(temporary, arrays)
        else:
            write_tensors(temporary, arrays, metadata={"format": "pt"})  # which transformers asks for
        with naming(path, "renamed"):
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


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


def _unknown_format(where: str, path: Path) -> WeightsError:
    return WeightsError(
        where,
        f"{path.name} does not have a format that declax reads",
        expected="a .safetensors or .npz file, a .safetensors.index.json file, or a folder with one of them",
        why="pickles, such as .bin and .pt files, can execute code",
        fix='safetensors.torch.save_file(torch.load("model.pt", weights_only=True), "model.safetensors")',
    )


class _NpzArray:
    """An array of an `.npz` file, of which only the header was read."""

    def __init__(self, path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._path = path
        self._member = member
        self.shape = shape
        self.dtype = dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path) -> dict[str, _NpzArray]:
    found = {}
    with open_regular(path) as opened, naming(path, "read"):
        try:
            with zipfile.ZipFile(opened) as archive:
                for member in archive.namelist():
                    with archive.open(member) as file:
                        is_old = np.lib.format.read_magic(file) == (1, 0)
                        read = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
                        shape, _, dtype = read(file)
                    found[member.removesuffix(".npy")] = _NpzArray(path, member, shape, dtype)
        except (ValueError, zipfile.BadZipFile) as error:
            raise WeightsError("load_weights", f"{path} is not a valid .npz file", got=str(error)[:200]) from error
    return found
