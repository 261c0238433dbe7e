"""Where `load` reads from: a folder of declax, or one of Orbax."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import jax
import numpy as np

from declax.checkpoint import orbax_engine
from declax.checkpoint.arrays import from_file, is_key, on_device
from declax.checkpoint.file_arrays import FileArray
from declax.checkpoint.files import OpenFile, naming
from declax.checkpoint.items import Item, text_of
from declax.checkpoint.manifest import NAME, Manifest, Stored, StoredLeaf, read_manifest
from declax.checkpoint.progress import Counter, Progress
from declax.checkpoint.safetensors import tensors_in
from declax.errors import CheckpointError

_CHUNK: Final = 1 << 20

Likes = list[dict[str, Any]]
"""For each item, the values whose kinds and devices the arrays get, by text."""


class OrbaxSource:
    """A checkpoint of Orbax that is being read. It has no digests.

    Attributes:
      manifest: what it says of its items.
      stored: their leaves, not read yet.
    """

    manifest: Manifest
    stored: dict[str, Stored]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.manifest, self.stored = orbax_engine.read(path)

    def fitted(self, targets: list[Item], stored: Mapping[str, Stored]) -> dict[str, Stored]:
        """The leaves under the texts and with the types of the targets."""
        return orbax_engine.fitted(targets, stored)

    def fetch(self, wanted: list[Stored], likes: Likes, progress: Progress | None) -> list[dict[str, Any]]:
        """The values of leaves, as arrays like others."""
        return orbax_engine.fetch(self._path, wanted, likes, progress)

    def read(self, leaves: Stored) -> dict[str, Any]:
        """The values of leaves as arrays of numpy."""
        values = self.fetch([leaves], [{}], None)[0]
        return {text: value if is_key(value) else np.asarray(value) for text, value in values.items()}

    def check(self) -> None:
        """Does nothing: Orbax has read what it wanted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Does nothing: nothing is open."""


class FolderSource:
    """A checkpoint of declax. Threads compute the digests of its files meanwhile, if `verify` is True."""

    manifest: Manifest
    stored: dict[str, Stored]

    def __init__(self, folder: Path, *, verify: bool) -> None:
        self._folder = folder
        with naming(folder, "opened"):
            self.manifest, self._files = _open(folder)
        self._pool = ThreadPoolExecutor(max(1, min(len(self._files), os.cpu_count() or 1)))
        self._digests: dict[str, Future[str]] = {}
        if verify:
            self._digests = {name: self._pool.submit(_digest, file) for name, (_, file) in self._files.items()}
        try:
            self.stored = self._stored()
        except BaseException:
            self._pool.shutdown(cancel_futures=True)
            raise

    def _stored(self) -> dict[str, Stored]:
        try:
            return _stored(self._folder, self.manifest, self._files)
        except CheckpointError:
            self.check()  # a damaged file is the reason, if there is one
            raise

    def fitted(self, targets: list[Item], stored: Mapping[str, Stored]) -> dict[str, Stored]:
        """As of `OrbaxSource`."""
        return dict(stored)

    def fetch(self, wanted: list[Stored], likes: Likes, progress: Progress | None) -> list[dict[str, Any]]:
        """As of `OrbaxSource`."""
        every = [leaf.content for leaves in wanted for leaf in leaves.values()]
        counter = Counter(progress, sum(getattr(content, "nbytes", 0) for content in every))
        made: list[dict[str, Any]] = []
        for leaves, like in zip(wanted, likes, strict=True):
            made.append({})
            for text, leaf in leaves.items():
                made[-1][text] = on_device(leaf.content, like.get(text))
                counter.add(getattr(leaf.content, "nbytes", 0))
        jax.block_until_ready(made)  # type: ignore[no-untyped-call]  # of JAX
        return made

    def read(self, leaves: Stored) -> dict[str, Any]:
        """As of `OrbaxSource`."""
        contents = {text: leaf.content for text, leaf in leaves.items()}
        return {text: np.asarray(c) if isinstance(c, FileArray) else on_device(c, None) for text, c in contents.items()}

    def check(self) -> None:
        """Waits for the digests, and compares them with those of the manifest."""
        for name, digest in self._digests.items():
            if digest.result() != self.manifest.files[name].sha256:
                expected = f"sha256 {self.manifest.files[name].sha256}"
                where = str(self._folder / name)
                raise CheckpointError(where, "the file was changed or damaged", expected=expected)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)


_Files = dict[str, tuple[dict[str, FileArray], OpenFile]]


def _open(folder: Path) -> tuple[Manifest, _Files]:
    """The manifest and its files; those of the new one if a writer replaces the checkpoint meanwhile."""
    if not (folder / NAME).exists() and orbax_engine.is_of_orbax(folder):
        fix = f'dx.load({str(folder)!r}, engine="orbax")'
        raise CheckpointError(str(folder), "this is a checkpoint of Orbax", fix=fix)
    if not os.path.lexists(folder / NAME):
        raise _no_checkpoint(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, {name: _opened(folder / name, record.size) for name, record in manifest.files.items()}
        except CheckpointError:
            before, manifest = manifest, read_manifest(folder)
            if manifest.files == before.files:
                raise


def _no_checkpoint(folder: Path) -> CheckpointError:
    """The error of a path without a manifest, with the function for what is there."""
    got = "no such folder"
    if os.path.lexists(folder):
        got = "a folder without a manifest" if folder.is_dir() else "a file"
    fix, shown = None, repr(str(folder))
    if any(folder.glob(f"step_*/{NAME}")):
        fix = f"dx.Checkpoints({shown}).load(into=...)"
    elif any(folder.glob("*.jax_export")):
        fix = f"dx.load_exported({shown})"
    elif any(folder.glob("*.safetensors")):
        fix = f"dx.load_weights(model, {shown}, map=...)"
    expected = f"a folder with {NAME}"
    return CheckpointError(str(folder / NAME), "there is no checkpoint", expected=expected, got=got, fix=fix)


def _opened(path: Path, size: int) -> tuple[dict[str, FileArray], OpenFile]:
    file = OpenFile(path, follow_links=False)
    arrays = tensors_in(file)
    if file.size != size:
        raise CheckpointError(
            str(path), "the file has another size", expected=f"{size} bytes", got=f"{file.size} bytes"
        )
    return arrays, file


def _digest(file: OpenFile) -> str:
    digest = hashlib.sha256()
    with memoryview(bytearray(min(_CHUNK, file.size))) as block:
        for start in range(0, file.size, _CHUNK):
            piece = block[: file.size - start]
            file.read_into(piece, start)
            digest.update(piece)
    return digest.hexdigest()


def _stored(folder: Path, manifest: Manifest, files: _Files) -> dict[str, Stored]:
    """The leaves of all items; raises unless the files have exactly the arrays that the manifest names."""
    arrays: dict[str, tuple[str, FileArray]] = {}
    for name, (found, _) in files.items():
        for text, array in found.items():
            if text in arrays:
                raise CheckpointError(str(folder / name), f"{arrays[text][0]} has the array {text!r} too")
            arrays[text] = (name, array)
    made: dict[str, Stored] = {}
    for name, item in manifest.items.items():
        made[name] = {}
        for text, record in item.leaves.items():
            if text != text_of(name, record.path):
                raise CheckpointError(
                    str(folder), f"the manifest gives {text!r} another path", got=repr(record.path)[:80]
                )
            if not record.dtype:
                made[name][text] = StoredLeaf(record, record.value)
                continue
            if text not in arrays:
                raise CheckpointError(str(folder), f"no file has the array {text!r}")
            file, array = arrays.pop(text)
            made[name][text] = StoredLeaf(record, from_file(f"{folder / file}, {text}", record.dtype, array))
    if arrays:
        text, (file, _) = next(iter(arrays.items()))
        raise CheckpointError(str(folder / file), f"the manifest does not name the array {text!r}")
    return made
