"""The path of the module that runs: in the names of operations, and in errors."""

import re

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._module.running import path_in
from declax.errors import describe


class Block(dx.Module):
    def __init__(self, rngs):
        self.up = dx.Linear(4, 8, rngs=rngs)
        self.down = dx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.tanh(self.up(x)))


class Net(dx.Module):
    def __init__(self, count=3):
        rngs = dx.Rngs(0)
        self.blocks = dx.List([Block(rngs) for _ in range(count)])
        self.named = dx.data({"a": [dx.Linear(4, 4, rngs=rngs)]})

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.named["a"][0](x)


X = jnp.ones((2, 4))


def scopes(function, *args, on=True):
    """The names of the operations of a lowered program."""
    with dx.set_named_scopes(on):
        text = dx.jit(function).lower(*args).as_text(debug_info=True)
    return set(re.findall(r'"jit\([^)]*\)/([^"]*)"', text))


def test_operations_carry_the_path_of_their_module():
    found = scopes(lambda net, x: net(x), Net(), X)
    assert {"Net/blocks[2]/up/dot_general", "Net/blocks[0]/tanh", "Net/named.a[0]/dot_general"} <= found


def test_scopes_are_on_by_default_and_can_be_switched_off():
    assert dx.set_named_scopes.current_value()
    found = scopes(lambda net, x: net(x), Net(), X, on=False)
    assert {"dot_general", "tanh"} <= found
    assert not any("/" in name for name in found)
    with pytest.raises(dx.errors.GraphError, match="a mode must be True or False"):
        dx.set_named_scopes("no")


def test_gradients_and_copies_of_parts_have_scopes():
    found = scopes(dx.grad(lambda net, x: net(x).sum()), Net(), X)
    assert any("transpose" in name and "blocks[1]/down" in name for name in found)
    found = scopes(lambda net, x: dx.remat(lambda block, x: block(x))(net.blocks[0], x), Net(), X)
    assert any(name.endswith("Block/up/dot_general") for name in found)  # its path is not known in the copy


def test_a_call_of_the_base_class_has_the_scope_of_the_module():
    class Twice(Block):
        def __call__(self, x):
            return super().__call__(super().__call__(x))

    assert "Twice/up/dot_general" in scopes(lambda block, x: block(x), Twice(dx.Rngs(0)), X)


def test_a_call_keeps_its_name_and_signature():
    assert Block.__call__.__name__ == "__call__"
    assert Block.__call__.__qualname__ == "Block.__call__"
    jitted = dx.jit(Block.__call__)
    assert jitted(Block(dx.Rngs(0)), x=X).shape == (2, 4)


def test_steps_are_not_traced_again():
    net, traces = Net(), []

    @dx.jit
    def step(net, x):
        traces.append(1)
        return net(x)

    for on in (True, False, True):
        with dx.set_named_scopes(on):
            step(net, X)
    assert len(traces) == 1


@pytest.mark.parametrize("is_traced", [False, True])
def test_an_error_carries_the_path_in_the_model(is_traced):
    net = Net()
    net.blocks[1].down = dx.Linear(7, 4, rngs=dx.Rngs(0))
    text = r"Linear\.in_features, in blocks\[1\]\.down of Net: the last axis"
    with pytest.raises(dx.errors.LayerError, match=text) as caught:
        dx.jit(net)(X) if is_traced else net(X)
    assert caught.value.part == "blocks[1].down of Net"
    assert ("an array of shape (2, 8), while tracing (float32)" in str(caught.value)) == is_traced


def test_other_errors_get_a_note_and_keep_their_notes():
    class Odd(dx.Module):
        def __call__(self, x):
            error = ZeroDivisionError("odd")
            error.add_note("a note")
            raise error

    net = Net()
    net.blocks[2].up = Odd()
    with pytest.raises(ZeroDivisionError) as caught:
        net(X)
    assert caught.value.__notes__ == ["a note", "raised in blocks[2].up of Net"]
    with pytest.raises(ZeroDivisionError) as caught:
        net.blocks[2].up(X)
    assert caught.value.__notes__ == ["a note"]


