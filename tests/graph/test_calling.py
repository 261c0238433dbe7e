"""Calling methods of graphs that are taken apart."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._graph.api import Caller, call
from declax.errors import GraphError, MissingAttributeError
from strategies import Box, Open, same_graph


class StatefulLinear(dx.Module):
    def __init__(self, din, dout, rngs):
        self.w = dx.Param(jax.random.uniform(rngs(), (din, dout)))
        self.b = dx.Param(jnp.zeros((dout,)))
        self.count = dx.Variable(jnp.array(0, dtype=jnp.uint32))

    def increment(self):
        self.count += jnp.uint32(1)

    def __call__(self, x):
        self.increment()
        return x @ self.w + self.b


class Model(dx.Module):
    def __init__(self):
        rngs = dx.Rngs(0)
        self.blocks = dx.List([StatefulLinear(2, 2, rngs), StatefulLinear(2, 2, rngs)])
        self.parts = dx.data({"head": StatefulLinear(2, 1, rngs), "tail": StatefulLinear(2, 1, rngs)})
        self.numbered = dx.data({3: StatefulLinear(2, 1, rngs)})
        self.width = 2

    @property
    def first(self):
        return self.blocks[0]

    @property
    def broken(self):
        return self.blocks[0].wieght

    @property
    def broken_index(self):
        return self.parts["haed"]

    def grow(self, value):
        self.grown = dx.Param(value)
        self.width = 5
        return self.width

    def fail(self):
        self.width = 7
        raise ZeroDivisionError("inside")


# ================================================================= the examples of the reference


def test_a_model_under_jit():
    linear = StatefulLinear(3, 2, dx.Rngs(0))
    linear_state = dx.split(linear)
    traces = []

    @jax.jit
    def forward(x, linear_state):
        traces.append(x)
        y, linear_state = call(linear_state)(x)
        return y, linear_state

    x = jnp.ones((1, 3))
    y, linear_state = forward(x, linear_state)
    y, linear_state = forward(x, linear_state)
    assert y.shape == (1, 2)
    assert jnp.allclose(y, x @ linear.w.value + linear.b.value)
    linear = dx.merge(*linear_state)
    assert linear.count.value == 2
    assert len(traces) == 1


def test_a_method_of_an_element():
    rngs = dx.Rngs(0)
    nodes = {"a": StatefulLinear(3, 2, rngs), "b": StatefulLinear(2, 1, rngs)}
    node_state = dx.split(nodes)
    _, node_state = call(node_state)["b"].increment()
    made = dx.merge(*node_state)
    assert made["a"].count.value == 0
    assert made["b"].count.value == 1
    assert nodes["b"].count.value == 0  # the original is another one


# ================================================================= chains


def test_chains_of_attributes_and_indexes():
    state = dx.split(Model())
    for chain, path in (
        (call(state).blocks[1].increment, ("blocks", 1)),
        (call(state).parts["head"].increment, ("parts", "head")),
        (call(state).numbered[3].increment, ("numbered", 3)),
        (call(state).first.increment, ("blocks", 0)),
        (call(state).blocks[-2].increment, ("blocks", 0)),
    ):
        output, (graphdef, after) = chain()
        assert output is None
        assert graphdef is state[0]
        value = after
        for key in path:
            value = value[key]
        assert value["count"].value == 1
        assert sum(int(v) for p, v in zip(after.paths, after.leaves, strict=True) if p[-1] == "count") == 1


def test_a_proxy_is_used_again():
    caller = call(dx.split(Model()))
    assert type(caller) is Caller
    increment = caller.blocks[0].increment
    (_, first), (_, second) = increment(), increment()
    assert first[1]["blocks"][0]["count"].value == second[1]["blocks"][0]["count"].value == 1
    assert repr(increment) == "call(...).blocks[0].increment"
    assert repr(caller.parts["head"]) == "call(...).parts['head']"


def test_the_structure_may_change():
    output, (graphdef, state) = call(dx.split(Model())).grow(jnp.ones(2))
    assert output == 5
    model = dx.merge(graphdef, state)
    assert (model.width, model.grown.value.shape) == (5, (2,))


def test_arguments_by_keyword():
    output, _ = call(dx.split(Model())).grow(value=jnp.ones(2))
    assert output == 5


def test_all_names_of_a_model_can_be_reached():
    class Names(Box):
        def _hidden(self):
            return "hidden"

        def source(self):
            return "source"

        def chain(self):
            return "chain"

    state = dx.split(Names())
    assert [call(state)._hidden()[0], call(state).source()[0], call(state).chain()[0]] == ["hidden", "source", "chain"]


def test_what_is_shared_stays_shared():
    model = Model()
    model.again = model.blocks[0]
    _, after = call(dx.split(model)).again.increment()
    made = dx.merge(*after)
    assert made.again is made.blocks[0]
    assert made.blocks[0].count.value == 1


# ================================================================= what is taken apart


def test_several_states():
    model = Model()
    graphdef, counts, rest = dx.split(model, dx.Not(dx.Param), ...)
    _, after = call((graphdef, counts, rest)).blocks[0].increment()
    assert len(after) == 2  # one State comes back
    assert after[0] is graphdef
    assert after[1].definition is graphdef.definition
    call(after)
    call((graphdef, rest, counts)).blocks[0].increment()


def test_the_state_of_unpack():
    model = Model()
    output, state = call(dx.unpack(model)).blocks[0].increment()
    assert output is None
    assert type(state) is dx.GraphState
    assert dx.merge(state).blocks[0].count.value == 1
    _, state = call(state).blocks[0].increment()
    assert dx.merge(state).blocks[0].count.value == 2
    assert model.blocks[0].count.value == 0


def test_the_states_of_unpack():
    params, rest = dx.unpack(Model(), dx.Param, ...)
    _, state = call((params, rest)).blocks[0].increment()
    assert type(state) is dx.GraphState
    assert dx.merge(state).blocks[0].count.value == 1


def test_a_state_of_unpack_under_jit():
    @jax.jit
    def step(state):
        return call(state).blocks[1].increment()[1]

    state = step(step(dx.unpack(Model())))
    assert dx.merge(state).blocks[1].count.value == 2


def test_lists_do_as_well_as_tuples():
    assert call(list(dx.split(Model()))).grow(1.0)[0] == 5


# ================================================================= errors


@pytest.mark.parametrize("given", [3, (), (3, 4), dx.State({}), (dx.graphdef(Open()),), "text"])
def test_what_is_not_taken_apart(given):
    with pytest.raises(GraphError, match="the argument is not a split graph"):
        call(given)


def test_a_model_is_not_taken_apart():
    with pytest.raises(GraphError, match=r"dx\.call\(dx\.split\(model\)\)\.method"):
        call(Model())


def test_states_that_do_not_fit():
    graphdef, _ = dx.split(Model())
    with pytest.raises(GraphError, match="the State does not fit the graph"):
        call((graphdef, dx.State({}))).increment()
    params, _ = dx.unpack(Model(), dx.Param, ...)
    with pytest.raises(GraphError, match="the State does not fit the graph"):
        call(params).increment()


def test_what_is_not_callable():
    state = dx.split(Model())
    with pytest.raises(GraphError, match=r"call\(\.\.\.\)\.blocks\[0\]\.w: this is not callable") as caught:
        call(state).blocks[0].w(1)
    assert caught.value.got == "Param of shape (2, 2) and dtype float32"
    with pytest.raises(GraphError, match=r"call\(\.\.\.\): this is not callable"):
        call(dx.split({"a": Model()}))()


def test_what_is_not_there():
    state = dx.split(Model())
    with pytest.raises(AttributeError, match="incremnt"):
        call(state).blocks[0].incremnt()
    with pytest.raises(KeyError, match="haed"):
        call(state).parts["haed"].increment()
    with pytest.raises(LookupError):
        call(state).blocks[7].increment()
    with pytest.raises(TypeError, match="not subscriptable"):
        call(state)[0].increment()


def test_errors_of_properties_are_their_own():
    state = dx.split(Model())
    with pytest.raises(AttributeError, match="wieght") as caught:
        call(state).broken.increment()
    assert "broken" not in str(caught.value)
    with pytest.raises(KeyError, match="haed"):
        call(state).broken_index.increment()


def test_a_method_that_raises():
    model = Model()
    state = dx.split(model)
    leaves = list(state[1].leaves)
    with pytest.raises(ZeroDivisionError, match="inside"):
        call(state).fail()
    assert model.width == 2
    assert all(a is b for a, b in zip(state[1].leaves, leaves, strict=True))


def test_special_methods():
    caller = call(dx.split(Model()))
    with pytest.raises(MissingAttributeError, match="special methods are not reached"):
        caller.__len__()
    with pytest.raises(AttributeError, match="special methods are not reached"):
        jnp.asarray(caller.__jax_array__())
    assert not hasattr(caller, "__array__")
    for copied in (copy.copy(caller), copy.deepcopy(caller).blocks[0]):
        assert type(copied) is Caller
    assert same_graph(dx.merge(*copy.copy(caller).grow(1.0)[1]), dx.merge(*caller.grow(1.0)[1]))


def test_the_tree_mode():
    model = Model()
    model.again = model.blocks[0]
    with dx.set_graph_mode(False), pytest.raises(GraphError, match="this is reached twice"):
        call(dx.split(model, graph=True)).again.increment()


# ================================================================= the peer


def test_the_peer_does_the_same():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib, call):
        class Counter(lib.Module):
            def __init__(self):
                self.count = lib.Variable(jnp.array(0))

            def step(self, x):
                self.count[...] = self.count[...] + 1
                return x * self.count[...]

        class Pair(lib.Module):
            def __init__(self):
                self.a, self.parts = Counter(), lib.List([Counter()])

        state = lib.split(Pair())
        y, state = call(state).parts[0].step(3)
        z, state = call(state).parts[0].step(3)
        pair = lib.merge(*state)
        return int(y), int(z), int(pair.parts[0].count[...]), int(pair.a.count[...])

    assert run(dx, call) == run(nnx, nnx.call) == (3, 6, 2, 0)
