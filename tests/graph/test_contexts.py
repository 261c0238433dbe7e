"""The four steps of an update context: what happens inside of a transform happens outside."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings

import declax as dx
from declax.errors import DeclaxError, FilterError, GraphError, TraceContextError
from declax.transforms.trees import (
    UpdateContext,
    current_update_context,
    merge_context,
    split_context,
    update_context,
)
from strategies import Box, Open, apply_edits, build, edits, objects_of, own_attributes, recipes, same_graph


def model_with_scale():
    model = Open()
    model.scale = dx.Param(jnp.array(2.0))
    return model


class Lifted:
    """A function of models, under `jax.jit` with all that it takes to carry changes back."""

    def __init__(self, change, tag="tag", transform=jax.jit):
        self.tag, self.change, self.traces = tag, change, 0
        self.inside = transform(self._inside)

    def _inside(self, parts):
        self.traces += 1
        with merge_context(self.tag, inner=True) as ctx:  # 2
            models = [ctx.merge(*part) for part in parts]
        returned = self.change(*models)
        with split_context(self.tag) as ctx:  # 3
            return tuple(ctx.split(model) for model in returned or models)

    def __call__(self, *models):
        with update_context(self.tag):
            with split_context(self.tag) as ctx:  # 1
                parts = tuple(ctx.split(model) for model in models)
            parts = self.inside(parts)
            with merge_context(self.tag, inner=False) as ctx:  # 4
                made = [ctx.merge(*part) for part in parts]
        return made if len(made) > 1 else made[0]


# ================================================================= the examples of the reference


@jax.jit
def with_cycle(graphdef, state):
    with merge_context("example", inner=True) as ctx:
        m2 = ctx.merge(graphdef, state)
    m2.a = 1
    m2.ref = m2
    with split_context("example") as ctx:
        return ctx.split(m2)


def insert_cycle(m1):
    with split_context("example") as ctx:
        graphdef, state = ctx.split(m1)
    graphdef_out, state_out = with_cycle(graphdef, state)
    with merge_context("example", inner=False) as ctx:
        return ctx.merge(graphdef_out, state_out)


def insert_cycle_in_a_block(m1):
    with update_context("example"):
        return insert_cycle(m1)


insert_cycle_decorated = update_context("example")(insert_cycle)


@pytest.mark.parametrize("insert", [insert_cycle_in_a_block, insert_cycle_decorated])
def test_a_cycle_is_inserted(insert):
    m1 = Open()
    m3 = insert(m1)
    assert m1 is m3
    assert m1.a == 1
    assert m1.ref is m1
    assert insert_cycle_decorated.__name__ == "insert_cycle"


# ================================================================= what is carried back


def test_all_sorts_of_changes():
    model = model_with_scale()
    model.part, model.gone, model.dim, model.sizes = model_with_scale(), Open(), 3, [1, 2]
    scale, part, gone = model.scale, model.part, model.gone

    def change(inner):
        inner.scale.value = inner.scale.value * 3
        inner.part.name = "part"
        inner.part.new = model_with_scale()
        inner.dim = 4
        inner.sizes.append(3)
        inner.array = inner.scale.value + 1
        inner.scale.set_metadata(tag="changed")
        del inner.gone, inner.part.scale

    assert Lifted(change)(model) is model
    assert (model.scale, model.part) == (scale, part)
    assert (float(scale.value), scale.tag, model.dim, model.sizes) == (6.0, "changed", 4, [1, 2, 3])
    assert (part.name, hasattr(part, "scale"), float(part.new.scale.value)) == ("part", False, 2.0)
    assert float(model.array) == 7.0
    assert not hasattr(model, "gone")
    assert dx.graphdef(gone) is dx.graphdef(Open())


def test_a_part_that_vanishes_inside_is_left_as_it_was():
    model = Open()
    model.part = model_with_scale()
    part = model.part

    def change(inner):
        inner.part.scale.value = inner.part.scale.value * 5
        del inner.part

    Lifted(change)(model)
    assert not hasattr(model, "part")
    assert float(part.scale.value) == 2.0


def test_parts_change_places():
    model = Open()
    model.a, model.b = model_with_scale(), Open()
    a, b = model.a, model.b

    def change(inner):
        inner.a, inner.b = inner.b, inner.a
        inner.a.deep = inner.b
        inner.new = Open()
        inner.new.back = inner.b.scale

    Lifted(change)(model)
    assert (model.a, model.b, b.deep, model.new.back) == (b, a, a, a.scale)


def test_containers_and_objects_that_are_no_pytrees():
    model = Box()
    model.held, model.name, model.parts = dx.Param(jnp.ones(2)), "box", [Open(), {"x": model_with_scale()}]
    first, held = model.parts[0], model.held

    def change(inner):
        inner.parts[1]["x"].scale.value = jnp.array(9.0)
        inner.parts.append(inner.parts[0])
        inner.name = "changed"
        inner.held.value = inner.held.value + 1

    assert Lifted(change)(model) is model
    assert (model.held, model.name) == (held, "changed")
    assert model.parts[0] is model.parts[2] is first
    assert float(model.parts[1]["x"].scale.value) == 9.0


def test_the_root_may_be_a_container_or_a_variable():
    a, b = model_with_scale(), model_with_scale()

    def change(pair, single):
        pair["a"].other = pair["b"]
        single.value = single.value * 2

    made = Lifted(change)({"a": a, "b": b}, a.scale)
    assert made[0]["a"] is a
    assert made[1] is a.scale
    assert a.other is b
    assert float(a.scale.value) == 4.0


@settings(max_examples=12)
@given(recipes(), edits())
def test_any_change(recipe, todo):
    model, expected = build(recipe), build(recipe)
    apply_edits(expected, todo)
    before = objects_of(model)
    lifted = Lifted(lambda inner: apply_edits(inner, todo), transform=lambda f: f)
    assert lifted(model) is model
    assert same_graph(expected, model)
    kept = {id(value) for value in objects_of(model)} & {id(value) for value in before}
    known = [(new, old) for new, old in zip(objects_of(expected), objects_of(model), strict=True) if id(old) in kept]
    assert same_graph(expected, model, known)


def test_refs_stay_the_same():
    model = Open()
    model.ref = model.twice = jax.new_ref(jnp.ones(2))
    ref = model.ref

    def change(inner):
        inner.ref[...] = inner.ref[...] * 2
        inner.third, inner.name = inner.twice, "ref"

    lifted = Lifted(change)
    for round_ in (1, 2, 3):
        assert lifted(model) is model
        assert model.ref is model.twice is model.third is ref
        assert ref[0] == 2.0**round_
    assert (lifted.traces, model.name) == (2, "ref")  # the second call has another structure


# ================================================================= several graphs


def test_several_graphs_that_share():
    first, second = model_with_scale(), Open()
    second.tied, second.first = first.scale, first
    scale = first.scale

    def change(a, b):
        assert b.first is a
        assert b.tied is a.scale
        a.scale.value = a.scale.value + 1
        a.second = b
        b.new = a.new = dx.Param(jnp.ones(2))

    lifted = Lifted(change)
    assert lifted(first, second) == [first, second]
    assert first.scale is second.tied is scale
    assert float(scale.value) == 3.0
    assert first.second is second
    assert first.new is second.new
    assert lifted(first, second) == [first, second]
    assert float(scale.value) == 4.0


def test_graphs_come_out_in_another_order_and_number():
    first, second = model_with_scale(), model_with_scale()
    new = []

    def change(a, b):
        added = Open()
        added.a = a
        new.append(added)
        b.name = "b"
        return [b, added, a.scale, b]

    made = Lifted(change)(first, second)
    assert made[0] is made[3] is second
    assert made[1].a is first
    assert made[1] is not new[0]
    assert made[2] is first.scale
    assert second.name == "b"


def test_one_graph_twice():
    model = model_with_scale()

    def change(a, b):
        assert a is b
        b.self = a

    assert Lifted(change)(model, model) == [model, model]
    assert model.self is model


def test_graphs_may_be_merged_where_they_are_needed():
    """The second graph does not refer to the first, and goes to a function of its own."""
    first, second = model_with_scale(), model_with_scale()
    with update_context("t"):
        with split_context("t") as ctx:
            ctx.split(first)
            part = ctx.split(second)

        @jax.jit
        def f(graphdef, state):
            with merge_context("t", inner=True) as ctx:
                model = ctx.merge(graphdef, state)
            model.name = "second"
            with split_context("t") as ctx:
                return ctx.split(model)

        part = f(*part)
        with merge_context("t", inner=False) as ctx:
            assert ctx.merge(*part) is second
    assert second.name == "second"
    assert not hasattr(first, "name")


def test_filters():
    model = model_with_scale()
    model.mean = dx.BatchStat(jnp.zeros(2))
    with update_context("t"):
        with split_context("t") as ctx:
            graphdef, params, stats = ctx.split(model, dx.Param, dx.BatchStat)
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(graphdef, stats, params)
        inner.mean.value = jnp.ones(2)
        inner.more = dx.Param(1.0)
        with split_context("t") as ctx:
            graphdef, stats, params = ctx.split(inner, dx.BatchStat, ...)
        with merge_context("t", inner=False) as ctx:
            assert ctx.merge(graphdef, params, stats) is model
    assert model.mean.value[0] == 1.0
    assert model.more.value == 1.0


# ================================================================= traces


def test_the_second_call_does_not_trace_and_changes_the_outer_objects_all_the_same():
    def change(inner):
        inner.scale.value = inner.scale.value * 2
        if not hasattr(inner, "new"):
            inner.new = Open()
            inner.new.back = inner

    lifted = Lifted(change)
    models = [model_with_scale() for _ in range(3)]
    for model in models:
        assert lifted(model) is model
        assert model.new.back is model
    assert lifted.traces == 1
    assert len({id(model.new) for model in models}) == 3
    for model in models:
        lifted(model)
        lifted(model)
    assert lifted.traces == 2
    assert [float(model.scale.value) for model in models] == [16.0] * 3


def test_sharing_is_a_matter_of_the_trace():
    def change(a, b):
        a.scale.value = a.scale.value + 1
        b.other = a

    lifted = Lifted(change)
    apart = model_with_scale(), model_with_scale()
    lifted(*apart)
    tied = model_with_scale(), model_with_scale()
    tied[1].scale = tied[0].scale
    lifted(*tied)
    assert lifted.traces == 2
    assert tied[1].scale is tied[0].scale
    assert float(tied[1].scale.value) == 3.0
    again = model_with_scale(), model_with_scale()
    lifted(*again)
    assert lifted.traces == 2
    assert again[1].other is again[0]


def test_under_other_transforms():
    model = model_with_scale()

    def f(x, part):
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
        y = inner.scale.value * x
        inner.seen = dx.Intermediate(y)
        with split_context("t") as ctx:
            return y, ctx.split(inner)

    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        grad, part = jax.jit(jax.grad(f, has_aux=True))(3.0, part)
        with merge_context("t", inner=False) as ctx:
            ctx.merge(*part)
    assert float(grad) == 2.0
    assert float(model.seen.value) == 6.0


def test_a_function_that_is_traced_several_times():
    model = model_with_scale()

    def body(carry):
        part, n = carry
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(part[0], part[1])
        inner.scale.value = inner.scale.value * 2
        with split_context("t") as ctx:
            out = ctx.split(inner)
        return (part[0], out[1]), n + 1

    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        (_, state), _ = jax.lax.while_loop(lambda carry: carry[1] < 3, body, (part, 0))
        dx.update(model, state)
    assert float(model.scale.value) == 16.0


def test_inside_of_a_trace():
    """All four steps under an outer `jit`, with models that are made there."""

    @jax.jit
    def f(x):
        model = Open()
        model.scale = dx.Param(x)

        def change(inner):
            inner.scale.value = inner.scale.value * 2
            inner.self = inner

        assert Lifted(change)(model) is model
        assert model.self is model
        return model.scale.value

    assert f(2.0) == 4.0


def test_models_of_another_trace_level_are_not_changed():
    model = model_with_scale()

    @jax.jit
    def f(x):
        with pytest.raises(TraceContextError, match="from another trace level"):
            Lifted(lambda inner: setattr(inner.scale, "value", inner.scale.value * x), transform=lambda g: g)(model)
        return x

    f(2.0)
    assert float(model.scale.value) == 2.0
    assert type(model.scale.value) is type(jnp.array(2.0))


# ================================================================= several contexts


def test_contexts_of_other_tags():
    outer, inner = model_with_scale(), model_with_scale()

    def change_inner(model):
        model.name = "inner"
        current_update_context("outer")

    grow = Lifted(change_inner, "inner")

    def change_outer(model):
        other = model_with_scale()
        grow(other)
        model.other = other

    lifted = Lifted(change_outer, "outer")
    lifted(outer)
    assert outer.other.name == "inner"
    with update_context("a") as a, update_context("b") as b:
        assert current_update_context("a") is a
        assert current_update_context("b") is b
        with split_context("a") as first, split_context("b") as second:
            part, other = first.split(outer), second.split(inner)
        assert len(a.outer_ref_outer_index) == 4
        assert len(b.outer_ref_outer_index) == 2
        assert part[0].base == other[0].base == 0


def test_contexts_of_one_tag():
    outer = model_with_scale()

    def change_inner(model):
        model.name = "inner"

    def change_outer(model):
        context = current_update_context("t")
        Lifted(change_inner, "t")(model)
        assert current_update_context("t") is context
        model.outer = "outer"

    lifted = Lifted(change_outer, "t")
    assert lifted(outer) is outer
    assert (outer.name, outer.outer) == ("inner", "outer")
    with update_context("t") as a:
        with update_context("t") as b:
            assert current_update_context("t") is b
        assert current_update_context("t") is a


def test_several_rounds_in_one_context():
    model, other = model_with_scale(), model_with_scale()
    with update_context("t") as context:
        for value in (model, other, model):
            with split_context("t") as ctx:
                part = ctx.split(value)
            assert context.outer_index_outer_ref == {0: value, 1: value.scale}
            with merge_context("t", inner=True) as ctx:
                inner = ctx.merge(*part)
            inner.scale.value = inner.scale.value + 1
            with split_context("t") as ctx:
                part = ctx.split(inner)
            with merge_context("t", inner=False) as ctx:
                assert ctx.merge(*part) is value
    assert (float(model.scale.value), float(other.scale.value)) == (4.0, 3.0)


def test_any_tag_that_can_be_compared():
    for tag in (0, ("a", 1), frozenset({1}), Open):
        with update_context(tag) as context:
            assert current_update_context(tag) is context
            assert context.tag == tag


# ================================================================= what a context remembers


def test_the_maps_of_the_four_steps():
    model = model_with_scale()
    with update_context("t") as context:
        assert type(context) is UpdateContext
        assert maps_of(context) == [None] * 5
        with split_context("t") as ctx:
            part = ctx.split(model)
        assert dict(context.outer_index_outer_ref) == {0: model, 1: model.scale}
        assert (context.outer_ref_outer_index[model], context.outer_ref_outer_index[model.scale]) == (0, 1)
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
        assert context.outer_index_inner_ref == {0: inner, 1: inner.scale}
        assert context.inner_ref_outer_index[inner.scale] == 1
        inner.new = Open()
        with split_context("t") as ctx:
            part = ctx.split(inner)
        assert part[0].outer == (0, -1, 1)
        assert context.outer_index_inner_ref is context.inner_ref_outer_index is None
        with merge_context("t", inner=False) as ctx:
            ctx.merge(*part)
        assert maps_of(context) == [None] * 5


def maps_of(context):
    return [
        context.outer_ref_outer_index,
        context.outer_index_outer_ref,
        context.outer_index_inner_ref,
        context.inner_ref_outer_index,
        context.static_cache,
    ]


def test_a_context_may_be_made_by_hand():
    context = UpdateContext("t", None, None, None, None, None)
    assert (context.tag, maps_of(context)) == ("t", [None] * 5)


def test_nothing_is_kept_alive():
    model = model_with_scale()
    references = []

    def change(inner):
        inner.new = Open()
        references.extend(map(weakref.ref, (inner, inner.scale, inner.new)))

    with jax.checking_leaks():
        lifted = Lifted(change)
        context = update_context("t")
        lifted(model)
    references += [weakref.ref(model), weakref.ref(model.scale), weakref.ref(model.new)]
    with context as opened, split_context("t") as ctx:
        ctx.split(model)
    assert maps_of(opened) == [None] * 5
    del model, change, ctx
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


def test_an_exception_ends_the_context_and_changes_nothing():
    model = model_with_scale()
    before = own_attributes(model)
    references, contexts = [], []

    def change(inner):
        inner.name = "changed"
        inner.scale.value = inner.scale.value * 2
        references.append(weakref.ref(inner))
        contexts.append(current_update_context("tag"))
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside") as caught:
        Lifted(change)(model)
    assert own_attributes(model) == before
    assert float(model.scale.value) == 2.0
    assert maps_of(contexts[0]) == [None] * 5
    with pytest.raises(GraphError, match="no active update context of this thread has this tag"):
        current_update_context("tag")
    del caught
    gc.collect()
    assert references[0]() is None


def test_a_round_that_failed_inside_can_be_made_again_in_a_new_context():
    model = model_with_scale()

    @jax.jit
    def f(part, x):
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
        inner.rows = x.shape[0]
        if x.shape[0] > 1:
            raise ValueError("too long")
        with split_context("t") as ctx:
            return ctx.split(inner)

    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        with pytest.raises(ValueError, match="too long"):
            f(part, jnp.ones(2))
        with split_context("t") as ctx:  # counts as step 3
            part = ctx.split(model)
        with pytest.raises(GraphError, match="step 2 takes what step 1 split"):
            f(part, jnp.ones(1))
    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        part = f(part, jnp.ones(1))
        with merge_context("t", inner=False) as ctx:
            assert ctx.merge(*part) is model
    assert model.rows == 1


def test_an_exception_in_a_block_ends_no_step():
    model = model_with_scale()

    def split_and_fail():
        with split_context("t") as ctx:
            ctx.split(model)
            raise KeyError

    def merge_and_fail(part):
        with merge_context("t", inner=True) as ctx:
            ctx.merge(*part)
            raise KeyError

    with update_context("t") as context:
        with pytest.raises(KeyError):
            split_and_fail()
        assert maps_of(context) == [None] * 5
        with split_context("t") as ctx:
            part = ctx.split(model)
        with pytest.raises(KeyError):
            merge_and_fail(part)
        assert context.outer_index_inner_ref is None


def test_a_split_that_fails_numbers_nothing():
    model = model_with_scale()
    with split_context() as ctx:
        with pytest.raises(FilterError, match="no filter matches this leaf"):
            ctx.split(model, dx.BatchStat)
        graphdef, state = ctx.split(model)
    assert graphdef is dx.graphdef(model)
    assert len(state.leaves) == 1


# ================================================================= threads


def test_contexts_belong_to_a_thread():
    errors, found = [], []
    lifted = Lifted(lambda inner: setattr(inner, "self", inner), "t")

    def work():
        try:
            current_update_context("t")
        except GraphError as error:
            errors.append(str(error))
        model = model_with_scale()
        for _ in range(5):
            lifted(model)
        found.append(model.self is model)

    with update_context("t") as context:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert maps_of(context) == [None] * 5
    assert found == [True] * 4
    if not getattr(sys.flags, "thread_inherit_context", False):
        assert len(errors) == 4
        assert "no active update context of this thread has this tag" in errors[0]


# ================================================================= without an update context


def test_split_and_merge_contexts_by_themselves():
    encoder, decoder = model_with_scale(), Open()
    decoder.tied, decoder.encoder = encoder.scale, encoder
    with split_context() as ctx:
        first, second, third = ctx.split(encoder), ctx.split(decoder), ctx.split(encoder)
    assert [len(part[1].leaves) for part in (first, second, third)] == [1, 0, 0]
    with merge_context() as ctx:
        a, b, c = ctx.merge(*first), ctx.merge(*second), ctx.merge(*third)
    assert b.encoder is a is c
    assert b.tied is a.scale
    assert a is not encoder
    with pytest.raises(GraphError, match="the graph refers to object 0 of earlier graphs"):
        dx.merge(*second)
    with merge_context() as ctx, pytest.raises(GraphError, match="the graph refers to object 0 of earlier graphs"):
        ctx.merge(*second)


def test_inner_says_nothing_without_a_tag():
    with split_context() as ctx:
        part = ctx.split(model_with_scale())
    with merge_context(None, True) as ctx:
        assert ctx.merge(*part).scale.value == 2.0


def test_by_themselves_within_an_update_context():
    model = model_with_scale()
    with update_context("t") as context:
        with split_context() as ctx:
            ctx.split(model)
        assert maps_of(context) == [None] * 5


def test_the_tree_mode():
    first, second = model_with_scale(), Open()
    second.tied = first.scale
    with split_context() as ctx:
        ctx.split(first, graph=False)
        with pytest.raises(GraphError, match="an object of a graph that was flattened before"):
            ctx.split(second, graph=False)


# ================================================================= errors


def test_no_context_and_other_tags():
    message = "no active update context of this thread has this tag"
    with pytest.raises(GraphError, match=rf"update_context\('t'\): {message}") as caught:
        current_update_context("t")
    assert caught.value.got is None
    assert caught.value.fix == "with dx.update_context('t'): ..."
    with pytest.raises(GraphError, match=message):
        split_context("t").__enter__()
    with pytest.raises(GraphError, match=message):
        merge_context("t", inner=True).__enter__()
    with update_context("train"), pytest.raises(GraphError, match=message) as caught:
        current_update_context("trian")
    assert caught.value.got == "the tags 'train'"


def test_a_merge_says_which_step_it_is():
    with pytest.raises(GraphError, match="with a tag, `inner` says which step this is"):
        merge_context("t").__enter__()


@pytest.mark.parametrize(("inner", "step"), [(True, 2), (False, 4)])
def test_step_1_comes_first(inner, step):
    with update_context("t"), pytest.raises(GraphError, match=f"step {step} comes after step 1"):
        merge_context("t", inner=inner).__enter__()


def test_step_4_needs_what_step_3_split():
    model = model_with_scale()
    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        with merge_context("t", inner=False) as ctx:
            with pytest.raises(
                GraphError, match="step 4 takes what step 3 split, and this GraphDef comes from elsewhere"
            ):
                ctx.merge(*part)
            with pytest.raises(GraphError, match="step 4 takes what step 3 split"):
                ctx.merge(*dx.split(model_with_scale()))
    assert float(model.scale.value) == 2.0


def test_step_2_needs_what_step_1_split():
    model = model_with_scale()
    with update_context("t"):
        with split_context("t") as ctx:
            part = ctx.split(model)
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
        with split_context("t") as ctx:
            part = ctx.split(inner)
        with (
            merge_context("t", inner=True) as ctx,
            pytest.raises(GraphError, match="step 2 takes what step 1 split, and this GraphDef comes from elsewhere"),
        ):
            ctx.merge(*part)


def test_step_3_needs_step_2_and_comes_once():
    model = model_with_scale()

    def without_step_2(part):
        with split_context("t") as ctx:
            return ctx.split(dx.merge(*part))

    def twice(part):
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
        with split_context("t") as ctx:
            ctx.split(inner)
        with split_context("t") as ctx:
            return ctx.split(inner)

    def within_step_2(part):
        with merge_context("t", inner=True) as ctx:
            inner = ctx.merge(*part)
            with split_context("t") as split:
                return split.split(inner)

    for f in (without_step_2, twice, within_step_2):
        with update_context("t"):
            with split_context("t") as ctx:
                part = ctx.split(model)
            with pytest.raises(GraphError, match="step 3 comes after the end of step 2, and once"):
                jax.jit(f)(part)


def test_states_that_do_not_fit():
    model = model_with_scale()
    with split_context() as ctx:
        graphdef, state = ctx.split(model)
    with merge_context() as ctx:
        with pytest.raises(GraphError, match="scale: expected a Param, got nothing"):
            ctx.merge(graphdef, dx.State({}))
        with pytest.raises(GraphError, match="the first argument is not a GraphDef"):
            ctx.merge(state, graphdef)
        assert same_graph(ctx.merge(graphdef, state), model)


def test_the_graph_of_another_context():
    """Its indexes lead to objects of other classes."""
    model, other = model_with_scale(), dx.Linear(2, 3, rngs=dx.Rngs(0))

    def steps(value, last):
        with update_context("t"):
            with split_context("t") as ctx:
                part = ctx.split(value)
            with merge_context("t", inner=True) as ctx:
                inner = ctx.merge(*part)
            with split_context("t") as ctx:
                part = ctx.split(inner)
            with merge_context("t", inner=False) as ctx:
                return part if last is None else ctx.merge(*last)

    part = steps(model, None)
    with pytest.raises(GraphError, match="the outer object of index 0 is another one than the graph says"):
        steps(other, part)
    assert not hasattr(other, "scale")


def test_all_errors_are_of_declax():
    assert issubclass(GraphError, DeclaxError)
    assert issubclass(GraphError, ValueError)


# ================================================================= the peer


def test_the_peer_does_the_same():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib, split, merge, update):
        class Model(lib.Module):
            pass

        model, other = Model(), Model()
        model.scale, other.scale = lib.Param(jnp.ones(2)), lib.Param(jnp.zeros(3))
        other.tied, model.gone, model.dim = model.scale, Model(), 3
        ids = {id(v): name for name, v in {"m": model, "o": other, "ms": model.scale, "os": other.scale}.items()}

        @jax.jit
        def f(first, second):
            with merge("t", inner=True) as ctx:
                a, b = ctx.merge(*first), ctx.merge(*second)
            a.other, b.other, a.dim = b, a, a.dim + 1
            a.scale[...] = a.scale[...] * 3
            a.new = Model()
            a.new.scale = b.scale
            del a.gone
            with split("t") as ctx:
                return ctx.split(b), ctx.split(a)

        for _ in range(2):
            model.gone = Model()
            with update("t"):
                with split("t") as ctx:
                    first, second = ctx.split(model), ctx.split(other)
                second, first = f(first, second)
                with merge("t", inner=False) as ctx:
                    b, a = ctx.merge(*second), ctx.merge(*first)
        found = [a, b, a.scale, b.tied, a.other, b.other, a.new, a.new.scale, b.scale]
        values = [float(jnp.sum(a.scale[...])), a.dim, hasattr(a, "gone")]
        return [ids.get(id(value)) for value in found], values

    ours = run(dx, split_context, merge_context, update_context)
    assert ours == run(nnx, nnx.split_context, nnx.merge_context, nnx.update_context)
    assert ours == (["m", "o", "ms", "ms", "o", "m", None, "os", "os"], [18.0, 5, False])
