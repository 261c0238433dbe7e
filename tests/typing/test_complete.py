"""All that declax offers has a type that checkers need not guess: `pyright --verifytypes`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checkers
import declax

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not checkers.version_of(checkers.PYRIGHT), reason="pyright is not installed"),
]

OF_ANY = {"_fields/specifiers.py": "class _UsedUp(Any):", "_typing.py": "class Replacing(Any):"}
"""What fits in the place of another value, an InitVar or a Spec, derives from Any: an unknown base, and on purpose."""


def test_all_symbols_have_known_types(tmp_path: Path) -> None:
    found = verified(copied_without_any(tmp_path))
    guessed = [
        f"{symbol['name']}: {said['message'].splitlines()[0]}"
        for symbol in found["symbols"]
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for said in symbol["diagnostics"] or [{"message": "of what it refers to"}]
    ]
    assert not guessed, "\n".join(["pyright has to guess the types of:", *guessed])
    counts = found["exportedSymbolCounts"]
    assert (counts["withAmbiguousType"], counts["withUnknownType"]) == (0, 0)


def copied_without_any(folder: Path) -> Path:
    """A copy of declax, as the tests import it, in which no class derives from Any."""
    package = folder / "declax"
    shutil.copytree(Path(declax.__file__).parent, package)
    for path, line in OF_ANY.items():
        text = (package / path).read_text()
        assert text.count(line) == 1
        (package / path).write_text(text.replace(line, line.replace("(Any)", "")))
    of_any = re.compile(r"^ *class .*\bAny\b\):$", re.MULTILINE)
    assert not [path for path in package.rglob("*.py") if of_any.search(path.read_text())]
    return package


def verified(package: Path) -> dict[str, Any]:
    """What pyright says of the types of a package."""
    # It asks the `python` on the PATH where packages are.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(package.parent)}
    words = [sys.executable, "-m", "pyright", "--verifytypes", "declax", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    assert Path(found["pyTypedPath"]).parent == package
    return found
