"""`tabulate` and `summary` with inputs: outputs, costs and folding; and the same numbers as the peer."""

from __future__ import annotations

import importlib.util
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._displays.calls import calls_of
from declax._text import tables


class Block(dx.Module):
    def __init__(self, dim: int, rngs: dx.Rngs) -> None:
        self.norm = dx.BatchNorm(dim, rngs=rngs)
        self.up = dx.Linear(dim, 2 * dim, rngs=rngs)
        self.drop = dx.Dropout(0.5, rngs=rngs)
        self.down = dx.Linear(2 * dim, dim, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.narrow(self.drop(self.up(self.norm(x))))

    def narrow(self, x: jax.Array) -> jax.Array:
        return self.down(x)


class Net(dx.Module):
    def __init__(self, count: int = 3) -> None:
        rngs = dx.Rngs(0)
        self.blocks = dx.List([Block(4, rngs) for _ in range(count)])
        self.head = dx.Linear(4, 5, rngs=rngs)
        self.calls = dx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array, scale: float = 1.0) -> jax.Array:
        self.calls[...] = self.calls[...] + 1
        for block in self.blocks:
            x = block(x)
        return scale * self.head(x)


X = jnp.ones((2, 4))


def cells(text: str, path: str) -> list[str]:
    """The cells of a row of a table."""
    (found,) = (line for line in text.splitlines() if line.split("  ")[0] == path)
    return re.split(r"\s{2,}", found.strip())


def test_a_summary_of_a_call() -> None:
    found = dx.summary(Net(), X, scale=2.0)
    text = str(found)
    assert cells(text, "(root)")[:3] == ["(root)", "Net", "f32[2,5]"]
    assert cells(text, "blocks[0:3].up")[:4] == ["blocks[0:3].up", "3 x Linear", "f32[2,8]", "432"]
    assert cells(text, "blocks[0:3].down")[3] == "384"  # of 3 layers, 2 * 2 * 8 * 4 multiplications and additions
    assert "rngs.count" in text
    assert "blocks[0:3].drop.rngs" not in text
    rows = {row.path: row for row in found.rows}
    assert rows["blocks", 1, "drop"].output == "f32[2,8]"
    total, parts = rows[()].cost, [rows["blocks", i].cost for i in range(3)]
    assert total is not None
    assert total.flops > sum(cost.flops for cost in parts if cost) > 0
    assert str(found).splitlines()[-1].split()[1] == f"{total.flops:,}"


def test_nothing_changes_and_nothing_is_computed() -> None:
    net = Net()
    before = jax.tree.map(np.asarray, dx.state(net)["blocks"][0]["norm"]["mean"].value)
    method, structure = Block.__call__, dx.graphdef(net)
    dx.summary(net, X)
    assert int(net.calls[...]) == 0
    assert Block.__call__ is method
    assert dx.graphdef(net) is structure
    assert np.array_equal(before, net.blocks[0].norm.mean.value)
    with pytest.raises(TypeError, match="shape"):
        dx.summary(net, jnp.ones((2, 9)))
    assert Block.__call__ is method


def test_a_summary_of_an_abstract_model() -> None:
    abstract = dx.eval_shape(Net)
    shape = jax.ShapeDtypeStruct((2, 4), jnp.float32)
    assert str(dx.summary(abstract, shape)) == str(dx.summary(Net(), X))


def test_depth_adds_arrays_to_the_module_around() -> None:
    found = dx.summary(Net(), X, depth=2)
    assert [row.path for row in found.rows] == [(), ("blocks", 0), ("blocks", 1), ("blocks", 2), ("head",)]
    assert found.count() == dx.summary(Net()).count()
    assert "up.kernel f32[4,8]" in [str(entry) for entry in found.rows[1].entries]
    assert [row.path for row in dx.summary(Net(), depth=0).rows] == [()]


def test_only_equal_neighbours_are_folded() -> None:
    class Stack(dx.Module):
        def __init__(self, *sizes: int) -> None:
            self.layers = dx.List([dx.Linear(n, n, rngs=dx.Rngs(0)) for n in sizes])

    text = str(dx.summary(Stack(2, 2, 3, 2, 2)))
    assert [line.split()[0] for line in text.splitlines()[2:-2]] == ["layers[0:2]", "layers[2]", "layers[3:5]"]
    nested = dx.List([Stack(2, 2), Stack(2, 2)])
    assert cells(str(dx.summary(nested)), "[0:2].layers[0:2]")[1] == "4 x Linear"


