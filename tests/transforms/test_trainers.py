"""Classes that hold a model and change it in a compiled step: as modules they work, as plain objects they say so."""

import re

import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax.errors import TraceContextError, TransformError


class Plain:
    def __init__(self):
        self.models = [dx.Linear(2, 3, rngs=dx.Rngs(0))]
        self.optimizer = dx.Optimizer(self.models[0], optax.sgd(0.1), wrt=dx.Param)
        self.name = "run"

    def step(self, x):
        grads = dx.grad(lambda model: model(x).sum())(self.models[0])
        self.optimizer.update(self.models[0], grads)

    @dx.jit
    def jitted_step(self, x):
        self.step(x)


class Trainer(dx.Module):
    def __init__(self):
        self.models = dx.List([dx.Linear(2, 3, rngs=dx.Rngs(0))])
        self.optimizer = dx.Optimizer(self.models[0], optax.sgd(0.1), wrt=dx.Param)
        self.name = "run"

    step = Plain.step
    jitted_step = dx.jit(Plain.step)


FIX = r"class Plain\(dx.Module\):        # an argument then, whose models can change"


@pytest.mark.filterwarnings("ignore::declax.errors.OverlookedModelWarning")
def test_a_plain_trainer_is_told_to_be_a_module():
    trainer = Plain()
    with pytest.raises(TraceContextError) as caught:
        dx.jit(trainer.step)(jnp.ones((1, 2)))
    (note,) = [note for note in caught.value.__notes__ if "no module" in note]
    assert note.startswith("'self' is a Plain, no module: self.optimizer, self.models are neither passed nor captured.")
    assert "class Plain(dx.Module):" in note


def test_a_plain_trainer_as_an_argument():
    with pytest.raises(TransformError, match=FIX):
        Plain().jitted_step(jnp.ones((1, 2)))


class Slotted:
    __slots__ = ("model",)

    def __init__(self):
        self.model = dx.Linear(2, 3, rngs=dx.Rngs(0))


class Adversarial:
    def __init__(self):
        self.nets = {"generator": dx.Linear(2, 3, rngs=dx.Rngs(0)), "critic": dx.Linear(3, 1, rngs=dx.Rngs(1))}


class Outer:
    def __init__(self):
        self.inner = Slotted()


@pytest.mark.filterwarnings("ignore::declax.errors.OverlookedModelWarning")
@pytest.mark.parametrize(
    ("trainer", "first", "path", "classes"),
    [
        (Slotted(), lambda trainer: trainer.model, "trainer.model", ["Slotted"]),
        (Adversarial(), lambda trainer: trainer.nets["critic"], "trainer.nets", ["Adversarial"]),
        (Outer(), lambda trainer: trainer.inner.model, "trainer.inner.model", ["Outer", "Slotted"]),
    ],
    ids=["slots", "dict", "nested"],
)
def test_where_a_plain_trainer_holds_models(trainer, first, path, classes):
    @dx.jit
    def step():
        first(trainer).kernel.value = jnp.zeros((2, 3))

    lines = [f"class {cls}(dx.Module):        # an argument then, whose models can change" for cls in classes]
    with pytest.raises(TraceContextError) as caught:
        step()
    notes = "\n".join(caught.value.__notes__)
    assert f", no module: {path} is neither passed nor captured. Write\n" in notes
    assert all("\n  " + line in notes for line in lines)
    with pytest.raises(TransformError, match=re.escape(lines[-1])):
        dx.jit(lambda trainer: 0.0)(trainer)


def test_an_argument_without_a_model_is_told_to_be_static():
    class Plan:
        name = "run"

    with pytest.raises(TransformError, match='static_argnames="plan"'):
        dx.jit(lambda plan: plan.name)(Plan())


def test_a_module_trains():
    trainer = Trainer()
    before = trainer.models[0].kernel.value
    dx.jit(trainer.step)(jnp.ones((1, 2)))
    trainer.jitted_step(jnp.ones((1, 2)))
    assert jnp.allclose(trainer.models[0].kernel.value, before - 0.2)
    assert trainer.optimizer.step.value == 2
