"""`explain_filters` prints which leaves each filter takes."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import FilterError


class Model(dx.Module):
    def __init__(self):
        self.linear = dx.Linear(2, 3, rngs=dx.Rngs(params=0))
        self.norm = dx.BatchNorm(3, rngs=dx.Rngs(params=0))
        self.dropout = dx.Dropout(0.5, rngs=dx.Rngs(dropout=1))
        self.table = jnp.zeros(2, jnp.int32)


def explained(capsys: pytest.CaptureFixture[str], *args, **options) -> str:
    assert dx.explain_filters(*args, **options) is None
    return capsys.readouterr().out


def test_all_is_said(capsys):
    text = explained(capsys, Model(), dx.Param, "dropout", dx.PathMatches("norm.*"))
    assert text == (
        "Param: 4 of 9 leaves\n"
        "  linear.bias: Param, Array of shape (3,) and dtype float32\n"
        "  linear.kernel: Param, Array of shape (2, 3) and dtype float32\n"
        "  norm.bias: Param, Array of shape (3,) and dtype float32\n"
        "  norm.scale: Param, Array of shape (3,) and dtype float32\n"
        "'dropout': 2 of 9 leaves\n"
        "  dropout.rngs.count: RngCount, Array of shape () and dtype uint32\n"
        "  dropout.rngs.key: RngKey, PRNGKeyArray of shape () and dtype key<fry>\n"
        "PathMatches('norm.*'): 2 of 9 leaves\n"
        "  norm.mean: BatchStat, Array of shape (3,) and dtype float32\n"
        "  norm.var: BatchStat, Array of shape (3,) and dtype float32\n"
        "left over: 1 of 9 leaves\n"
        "  table: Array of shape (2,) and dtype int32\n"
    )


def test_what_is_said_is_what_split_does(capsys):
    model = Model()
    filters = (dx.Not(dx.PathContains("norm")), dx.Param, ...)
    text = explained(capsys, model, *filters, limit=None)
    _, *states = dx.split(model, *filters)
    listed = [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert listed == [".".join(map(str, path)) for state in states for path in state.paths]
    assert text.endswith("left over: 0 of 9 leaves\n")


@pytest.mark.parametrize("wanted", ["dropot", dx.Cache, dx.PathMatches("nrm.*"), None])
def test_a_filter_that_takes_nothing(capsys, wanted):
    assert ": 0 of 9 leaves\nleft over: 9 of 9 leaves\n" in explained(capsys, Model(), wanted)


def test_a_graph_without_leaves(capsys):
    assert explained(capsys, dx.Module(), dx.Param) == "Param: 0 of 0 leaves\nleft over: 0 of 0 leaves\n"


def test_long_lists_are_cut(capsys):
    model = [dx.Param(i) for i in range(30)]
    assert "  ... and 10 more; limit=None lists all\n" in explained(capsys, model, dx.Param)
    assert explained(capsys, model, dx.Param, limit=None).count("Param, int") == 30


def test_errors_of_filters():
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.explain_filters(Model(), 3)
    with pytest.raises(FilterError, match="filters after them match none"):
        dx.explain_filters(Model(), ..., dx.Param)


def test_filters_are_asked_as_split_asks_them(capsys):
    model = [dx.Param(1, unit="m"), jnp.ones(1)]
    first, second = (lambda path, v: not isinstance(v, dx.Variable)), (lambda path, v: v.get_metadata()["unit"] == "m")
    text = explained(capsys, model, first, second)
    assert text.count(": 1 of 2 leaves") == 2
    assert text.endswith("left over: 0 of 2 leaves\n")
