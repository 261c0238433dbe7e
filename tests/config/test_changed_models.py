"""`spec_of`, `to_config` and `replace` of models that were changed after construction: kept, or refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import ConfigError, FieldError


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    linear = dx.Linear(dim, dim)
    drop = dx.Dropout(0.5)
    norm = dx.BatchNorm(dim)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(dx.Intermediate, "seen", x)
        return self.norm(self.drop(self.linear(x))) * self.scale


@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    block = Block(dim)
    blocks = dx.repeat(3, Block(dim))
    layers = [dx.Linear(dim, dim), dx.Linear(dim, dim)]
    named = {"a": dx.Linear(dim, dim)}
    seq = dx.Sequential(dx.Linear(dim, dim), dx.relu)
    attention = dx.MultiHeadAttention(2, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.seq(self.block(x))


class Plain(dx.Module):
    """A class whose `__init__` is written by hand."""

    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.dim = dim
        self.linear = dx.Linear(dim, dim, kernel_init=lambda *args: jnp.ones(args[1]), rngs=rngs)
        self.layers = dx.List([dx.Linear(dim, dim, rngs=rngs), Block(dim, rngs=rngs)])
        self.act = lambda x: dx.relu(x) * dim
        self.scaled = functools.partial(jnp.multiply, 0.5)
        self.marker = object()


def model() -> Model:
    return Model(4, rngs=dx.Rngs(0))


def plain() -> Plain:
    return Plain(4, rngs=dx.Rngs(0))


def linear(outputs: int = 4, **options: object) -> dx.Linear:
    return dx.Linear(4, outputs, rngs=dx.Rngs(9), **options)  # type: ignore[arg-type]  # of a test


def kernel_of(held: dx.Linear) -> dx.Param[jax.Array]:
    return held.kernel


# Each changes one thing in what a declared class has made, and says where it will be found.
CHANGES: dict[str, Callable[[Model], object]] = {
    "seq.layers[0].out_features": lambda m: m.seq.layers.__setitem__(0, linear(9)),
    "seq.layers[0].kernel_init": lambda m: m.seq.layers.__setitem__(0, linear(kernel_init=dx.initializers.zeros)),
    "seq.layers[1]": lambda m: setattr(m.seq, "layers", dx.List([linear()])),
    "seq.layers[2]": lambda m: m.seq.layers.append(dx.relu),
    "layers": lambda m: m.layers.append(linear()),
    "blocks": lambda m: m.blocks.pop(1),
    "named": lambda m: m.named.pop("a"),
    "block.drop.rate": lambda m: setattr(m.block.drop, "rate", 0.7),
    "blocks[1].drop.rate": lambda m: m.blocks[1].drop.set_attributes(rate=0.7),
    "extra": lambda m: setattr(m, "extra", linear()),
    "block.extra": lambda m: setattr(m.block, "extra", linear()),
    "block.note": lambda m: setattr(m.block, "note", "x"),
    "block": lambda m: setattr(m.block, "linear", dx.LoRALinear(4, 4, lora_rank=2, rngs=dx.Rngs(1))),
    "block.linear.bias": lambda m: setattr(m.block.linear, "bias", None),
    "block.linear.kernel": lambda m: setattr(m.block.linear, "kernel", dx.Param(jnp.ones((4, 5)))),
    "block.linear.kernel ": lambda m: setattr(m.block.linear, "kernel", dx.BatchStat(kernel_of(m.block.linear).value)),
    "block.linear.kernel  ": lambda m: dx.set_metadata(m.block.linear.kernel, tag="x"),
    "block.linear.use_bias": lambda m: m.block.linear.set_attributes(use_bias=False),
    "block.scale": lambda m: setattr(m.block, "scale", dx.Param(jnp.ones(7))),
    "named.a.kernel": lambda m: setattr(m.named["a"], "kernel", m.layers[0].kernel),
}


@pytest.mark.parametrize("path", CHANGES)
def test_what_no_argument_says_is_refused(path):
    changed = model()
    CHANGES[path](changed)
    place = path.strip()
    dotted = place.replace("[", ".").replace("]", "")
    for read in (dx.spec_of, dx.to_config):
        with pytest.raises(ConfigError) as refused:
            read(changed)
        assert refused.value.where == f"Model.{dotted}"
    rngs = dx.Rngs(5)
    with pytest.raises(FieldError) as error:
        dx.replace(changed, rngs=rngs)
    assert error.value.where == f"Model.{place}"
    assert rngs.default.count.value == 0  # nothing was drawn


def test_the_errors_name_both_values():
    changed = model()
    changed.block.drop.rate = 0.7
    with pytest.raises(ConfigError, match="the structure of this object differs from what its Spec makes") as error:
        dx.spec_of(changed)
    assert (error.value.expected, error.value.got) == ("0.5", "0.7")
    with pytest.raises(FieldError, match="replace cannot keep this: it was changed after construction") as refused:
        dx.replace(changed, rngs=dx.Rngs(0))
    assert (refused.value.expected, refused.value.got) == ("0.5", "0.7")


def cast(m: dx.Module) -> None:
    def half(x):
        return x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x

    dx.update(m, jax.tree.map(half, dx.state(m)))


def on_devices(m: dx.Module) -> None:
    mesh = jax.make_mesh((1,), ("data",))
    dx.update(m, jax.device_put(dx.state(m), jax.NamedSharding(mesh, jax.P())))


# What calls, training and devices do to a model: no constructor is asked for it.
USES: dict[str, Callable[[Model], object]] = {
    "nothing": lambda m: None,
    "a call, which sows, draws and counts": lambda m: m(jnp.ones((2, 4))),
    "weights": lambda m: m.block.linear.kernel.set_value(jnp.zeros((4, 4))),
    "eval": lambda m: m.eval(),
    "train": lambda m: (m.eval(), m.train()),
    "statistics": lambda m: m.block.norm.mean.set_value(jnp.ones(4)),
    "a cache": lambda m: m.attention.init_cache((2, 3, 4)),
    "other streams": lambda m: dx.reseed(m, default=7),
    "no streams": lambda m: setattr(m.block.drop, "rngs", None),
    "dtypes": cast,
    "devices": on_devices,
    "axes": lambda m: dx.set_metadata(m.block.linear.kernel, out_sharding=("data", None)),
    "an equal part": lambda m: m.seq.layers.__setitem__(0, linear()),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("copied", [lambda m: m, dx.clone])
def test_what_a_use_changes_is_taken(use, copied):
    used = model()
    USES[use](used)
    used = copied(used)
    assert dx.spec_of(used) == dx.spec(Model, dim=4)
    assert dx.replace(used, dim=6, rngs=dx.Rngs(0)).block.linear.kernel.shape == (6, 6)


def test_streams_of_several_names_are_taken():
    made = Model(4, rngs=dx.Rngs(params=0, dropout=1))
    assert dx.spec_of(made) == dx.spec(Model, dim=4)
    assert dx.replace(made, rngs=dx.Rngs(params=0, dropout=1)).dim == 4


# --- parts that are arguments --------------------------------------------------------


@dx.dataclass
class Given(dx.Layer):
    dim: int = dx.field()
    seq: dx.Sequential = dx.Sequential(dx.Linear(dim, dim), dx.relu)
    drop: dx.Dropout = dx.Dropout(0.5)
    blocks: list[Block] = dx.repeat(2, Block(dim))


def test_a_change_inside_of_an_argument_is_kept():
    changed = Given(4, rngs=dx.Rngs(0))
    changed.seq.layers[0] = linear(9)
    changed.drop.rate = 0.7
    spec = dx.spec_of(changed)
    assert spec == dx.spec(
        Given, 4, seq=dx.spec(dx.Sequential, dx.spec(dx.Linear, 4, 9), dx.relu), drop=dx.spec(dx.Dropout, 0.7)
    )
    assert dx.structure(spec.build(rngs=dx.Rngs(0)))["objects"] == dx.structure(changed)["objects"]
    again = dx.replace(changed, rngs=dx.Rngs(1))
    assert again.seq is changed.seq
    assert again.drop.rate == 0.7
    assert again.blocks[0] is not changed.blocks[0]  # made anew: nothing in it was changed


def test_a_change_that_an_argument_cannot_say_is_refused_where_it_is():
    changed = Given(4, rngs=dx.Rngs(0))
    changed.blocks[1].drop.rate = 0.7  # an argument of the model, and not of the block
    with pytest.raises(ConfigError, match=r"Given\.blocks\.1\.drop\.rate"):
        dx.spec_of(changed)
    assert dx.replace(changed, rngs=dx.Rngs(1)).blocks[1].drop.rate == 0.7


# --- classes with an `__init__` --------------------------------------------------------


def test_a_class_with_an_init_of_its_own():
    assert dx.spec_of(plain()) == dx.spec(Plain, dim=4)
    for path, change in {
        "linear.in_features": lambda m: setattr(m, "linear", dx.Linear(3, 4, rngs=dx.Rngs(0))),
        "layers.2": lambda m: m.layers.append(linear()),
        "layers.1.drop.rate": lambda m: setattr(m.layers[1].drop, "rate", 0.7),
        "act": lambda m: setattr(m, "act", lambda x: x),
        "scaled": lambda m: setattr(m, "scaled", functools.partial(jnp.multiply, 2.0)),
        "marker": lambda m: setattr(m, "marker", "other"),
        "linear.kernel_init": lambda m: setattr(
            m, "linear", dx.Linear(4, 4, kernel_init=lambda *args: jnp.zeros(args[1]), rngs=dx.Rngs(0))
        ),
    }.items():
        changed = plain()
        change(changed)
        with pytest.raises(ConfigError, match="differs from what its Spec makes") as error:
            dx.spec_of(changed)
        assert error.value.where == f"Plain.{path}"


def test_a_constructor_that_reads_values_is_run():
    class Reading(dx.Module):
        def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
            self.dim = dim
            self.linear = dx.Linear(dim, dim, rngs=rngs)
            self.size = int(self.linear.kernel.sum() * 0) + dim

    made = Reading(4, rngs=dx.Rngs(0))
    assert dx.spec_of(made) == dx.spec(Reading, 4)
    made.size = 9
    with pytest.raises(ConfigError, match=r"Reading\.size"):
        dx.spec_of(made)


def test_models_of_a_plain_dataclass():
    @dataclasses.dataclass
    class Run:
        model: dx.Linear
        steps: int = 1

    run = Run(linear())
    assert dx.spec_of(run) == dx.spec(Run, model=dx.spec(dx.Linear, 4, 4))
    run.model.bias = None
    with pytest.raises(ConfigError, match=r"Run\.model\.bias"):
        dx.spec_of(run)


def test_a_spec_that_cannot_be_built_is_refused():
    class Once(dx.Module):
        made: list[int] = []

        def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
            if self.made:
                raise ValueError("there is one")
            self.made.append(1)
            self.dim = dim

    made = Once(3, rngs=dx.Rngs(0))
    with pytest.raises(ConfigError, match="the Spec of this object cannot be built") as error:
        dx.spec_of(made)
    assert error.value.got == "ValueError: there is one"


# --- `replace` --------------------------------------------------------------------------


@dx.dataclass
class Table(dx.Module):
    dim: int = dx.field(ge=1)
    _: dx.KW_ONLY
    table: dx.InitVar[jax.Array] = dx.field()
    offset: int = dx.field(init=False)

    def __post_init__(self, table: jax.Array) -> None:
        self.kernel = dx.Param(table * self.dim)
        self.offset = self.dim + 1


def test_arguments_that_no_record_keeps_come_from_the_changes():
    made = Table(2, table=jnp.ones(3))
    assert dx.replace(made, table=jnp.zeros(3)).offset == 3
    made.offset = 9
    with pytest.raises(FieldError, match=r"Table\.offset: replace cannot keep this"):
        dx.replace(made, table=jnp.zeros(3))


def test_a_value_that_is_replaced_may_be_invalid():
    made = Table(2, table=jnp.ones(3))
    made.set_attributes(dim=-1)
    assert dx.replace(made, dim=4, table=jnp.ones(3)).offset == 5


def test_an_object_that_is_its_arguments_is_constructed_once():
    calls = []

    @dx.dataclass
    class Size(dx.Pytree):
        height: int
        width: int

        def __post_init__(self) -> None:
            calls.append(1)

    assert dx.replace(Size(2, 3), width=4).width == 4
    assert len(calls) == 2


def test_a_replacement_inside_of_a_trace():
    made = model()

    @dx.jit
    def shape(m: Model) -> jax.Array:
        return dx.replace(m, dim=6, rngs=dx.Rngs(0)).block.scale.value

    with pytest.raises(FieldError, match="replace cannot tell"):  # a model of a trace has no record
        shape(made)
    assert dx.eval_shape(lambda: dx.replace(model(), dim=6, rngs=dx.Rngs(0))).block.scale.shape == (6,)
