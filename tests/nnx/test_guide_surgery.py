"""The subjects of the peer's guide about model surgery, with models of our own: each step gives the peer's numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from agreement import agrees

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def tower(nnx):
    """A class with a square layer at each end."""

    class Tower(nnx.Module):
        def __init__(self, rngs):
            self.lower = nnx.Linear(4, 4, rngs=rngs)
            self.upper = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return self.upper(nnx.relu(self.lower(x)))

    return Tower


def adapter(nnx):
    """A layer with a correction of rank 2 beside it."""

    class Delta(nnx.Param):
        pass

    class Adapted(nnx.Module):
        def __init__(self, base, rngs):
            self.kernel, self.bias = base.kernel, base.bias
            self.down = Delta(rngs.params.normal((4, 2)))
            self.up = Delta(jnp.full((2, 4), 0.5))

        def __call__(self, x):
            return x @ self.kernel + x @ self.down @ self.up + self.bias

    return Adapted


def pure(nnx, node):
    return nnx.to_pure_dict(nnx.state(node))


# ================================================================= parts, as attributes


@agrees
def test_two_parts_change_places(nnx):
    model = tower(nnx)(nnx.Rngs(0))
    lower, upper = model.lower, model.upper
    before = model(X)
    model.lower, model.upper = upper, lower
    assert jnp.array_equal(model(X), lower(nnx.relu(upper(X))))
    return before, model(X), pure(nnx, model)


@agrees
def test_two_names_share_a_part(nnx):
    model = tower(nnx)(nnx.Rngs(0))
    model.upper = model.lower
    state = nnx.state(model)
    assert "upper" not in state
    assert not hasattr(state, "upper")
    before = nnx.to_pure_dict(state)
    model.upper.bias[...] += 1.0
    return model(X), before, pure(nnx, model)


@agrees
def test_two_parts_share_a_variable(nnx):
    model = tower(nnx)(nnx.Rngs(0))
    model.lower.kernel = model.upper.kernel
    state = nnx.state(model)
    paths = sorted(path for path, _ in nnx.to_flat_state(state))
    assert paths == [("lower", "bias"), ("lower", "kernel"), ("upper", "bias")]
    assert not hasattr(state["upper"], "kernel")
    before = model(X)
    graphdef, state = nnx.split(model)
    copy = nnx.merge(graphdef, state)
    copy.upper.kernel[...] *= 2.0
    assert copy.lower.kernel is copy.upper.kernel
    return before, copy(X)


@agrees
def test_a_function_takes_the_place_of_a_part(nnx):
    def double(x):
        return 2 * x

    model = tower(nnx)(nnx.Rngs(0))
    model.upper = double
    assert jnp.array_equal(model(X), 2 * nnx.relu(model.lower(X)))
    return model(X)


# ================================================================= models without arrays


@agrees
def test_an_abstract_model_is_filled_with_arrays(nnx):
    real = tower(nnx)(nnx.Rngs(3))
    abstract = nnx.eval_shape(lambda: tower(nnx)(nnx.Rngs(0)))
    _, state = nnx.split(abstract)
    shapes = [variable.get_value().shape for _, variable in nnx.to_flat_state(state)]
    assert all(isinstance(v.get_value(), jax.ShapeDtypeStruct) for _, v in nnx.to_flat_state(state))
    for part in ("lower", "upper"):
        for name in ("kernel", "bias"):
            state[part][name].set_value(getattr(getattr(real, part), name).get_value())
    nnx.update(abstract, state)
    assert jnp.array_equal(abstract(X), real(X))
    return abstract(X), shapes


# ================================================================= checkpoints of another version


def renamed(nnx):
    """The class of today, whose parts have other names than in the checkpoint."""

    class Renamed(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(4, 4, rngs=rngs)
            self.last = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.first(x)))

    return Renamed


def without_last_name(nnx, tree):
    flat = nnx.traversals.flatten_mapping(tree)
    return nnx.traversals.unflatten_mapping({path[:-1]: value for path, value in flat.items()})


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # Orbax, of a restore without an example
def test_a_checkpoint_fits_a_model_whose_parts_have_other_names(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")

    @agrees
    def compare(nnx):
        old = tower(nnx)(nnx.Rngs(6))
        folder = tmp_path / nnx.__name__
        checkpointer = ocp.PyTreeCheckpointer()
        checkpointer.save(folder, nnx.state(old))
        raw = checkpointer.restore(folder)
        assert set(raw["lower"]["kernel"]) == {"value"}
        raw = {"first": raw["lower"], "last": raw["upper"]}
        graphdef, state = nnx.split(nnx.eval_shape(lambda: renamed(nnx)(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, without_last_name(nnx, raw))
        model = nnx.merge(graphdef, state)
        assert jnp.array_equal(model(X), old(X))
        return model(X), pure(nnx, model)

    compare()


def test_a_checkpoint_with_other_names_is_refused_as_it_is(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")

    @agrees
    def compare(nnx):
        folder = tmp_path / nnx.__name__
        checkpointer = ocp.PyTreeCheckpointer()
        checkpointer.save(folder, nnx.state(tower(nnx)(nnx.Rngs(6))))
        abstract = nnx.eval_shape(lambda: renamed(nnx)(nnx.Rngs(0)))
        with pytest.raises(ValueError, match="lower"):
            checkpointer.restore(folder, item=nnx.state(abstract))
        return len(nnx.to_flat_state(nnx.state(abstract)))

    compare()


# ================================================================= only some parameters are new


@agrees
def test_a_part_is_replaced_and_the_rest_is_put_back(nnx):
    trained = nnx.state(tower(nnx)(nnx.Rngs(7)))
    model = nnx.eval_shape(lambda: tower(nnx)(nnx.Rngs(0)))
    model.lower = adapter(nnx)(model.lower, nnx.Rngs(8))
    nnx.update(model, trained)
    return model(X), pure(nnx, model)


@agrees
def test_a_compiled_function_makes_only_the_new_parameters(nnx):
    trained = nnx.state(tower(nnx)(nnx.Rngs(7)))

    @nnx.jit(donate_argnums=0)
    def fit(trained, rngs):
        model = tower(nnx)(rngs)
        model.lower = adapter(nnx)(model.lower, rngs)
        nnx.update(model, trained)
        return model

    model = fit(trained, nnx.Rngs(8))
    return model(X), pure(nnx, model)
