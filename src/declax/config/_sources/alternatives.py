"""Alternatives: files in a folder named after a field, of which a configuration names one."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Any, Final

from declax.config._files.documents import MAX_BYTES, Document
from declax.config._files.formats import SUFFIXES, read_document
from declax.config._sources.keys import USE
from declax.config.problems import KIND, Path, Place, Problem, did_you_mean, shown
from declax.errors import ConfigError

MAX_FILES: Final = 1000
"""How often one configuration may name alternatives, since each may name several others."""

_MAX_BYTES: Final = MAX_BYTES
"""The size of all of them, each as often as it is named."""

_MAX_CHAIN: Final = 32
"""How many files may lead to one, each named by the one before."""


class Alternatives:
    """The files that configurations name, each read once.

    Attributes:
      root: the folder of the first file, inside of which all others are; None if there is no file.
    """

    def __init__(self) -> None:
        self.root: FilePath | None = None
        self._read: dict[FilePath, Document] = {}
        self._sizes: dict[FilePath, int] = {}
        self._count = self._bytes = 0

    def charge(self, found: Document) -> str | None:
        """Counts an alternative whose values are used; returns what is wrong if there are too many."""
        self._count += 1
        self._bytes += self._sizes.get(FilePath(str(found.file)), 0)
        if self._count > MAX_FILES:
            return f"more than {MAX_FILES} alternatives are named"
        return f"alternatives of more than {_MAX_BYTES >> 20} MiB are named" if self._bytes > _MAX_BYTES else None

    def folder(self, path: Path, source: Document) -> FilePath | None:
        """The folder with the alternatives for a field: beside the file that names one, or beside the first file.

        The path is that in the file, so that a file names others beside it as its own root.
        """
        base = self.root if source.file is None else FilePath(source.file).resolve().parent
        names = [key for key in path if isinstance(key, str)]
        if base is None or not names:
            return base
        return base / names[-1] if _is_plain(names[-1]) else None

    def names(self, path: Path, source: Document) -> list[str]:
        """The alternatives for a field."""
        folder = self.folder(path, source)
        if folder is None or self.root is None or not os.path.isdir(folder):
            return []
        try:
            found = list(folder.iterdir()) if folder.resolve().is_relative_to(self.root) else []
        except OSError:  # nobody may read it
            return []
        return sorted({file.stem for file in found if file.suffix.lower() in SUFFIXES})

    def has(self, path: Path, source: Document) -> bool:
        """Whether there is a folder with alternatives for a field."""
        folder = self.folder(path, source)
        return folder is not None and os.path.isdir(folder)

    def kind_of(self, name: Any, path: Path, source: Document) -> Any:
        """The kind of an alternative, or of the one that it changes; None if it has none, or cannot be read."""
        outer: tuple[str, ...] = ()
        while True:
            found = self.find(name, path, source, outer)
            if isinstance(found, Problem) or not isinstance(found.data, dict):
                return None
            if KIND in found.data or USE not in found.data:
                return found.data.get(KIND)
            name, path, source, outer = found.data[USE], (), found, (*outer, str(found.file))

    def find(self, name: Any, path: Path, source: Document, outer: tuple[str, ...] = ()) -> Document | Problem:
        """The file of an alternative, or what is wrong with its name.

        Args:
          name: the alternative.
          path: the field, as a path in the source if that is a file.
          source: what names it.
          outer: the files that lead to it, none of which it may be.
        """
        at, place = (*path, USE), source.place_of(())
        folder = self.folder(path, source)
        if not isinstance(name, str) or folder is None:
            expected = "the name of a file without its suffix"
            return Problem("alternative", at, "not the name of an alternative", expected, shown(name), place=place)
        found = self._file(folder, name)
        if found is None:
            known = self.names(path, source)
            message = f"there is no alternative {shown(name)} in {self._shown(folder)}"
            hint = did_you_mean(name, known)
            return Problem("alternative", path, message, ", ".join(known) or "a file there", shown(name), hint, place)
        if self.root is None or not found.is_relative_to(self.root):
            expected = f"a file inside of {self._shown(self.root or folder)}"
            return Problem("alternative", path, "the file is outside of the folder", expected, shown(name), place=place)
        if str(found) in outer:
            names = " -> ".join(self._shown(FilePath(file)) for file in (*outer, str(found)))
            return Problem("alternative", path, f"the files name each other in a circle: {names}", place=place)
        if len(outer) >= _MAX_CHAIN:
            return Problem("alternative", path, f"a chain of more than {_MAX_CHAIN} files leads here", place=place)
        return self._document(found)

    def _document(self, file: FilePath) -> Document:
        if file not in self._read:
            try:
                found = read_document(self._shown(file))
            except ConfigError as error:
                name = self._shown(file)
                told = Problem("file", (), error.problem, error.expected, hint=error.fix, place=Place(name))
                found = Document(name, {}, [*error.problems] or [told])  # it is as good as empty
            found.file = str(file)
            self._read[file] = found
            self._sizes[file] = os.path.getsize(file)
        return self._read[file]

    @staticmethod
    def _file(folder: FilePath, name: str) -> FilePath | None:
        """The resolved path of an alternative; its suffix may be left out."""
        suffixes = ("",) if FilePath(name).suffix.lower() in SUFFIXES else SUFFIXES
        try:
            return next((f.resolve() for s in suffixes if (f := folder / f"{name}{s}").is_file()), None)
        except (OSError, ValueError, RuntimeError):  # no name of a file, or links in a circle
            return None

    @staticmethod
    def _shown(file: FilePath) -> str:
        """A path from the current folder, if it is inside of that."""
        here = FilePath.cwd()
        return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)


def _is_plain(name: str) -> bool:
    """Whether a key of a table is the name of a folder, and no path to one elsewhere."""
    return name not in ("", ".", "..") and not any(sign in name for sign in ("/", "\\", "\0"))
