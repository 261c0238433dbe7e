"""Why a function is traced again: counted, explained, and warned of."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.transforms._engine.retraces import explain_retrace


class Counting(dx.Module):
    def __init__(self):
        self.calls = 0
        self.weight = dx.Param(jnp.ones(2))
        self.part = dx.Linear(2, 2, rngs=dx.Rngs(0))

    def __call__(self, x):
        return self.weight * x


def explained(f, capsys):
    capsys.readouterr()
    explain_retrace(f)
    return capsys.readouterr().out


def test_a_static_value_is_named_with_its_path(capsys):
    model, f = Counting(), dx.jit(lambda m, x: m(x))
    f(model, 1.0)
    model.part.use_bias = False
    f(model, 1.0)
    assert explained(f, capsys) == (
        "<lambda> was traced 2 times. What changed the last time:\n"
        "  m.part.use_bias: the static value was True, and is False\n"
    )


def test_the_second_of_two_models_is_told_from_the_first(capsys):
    first, second, f = Counting(), Counting(), dx.jit(lambda a, b: a(1.0) + b(1.0))
    f(first, second)
    second.calls = 5
    f(first, second)
    assert "b.calls: the static value was 0, and is 5" in explained(f, capsys)


def test_shapes_and_dtypes_are_named(capsys):
    model, f = Counting(), dx.jit(lambda m, x: x)
    f(model, jnp.ones(2))
    f(model, jnp.ones((3, 2)))
    assert "x: the shape or dtype was float32[2], and is float32[3,2]" in explained(f, capsys)
    model.weight.value = jnp.ones(2, jnp.int32)
    f(model, jnp.ones((3, 2)))
    assert "m.weight: the shape or dtype was float32[2], and is int32[2]" in explained(f, capsys)


def test_a_static_value_and_a_shape_are_both_named(capsys):
    model, f = Counting(), dx.jit(lambda m, x: x)
    f(model, jnp.ones(2))
    model.part.use_bias = False
    f(model, jnp.ones(3))
    text = explained(f, capsys)
    assert "m.part.use_bias: the static value was True, and is False" in text
    assert "x: the shape or dtype was float32[2], and is float32[3]" in text


def test_weak_types_are_told_apart(capsys):
    f = dx.jit(lambda x: x)
    f(1.0)
    f(jnp.float32(1.0))
    assert "float32[], weakly typed, and is float32[]" in explained(f, capsys)


def test_static_arguments_are_named(capsys):
    f = dx.jit(lambda x, n, flag=True: x * n, static_argnames=("n", "flag"))
    f(1.0, 2)
    f(1.0, 3)
    assert "n: the static argument was 2, and is 3" in explained(f, capsys)
    f(1.0, 3, flag=False)
    assert "flag: the static argument was not given, and is False" in explained(f, capsys)


def test_what_came_and_went_is_named(capsys):
    model, f = Counting(), dx.jit(lambda m: m(1.0))
    f(model)
    model.extra = dx.BatchStat(jnp.zeros(()))
    f(model)
    assert "m.extra: the structure was not there, and is BatchStat" in explained(f, capsys)
    del model.extra
    model.weight = dx.Variable(jnp.ones(2))
    f(model)
    assert "m.weight: the kind was Param, and is Variable" in explained(f, capsys)
    g = dx.jit(lambda m: m(1.0))
    model.extra = dx.BatchStat(jnp.zeros(()))
    g(model)
    del model.extra
    g(model)
    assert "m.extra: the structure was BatchStat, and is not there" in explained(g, capsys)


def test_sharing_is_named(capsys):
    model, f = Counting(), dx.jit(lambda m: m(1.0))
    model.other = dx.Param(jnp.ones(2))
    f(model)
    model.other = model.weight
    f(model)
    assert "m.weight: the kind was Param, and is the same object as other" in explained(f, capsys)


def test_the_tree_of_the_arguments_is_named(capsys):
    f = dx.jit(lambda x: 1)
    f([1.0])
    f([1.0, 2.0])
    assert "the arguments: the tree was" in explained(f, capsys)


def test_captured_models_of_one_name_are_told_apart(capsys):
    def over(model):
        return lambda x: model.weight * x

    first, second = Counting(), Counting()
    second.weight.value = jnp.ones(1)
    a, b = over(first), over(second)
    f = dx.jit(lambda x, y: a(x) + b(x))
    f(1.0, jnp.ones(2))
    f(1.0, jnp.ones(3))
    assert explained(f, capsys).splitlines()[1:] == ["  y: the shape or dtype was float32[2], and is float32[3]"]


def test_the_last_trace_is_compared(capsys):
    model, f = Counting(), dx.jit(lambda m, x, n: x * n, static_argnames="n")
    f(model, jnp.ones(2), 1)
    f(model, jnp.ones((3, 2)), n=2)
    model.part = None
    f(model, jnp.ones(4), n=3)
    model.part = Counting().part
    f(model, jnp.ones(5), n=3)
    told = explained(f, capsys)
    assert told.startswith("<lambda> was traced 4 times. What changed the last time:\n  m.part: ")
    assert "n: the static argument" not in told


def test_arrays_are_named_by_the_arguments_that_hold_them(capsys):
    f = dx.jit(lambda n, tree, *, scale: 1, static_argnums=0)
    f(3, {"x": [1.0, jnp.ones(2)]}, scale=jnp.ones(1))
    f(3, {"x": [1.0, jnp.ones(3)]}, scale=jnp.ones(2))
    out = explained(f, capsys)
    assert "\n  tree.x[1]: the shape or dtype was float32[2], and is float32[3]\n" in out
    assert "\n  scale: the shape or dtype was float32[1], and is float32[2]\n" in out


def test_models_are_named_by_the_arguments_that_they_are(capsys):
    captured, model = Counting(), Counting()
    f = dx.jit(lambda n, x, m: captured(m(x)), static_argnums=0)
    f(1, 1.0, model)
    model.calls = 1
    f(1, 1.0, model)
    assert "\n  m.calls: the static value was 0, and is 1\n" in explained(f, capsys)
    captured.calls = 2
    f(1, 1.0, model)
    assert "\n  captured captured.calls: the static value was 0, and is 2\n" in explained(f, capsys)


def test_few_earlier_traces_are_kept(monkeypatch, capsys):
    f = dx.jit(lambda x: x)
    for length in range(1, 40):
        f(jnp.ones(length))
    assert len(f._traces.last) == 2
    assert "was traced 39 times. What changed the last time" in explained(f, capsys)


def test_functions_that_were_traced_once_or_never(capsys):
    f = dx.jit(lambda x: x)
    assert explained(f, capsys) == "<lambda> was not traced yet.\n"
    f(1.0)
    f(2.0)
    assert explained(f, capsys) == "<lambda> was traced once.\n"
    assert f.num_traces == 1


def test_only_functions_of_jit_are_explained():
    with pytest.raises(dx.errors.TransformError, match=r"this is not a function of dx\.jit"):
        explain_retrace(len)


def test_optimizers_with_one_optax_transformation_share_one_trace():
    import optax

    tx = optax.adam(1e-3)

    @dx.jit
    def step(model, optimizer, x):
        grads = dx.grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)

    for _ in range(3):
        model = Counting()
        step(model, dx.Optimizer(model, tx, wrt=dx.Param), jnp.ones(2))
    assert step.num_traces == 1


def test_models_with_equal_partials_share_one_trace():
    def attend(query, key, value, scale=1.0, **options):
        return scale * dx.dot_product_attention(query, key, value)

    def make(scale):
        attention = functools.partial(attend, scale=scale)
        return dx.MultiHeadAttention(2, 4, decode=False, attention_fn=attention, rngs=dx.Rngs(0))

    step, x = dx.jit(lambda model, x: model(x)), jnp.ones((1, 3, 4))
    one, other = make(2.0), make(2.0)
    assert jnp.array_equal(step(one, x), step(other, x))
    assert step.num_traces == 1
    other.attention_fn = functools.partial(attend, scale=3.0)
    assert not jnp.array_equal(step(one, x), step(other, x))
    assert step.num_traces == 2


def test_a_list_in_an_annotated_attribute_of_an_open_class_is_seen():
    class Scales(dx.Module):
        factors: Sequence[float]

        def __init__(self, factors):
            self.factors = factors

    step, model = dx.jit(lambda model, x: x * model.factors[0]), Scales([2.0])
    assert step(model, 1.0) == 2.0
    model.factors[0] = 3.0
    assert step(model, 1.0) == 3.0


def test_programs_are_bounded(monkeypatch):
    monkeypatch.setattr("declax.transforms._engine.wrapped.MAX_PROGRAMS", 4)
    f = dx.jit(lambda x, n: x * n, static_argnames="n")
    for n in range(10):
        assert f(1.0, n) == n
    assert len(f._programs) == 4
    assert f(1.0, 0) == 0  # dropped, and made again
    assert f.num_traces == 11


def test_a_method_is_asked_of_an_instance_too(capsys):
    class Scaled(dx.Module):
        def __init__(self):
            self.weight = dx.Param(jnp.ones(()))

        @dx.jit
        def scale(self, x):
            return self.weight * x

    model = Scaled()
    model.scale(1.0)
    model.scale(jnp.ones(2))
    assert "float32[], weakly typed, and is float32[2]" in explained(model.scale, capsys)


def test_what_a_mesh_changes_in_the_types_of_arguments(capsys):
    auto, explicit = (
        NamedSharding(jax.make_mesh((1,), ("data",), axis_types=(kind,)), jax.P("data"))
        for kind in (AxisType.Auto, AxisType.Explicit)
    )
    f, x = dx.jit(lambda x: x + 1), jnp.ones(2)
    f(x)
    f(jax.device_put(x, auto))
    assert "x: the mesh was none, and is data=1 (Auto)" in explained(f, capsys)
    f = dx.jit(lambda x: x + 1)
    f(jax.device_put(x, NamedSharding(explicit.mesh, jax.P())))
    f(jax.device_put(x, explicit))
    assert "x: the shape or dtype was float32[2], and is float32[2@data]" in explained(f, capsys)
