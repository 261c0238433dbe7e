"""The benchmark of the mypy plugin runs, and its arithmetic holds."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import pytest

from checkers import ROOT

ROOM = 1.5
"""How far over its bar the cost may be here, where other work may run beside it; `--check` allows nothing."""

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="benchmarks/ is not here")


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.typing_cost")


@pytest.mark.slow
def test_the_file_is_long_and_runs(cost: ModuleType, tmp_path: Path) -> None:
    text = cost.model_file()
    path = tmp_path / "models.py"
    path.write_text(text, encoding="utf-8")
    assert cost.LINES <= text.count("\n") < cost.LINES + cost.PART.count("\n") + 1
    names = runpy.run_path(str(path))
    assert names["train_0"](jnp.ones((2, 4))).shape == (2, 4)
    assert "train_60" in names


@pytest.mark.parametrize(("nanoseconds", "verdict"), [(1.05e9, "1.15: met"), (1.2e9, "1.15: MISSED")])
def test_the_table_has_the_ratio_and_the_verdict(cost: ModuleType, nanoseconds: float, verdict: str) -> None:
    samples = {cost.WITHOUT: [1e9] * 3, cost.EMPTY: [1.01e9] * 3, cost.WITH: [nanoseconds] * 3}
    row, empty = cost.page(samples).splitlines()[-2:]
    assert f"| 1 s | {nanoseconds / 1e9:.3g} s | **{nanoseconds / 1e9:.3g}** (" in row
    assert row.endswith(f"{verdict} |")
    assert "| 1 s | 1.01 s | **1.01** (" in empty


@pytest.mark.slow
@pytest.mark.timed
def test_the_plugin_costs_little(cost: ModuleType) -> None:
    samples = cost.measure(5)
    assert cost.ratio(samples, cost.WITH, cost.WITHOUT).median <= ROOM * cost.BAR
