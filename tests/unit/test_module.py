"""Modules: sow, perturb, modes, iteration, and how they print."""

import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax import errors


class Block(dx.Module):
    def __init__(self, din, dout, rngs):
        self.linear = dx.Linear(din, dout, rngs=rngs)
        self.bn = dx.BatchNorm(dout, rngs=rngs)
        self.dropout = dx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        y = jax.nn.relu(self.dropout(self.bn(self.linear(x))))
        self.sow(dx.Intermediate, "y_mean", jnp.mean(y))
        return y


class Stack(dx.Module):
    def __init__(self, count, dim, rngs):
        self.blocks = dx.List([Block(dim, dim, rngs) for _ in range(count)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Model(dx.Module):
    def __init__(self, rngs):
        self.linear1 = dx.Linear(2, 3, rngs=rngs)
        self.linear2 = dx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        x = self.perturb("xgrad", jax.nn.gelu(self.linear1(x)))
        return self.linear2(x)


# --- sow --------------------------------------------------------------------------


def test_sown_values_are_taken_out_by_pop():
    model = Stack(3, 20, dx.Rngs(0))
    model(jnp.ones((10, 20)))
    taken = dx.pop(model, dx.Intermediate)
    paths = [path for path, _ in taken.flat_state()] if hasattr(taken, "flat_state") else list(taken)
    assert paths
    for index in range(3):
        (mean,) = taken["blocks"][index]["y_mean"].value
        assert mean.shape == ()
    assert not hasattr(model.blocks[0], "y_mean")
    assert len(jax.tree.leaves(dx.state(model, dx.Intermediate))) == 0


def test_sown_values_are_those_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    class TheirBlock(nnx.Module):
        def __init__(self, din, dout, rngs):
            self.linear = nnx.Linear(din, dout, rngs=rngs)
            self.bn = nnx.BatchNorm(dout, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        __call__ = Block.__call__

    theirs, ours = TheirBlock(4, 5, nnx.Rngs(0)), Block(4, 5, dx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (8, 4))
    y = jax.nn.relu(theirs.dropout(theirs.bn(theirs.linear(x))))
    np.testing.assert_allclose(ours(x), y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.y_mean.value[0], jnp.mean(y), rtol=1e-5)


def test_sow_collects():
    module = dx.Module()
    assert module.sow(dx.Intermediate, "seen", 1) is True
    module.sow(dx.Intermediate, "seen", 2)
    assert module.seen.value == (1, 2)
    module.sow(dx.Intermediate, "total", 1, init_fn=lambda: 0, reduce_fn=lambda kept, new: kept + new)
    module.sow(dx.Intermediate, "total", 5, init_fn=lambda: 0, reduce_fn=lambda kept, new: kept + new)
    assert module.total.value == 6
    module.sow("losses", "aux", 1.0)
    assert type(module.aux).__name__ == "losses"
    assert type(module.aux) is dx.variable_type_from_name("losses")


def test_sow_under_jit():
    @dx.jit
    def forward(model, x):
        return model(x)

    model = Stack(2, 3, dx.Rngs(0))
    forward(model, jnp.ones((4, 3)))
    assert model.blocks[1].y_mean.value[0].shape == ()
    forward(model, jnp.ones((4, 3)))
    assert len(model.blocks[0].y_mean.value) == 2


def test_names_that_are_taken():
    module = dx.Module()
    module.x = 3
    module.p = dx.Param(1)
    for name, action in (
        ("x", lambda: module.sow(dx.Intermediate, "x", 1)),
        ("p", lambda: module.sow(dx.Intermediate, "p", 1)),
        ("train", lambda: module.sow(dx.Intermediate, "train", 1)),
    ):
        with pytest.raises(errors.GraphError, match=f"Module.{name}: the attribute holds something else than sow"):
            action()
    with pytest.raises(errors.GraphError, match=r"Module.p: the attribute holds something else than perturb"):
        module.perturb("p", jnp.ones(1))
    assert (module.x, module.p.value) == (3, 1)


# --- perturb ----------------------------------------------------------------------


def train(library, model, x, y):
    """Two steps as in the guide of the peer; the losses and the gradients of the value."""
    model(x)
    optimizer = library.Optimizer(model, optax.sgd(1e-1), wrt=library.Param)

    @library.jit
    def train_step(model, optimizer, x, y):
        graphdef, params, perturbations = library.split(model, library.Param, library.Perturbation)

        def loss_fn(params, perturbations):
            return jnp.mean((library.merge(graphdef, params, perturbations)(x) - y) ** 2)

        loss, (grads, inner) = library.value_and_grad(loss_fn, argnums=(0, 1))(params, perturbations)
        optimizer.update(model, grads)
        return loss, inner

    found = []
    for _ in range(2):
        loss, inner = train_step(model, optimizer, x, y)
        found.append((float(loss), np.asarray(jax.tree.leaves(inner)[0])))
    return found


def test_perturbations_have_the_numbers_of_the_page():
    rngs = dx.Rngs(0)
    model = Model(rngs)
    x, y = rngs.uniform((1, 2)), rngs.uniform((1, 4))
    (first, inner), (second, inner_of_second) = train(dx, model, x, y)
    np.testing.assert_allclose([first, second], [0.7326511, 0.65039134], rtol=1e-5)
    np.testing.assert_allclose(inner, [[-0.430146, -0.14356601, 0.2935633]], rtol=1e-5)
    np.testing.assert_allclose(inner_of_second, [[-0.38535568, -0.11745065, 0.24441527]], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*nnx.capture:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:\\s*Using 'Module.perturb:DeprecationWarning")
def test_perturbations_have_the_numbers_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    class Theirs(nnx.Module):
        def __init__(self, rngs):
            self.linear1 = nnx.Linear(2, 3, rngs=rngs)
            self.linear2 = nnx.Linear(3, 4, rngs=rngs)

        __call__ = Model.__call__

    x, y = jnp.ones((1, 2)), jnp.zeros((1, 4))
    ours, theirs = train(dx, Model(dx.Rngs(3)), x, y), train(nnx, Theirs(nnx.Rngs(3)), x, y)
    for (loss, inner), (their_loss, their_inner) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(loss, their_loss, rtol=1e-6)
        np.testing.assert_allclose(inner, their_inner, rtol=1e-6)


def test_perturb_starts_with_zeros():
    module = dx.Module()
    x = jnp.array([1.0, 2.0])
    assert jnp.array_equal(module.perturb("g", x), x)
    assert type(module.g) is dx.Perturbation
    module.g.value = jnp.ones(2)
    assert jnp.array_equal(module.perturb("g", x), x + 1)
    tree = module.perturb("h", {"a": x, "b": jnp.int32(1)}, "probe")
    assert int(tree["b"]) == 1
    assert type(module.h).__name__ == "probe"


# --- modes ------------------------------------------------------------------------


def test_train_and_eval():
    model = Stack(2, 3, dx.Rngs(0))
    block = model.blocks[1]
    model.eval()
    assert (block.dropout.deterministic, block.bn.use_running_average) == (True, True)
    model.train()
    assert (block.dropout.deterministic, block.bn.use_running_average) == (False, False)
    model.eval(rate=0.5)
    assert block.dropout.rate == 0.5
    dx.Module().eval()


def test_set_attributes():
    model = Stack(2, 3, dx.Rngs(0))
    model.set_attributes(dx.Dropout, deterministic=True)
    assert model.blocks[0].dropout.deterministic
    assert not model.blocks[0].bn.use_running_average
    model.set_attributes(dx.BatchNorm, dx.Dropout, momentum=0.5, rate=0.2)
    assert (model.blocks[1].bn.momentum, model.blocks[1].dropout.rate) == (0.5, 0.2)
    with pytest.raises(errors.GraphError, match=r"no module inside has the attributes \['a', 'b'\]"):
        model.set_attributes(b=1, a=2, rate=0.9)
    assert model.blocks[1].dropout.rate == 0.2
    model.set_attributes(nothing=1, raise_if_not_found=False)


def test_set_attributes_changes_all_or_nothing():
    class Part(dx.Module):
        def __init__(self, value):
            self.value = value

    model = dx.List([Part(jnp.ones(1)), Part(1), Part(dx.data(None))])
    with pytest.raises(errors.StatusError, match=r"Part.value: data was assigned"):
        model.set_attributes(value=jnp.zeros(1))
    assert [float(model[0].value[0]), model[1].value, model[2].value] == [1.0, 1, None]


# --- iteration --------------------------------------------------------------------


def test_set_attributes_changes_nothing_where_one_module_cannot_be_changed():
    @dx.dataclass(frozen=True)
    class Fixed(dx.Module):
        rate: float = 0.1

    model = dx.Module()
    model.a, model.b = dx.Module(), Fixed()
    model.a.rate = 0.1
    with pytest.raises(errors.GraphError, match="the class is frozen, so the attribute cannot be set"):
        model.set_attributes(rate=0.5)
    assert model.a.rate == 0.1
    del model.b

    def inside(x):
        with pytest.raises(errors.TraceContextError, match="cannot mutate 'Module' from a different trace level"):
            model.set_attributes(rate=0.5)
        return x

    jax.jit(inside)(1.0)
    assert model.a.rate == 0.1


def test_iterating_over_modules():
    model = Stack(2, 3, dx.Rngs(0))
    paths = [path for path, _ in model.iter_modules()]
    assert paths[-1] == ()
    assert paths.index(("blocks", 0, "bn")) < paths.index(("blocks", 0)) < paths.index(("blocks",))
    assert [name for name, _ in model.blocks[0].iter_children()] == ["bn", "dropout", "linear"]
    assert [name for name, _ in model.blocks.iter_children()] == [0, 1]


def test_shared_and_cyclic_modules_come_once():
    model = dx.Module()
    model.a = dx.Linear(1, 1, rngs=dx.Rngs(0))
    model.b = model.a
    model.parts = dx.data({"x": [model.a], "y": (dx.Module(),)})
    model.a.owner = model
    assert [path for path, _ in model.iter_modules()] == [("a",), ("parts", "y", 0), ()]


def test_deep_modules_are_walked():
    model = inner = dx.Module()
    for _ in range(3000):
        inner.next = dx.Module()
        inner = inner.next
    assert sum(1 for _ in model.iter_modules()) == 3001


def test_objects_are_walked_too():
    class Holder(dx.Object):
        def __init__(self):
            self.parts = [dx.Module()]
            self.name = "x"

    model = dx.Module()
    model.holder = Holder()
    assert [path for path, _ in model.iter_modules()] == [("holder", "parts", 0), ()]


# --- looks ------------------------------------------------------------------------


def test_repr_is_nested():
    @dx.dataclass
    class Scale(dx.Module):
        dim: int
        weight: dx.Param[jax.Array]

    class Outer(dx.Module):
        def __init__(self):
            self.scale = Scale(2, dx.Param(jnp.ones(2)))

    assert repr(Outer()) == "Outer(scale=Scale(dim=2, weight=f32[2]))"


def test_states_print_as_on_the_page():
    model = Model(dx.Rngs(0))
    model(jnp.ones((1, 2)))
    expected = """\
    State({
      'xgrad': Perturbation( # 3 (12 B)
        value=Array([[0., 0., 0.]], dtype=float32)
      )
    })"""
    assert str(dx.state(model, dx.Perturbation)) == textwrap.dedent(expected)


def test_cycles_print():
    loop = dx.Module()
    loop.me = loop
    assert repr(loop).count("Module(") == 2


def test_threads_may_read_one_model():
    model = Stack(1, 3, dx.Rngs(0))
    model.eval()
    x, results = jnp.ones((2, 3)), []

    @dx.jit
    def forward(model, x):
        return model.blocks[0].linear(x)

    def work():
        results.extend(np.asarray(forward(model, x)) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    for result in results:
        np.testing.assert_array_equal(result, results[0])
