"""The section on intended differences states both results: here Flax NNX runs its programs, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from fenced import ROOT, blocks_of

PAGE = ROOT / "docs" / "coming_from_nnx.md"


def test_the_peer_prints_what_the_section_says():
    flax_nnx = pytest.importorskip("flax.nnx")
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(r"^## Intended differences\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert section
    names = {"__name__": __name__, "nnx": flax_nnx}
    exec("import jax\nimport jax.numpy as jnp", names)
    blocks = blocks_of(section[1])
    printed, compared = "", 0
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(block.text, str(PAGE), "exec"), names)
            printed = stream.getvalue()
        elif block.info != "{output}":
            assert printed == block.text
            compared += 1
        elif following is None or following.language == "python":
            assert printed == block.text  # a line that runs under both
    assert compared == section[1].count("Flax NNX prints:") == 5
