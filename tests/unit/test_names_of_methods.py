"""Classes of users have names of their own: the methods of Module are free, and what declax needs is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import FieldError

NAMES = sorted(name for name in vars(dx.Module) if not name.startswith("_"))
X = jnp.ones((2, 3))


def refuse(*args: object, **kwargs: object) -> Any:
    raise AssertionError("the framework has called a method of the user")


def model_with(name: str, value: Any) -> Any:
    """A model of two layers whose class, and the class of its part, define a name."""

    class Part(dx.Module):
        def __init__(self, rngs: dx.Rngs) -> None:
            self.linear = dx.Linear(3, 3, rngs=rngs)
            self.drop = dx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.drop(self.linear(x))

    class Whole(dx.Module):
        def __init__(self, rngs: dx.Rngs) -> None:
            self.part = Part(rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.part(x)

    for cls in (Part, Whole):
        setattr(cls, name, value)
    return Whole(dx.Rngs(0))


def test_these_are_the_methods_of_module() -> None:
    assert NAMES == [
        *("eval", "get_state", "iter_children", "iter_modules", "perturb"),
        *("set_attributes", "sow", "split", "train", "update"),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kind", [lambda f: f, staticmethod, classmethod, property, dx.jit], ids="def static class property jit".split()
)
def test_a_class_may_define_a_method_of_this_name(name: str, kind: Any) -> None:
    namespace = {name: kind(lambda self=None: jnp.float32(3.0)), "__module__": __name__}
    cls: Any = type(dx.Module)("Own", (dx.Module,), namespace)
    found = getattr(cls(), name)
    assert (found if kind is property else found()) == 3.0


@pytest.mark.parametrize("name", NAMES)
def test_the_framework_does_not_call_it(name: str) -> None:
    model = model_with(name, refuse)
    graphdef, state = dx.split(model)
    dx.update(model, dx.state(dx.merge(graphdef, state)))
    assert len(list(dx.iter_modules(model))) == 4
    assert dx.clone(model) is not model
    evaluated = dx.view(model, deterministic=True)
    np.testing.assert_array_equal(evaluated(X), evaluated(X))
    _, sown = dx.capture(evaluated, dx.Intermediate, method_outputs=dx.Intermediate)(X)
    assert "part" in sown
    optimizer = dx.Optimizer(model, optax.sgd(0.1))
    grads = dx.jit(dx.grad(lambda model, x: model(x).sum()))(model, X)
    optimizer.update(model, grads)
    assert "Whole" in str(dx.summary(model, X))
    assert "Whole" in repr(model)


def test_what_module_does_reaches_parts_that_define_the_names() -> None:
    inner = model_with("set_attributes", refuse)

    class Outer(dx.Module):
        def __init__(self) -> None:
            self.inner = inner

    model = Outer()
    model.eval()
    assert inner.part.drop.deterministic
    model.train()
    assert not inner.part.drop.deterministic
    inner.eval()  # which is that of Module, and does not call the `set_attributes` of the class
    assert inner.part.drop.deterministic


def test_attention_records_its_weights_past_a_sow_of_the_class() -> None:
    class Attention(dx.MultiHeadAttention):
        sow = refuse

    attention = Attention(2, 4, decode=False, rngs=dx.Rngs(0))
    _, sown = dx.capture(attention, dx.Intermediate)(jnp.ones((1, 3, 4)), sow_weights=True)
    assert sown["attention_weights"]


def test_parts_fields_and_flags_may_have_the_names() -> None:
    @dx.dataclass
    class Automaton(dx.Layer):
        width: int = dx.field()
        train: bool = dx.field(default=False)
        get_state: int = 3
        perceive = dx.Linear(width, width)
        update = dx.Linear(width, width)
        split = width // 2

    model = Automaton(4, rngs=dx.Rngs(0))
    assert (model.train, model.get_state, model.split) == (False, 3, 2)
    assert sorted(dx.state(model)) == ["perceive", "update"]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"eval", "get_state", "split", "train", "update"}))
def test_data_does_not_hide_a_method_that_no_program_of_nnx_hides(name: str) -> None:
    with pytest.raises(FieldError, match="hides a method of its base class"):
        dx.dataclass(type(dx.Module)("Own", (dx.Module,), {"__annotations__": {name: int}, "__module__": __name__}))
    with pytest.raises(FieldError, match="hides a method of its base class"):
        setattr(dx.Module(), name, 3)


OWN_NAMES = ("_pytree__layout", "_pytree__finish", "_pytree__of_nothing", "__captures__")


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize("statement", ["{} = 3", "def {}(self): ...", "{}: int", "{}: int = 3"])
def test_what_declax_needs_is_refused_when_a_class_is_made(name: str, statement: str) -> None:
    source = f"class Own(dx.Module):\n    {statement.format(name)}"
    with pytest.raises(FieldError, match="declax keeps what it knows") as caught:
        exec(source, {"dx": dx, "__name__": __name__})
    assert f"Own.{name}" in str(caught.value)


def test_a_class_made_of_the_entries_of_another_is_not_refused() -> None:
    class Own(dx.Module):
        def __call__(self) -> int:
            return 3

    entries = {name: value for name, value in vars(Own).items() if name not in ("__dict__", "__weakref__")}
    assert any(name.startswith("_pytree__") for name in entries)
    made: Any = type(dx.Module)("Made", (dx.Module,), entries)
    assert made()() == 3
