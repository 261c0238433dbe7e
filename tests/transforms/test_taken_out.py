"""What a function does to an object before it takes it out of its arguments: whoever holds the object sees it."""

import jax.numpy as jnp
import pytest

import declax as dx


class Node(dx.Module):
    def __init__(self, w=1.0):
        self.w = dx.Param(jnp.array(w))
        self.array = jnp.array(w)
        self.mode = "old"
        self.child = dx.data(None)


def linked():
    parent, child = Node(1.0), Node(2.0)
    parent.child = child
    return parent, child


def change(node):
    node.w.value = node.w.value * 3
    node.w.set_metadata(tag="new")
    node.array = node.array * 4
    node.mode = "new"
    node.extra = dx.Param(jnp.array(5.0))


def check_changed(node):
    assert (float(node.w.value), node.w.tag, float(node.array), node.mode) == (6.0, "new", 8.0, "new")
    assert float(node.extra.value) == 5.0


def take_out(parent):
    change(parent.child)
    parent.child = None
    return parent.w.value * 1


@pytest.mark.parametrize(
    "transform",
    [
        dx.jit,
        dx.remat,
        dx.grad,
        dx.value_and_grad,
        lambda f: dx.jit(dx.jit(f)),
        lambda f: dx.jit(f, donate_argnums=0),
        lambda f: lambda parent: dx.cond(True, f, f, parent),
        lambda f: dx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
    ],
    ids=["jit", "remat", "grad", "value_and_grad", "nested", "donated", "cond", "vmap"],
)
def test_changes_come_back(transform):
    parent, child = linked()
    transform(take_out)(parent)
    assert parent.child is None
    check_changed(child)


def test_each_call_has_its_own():
    step = dx.jit(take_out)
    for _ in range(3):
        parent, child = linked()
        step(parent)
        check_changed(child)
    assert step.num_traces == 1


def test_an_object_that_is_returned_too():
    parent, child = linked()

    @dx.jit
    def take(parent):
        found = parent.child
        take_out(parent)
        return found

    assert take(parent) is child
    check_changed(child)


def test_what_it_shares_with_the_rest_is_one_object():
    parent, child = linked()
    child.w = parent.w
    child.child = dx.data([Node(7.0), parent])
    inner = child.child[0]

    @dx.jit
    def take(parent):
        parent.child.child[0].w.value += 1
        parent.w.value += 1
        parent.child = None

    take(parent)
    assert child.w is parent.w
    assert child.child[1] is parent
    assert [float(node.w.value) for node in (parent, inner)] == [2.0, 8.0]


def test_a_variable_that_is_replaced():
    model = Node()
    old = model.w

    @dx.jit
    def replace(model):
        model.w.value += 1
        model.w = dx.Param(model.w.value * 10)

    replace(model)
    assert (float(old.value), float(model.w.value)) == (2.0, 20.0)
    replace(model)
    assert (float(old.value), float(model.w.value)) == (2.0, 210.0)


def test_a_captured_object():
    parent, child = linked()
    dx.jit(lambda: take_out(parent))()
    check_changed(child)


def test_arrays_keep_their_axes():
    parent, child = linked()
    child.w.value, child.array = jnp.arange(3.0), jnp.arange(3.0)

    def take(parent):
        parent.child.w.value += 1
        parent.child.array = parent.child.array + parent.w.value
        parent.child = None

    axes = dx.StateAxes({dx.PathContains("child"): 0, ...: None})
    dx.vmap(take, in_axes=axes)(parent)
    assert child.w.value.tolist() == child.array.tolist() == [1.0, 2.0, 3.0]


def test_an_array_that_instances_set_differently_is_named():
    parent, child = linked()

    def take(parent, x):
        parent.child.extra = dx.Param(x)
        parent.child = None

    with pytest.raises(dx.errors.TransformError, match=r"parent\.child\.extra: this differs between instances"):
        dx.vmap(take, in_axes=(None, 0))(parent, jnp.ones(3))
    assert parent.child is child
    assert not hasattr(child, "extra")


def test_a_carry_keeps_its_objects():
    def body(_, parent):
        parent.child = None
        return parent

    parent, child = linked()
    with pytest.raises(dx.errors.TransformError, match=r"init_val\.child: body_fun changes the structure"):
        dx.fori_loop(0, 2, body, parent)
    axes = dx.StateAxes({dx.PathContains("child"): dx.Carry, ...: None})
    step = dx.scan(lambda parent, x: (body(0, parent) and None, x)[1], in_axes=(axes, 0), out_axes=0)
    with pytest.raises(dx.errors.TransformError, match="changes the structure"):
        step(parent, jnp.ones(2))
    assert parent.child is child


def test_branches_that_take_out_different_objects():
    parent, child = linked()

    def drop_from_parent(parent):
        parent.child.extra = dx.Param(jnp.array(1.0))
        parent.child = None

    def drop(parent):
        parent.child = None

    with pytest.raises(dx.errors.TransformError, match="an object that it takes out"):
        dx.cond(True, drop_from_parent, drop, parent)
    assert parent.child is child


def test_an_error_changes_nothing():
    parent, child = linked()

    @dx.jit
    def fail(parent):
        take_out(parent)
        raise KeyError

    with pytest.raises(KeyError):
        fail(parent)
    assert parent.child is child
    assert (float(child.w.value), child.mode) == (2.0, "old")


def test_names_of_results_follow_their_arrays():
    parent, _ = linked()

    @dx.jit
    def take(parent):
        parent.child.array = "text"
        parent.child.w.value = object()
        parent.child = None
        return jnp.ones(2), Node()

    with pytest.raises(dx.errors.TransformError, match=r"take, parent\.child\.w"):
        take(parent)
