"""`plot`: a bar for each part of a model."""

import jax.numpy as jnp
import pytest

import declax as dx
from declax._displays import plotting


class Net(dx.Module):
    def __init__(self):
        self.layers = dx.List([dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.BatchNorm(3, rngs=dx.Rngs(0))])
        self.scale = dx.Param(jnp.ones(5))


def test_a_bar_has_the_elements_of_a_part_by_kind():
    figure = pytest.importorskip("matplotlib.figure")
    axes = figure.Figure().add_subplot()
    assert dx.plot(Net(), axes=axes) is axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layers[0]", "layers[1]", "(root)"]
    params, stats = axes.containers
    assert (params.get_label(), [bar.get_width() for bar in params]) == ("Param", [9, 6, 5])
    assert (stats.get_label(), [bar.get_width() for bar in stats]) == ("BatchStat", [0, 6, 0])
    assert [bar.get_x() for bar in stats] == [9, 6, 5]


def test_depth_joins_parts():
    pytest.importorskip("matplotlib")
    axes = dx.plot(Net(), depth=1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layers", "(root)"]


def test_matplotlib_is_missing(monkeypatch):
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    with pytest.raises(dx.errors.MissingExtraError, match="matplotlib is not installed"):
        dx.plot(Net())


@pytest.mark.parametrize(("model", "depth"), [(3, None), (Net(), -1)])
def test_wrong_arguments_are_refused(model, depth):
    pytest.importorskip("matplotlib")
    with pytest.raises(
        dx.errors.GraphError, match=r"summary\.(model: this is not a model|depth: this is not the length)"
    ):
        dx.plot(model, depth=depth)
