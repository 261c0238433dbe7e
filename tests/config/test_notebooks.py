"""Specs and the command line in a notebook."""

from __future__ import annotations

import dataclasses
import html.parser
import sys
import types
from typing import Any

import pytest

import declax as dx
from declax.errors import ConfigError, DeclaxError


@dx.dataclass
class Block(dx.Layer):
    """Mixes <b>.

    Args:
      dim: the width & more.
    """

    dim: int = dx.field()
    hidden: int = 4 * dim
    up: dx.Linear = dx.Linear(dim, hidden)


@dataclasses.dataclass
class Train:
    steps: int = 3
    name: str = "a"


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.titles: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.titles.append(dict(attrs).get("title"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_spec_is_a_tree_that_folds():
    tags = _Tags()
    tags.feed(dx.spec(dx.Sequential, dx.spec(Block, 8), dx.relu)._repr_html_())
    assert tags.open == []
    text = "".join(tags.texts)
    for piece in ("Sequential", "layers[0]: Block", "dim = 8", "hidden = 32", "up: Linear", "out_features = 32"):
        assert piece in text
    assert "the width & more." in tags.titles
    assert "Mixes <b>." in tags.titles


def test_a_tree_shows_no_secret():
    @dataclasses.dataclass
    class Tracked:
        token: str = dx.field(secret=True)

    assert "hunter2" not in dx.spec(Tracked, "hunter2")._repr_html_()


@pytest.fixture
def kernel(monkeypatch):
    ipython = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr("sys.argv", ["kernel", "-f", "/run/kernel.json"])


def test_nothing_exits_in_a_notebook(kernel, capsys):
    assert dx.cli(Train) == Train()
    assert dx.cli(Train, ["steps=7"]).steps == 7
    with pytest.raises(ConfigError, match="the string 'x'"):
        dx.cli(Train, ["steps=x"])
    with pytest.raises(DeclaxError, match="no such file"):
        dx.cli(Train, ["none.toml"])
    for words, piece in ((["--help"], "fields of Train"), (["--show"], 'kind = "Train"')):
        assert dx.cli(Train, words) is None
        assert piece in capsys.readouterr().out
