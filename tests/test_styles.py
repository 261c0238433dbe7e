"""The models of docs/two_styles.md are the same in both styles, and the declared ones are shorter."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
WHOLE, DECLARATIONS = (0.93, 1.4), (0.9, 1.6)
"""The characters and lines that the declared classes may have, times the peer's: whole, and without ``__call__``."""

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="benchmarks/ is not here")

MODELS: Mapping[str, tuple[str, tuple[object, ...], jax.Array]] = {
    "A GPT": ("GPT", (32, 8, 16, 2, 3), jnp.arange(10).reshape(2, 5)),
    "A ResNet-18": ("ResNet18", (10, 4), jnp.linspace(-1.0, 1.0, 2 * 32 * 32 * 3).reshape(2, 32, 32, 3)),
}
"""The class of the whole model, its arguments, and an input."""


@pytest.fixture
def styles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.styles")


def parameters(library: Any, model: object) -> dict[tuple[object, ...], np.ndarray]:
    flat = library.to_flat_state(library.state(model, library.Param))
    return {path: np.asarray(jax.tree.leaves(variable)[0]) for path, variable in flat}


def test_every_model_of_the_page_is_compared(styles):
    assert tuple(MODELS) == styles.MODELS


@pytest.mark.parametrize("title", ["A GPT", pytest.param("A ResNet-18", marks=pytest.mark.slow)])
def test_both_styles_make_the_same_model(title, styles):
    name, arguments, x = MODELS[title]
    pytest.importorskip("flax")
    made, found = [], []
    for program in styles.programs(title):
        library = importlib.import_module(program.library)
        made.append(program.run()[name](*arguments, rngs=library.Rngs(0)))
        found.append(parameters(library, made[-1]))
    declared, peer = found
    assert declared.keys() == peer.keys()
    for path, array in declared.items():
        np.testing.assert_array_equal(array, peer[path], err_msg=str(path))
    for mode in ("train", "eval"):  # with dropout and the statistics of the batch; then without
        for model in made:
            getattr(model, mode)()
        ours, theirs = (model(x) for model in made)
        np.testing.assert_array_equal(ours, theirs, err_msg=mode)


@pytest.mark.slow
@pytest.mark.parametrize("title", MODELS)
def test_the_declared_style_is_shorter(title, styles):
    pytest.importorskip("ruff")
    declared, peer = styles.programs(title)
    assert [styles.formatted(program.source) for program in (declared, peer)] == [declared.source, peer.source]
    row = [title]
    sources = (declared.source, peer.source, WHOLE), (declared.declarations, peer.declarations, DECLARATIONS)
    for ours, theirs, bars in sources:
        for mine, other, bar in zip(styles.size(ours), styles.size(theirs), bars, strict=True):
            assert mine <= bar * other
            row.append(f"{mine} / {other} = {mine / other:.2f}")
    assert f"| {' | '.join(row)} |" in styles.PAGE.read_text(encoding="utf-8")
