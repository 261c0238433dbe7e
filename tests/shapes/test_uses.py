"""Texts of inputs in `dx.summary` and `dx.export`."""

import jax
import jax.numpy as jnp
import pytest

import declax as dx


def test_a_summary_in_symbols():
    net = dx.MLP(8, 16, 4, rngs=dx.Rngs(0))
    rows = {row.module: row for row in dx.summary(net, "float32[b, n, 8]").rows}
    assert rows["MLP"].output == "f32[b,n,4]"
    assert rows["MLP"].cost is None
    assert "f32[b,n,4]" in str(dx.summary(net, "float32[b, n, 8]"))
    assert dx.summary(net, "float32[2, 8]").rows[0].cost is not None
    two = dx.summary(dx.Einsum("bn,nk->bk", (3, 4), rngs=dx.Rngs(0)), "float32[b, 3]")
    assert two.rows[0].output == "f32[b,4]"
    with pytest.raises(dx.errors.FieldError, match="each axis of an input needs one size"):
        dx.summary(net, "float32[..., 8]")


def test_an_export_for_any_size():
    net = dx.MLP(8, 16, 4, rngs=dx.Rngs(0))
    program = dx.export(net, "float32[b, n, 8]")
    assert program(jnp.ones((2, 3, 8))).shape == (2, 3, 4)
    assert program(jnp.ones((5, 1, 8))).shape == (5, 1, 4)


def test_an_export_under_conditions():
    table = jnp.arange(32.0)

    def positions(x):
        return x + table[jnp.arange(x.shape[1])]

    with pytest.raises(dx.ShapeError, match="n <= 32"):
        dx.export(positions, "float32[b, n]")
    program = dx.export(positions, "float32[b, n]", where="n <= 32")
    assert program(jnp.zeros((2, 3))).tolist() == [[0.0, 1.0, 2.0]] * 2
    with pytest.raises(dx.errors.TransformError):
        program(jnp.zeros((2, 33)))
    halves = dx.export(lambda x: x[:, ::2] + x[:, 1::2], "float32[b, n]", where="n % 2 == 0")
    assert halves(jnp.ones((1, 6))).shape == (1, 3)


def test_an_export_refuses_what_jax_accepts():
    def wrong(x):
        return x.reshape(x.shape[0], x.shape[1] + 1, 8)

    x = jnp.ones((2, 3, 8))
    assert jax.export.export(jax.jit(wrong))(*jax.export.symbolic_args_specs((x,), "b, n, 8"))
    with pytest.raises(dx.ShapeError, match="changes the number of elements"):
        dx.export(wrong, "float32[b, n, 8]")
    with pytest.raises(dx.ShapeError, match="changes the number of elements"):
        dx.export(wrong, x, shapes="b, n, 8")


@dx.dataclass
class Tower(dx.Layer):
    heads: int = dx.field(ge=1)
    dim: int = dx.field(multiple_of=heads)
    depth: int = dx.field(ge=2)
    use_bias: bool = dx.field(default=True)
    embed = dx.Embed(100, dim)
    blocks = dx.repeat(depth, dx.MultiHeadAttention(heads, dim, use_bias=use_bias, decode=False))
    scale = dx.Stacked(dx.RMSNorm(dim), depth)
    drop = dx.Dropout(0.1)
    norm = dx.BatchNorm(dim)


@pytest.mark.parametrize(("heads", "dim", "depth"), [(1, 4, 2), (2, 6, 3), (4, 8, 7)])
def test_the_formula_of_a_class_counts_its_elements(heads, dim, depth):
    formulas = dx.summary(Tower)
    real = dx.summary(Tower(heads, dim, depth, rngs=dx.Rngs(0)))
    assert set(formulas.counts) == set(real.kinds)
    for kind in real.kinds:
        assert formulas.count(kind, heads=heads, dim=dim, depth=depth) == real.count(kind)
    assert formulas.counts["BatchStat"] == "2*dim"


def test_classes_without_a_formula():
    @dx.dataclass
    class Triangle(dx.Layer):
        depth: int = dx.field(ge=1)
        layers = dx.repeat(depth, dx.Linear(depth, depth))

    with pytest.raises(dx.ShapeError, match="the counts of Triangle are no formula of its fields"):
        dx.summary(Triangle)
    with pytest.raises(dx.errors.FieldError, match=r"Tower\.depth: the formula needs this field"):
        dx.summary(Tower).count(heads=1, dim=4)
    assert "Tower, Param: " in str(dx.summary(Tower))
