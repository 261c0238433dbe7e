"""All that declax offers has a type that checkers need not guess: `pyright --verifytypes`."""

from __future__ import annotations

import json
import os
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

OF_ANY = {"declax.InitVar", "declax._fields.specifiers._UsedUp"}
"""An InitVar that no instance has, and that fits where its type does: a class that derives from Any."""


def test_all_symbols_have_known_types() -> None:
    found = verified()
    assert Path(found["pyTypedPath"]).parent == Path(declax.__file__).parent
    guessed = [
        f"{symbol['name']}: {said['message'].splitlines()[0]}"
        for symbol in found["symbols"]
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for said in symbol["diagnostics"] or [{"message": "of what it refers to"}]
    ]
    guessed = [text for text in guessed if text.partition(":")[0] not in OF_ANY]
    assert not guessed, "\n".join(["pyright has to guess the types of:", *guessed])
    counts = found["exportedSymbolCounts"]
    assert (counts["withAmbiguousType"], counts["withUnknownType"]) == (0, 1)


def verified() -> dict[str, Any]:
    """What pyright says of the types of declax, where the tests import it from."""
    # It asks the `python` on the PATH where packages are.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(declax.__file__).parents[1])}
    words = [sys.executable, "-m", "pyright", "--verifytypes", "declax", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return found
