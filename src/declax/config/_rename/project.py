"""A project as mypy reads it: trees, the types of expressions, classes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from mypy import build, config_parser, defaults
from mypy.errors import CompileError
from mypy.find_sources import InvalidSourceList, create_source_list
from mypy.fscache import FileSystemCache
from mypy.modulefinder import BuildSource
from mypy.nodes import ClassDef, Expression, FakeInfo, MypyFile, TypeInfo
from mypy.options import Options
from mypy.types import Type

from declax.config._rename.texts import Text
from declax.errors import DeclaxError
from declax.mypy_plugin.expressions import STATEMENTS, walk

_PLUGIN: Final = "declax.mypy_plugin"
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "build", "dist", "site-packages"})
_PLACE: Final = re.compile(r"^(.+?):\d+(?::\d+)?: ")


def files_below(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """The files with some suffixes, outside of hidden folders, environments and what builds make."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        inside = Path(where)
        folders[:] = sorted(
            name
            for name in folders
            if not (name.startswith(".") or name in _SKIPPED or (inside / name / "pyvenv.cfg").exists())
        )
        found += [inside / name for name in sorted(names) if Path(name).suffix.lower() in tuple(suffixes)]
    return [path.relative_to(folder) for path in found]


class Project:
    """The Python files below the current folder.

    Files with classes, or with one of some words, are read with their types. mypy takes the others from its cache.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.notes: list[str] = []
        """What was not read, and why."""
        self.texts: dict[str, Text] = {}
        """The texts that were read with types, by module."""
        self._options = _options()
        self._sources = self._found_sources()
        # mypy does not load modules from its cache that nothing needs, so their classes would not be seen.
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b|^[ \t]*class\b", re.MULTILINE)
        for module, path in list(self._sources.items()):
            try:
                text = Text.read(path)
            except UnicodeDecodeError as error:
                self.notes.append(f"{path}: not read, since it is not UTF-8: {error.reason}")
                del self._sources[module]
                continue
            if pattern.search(text.text):
                self.texts[module] = text
        self._result = self._build({module: text.text for module, text in self.texts.items()})
        self.types: Mapping[Expression, Type] = self._result.types

    def tree(self, module: str) -> MypyFile:
        return self._result.files[module]

    def module_of(self, path: Path) -> str | None:
        return next((module for module, found in self._sources.items() if found.resolve() == path.resolve()), None)

    def path_of(self, module: str) -> Path | None:
        return self._sources.get(module)

    @cached_property
    def classes(self) -> list[TypeInfo]:
        """All classes of the project, those within functions too; none in code that is never run."""
        nodes = (node for module in self.texts for node in walk(self.tree(module), STATEMENTS))
        return [node.info for node in nodes if isinstance(node, ClassDef) and not isinstance(node.info, FakeInfo)]

    def class_named(self, module: str, path: str) -> TypeInfo | None:
        """The class that a module has under a name, also one that it imports from another module of the project."""
        tree = self._result.files.get(module)
        names, info = None if tree is None else tree.names, None
        for name in path.split("."):
            symbol = None if names is None else names.get(name)
            info = symbol.node if symbol is not None and isinstance(symbol.node, TypeInfo) else None
            names = None if info is None else info.names
        return info if info in self.classes else None

    def new_errors(self, old: str, new: str) -> list[str]:
        """The errors that mypy finds after the changes, and not before."""
        before, word = list(self._result.errors), re.compile(rf"\b{new}\b")
        known = {word.sub(old, _PLACE.sub(r"\1: ", line)) for line in before}
        after = self._build({module: text.changed for module, text in self.texts.items()}).errors
        self._build({module: text.text for module, text in self.texts.items()})  # mypy's cache follows the files again
        return [
            line for line in after if ": note: " not in line and word.sub(old, _PLACE.sub(r"\1: ", line)) not in known
        ]

    def _found_sources(self) -> dict[str, Path]:
        """The file of each module, named as mypy names it."""
        found: dict[str, Path] = {}
        self._folders: dict[str, str | None] = {}
        files, cache = files_below(Path(), (".py",)), FileSystemCache()
        for path in files:
            try:
                (source,) = create_source_list([str(path)], self._options, cache)
            except InvalidSourceList as error:
                self.notes.append(f"{path}: not read: {error}")
                continue
            if source.module in found:
                self.notes.append(f"{path}: not read, since {found[source.module]} is the module {source.module} too")
            else:
                found[source.module] = path
                self._folders[source.module] = source.base_dir
        return found

    def _build(self, texts: Mapping[str, str]) -> build.BuildResult:
        """Runs mypy; it reads what has a text anew, so that its tree and types exist."""
        sources = [
            BuildSource(str(path), module, texts.get(module), self._folders[module])
            for module, path in self._sources.items()
        ]
        try:
            return build.build(sources, self._options, fscache=FileSystemCache())
        except CompileError as error:
            why = "\n".join(error.messages[:5])
            raise DeclaxError(
                "the project", "mypy cannot read it", why=why, fix="correct the errors, then rename"
            ) from None


def _options() -> Options:
    """The project's settings of mypy, with the plugin; functions without annotations are read too."""
    options = Options()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        config_parser.parse_config_file(options, lambda: None, None, said, said)
    options.python_executable = options.python_executable or sys.executable
    options.plugins = [*options.plugins, *([] if _PLUGIN in options.plugins else [_PLUGIN])]
    folder = options.cache_dir or defaults.CACHE_DIR
    options.cache_dir = folder if folder == os.devnull else os.path.join(folder, "rename")
    options.check_untyped_defs = True
    options.export_types = True
    options.preserve_asts = True
    options.incremental = True
    options.follow_imports = "silent"
    options.ignore_missing_imports = True
    if hasattr(options, "native_parser"):
        options.native_parser = False  # its columns are wrong behind characters that are not ASCII, in mypy 2.4
    return options