def test_a_summary_as_html() -> None:
    shown = dx.summary(Net(), X)._repr_html_()
    assert shown.count("<tr>") == len(str(dx.summary(Net(), X)).splitlines()) - 2
    assert "blocks[0:3].up</td>" in shown
    assert "key&lt;fry&gt;" in shown


def test_calls_in_scanned_and_rematerialized_parts_have_paths_and_costs() -> None:
    class Loop(dx.Module):
        def __init__(self) -> None:
            self.cell = dx.Linear(4, 4, rngs=dx.Rngs(0))

        def __call__(self, x: jax.Array) -> jax.Array:
            body = dx.remat(lambda cell, x: cell(x))
            return dx.fori_loop(0, 5, lambda i, x: body(self.cell, x), x)

    calls = {call.path: call for call in calls_of(Loop(), "__call__", (X,), {}, cost=True)}
    assert calls["cell",].cost is not None
    assert calls["cell",].cost.flops == 2 * 2 * 4 * 4 + 2 * 4


def test_static_arguments_and_results_pass() -> None:
    class Split(dx.Module):
        def size(self, x: jax.Array, half: bool, name: str | None = None) -> tuple[int, str]:
            return x.shape[-1] // 2 if half else x.shape[-1], str(name)

        def __call__(self, x: jax.Array) -> jax.Array:
            size, _ = self.size(x, True, name="left")
            return x[:, :size]

    outer, inner = calls_of(Split(), "__call__", (X,), {})
    assert outer.outputs.shape == (2, 2)
    assert inner.outputs == (2, "left")
    assert inner.inputs[1] == {"name": "left"}
    assert outer.cost is None


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(dx.errors.GraphError, match="there is no such method"):
        dx.tabulate(Net(), X, method="forwards")
    with pytest.raises(dx.errors.GraphError, match="the model cannot be called with inputs"):
        dx.summary(dx.List([Net()]), X)


def test_a_table_of_calls() -> None:
    table = dx.tabulate(Net(1), X, method="__call__", compute_flops=True, console_kwargs={"width": 200})
    assert "Net Summary" in table
    assert "blocks/0/narrow" in table
    assert "kernel: float32[4,8]" in table
    assert "<table>" in table._repr_html_()  # type: ignore[attr-defined]  # of the class of the text
    short = dx.tabulate(Net(1), X, depth=1, row_filter=lambda call: call.type is not dx.Linear)
    assert "blocks/0" not in short
    assert "head" not in short


def test_a_table_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    text = dx.tabulate(Net(1), X)
    assert text.splitlines()[0] == "Net Summary"
    assert cells(text, "head")[:4] == ["head", "Linear", "float32[2,4]", "float32[2,5]"]
    assert text.splitlines()[-1].startswith("Total Parameters: 1")


def test_the_same_numbers_as_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except of parts that write Variables, whose writes the peer does not count."""
    if importlib.util.find_spec("rich") is None:
        pytest.skip("the peer draws with rich")
    nnx = pytest.importorskip("flax.nnx")
    # The peer leaves inherited methods on the classes in its table, which its `capture` then takes for their own.
    for cls, name in itertools.product((nnx.Linear, nnx.LayerNorm), ("sow", "perturb")):
        monkeypatch.setattr(cls, name, getattr(cls, name))

    def rows_of(lib: object) -> list[list[str]]:
        class Mlp(lib.Module):  # type: ignore[name-defined, misc]  # either library
            def __init__(self) -> None:
                rngs = lib.Rngs(0)  # type: ignore[attr-defined]  # either library
                self.up = lib.Linear(4, 8, rngs=rngs)  # type: ignore[attr-defined]  # either library
                self.norm = lib.LayerNorm(8, rngs=rngs)  # type: ignore[attr-defined]  # either library
                self.down = lib.Linear(8, 4, use_bias=False, rngs=rngs)  # type: ignore[attr-defined]  # either library

            def __call__(self, x: jax.Array) -> jax.Array:
                return self.down(jax.nn.relu(self.norm(self.up(x))))

        options = {"force_terminal": False, "no_color": True, "width": 500}
        text = lib.tabulate(Mlp(), X, compute_flops=True, console_kwargs=options)  # type: ignore[attr-defined]  # either
        return [[cell.strip() for cell in line.split("│")] for line in text.splitlines()]

    assert rows_of(dx) == rows_of(nnx)
