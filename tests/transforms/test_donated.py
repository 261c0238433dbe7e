"""A donated array that is used: the error says which, who took it, and how to keep one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax._variables import donation
from declax.errors import TransformError

X = jnp.ones((4, 2))


@pytest.fixture(autouse=True)
def _no_donors(monkeypatch):
    monkeypatch.setattr(donation, "_donors", {})


def trained():
    model = dx.MLP(2, 8, 1, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.sgd(0.1))


def train_step(model, optimizer):
    loss, grads = dx.value_and_grad(lambda model: jnp.mean(model(X) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def test_a_call_of_a_target_network_that_shares_arrays():
    model, optimizer = trained()
    target = dx.clone(model)
    dx.update(target, dx.state(model), copy=False)
    dx.jit(train_step, donate_argnums=(0, 1))(model, optimizer)
    with pytest.raises((RuntimeError, ValueError), match="deleted") as caught:
        target(X)
    (note,) = [note for note in caught.value.__notes__ if "was deleted" in note]
    assert note == (
        "down.bias of MLP (and 3 more) was deleted: train_step, which donates its arguments, has taken it, "
        "or array.delete() was called.\n"
        "dx.clone(model) and dx.update(target, dx.state(model)) give arrays of their own."
    )
    with pytest.raises(TransformError) as caught:
        dx.jit(lambda model: model(X))(target)
    assert "down.bias" in str(caught.value)
    assert "train_step, which donates its arguments, has taken it" in str(caught.value)
    assert "dx.update(target, dx.state(model))" in str(caught.value)


def test_a_target_with_arrays_of_its_own():
    model, optimizer = trained()
    target = dx.clone(model)
    dx.update(target, dx.state(model))
    before = target(X)
    dx.jit(train_step, donate_argnums=(0, 1))(model, optimizer)
    assert (target(X) == before).all()


def test_a_part_in_a_model_without_donors():
    class Net(dx.Module):
        def __init__(self):
            self.inner = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0))])
            self.outer = dx.Param(jnp.ones(2))

        def __call__(self, x):
            return self.inner[0](x) * self.outer

    model = Net()
    model.inner[0].kernel.value.delete()
    with pytest.raises((RuntimeError, ValueError)) as caught:
        model(X)
    (note,) = [note for note in caught.value.__notes__ if "was deleted" in note]
    assert note.startswith("inner[0].kernel of Net was deleted: a function, which donates its arguments")


@pytest.mark.parametrize("edit", [dx.merge_lora, lambda model: dx.map(lambda _, x: 2 * x, model)])
def test_an_edit_of_a_model_whose_arrays_were_donated(edit):
    model = dx.lora(dx.MLP(2, 2, rngs=dx.Rngs(0)), rank=1, rngs=dx.Rngs(1))
    model.up.kernel.value.delete()
    with pytest.raises(RuntimeError) as caught:
        edit(model)
    (note,) = [note for note in caught.value.__notes__ if "was deleted" in note]
    assert note.startswith("up.kernel of MLP was deleted: ")


def test_an_error_of_a_user_about_something_deleted():
    class Net(dx.Module):
        def __init__(self):
            self.w = dx.Param(jnp.ones(2))

        def __call__(self, x):
            raise RuntimeError("the file was deleted")

    with pytest.raises(RuntimeError) as caught:
        Net()(X)
    assert not getattr(caught.value, "__notes__", [])


def test_several_donors():
    for name in "abcdef":
        donation.note_donor(name)
    assert donation.why_deleted().startswith("c, d, e or f, which donates its arguments")


def test_arrays_of_other_functions():
    taken = dx.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones(3)
    taken(x)
    assert x.is_deleted()
    with pytest.raises(TransformError, match="<lambda>, which donates its arguments"):
        dx.jit(jnp.sum)(x)
    assert isinstance(jax.jit(jnp.sum)(taken(jnp.ones(3))), jax.Array)
