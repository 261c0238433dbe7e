"""The mistakes of a first hour: what each error says, and the line that fixes it."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx


class Plain(dx.Module):
    """A model with an array where a Param is meant."""

    def __init__(self) -> None:
        self.w = jnp.ones(3)


class Annotated(dx.Module):
    dim: int
    rate: float = 0.1


# ---- names


def test_a_name_that_nobody_has():
    with pytest.raises(dx.errors.MissingAttributeError, match="did you mean 'Linear'") as caught:
        dx.Lineer  # the access is what is tested
    assert caught.value.why is None


def test_the_root_has_a_version_and_public_names_only():
    assert dx.__version__.count(".") == 2
    assert not [name for name in ("TYPE_CHECKING", "annotations", "jax") if name in dir(dx)]


# ---- a class without its decorator


def test_a_specifier_without_the_decorator():
    class Undecorated(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()

    with pytest.raises(dx.errors.DeclaxError) as caught:
        Undecorated(3, rngs=dx.Rngs(0))
    assert str(caught.value.fix).startswith("@dx.dataclass")


@pytest.mark.parametrize(("args", "kwargs"), [((3,), {}), ((), {"dim": 3}), ((3, 0.2), {"rngs": dx.Rngs(0)})])
def test_a_class_with_annotations_and_without_the_decorator(args, kwargs):
    with pytest.raises(dx.errors.ConstructionError, match="Annotated has annotations but no decorator") as caught:
        Annotated(*args, **kwargs)
    assert caught.value.fix == "@dx.dataclass\nclass Annotated(...):"


def test_a_class_with_annotations_may_be_made_without_arguments():
    assert Annotated().rate == 0.1


def test_an_error_of_a_constructor_stays():
    class Strict(dx.Module):
        dim: int

        def __init__(self, dim: int) -> None:
            self.dim = dim

    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        Strict(1, 2)


# ---- fields and parts


def test_a_part_that_needs_keys_in_a_class_without_rngs():
    with pytest.raises(dx.errors.FieldError, match="rngs") as caught:

        @dx.dataclass
        class Keyless(dx.Module):
            dim: int = dx.field()
            up = dx.Linear(dim, 2)

    assert str(caught.value.fix).startswith("class Keyless(dx.Layer): ...")


def test_a_part_of_constants_that_needs_keys():
    with pytest.raises(
        dx.errors.FieldError, match=r"Constant\.up: the part dx\.Linear\(4, 2\) needs random keys, and no rngs"
    ) as caught:

        @dx.dataclass
        class Constant(dx.Module):
            up = dx.Linear(4, 2)

    assert str(caught.value.fix).startswith("class Constant(dx.Layer): ...")
    with pytest.raises(dx.errors.MissingRngsError, match=r"Linear\.kernel: random keys are needed here") as missing:
        dx.Linear(4, 2)
    assert missing.value.fix == "dx.Linear(4, 2, rngs=dx.Rngs(0))"


def test_a_layer_as_the_default_of_a_field_is_a_part():
    @dx.dataclass
    class Layered(dx.Layer):
        lin: dx.Linear = dx.Linear(2, 3)

    first, second = Layered(rngs=dx.Rngs(0)), Layered(rngs=dx.Rngs(0))
    assert first.lin.kernel.shape == (2, 3)
    assert first.lin is not second.lin


def test_rngs_after_a_default():
    with pytest.raises(dx.errors.DeclaxError) as caught:

        @dx.dataclass
        class Late(dx.Module):
            dim: int = dx.field(default=3)
            rngs: dx.InitVar[dx.Rngs] = dx.field()

    assert str(caught.value.fix).startswith("_: dx.KW_ONLY")


# ---- arrays and Params


def test_a_gradient_of_a_plain_array():
    with pytest.raises(dx.errors.TransformError, match="there is nothing to differentiate") as caught:
        dx.grad(lambda model: jnp.sum(model.w))(Plain())
    assert caught.value.fix == "self.w = dx.Param(...)        # it is a plain array"


def test_an_optimizer_of_a_plain_array():
    with pytest.raises(dx.errors.OptimizerError, match="matches nothing in the model") as caught:
        dx.Optimizer(Plain(), optax.sgd(0.1), wrt=dx.Param)
    assert caught.value.fix == "self.w = dx.Param(...)        # it is a plain array"
    with pytest.raises(dx.errors.OptimizerError) as caught:
        dx.Optimizer(Plain(), optax.sgd(0.1), wrt=dx.BatchStat)
    assert caught.value.fix is None


@pytest.mark.parametrize("make", [jnp.ones, np.ones])
@pytest.mark.parametrize("is_bound", [False, True])
def test_an_array_in_the_place_of_a_declared_param(make, is_bound):
    layer = dx.Linear(3, 2, rngs=dx.Rngs(0))
    if is_bound:
        dx.split(layer)
    kernel = layer.kernel
    with pytest.raises(dx.errors.StatusError, match="an array was assigned to a declared Param") as caught:
        layer.kernel = make((3, 2))
    assert caught.value.fix == "self.kernel.value = ...        # or self.kernel = dx.Param(...)"
    assert layer.kernel is kernel
    layer.kernel.value = jnp.zeros((3, 2))
    layer.kernel = dx.Param(jnp.ones((3, 2)))
    assert layer(jnp.ones((1, 3))).tolist() == [[3.0, 3.0]]


def test_an_array_in_the_place_of_an_annotated_param():
    @dx.dataclass
    class Scale(dx.Module):
        weight: dx.Param[jax.Array]
        shift: dx.Param[jax.Array] | jax.Array

    scale = Scale(dx.Param(jnp.ones(3)), dx.Param(jnp.ones(3)))
    for assign in (lambda: Scale(jnp.ones(3), jnp.ones(3)), lambda: setattr(scale, "weight", jnp.ones(3))):
        with pytest.raises(dx.errors.StatusError, match=r"Scale\.weight: an array was assigned to a declared"):
            assign()
    scale.shift = jnp.zeros(3)
    assert isinstance(scale.weight, dx.Param)
    assert isinstance(scale.shift, jax.Array)


def test_an_array_in_the_place_of_a_variable_that_was_left_out():
    layer = dx.Linear(3, 2, use_bias=False, rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.StatusError, match=r"Linear.bias: an array was assigned to a declared Variable"):
        layer.bias = jnp.ones(2)  # type: ignore[assignment]  # what is being refused
    layer.bias = dx.Param(jnp.ones(2))
    assert layer(jnp.zeros((1, 3))).tolist() == [[1.0, 1.0]]


def test_attributes_of_open_classes_may_change_their_kind():
    class Open(dx.Module):
        def __init__(self) -> None:
            self.w: object = dx.Param(jnp.ones(3))

    model = Open()
    model.w = jnp.zeros(3)
    assert isinstance(model.w, jax.Array)


# ---- training


def test_an_update_without_the_model():
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)
    grads = dx.grad(lambda model: jnp.sum(model(jnp.ones((1, 3)))))(model)
    with pytest.raises(dx.errors.OptimizerError, match="one of the model and the gradients is missing") as caught:
        optimizer.update(grads)  # type: ignore[call-arg]  # what is being refused
    assert caught.value.fix == "optimizer.update(model, grads)"
    assert optimizer.step == 0


# ---- images with channels first


def test_channels_that_come_first():
    images = jnp.ones((2, 3, 28, 28))
    with pytest.raises(dx.errors.LayerError, match="channels are the last axis") as caught:
        dx.Conv(3, 8, (3, 3), rngs=dx.Rngs(0))(images)
    assert caught.value.fix == "jnp.moveaxis(inputs, 1, -1)"
    with pytest.raises(dx.errors.LayerError, match="channels are the last axis") as caught:
        dx.Conv(3, 8, (3, 3), rngs=dx.Rngs(0))(images[0])
    assert caught.value.fix == "jnp.moveaxis(inputs, 0, -1)"
    with pytest.raises(dx.errors.LayerError, match="channels are the last axis") as caught:
        dx.BatchNorm(3, rngs=dx.Rngs(0))(images)
    assert caught.value.fix == "jnp.moveaxis(x, 1, -1)"


@pytest.mark.parametrize(
    "make", [lambda: dx.Conv(4, 8, (3, 3), rngs=dx.Rngs(0)), lambda: dx.BatchNorm(4, rngs=dx.Rngs(0))]
)
def test_another_wrong_size_says_nothing_of_channels(make):
    with pytest.raises(dx.errors.LayerError) as caught:
        make()(jnp.ones((2, 3, 28, 28)))
    assert "channels" not in str(caught.value)


# ---- files


def test_saving_a_state_with_keys_names_key_data():
    state = dx.state(dx.Dropout(0.5, rngs=dx.Rngs(0)))
    with pytest.raises(TypeError, match=r"jax\.random\.key_data"):
        np.savez(io.BytesIO(), *jax.tree.leaves(state))


# ---- parts in the wrong order


def test_a_part_that_reads_a_later_one():
    with pytest.raises(dx.errors.FieldError, match="the class body reads this name above its declaration") as caught:

        @dx.dataclass
        class Early(dx.Layer):
            last = dx.Sequential(first, dx.relu)  # noqa: F821  # it is declared below
            first = dx.Linear(2, 3)

    assert caught.value.fix == "declare 'first' first"


def test_a_method_that_reads_a_later_part():
    @dx.dataclass
    class Early(dx.Layer):
        @dx.submodule
        def last(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.first.out_features, 2, rngs=rngs)

        first = dx.Linear(2, 3)

    with pytest.raises(AttributeError) as caught:
        Early(rngs=dx.Rngs(0))
    assert caught.value.__notes__[-1] == "first is declared below last: declare it first"


def test_a_method_that_reads_a_later_part_with_an_annotation():
    """The class has an expression under the name of the part."""

    @dx.dataclass
    class Early(dx.Layer):
        _: dx.KW_ONLY

        @dx.submodule
        def last(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.first.out_features, 2, rngs=rngs)

        first: dx.Linear = dx.Linear(2, 3)

    with pytest.raises(AttributeError) as caught:
        Early(rngs=dx.Rngs(0))
    assert caught.value.__notes__ == ["first is declared below last: declare it first"]


@pytest.mark.parametrize(
    ("result", "name", "line"),
    [
        (lambda self: self.first, "first", "dx.Linear(dim, 3)"),
        (lambda self: {"parts": [(self.first, 1)]}, "first", "dx.Linear(dim, 3)"),
        (lambda self: [dx.Linear(2, 2, rngs=dx.Rngs(0)), self.width], "width", "dim * 2"),
        (lambda self: self.pair, "pair", "[dx.Linear(dim, 3)]"),
    ],
    ids=["the part", "within containers", "a number", "a literal"],
)
def test_a_method_that_returns_a_later_part_with_an_annotation(result, name, line):
    @dx.dataclass
    class Early(dx.Layer):
        dim: int = dx.field()
        _: dx.KW_ONLY

        @dx.submodule
        def last(self) -> Any:
            return result(self)

        first: dx.Linear = dx.Linear(dim, 3)
        width: int = dx.field(default=dim * 2)
        pair: list[dx.Linear] = [dx.Linear(dim, 3)]

    problem = rf"^Early\.last: this method returns the expression Early\.{name} in place of a value\. \[field\]"
    with pytest.raises(dx.errors.FieldError, match=problem) as caught:
        Early(2, rngs=dx.Rngs(0))
    assert caught.value.fix == f"{name}: ... = {line}        # above the method"


def test_a_method_returns_a_later_part_that_the_caller_supplies():
    @dx.dataclass
    class Tied(dx.Layer):
        _: dx.KW_ONLY

        @dx.submodule
        def last(self) -> Any:
            return [self.first]

        first: dx.Linear = dx.Linear(2, 3)

    given = dx.Linear(2, 3, rngs=dx.Rngs(1))
    assert Tied(first=given, rngs=dx.Rngs(0)).last[0] is given
