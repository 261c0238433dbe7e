"""Another name for a field, in all files of the project below the current folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mypy.nodes import NameExpr, TypeInfo

from declax.config._rename.code import Uses
from declax.config._rename.declaration import Family, declared_in, find_family, note_former_name, rename_in_docstring
from declax.config._rename.files import changed_files
from declax.config._rename.project import Project, files_below
from declax.config._rename.texts import Text
from declax.errors import ConfigError
from declax.mypy_plugin.expressions import RUN_NOW, walk


class Renaming(NamedTuple):
    """What a rename changes.

    Attributes:
      texts: the changed files.
      undecided: the places that have to be looked at, each with a reason.
    """

    texts: list[Text]
    undecided: list[str]

    def difference(self) -> str:
        return "".join(text.difference() for text in self.texts)

    def write(self) -> None:
        for text in self.texts:
            text.write()


def rename(target: str, new: str) -> Renaming:
    """Finds what another name of a field changes; writes nothing.

    Args:
      target: the field, ``models.py:Block.hidden`` or ``models:Block.hidden``.
      new: its new name.
    """
    module_word, colon, path = target.partition(":")
    old = path.rpartition(".")[2]
    if not colon or not old or old == path:
        raise ConfigError(target, "this names no field", expected="a field such as models.py:Block.hidden")
    project = Project((*path.split("."), new, "from_config", "spec_from_config", "cli"))
    module = project.module_of(Path(module_word)) if module_word.endswith(".py") else module_word
    if module is None or project.path_of(module) is None:
        raise ConfigError(
            target, f"there is no module {module_word!r} below this folder", expected="a file or a module"
        )
    family = find_family(project, module, path, new)
    undecided = list(project.notes)
    found = [Uses(project, module, family) for module in project.texts]
    for uses in found:
        uses.collect()
        undecided += uses.undecided
    for info in family.classes:
        text = project.texts[info.module_name]
        rename_in_docstring(text, family, info)
        if old in declared_in(info):
            _check_body(info, family, text)
            undecided += note_former_name(text, family, info)
    roots = [info for uses in found for info in uses.roots]
    named = {name: info for uses in found for name, info in uses.files.items()}
    changed = [text for text in project.texts.values() if text.edits]
    changed += changed_files(family, project.classes, roots, named, undecided)
    undecided += (f"mypy, after the change: {error}" for error in project.new_errors(old, new))
    undecided += _notebooks(old)
    return Renaming(changed, undecided)


def _check_body(info: TypeInfo, family: Family, text: Text) -> None:
    """Refuses a name that the class body reads from outside: the field would hide it."""
    for node in walk(info.defn.defs, RUN_NOW):
        if isinstance(node, NameExpr) and node.name == family.new:
            place = text.place(text.offset(node.line, node.column))
            problem = f"the class body reads another {family.new!r}, at {place}"
            raise ConfigError(f"{info.name}.{family.old}", problem, fix="choose another name")


def _notebooks(old: str) -> Iterator[str]:
    word = re.compile(rf"\b{old}\b".encode())
    for path in files_below(Path(), (".ipynb",)):
        if word.search(path.read_bytes()):
            yield f"{path}: a notebook with the name; notebooks are not changed"