def test_a_part_that_the_module_does_not_hold_is_named_by_its_class():
    class Outer(dx.Module):
        def __call__(self, x):
            return Net(1)(x[:, :3])

    with pytest.raises(dx.errors.LayerError, match=r"in Net\.blocks\[0\]\.up of Outer"):
        Outer()(X)


class Inner(dx.Module):
    def __init__(self, rngs):
        self.layer = dx.Linear(7, 4, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


class Around(dx.Module):
    """Calls one of its parts in some way."""

    def __init__(self, way):
        self.way = way
        self.parts = dx.List([Inner(dx.Rngs(0)), Inner(dx.Rngs(0))])
        self.stack = dx.Stacked(Inner, 2, rngs=dx.Rngs(0))
        self.rnn = dx.RNN(dx.SimpleCell(7, 4, rngs=dx.Rngs(0)))

    def __call__(self, x):
        return self.way(self, x)


def call(part, x):
    return part(x)


def with_rule(part, x):
    function = dx.custom_vjp(call)
    function.defvjp(lambda part, x: (part(x), (part, x)), lambda kept, cotangent: kept)
    return function(part, x)


WAYS = {
    "of itself": (lambda net, x: net.parts[1](x), "parts[1].layer"),
    "part of a part": (lambda net, x: net.parts[1].layer(x), "parts[1].layer"),
    "jit": (lambda net, x: dx.jit(call)(net.parts[1], x), "parts[1].layer"),
    "closure": (lambda net, x: dx.jit(lambda x: 2 * net.parts[1](x))(x), "parts[1].layer"),
    "remat": (lambda net, x: dx.remat(call)(net.parts[1], x), "parts[1].layer"),
    "grad": (lambda net, x: dx.grad(call)(net.parts[1], x), "parts[1].layer"),
    "vjp": (lambda net, x: dx.vjp(call, net.parts[1], x), "parts[1].layer"),
    "custom_vjp": (lambda net, x: with_rule(net.parts[1], x), "parts[1].layer"),
    "vmap": (lambda net, x: dx.vmap(call, in_axes=(None, 0))(net.parts[1], x), "parts[1].layer"),
    "cond": (lambda net, x: dx.cond(True, call, call, net.parts[1], x), "parts[1].layer"),
    "fori_loop": (
        lambda net, x: dx.fori_loop(0, 2, lambda _, pair: (pair[0], pair[0](x)), (net.parts[1], x)),
        "parts[1].layer",
    ),
    "scan": (
        lambda net, x: dx.scan(lambda x, part: (part(x), None), in_axes=(dx.Carry, 0))(x, net.stack.layers),
        "stack.layers.layer",
    ),
    "a stack": (lambda net, x: net.stack(x), "stack.layers.layer"),
    "scan of a stack": (lambda net, x: net.stack.scan(lambda part, x: (part(x), None), x), "stack.layers.layer"),
    "an RNN": (lambda net, x: net.rnn(x), "rnn.cell.dense_i"),
    "eval_shape": (lambda net, x: dx.eval_shape(call, net.parts[1], x), "parts[1].layer"),
    "make_jaxpr": (lambda net, x: dx.make_jaxpr(call)(net.parts[1], x), "parts[1].layer"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_traced", [False, True])
def test_an_error_carries_the_path_of_what_a_transform_has_rebuilt(way, is_traced):
    function, path = WAYS[way]
    net = Around(function)
    with pytest.raises(dx.errors.LayerError) as caught:
        dx.jit(call)(net, X) if is_traced else net(X)
    assert caught.value.part == f"{path} of Around"


def test_the_path_of_a_part():
    net = Net()
    assert path_in(net, net.blocks[1]) == ("blocks", 1)
    assert path_in(net, net.named["a"][0]) == ("named", "a", 0)
    assert path_in(net, net.blocks[1].up) is None  # inside of a module that is called itself
    assert path_in(net, Block(dx.Rngs(0))) is None


def test_tracers_are_described_as_arrays():
    texts = []
    jax.jit(lambda x: texts.append(describe(x)))(jnp.ones((2, 8)))
    assert texts == ["an array of shape (2, 8), while tracing (float32)"]
    assert describe(jnp.ones((2, 8))) == "Array of shape (2, 8) and dtype float32"
