"""The program for Orbax in docs/saving.md runs if Orbax is installed; other blocks of the page always run."""

from __future__ import annotations

import types

import pytest

from fenced import ROOT, blocks_of


@pytest.mark.filterwarnings("ignore")  # of Orbax
def test_the_program_for_orbax_runs():
    pytest.importorskip("orbax.checkpoint")
    blocks = list(blocks_of((ROOT / "docs" / "saving.md").read_text(encoding="utf-8")))
    opening = next(block for block in blocks if block.language == "python")
    programs = [block.text for block in blocks if block.language == "text" and "orbax" in block.text]
    assert ["assert" in program for program in programs] == [True, True]
    code = compile(opening.text + "".join(programs), "saving.md", "exec", dont_inherit=True)
    exec(code, types.ModuleType("saving").__dict__)
