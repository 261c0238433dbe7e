"""``declax rename``: shows or writes another name of a field."""

from __future__ import annotations

import importlib

from declax.config._cli.output import Output, usage_error
from declax.errors import MissingExtraError


def rename(words: list[str], output: Output, *, write: bool) -> None:
    """Shows what another name changes, as a diff, and what has to be looked at; with `write`, changes the files."""
    if len(words) != 2:
        fix = "declax rename models.py:Block.hidden width"
        raise usage_error("rename needs a field and its new name", got=" ".join(words) or "nothing", fix=fix)
    try:
        importlib.import_module("mypy.build")
    except ImportError:
        fix = 'pip install "declax[mypy]"'
        raise MissingExtraError("rename", "it reads the project with mypy, which is not installed", fix=fix) from None
    found = importlib.import_module("declax.config._rename.renaming").rename(*words)
    if write:
        found.write()
    files, difference = [str(text.path) for text in found.texts], found.difference()
    data = {"files": files, "difference": difference, "look_at": found.undecided, "is_written": write}
    lines = [difference] if difference else []
    if found.undecided:
        lines += ["look at these:", *(f"  {line}" for line in found.undecided), ""]
    names = f"{len(files)} {'file' if len(files) == 1 else 'files'}"
    lines.append(f"{names} changed" if write else f"{names} would change; add --write")
    output.add("", "\n".join(lines), data, "diff")
