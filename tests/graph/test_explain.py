"""`explain_filters` says what each filter takes, and why one takes nothing."""

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
        "Param takes 4 of 9 leaves\n"
        "  linear.bias: Param, float32[3]\n"
        "  linear.kernel: Param, float32[2, 3]\n"
        "  norm.bias: Param, float32[3]\n"
        "  norm.scale: Param, float32[3]\n"
        "'dropout' takes 2 of 9 leaves\n"
        "  dropout.rngs.count: RngCount, uint32[], tag 'dropout'\n"
        "  dropout.rngs.key: RngKey, key<fry>[], tag 'dropout'\n"
        "PathMatches('norm.*') takes 2 of 9 leaves\n"
        "  norm.mean: BatchStat, float32[3]\n"
        "  norm.var: BatchStat, float32[3]\n"
        "left over: 1 leaf\n"
        "  table: int32[2]\n"
    )


def test_what_is_said_is_what_split_does(capsys):
    model = Model()
    filters = (dx.Not(dx.PathContains("norm")), dx.Param, ...)
    text = explained(capsys, model, *filters, limit=None)
    _, *states = dx.split(model, *filters)
    listed = [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert listed == [".".join(map(str, path)) for state in states for path in state.paths]
    assert text.endswith("left over: nothing\n")


@pytest.mark.parametrize("wanted", ["dropot", dx.Cache, dx.PathMatches("nrm.*"), None])
def test_a_filter_that_takes_nothing(capsys, wanted):
    kinds = "the kinds here are RngCount, RngKey, Param, BatchStat, jax.Array, and the tags 'dropout'"
    assert f" takes nothing: {kinds}\n" in explained(capsys, Model(), wanted)


def test_a_graph_without_tags_or_leaves(capsys):
    assert "'a' takes nothing: the kinds here are Param\n" in explained(capsys, [dx.Param(1)], "a")
    assert "Param takes nothing: the graph has no leaves" in explained(capsys, dx.Module(), dx.Param)


def test_long_lists_are_cut(capsys):
    model = [dx.Param(i) for i in range(30)]
    assert "  ... and 10 more; limit=None lists all\n" in explained(capsys, model, dx.Param)
    assert explained(capsys, model, dx.Param, limit=None).count("Param, int") == 30


def test_errors_of_filters():
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.explain_filters(Model(), 3)
    with pytest.raises(FilterError, match="would take none"):
        dx.explain_filters(Model(), ..., dx.Param)


def test_filters_are_asked_as_split_asks_them(capsys):
    model = [dx.Param(1, unit="m"), jnp.ones(1)]
    first, second = (lambda path, v: not isinstance(v, dx.Variable)), (lambda path, v: v.get_metadata()["unit"] == "m")
    text = explained(capsys, model, first, second)
    assert text.count("takes 1 of 2 leaves") == 2
    assert text.endswith("left over: nothing\n")
