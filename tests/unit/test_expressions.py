"""Class bodies that compute with fields: what becomes of expressions and deferred calls."""

import copy
import dataclasses
import functools
import math
import pickle
import types
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors

T = TypeVar("T")


class Mixer(Protocol):
    def __call__(self, x: jax.Array) -> jax.Array: ...


@dx.dataclass
class Block(dx.Module):
    dim: int = dx.field(ge=1)
    hidden: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1, ge=0.0, le=1.0)
    activation: Callable[[jax.Array], jax.Array] = dx.field(default=dx.relu)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: Mixer = dx.Linear(dim, dim, rngs=rngs)
    up = dx.Linear(dim, hidden, rngs=rngs)
    drop = dx.Dropout(rate, rngs=rngs)
    down = dx.Linear(hidden, dim, rngs=rngs)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.mixer(x)
        return x + self.scale * self.down(self.drop(self.activation(self.up(x))))


@dx.dataclass
class Tower(dx.Module):
    depth: int = dx.field()
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks = dx.repeat(depth, Block(dim, 4 * dim, rngs=rngs))


def kernel(seed, draws, shape):
    """The kernel that the draw of a number from a stream gives."""
    rngs = dx.Rngs(seed)
    for _ in range(draws):
        rngs.params()
    return dx.initializers.lecun_normal()(rngs.params(), shape, jnp.float32)


# --- what is made -----------------------------------------------------------------


def test_parts_are_made_in_the_order_of_the_class_body():
    block = Block(3, 8, rngs=dx.Rngs(0))
    for part, draws, shape in (
        (block.mixer, 0, (3, 3)),
        (block.up, 2, (3, 8)),
        (block.down, 5, (8, 3)),
    ):  # the dropout drew one
        assert jnp.array_equal(part.kernel.value, kernel(0, draws, shape))
    assert block.drop.rate == 0.1
    assert block(jnp.ones((2, 3))).shape == (2, 3)
    assert not hasattr(block, "rngs")


def test_each_instance_has_parts_of_its_own():
    first, second = (Block(3, 8, rngs=dx.Rngs(seed)) for seed in (0, 1))
    assert first.up is not second.up
    assert not jnp.array_equal(first.up.kernel.value, second.up.kernel.value)


def test_a_list_of_parts():
    tower = Tower(3, 2, rngs=dx.Rngs(0))
    assert [type(block) for block in tower.blocks] == [Block] * 3
    assert len({id(block.up) for block in tower.blocks}) == 3
    assert tower.blocks[2].up.kernel.shape == (2, 8)


def test_the_statuses_of_parts():
    assert Block._pytree__layout.is_closed
    leaves = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(Block(1, 1, rngs=dx.Rngs(0)))}
    assert any(".mixer" in leaf for leaf in leaves)
    assert any(".up" in leaf for leaf in leaves)


def test_a_caller_supplies_an_annotated_part():
    mixer = dx.Linear(3, 3, rngs=dx.Rngs(5))
    block = Block(3, 8, mixer=mixer, rngs=dx.Rngs(0))
    assert block.mixer is mixer
    assert jnp.array_equal(block.up.kernel.value, kernel(0, 0, (3, 8)))  # the declared mixer drew nothing


def test_an_internal_part_is_no_argument():
    with pytest.raises(errors.ConstructionError, match="there is no parameter 'up'"):
        Block(3, 8, up=dx.Linear(3, 8, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))


def test_operations():
    @dx.dataclass
    class Derived(dx.Module):
        sizes: tuple[int, ...] = dx.field()
        options: types.SimpleNamespace = dx.static()
        scale: float = dx.field(default=2.0)
        first = sizes[0]
        total = 2 * first + sizes[1] // 2 - sizes[-1] % 3
        power = scale**2 / 4
        negative = -first
        larger = first > 3
        width = options.width
        text = options.name.upper()
        pair = (first, [scale, {"a": negative}])
        distance = abs(negative)

    made = Derived((4, 6, 8), types.SimpleNamespace(width=3, name="a"))
    assert (made.first, made.total, made.power, made.negative) == (4, 8 + 3 - 2, 1.0, -4)
    assert (made.larger, made.width, made.text, made.distance) == (True, 3, "A", 4)
    assert made.pair == (4, [2.0, {"a": -4}])
    assert jax.tree.leaves(made) == []


def test_arithmetic_on_numbers_is_static_when_the_class_is_made():
    @dx.dataclass
    class Heads(dx.Module):
        dim: int = dx.field()
        heads: int = dx.field()
        head_dim = dim // heads

    assert Heads._pytree__layout.is_closed
    assert jax.tree.structure(Heads(8, 2)) != jax.tree.structure(Heads(8, 4))


def test_a_derived_array_is_data():
    @dx.dataclass
    class Doubled(dx.Module):
        values: jax.Array = dx.field()
        doubled = values * 2

    assert len(jax.tree.leaves(Doubled(jnp.ones(2)))) == 2


def test_an_annotated_expression_is_the_default_of_an_argument():
    @dx.dataclass
    class Wide(dx.Module):
        dim: int = dx.field()
        hidden: int = 4 * dim
        twice: int = 2 * hidden

    assert (Wide(3).hidden, Wide(3).twice) == (12, 24)
    assert (Wide(3, 5).hidden, Wide(3, 5).twice) == (5, 10)
    assert (Wide(3, 5, 1).hidden, Wide(3, twice=1).twice) == (5, 1)


def test_a_class_as_a_field():
    @dx.dataclass
    class Wrapped(dx.Module):
        dim: int = dx.field()
        norm_class: type[Any] = dx.field(default=dx.LayerNorm)
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
        norm = norm_class(dim, rngs=rngs)

    assert type(Wrapped(3, rngs=dx.Rngs(0)).norm) is dx.LayerNorm
    other = Wrapped(3, dx.RMSNorm if hasattr(dx, "RMSNorm") else dx.BatchNorm, rngs=dx.Rngs(0))
    assert type(other.norm) is not dx.LayerNorm
    assert jax.tree.leaves(other.norm)


def test_deferred_calls_within_deferred_calls_and_containers():
    @dx.dataclass
    class Nested(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        chain = dx.Sequential(dx.Linear(dim, 2, rngs=rngs), dx.relu, dx.Linear(2, dim, rngs=rngs))
        pair = (dx.Linear(dim, 1, rngs=rngs), dx.Linear(1, dim, rngs=rngs))
        table = {"a": dx.Linear(dim, 1, rngs=rngs), "b": [dx.Linear(dim, 2, rngs=rngs)]}

    made = Nested(3, dx.Rngs(0))
    assert made.chain(jnp.ones((1, 3))).shape == (1, 3)
    assert made.pair[1].kernel.shape == (1, 3)
    assert made.table["b"][0].kernel.shape == (3, 2)
    assert len(jax.tree.leaves(made)) == 12


def test_one_object_under_two_names():
    @dx.dataclass
    class Tied(dx.Module):
        words: int = dx.field()
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        embed: dx.Embed = dx.Embed(words, dim, rngs=rngs)
        out: dx.Embed = embed
        again = out
        features = embed.features

    tied = Tied(5, 2, rngs=dx.Rngs(0))
    assert tied.out is tied.embed is tied.again
    assert tied.features == 2
    given = dx.Embed(5, 7, rngs=dx.Rngs(1))
    other = Tied(5, 2, embed=given, rngs=dx.Rngs(0))
    assert other.out is other.again is given
    assert other.features == 7


def test_when_and_defer():
    @dx.dataclass
    class Optional(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        use_norm: bool = dx.field(default=True)
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        norm: dx.LayerNorm | None = dx.when(use_norm, dx.LayerNorm(dim, rngs=rngs))
        act = dx.when(use_norm, dx.defer(dx.Sequential)(dx.relu), dx.defer(dx.Sequential)(dx.gelu))
        table = dx.defer(jnp.zeros)((dim, 2))
        ramp = dx.defer(jnp.arange)(3)

    made, bare = Optional(4, rngs=dx.Rngs(0)), Optional(4, use_norm=False, rngs=dx.Rngs(0))
    assert type(made.norm) is dx.LayerNorm
    assert bare.norm is None
    assert (made.table.shape, made.ramp.tolist()) == ((4, 2), [0, 1, 2])
    assert made.act is not Optional(4, rngs=dx.Rngs(0)).act
    assert bare.act.layers[0] is dx.gelu


def test_a_method_makes_a_part():
    @dx.dataclass
    class MLP(dx.Module):
        sizes: tuple[int, ...] = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()

        @dx.submodule
        def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
            return [dx.Linear(a, b, rngs=rngs) for a, b in zip(self.sizes, self.sizes[1:], strict=False)]

        last = layers[-1]

    mlp = MLP((4, 3, 2), dx.Rngs(0))
    assert [layer.kernel.shape for layer in mlp.layers] == [(4, 3), (3, 2)]
    assert mlp.last is mlp.layers[1]


def test_variables_with_expressions_for_notes_and_the_stream():
    draw = dx.initializers.normal()

    @dx.dataclass
    class Table(dx.Module):
        is_trained: bool = dx.field(default=True)
        stream: str | None = dx.field(default="params")
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        table: dx.Param[jax.Array] = dx.variable(
            (2,), initializer=draw, stream=stream, trainable=is_trained, weight_decay=is_trained
        )

    assert Table(rngs=dx.Rngs(0)).table.get_metadata(exclude_required=True) == {}
    assert Table(False, rngs=dx.Rngs(0)).table.get_metadata(exclude_required=True) == {
        "trainable": False,
        "weight_decay": False,
    }
    for stream in ("params", "other"):
        value = Table(stream=stream, rngs=dx.Rngs(0, other=1)).table.value
        assert jnp.array_equal(value, draw(getattr(dx.Rngs(0, other=1), stream)(), (2,), jnp.float32))


def test_variables_with_expressions():
    @dx.dataclass
    class Table(dx.Module):
        rows: int = dx.field()
        columns: int = dx.field()
        _: dx.KW_ONLY
        use_bias: bool = dx.field(default=True)
        param_dtype: Any = dx.static(default=jnp.bfloat16)
        init: dx.InitVar[Any] = dx.field(default=dx.initializers.ones)
        table: dx.Param[jax.Array] = dx.variable((rows, 2 * columns), initializer=init, dtype=param_dtype, stream=None)
        bias: dx.Param[jax.Array] | None = dx.variable(
            (columns,), initializer=dx.initializers.zeros, when=use_bias, stream=None
        )
        axis: str = dx.field(default="data")
        placed: dx.Param[jax.Array] = dx.variable(
            (rows,), initializer=init, stream=None, sharding=(axis,), metadata={"unit": axis}
        )
        shape = table.shape

    table = Table(2, 3)
    assert table.placed.get_metadata(exclude_required=True) == {"out_sharding": ("data",), "unit": "data"}
    assert Table(2, 3, axis="model").placed.get_metadata()["out_sharding"] == ("model",)
    assert (table.table.shape, table.table.dtype, table.bias.shape) == ((2, 6), jnp.bfloat16, (3,))
    assert Table(2, 3, use_bias=False).bias is None
    assert table.shape == (2, 6)
    with pytest.raises(AttributeError, match="only the constructor receives it"):
        _ = table.init


def test_subclasses():
    @dx.dataclass
    class Wider(Block):
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        extra: int = dx.field(default=1)
        up = dx.Linear(Block.dim, Block.hidden * extra, rngs=rngs)
        gate = dx.Linear(Block.dim, Block.up.out_features, rngs=rngs)

    wide = Wider(3, 8, extra=2, rngs=dx.Rngs(0))
    assert wide.up.kernel.shape == (3, 16)
    assert wide.gate.kernel.shape == (3, 16)  # `Block.up` is the attribute of that name, which is the new part
    assert jnp.array_equal(wide.up.kernel.value[:, :1].shape, (3, 1))
    assert list(Block(3, 8, rngs=dx.Rngs(0)).__dict__)  # the base is as it was


def test_a_subclass_keeps_defaults_and_parts():
    @dx.dataclass
    class Narrow(Block):
        dim: int = dx.field(default=2)
        hidden: int = dx.field(default=3)
        rate: float
        mixer: dx.Linear

    narrow = Narrow(rngs=dx.Rngs(0))
    assert narrow.rate == 0.1
    assert narrow.mixer.kernel.shape == (2, 2)
    assert isinstance(Narrow.mixer, type(Block.mixer))


def test_an_undecorated_subclass_and_two_bases():
    class Plain(Block):
        def __post_init__(self, rngs):
            self.seen = self.up.kernel.shape

    assert Plain(3, 8, rngs=dx.Rngs(0)).seen == (3, 8)

    @dx.dataclass
    class Named(dx.Module):
        name: str = dx.field(default="a", kw_only=True)
        label = name + "!"

    @dx.dataclass
    class Both(Block, Named):
        pass

    both = Both(3, 8, name="b", rngs=dx.Rngs(0))
    assert (both.label, both.up.kernel.shape) == ("b!", (3, 8))


def test_generic_frozen_and_equal_classes():
    @dx.dataclass
    class Holder(dx.Module, Generic[T]):
        item: T = dx.field()
        doubled = item * 2

    @dx.dataclass(frozen=True)
    class Size(dx.Pytree):
        width: int = dx.field()
        area = width * width

    @dx.dataclass
    class User(dx.Module):
        width: int = dx.field()
        held = Holder[int](width)
        size = Size(width)

    user = User(3)
    assert (user.held.doubled, user.size.area) == (6, 9)
    assert Size(3) == Size(3) != Size(4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Size(3).width = 4


ALL_FORMS = """
def define(Part, options):
    @dx.dataclass(**options)
    class Whole(dx.Module, Generic[T]):
        dim: int = dx.field()
        depth: int = dx.field(default=2)
        _: dx.KW_ONLY
        tall: bool = dx.field(default=True)
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        typed: T = Part(dim, rngs=rngs)
        mixer: Mixer = Part(dim, rngs=rngs)
        maybe: Part | None = dx.when(tall, Part(dim, rngs=rngs))
        named: dict[str, Part] = {"a": Part(dim, rngs=rngs)}
        pair: tuple[Part, Part] = (Part(dim, rngs=rngs), mixer)
        several: list[Part] = dx.repeat(depth, Part(dim, rngs=rngs))
        stack: dx.Stacked[Part] = dx.Stacked(Part(dim, rngs=rngs), depth)
        twice: int = 2 * dim
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.normal())

        @dx.submodule
        def last(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.twice, 1, rngs=rngs)

    return Whole
"""


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": True}])
@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_all_forms_in_a_generic_class_of_a_function(future, options):
    scope = {"dx": dx, "jax": jax, "Generic": Generic, "T": T, "Mixer": Mixer, "__name__": __name__}
    exec(future + ALL_FORMS, scope)

    @dx.dataclass(**options)
    class Part(dx.Module):
        size: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        layer = dx.Linear(size, size, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.layer(x)

    whole = scope["define"](Part, options)
    made, again, other = (whole(3, rngs=dx.Rngs(seed)) for seed in (0, 0, 1))
    assert len(jax.tree.leaves(dx.split(made)[1])) == 2 * (1 + 1 + 1 + 1 + 1 + 2 + 1 + 1) + 1
    assert [type(part) for part in (made.typed, made.mixer, made.maybe, made.named["a"], *made.several)] == [Part] * 6
    assert made.pair[1] is made.mixer
    assert made.stack.layers.layer.kernel.shape == (2, 3, 3)
    assert made.last.in_features == made.twice == 6
    assert whole(3, tall=False, mixer=Part(4, rngs=dx.Rngs(0)), rngs=dx.Rngs(0)).pair[1].size == 4
    assert (made == again, made == other) == (bool(options), False)
    assert dx.spec_of(made) == dx.spec(whole, 3)
    assert dx.replace(made, dim=4, rngs=dx.Rngs(0)).several[1].layer.kernel.shape == (4, 4)


def test_post_init_sees_the_parts():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        layer = dx.Linear(dim, dim, rngs=rngs)

        def __post_init__(self, rngs):
            self.size = self.layer.kernel.size

    assert Model(3, dx.Rngs(0)).size == 9


def test_copies_and_pickles_keep_what_was_declared():
    block = Block(3, 8, rate=0.5, rngs=dx.Rngs(0))
    pickled = pickle.loads(pickle.dumps(block))
    for other in (copy.deepcopy(block), pickled, copy.copy(block), dx.clone(block), dx.clone(block, variables=False)):
        assert dx.replace(other, dim=2, rngs=dx.Rngs(1)).mixer.kernel.shape == (2, 2)


def test_a_clone_keeps_the_records_of_parts():
    tower = dx.clone(Tower(2, 3, rngs=dx.Rngs(0)))
    assert dx.replace(tower.blocks[1], dim=2, rngs=dx.Rngs(1)).mixer.kernel.shape == (2, 2)


def test_replace_makes_declared_parts_anew_and_keeps_given_ones():
    mixer = dx.Linear(3, 3, rngs=dx.Rngs(5))
    assert dx.replace(Block(3, 8, mixer=mixer, rngs=dx.Rngs(0)), rngs=dx.Rngs(1)).mixer is mixer
    assert dx.replace(Block(3, 8, rngs=dx.Rngs(0)), dim=4, rngs=dx.Rngs(1)).mixer.kernel.shape == (4, 4)


def test_replace_of_an_object_without_a_record():
    block = Block(3, 8, rngs=dx.Rngs(0))
    merged = dx.merge(*dx.split(block))
    with pytest.raises(errors.FieldError, match="without the arguments of their construction"):
        dx.replace(merged, mixer=merged.mixer, rngs=dx.Rngs(0))

    @dx.dataclass
    class Mixing(dx.Module):
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        mixer: dx.Linear = dx.field(default=dx.Linear(2, 2, rngs=rngs))

    merged = dx.merge(*dx.split(Mixing(dx.Rngs(0))))
    with pytest.raises(errors.FieldError, match="without the arguments of their construction"):
        dx.replace(merged, rngs=dx.Rngs(0))
    assert dx.replace(merged, mixer=merged.mixer, rngs=dx.Rngs(0)).mixer is merged.mixer


def test_plain_dataclasses_take_specifiers():
    @dataclasses.dataclass
    class Run:
        name: str = dx.static()
        steps: int = dx.field(default=3, ge=1)

    assert Run("a") == Run("a", 3)


def test_text_of_expressions():
    assert repr(Block.dim) == "dim"
    assert repr(Block.up) == "dx.Linear(dim, hidden, rngs=rngs)"
    assert repr(Tower.blocks) == "dx.repeat(depth, Block(dim, 4 * dim, rngs=rngs))"


# --- what is refused --------------------------------------------------------------


def refused(*lines, decorated=True, names=None):
    """The error of a class body."""
    body = "\n".join(f"    {line}" for line in lines)
    decorator = "@dx.dataclass\n" if decorated else ""
    fields = "    dim: int = dx.field()\n    rngs: dx.InitVar[dx.Rngs] = dx.field()"
    source = f"{decorator}class Model(dx.Module):\n{fields}\n{body}"
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each caller matches its text
        exec(source, {"dx": dx, "functools": functools, "__name__": __name__, **(names or {})})
    return caught.value


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("x = 1 if dim else 2", "truth test"),
        ("x = not dim", "truth test"),
        ("x = dim and 3", "truth test"),
        ("x = 3 in (dim,)", "truth test"),
        ("x = max(dim, 3)", "truth test"),
        ("x = list(range(dim))", "range"),
        ("x = int(dim)", "int()"),
        ("x = float(dim)", "float"),
        ("x = [i for i in dim]", "iteration"),
        ("a, b = dim", "iteration"),
        ("x = len(dim)", "len"),
        ("x = 3 in dim", "`in`"),
        ("x = f'{dim}'", "formatting"),
        ("x = str(dim)", "str"),
    ],
)
def test_operations_that_need_a_value(line, operation):
    error = refused(line)
    assert isinstance(error, errors.ExpressionError)
    assert "dim" in error.where
    assert operation in error.problem
    assert "has no value until an instance is created" in error.problem
    assert error.fix


def test_a_constant_that_an_expression_reads():
    error = refused("rate: float = 0.1", "drop = dx.Dropout(rate, rngs=rngs)")
    assert "gives it the constant 0.1" in str(error)
    assert error.fix == "rate: float = dx.field(default=0.1)"


def test_a_constant_that_no_expression_reads():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        size: int = 4
        twice: int = size * 2
        layer = dx.defer(dict)(dim=dim)

    assert Model(3).twice == 8


def test_a_field_without_a_specifier():
    error = refused("hidden: int", "up = dx.Linear(dim, hidden, rngs=rngs)")
    assert "cannot be read in the class body" in str(error)
    assert error.fix == "hidden: int = dx.field()"


def test_a_global_in_the_place_of_a_field():
    error = refused("hidden: int", "up = dx.Linear(dim, hidden, rngs=rngs)", names={"hidden": 3})
    assert "reads this field, which has no specifier" in str(error)


def test_a_global_object_in_a_comprehension():
    error = refused("parts = [dx.Linear(2, 2, rngs=shared) for _ in range(2)]", names={"shared": dx.Rngs(0)})
    assert "all instances would share this object" in str(error)


def test_a_module_at_class_level():
    for line in ("part = dx.Linear(1, 1, rngs=dx.Rngs(0))", "part = (dx.Linear(1, 1, rngs=dx.Rngs(0)),)"):
        assert "all instances would share this object" in str(refused(line))
    error = refused("part: dx.Linear = dx.Linear(1, 1, rngs=dx.Rngs(0))")
    assert "a mutable default would be shared" in str(error)


def test_an_error_of_a_missing_name_has_no_other_error_as_its_context():
    error = refused("size: int", "up = dx.Linear(dim, size, rngs=rngs)")
    assert (error.fix, error.__context__) == ("size: int = dx.field()", None)


def test_a_name_bound_twice():
    assert "binds this name twice" in str(refused("a = dim * 2", "a = dim * 3"))
    assert refused("a = dim * 2", "a = dx.Linear(dim, 3, rngs=rngs)").fix == "a_2 = dx.Linear(dim, 3, rngs=rngs)"
    assert refused("dim: int = dx.field()").fix == "dim_2: int = dx.field()"


def test_a_partial_over_an_expression():
    for line in ("f = functools.partial(dict, dim)", "f = dx.defer(functools.partial(dict, dim))(3)"):
        assert "the partial holds the field expression dim" in str(refused(line))
    error = refused("f = dx.Linear(dim, 1, bias_init=functools.partial(dict, dim), rngs=rngs)")
    assert "the partial holds the field expression dim" in str(error)
    for option in ("default", "default_factory", "check"):
        error = refused(f"f: dict = dx.field(kw_only=True, {option}=functools.partial(dict, dim))")
        assert "the partial holds the field expression dim" in str(error)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("ge=dim", "'ge' of a field cannot be an expression"),
        ("le=2 * dim", "'le' of a field"),
        ("default=dim, le=2 * dim", "'le' of a field"),
        ("choices=(dim,)", "'choices' of a field"),
        ("help=dim", "'help' of a field"),
        ("metadata={'a': [dim]}", "'metadata' of a field"),
    ],
)
def test_an_option_of_a_field_that_reads_a_field(option, text):
    error = refused(f"size: int = dx.field({option}, kw_only=True)")
    assert error.where == "Model.size"
    assert text in error.problem
    assert error.fix.startswith("def __post_init__(self, ...): ...")


def test_a_deferred_call_outside_of_a_class_body():
    with pytest.raises(errors.ExpressionError, match="is not in the body of a declared class"):
        dx.Linear(Block.dim, 3, rngs=dx.Rngs(0))
    with pytest.raises(errors.ExpressionError, match="is not in the body of a declared class"):
        Block.up(jnp.ones((1, 3)))


def test_an_expression_of_a_class_that_is_no_base():
    error = refused("up = dx.Linear(Block.dim, dim, rngs=rngs)", names={"Block": Block})
    assert "a field of a class that is not a base" in str(error)
    assert error.fix == "dim        # a field of Model"
    error = refused("up = dx.Linear(Block.hidden, dim, rngs=rngs)", names={"Block": Block})
    assert error.fix == "hidden: ... = dx.field()        # a field of Model"


def test_an_overriding_part_that_reads_a_later_one():
    with pytest.raises(errors.FieldError, match="this part reads 'later', which is made later"):

        @dx.dataclass
        class Late(Block):
            _: dx.KW_ONLY
            rngs: dx.InitVar[dx.Rngs] = dx.field()
            later = dx.Linear(Block.dim, Block.dim, rngs=rngs)
            up = dx.Linear(Block.dim, later.out_features, rngs=rngs)


def test_a_class_without_rngs():
    with pytest.raises(errors.FieldError, match="reads rngs, which this class does not declare") as caught:

        class Model(dx.Module):
            dim: int = dx.field()
            up = dx.Linear(dim, dim, rngs=rngs)  # noqa: F821  # that is the error

    assert "rngs: dx.InitVar[dx.Rngs] = dx.field()" in str(caught.value.fix)


def test_a_class_without_a_decorator():
    class Model(dx.Module):
        dim: int = dx.field()
        twice = dim * 2

    with pytest.raises(errors.FieldError, match="the declarations of a class require the decorator of declax"):
        Model(3)


def test_a_field_without_default_after_parts():
    error = refused("part: dx.Linear = dx.Linear(dim, dim, rngs=rngs)", "late: int = dx.field()")
    assert "a field without a default follows one with a default" in str(error)
    assert "dx.KW_ONLY" in str(error.fix)


def test_a_part_that_cannot_be_made():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up = dx.Linear(dim, 2 * dim, size=3, rngs=rngs)

    with pytest.raises(TypeError, match="there is no parameter 'size'") as caught:
        Model(3, dx.Rngs(0))
    assert caught.value.__notes__ == ["while Model.up was made: Linear(3, 2 * 3, size=3, rngs=rngs)"]

    @dx.dataclass
    class Two(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        parts = [dx.Linear(dim, 2, rngs=rngs), {"a": dx.Linear(dim, dim - 3, rngs=rngs)}]

    with pytest.raises(errors.LayerError) as caught:
        Two(3, dx.Rngs(0))
    shown = "[Linear(3, 2, rngs=rngs), {'a': Linear(3, 3 - 3, rngs=rngs)}]"
    assert caught.value.__notes__ == [f"while Two.parts was made: {shown}"]


def test_a_part_of_the_wrong_class():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up: dx.Linear = dx.Linear(dim, dim, rngs=rngs)

    with pytest.raises(errors.ConstructionError, match="the given part is of the wrong class"):
        Model(3, up=dx.Embed(3, 3, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
    assert type(Model(3, up=dx.Linear(1, 1, rngs=dx.Rngs(0)), rngs=dx.Rngs(0)).up) is dx.Linear


def test_a_part_in_a_static_field():
    error = refused("up: dx.Static[dx.Linear] = dx.Linear(dim, dim, rngs=rngs)")
    assert "is data, and its annotation or specifier makes it static" in str(error)
    assert error.got == "dx.Static[dx.Linear]"
    assert "and its annotation or specifier makes it static" in str(refused("up: int = dx.Linear(dim, dim, rngs=rngs)"))


def test_a_repeated_object():
    assert "all elements would be one object" in str(refused("parts = dx.repeat(dim, 3)"))


def test_an_init_var_of_a_base():
    with pytest.raises(AttributeError, match=r"Block.rngs is an InitVar, which is not inherited"):
        _ = Block.rngs


# --- the same object, and objects of each instance ----------------------------------


def test_items_of_a_literal_are_one_object_everywhere():
    class Holder(dx.Module):
        def __init__(self, items):
            self.items = dx.List(items)

    for is_frozen in (False, True):

        @dx.dataclass(frozen=is_frozen)
        class Model(dx.Module):
            dim: int = dx.field()
            rngs: dx.InitVar[dx.Rngs] = dx.field()
            layers = [dx.Linear(dim, dim, rngs=rngs), dx.Linear(dim, 1, rngs=rngs)]
            table = {"a": [dx.Linear(dim, 2, rngs=rngs)]}
            last = layers[-1]
            deep = table["a"][0]
            chain = dx.Sequential(*layers)
            held = Holder(layers)

        model = Model(3, dx.Rngs(0))
        assert model.last is model.layers[1] is model.chain.layers[1] is model.held.items[1]
        assert model.deep is model.table["a"][0]
        assert len(jax.tree.leaves(dx.split(model)[1])) == 6


def test_a_subclass_overrides_a_literal():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        layers = [dx.Linear(dim, dim, rngs=rngs)]
        chain = dx.Sequential(*layers)

    @dx.dataclass
    class Narrow(Model):
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        layers = [dx.Linear(Model.dim, 1, rngs=rngs)]

    model = Narrow(3, dx.Rngs(0))
    assert model.chain.layers[0] is model.layers[0]
    assert model.layers[0].out_features == 1


def test_mutable_constants_are_made_by_each_instance():
    class Holder(dx.Module):
        def __init__(self, dim, items, options):
            self.items = items
            self.options = options

    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        held = Holder(dim, [1, 2], ({"a": []}, 3))

    first, second = Model(1), Model(1)
    assert first.held.items is not second.held.items
    assert first.held.options[0]["a"] is not second.held.options[0]["a"]


@pytest.mark.parametrize(
    "line",
    [
        "part = dx.Sequential(dx.Linear(dim, dim, rngs=rngs), dx.Sequential())",
        "part = dx.when(dim > 2, dx.Linear(dim, dim, rngs=rngs), dx.Sequential())",
        "part = dx.Linear(dim, dim, rngs=shared)",
    ],
)
def test_a_real_object_within_a_part(line):
    error = refused(line, names={"shared": dx.Rngs(0)})
    assert "all instances would share an object in this part" in str(error)
    assert error.where == "Model.part"


def test_a_repeated_part_that_has_a_name():
    error = refused("layer = dx.Linear(dim, dim, rngs=rngs)", "layers = dx.repeat(3, layer)")
    assert "the repeated value is the part layer" in str(error)
    assert error.fix == "dx.repeat(depth, dx.Linear(dim, dim, rngs=rngs))"


# --- the source of expressions ------------------------------------------------------


def test_numbers_in_expressions():
    @dx.dataclass
    class Numbers(dx.Module):
        count: int = dx.field()
        sign = (-1) ** count
        inverse = count**-1
        bound = dx.when(count > 0, float("inf"), -float("inf"))
        root = dx.defer(np.sqrt)(count)
        scaled = np.float32(2) * count

    made = Numbers(2)
    assert (made.sign, made.inverse, made.bound, made.scaled) == (1, 0.5, float("inf"), 4)
    assert made.root == np.sqrt(2)


def test_slices_between_expressions():
    @dx.dataclass
    class Slices(dx.Module):
        sizes: tuple[int, ...] = dx.field()
        end: int = dx.field()
        first = sizes[:end]
        rest = sizes[end:]
        table: jax.Array = dx.defer(jnp.ones)(sizes)
        corner = table[0, :end]

    made = Slices((4, 3), 1)
    assert (made.first, made.rest, made.corner.shape) == ((4,), (3,), (1,))


def test_names_of_functions_do_not_hide_names_of_the_source():
    def named(name, result):
        def function(value):
            return (result, value)

        function.__name__ = name
        return dx.defer(function)

    @dx.dataclass
    class Names(dx.Module):
        size: int = dx.field()
        scale: dx.InitVar[int] = dx.field(default=3)
        parts = (
            named("put", 1)(size),
            named("self", 2)(size),
            named("range", 3)(size),
            named("class", 4)(size),
            named("scale", 5)(scale),
            named("make_parts", 6)(size),
            named("abs", 7)(abs(size)),
        )
        again = dx.repeat(2, dx.defer(list)())

    assert Names(-8).parts == ((1, -8), (2, -8), (3, -8), (4, -8), (5, 3), (6, -8), (7, 8))
    assert Names(8).again == [[], []]


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("x = int(dim)", "dx.defer(int)(dim)"),
        ("x = math.sqrt(dim)", "dim ** 0.5        # in place of math.sqrt(dim)\ndim ** -0.5        # in place of 1 /"),
        ("x = len(dim)", "dx.defer(len)(dim)"),
    ],
)
def test_what_a_refused_function_becomes(line, fix):
    assert refused(line, names={"math": math}).fix.startswith(fix)


def test_an_expression_in_an_initializer():
    error = refused("x = dx.Linear(dim, 1, kernel_init=dx.initializers.normal(dim), rngs=rngs)")
    assert "the expression dim, which has a value in an instance only; see dx.defer" in str(error)


# --- bases --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("up = None", "up: ... = dx.field(default=...)"),
        ("def up(self): ...", "up: ... = dx.field(default=...)"),
        ("rate = 0.5", "rate: ... = dx.field(default=...)"),
    ],
)
def test_a_plain_value_over_an_inherited_declaration(line, fix):
    source = "class Hidden(Block):\n    "
    names = {"Block": Block, "dx": dx, "__name__": __name__}
    with pytest.raises(errors.FieldError, match="hides a field or part of a base class") as caught:
        exec(source + line, names)
    assert caught.value.fix.startswith(fix)


def test_a_property_over_an_inherited_declaration():
    class Halved(Block):
        @property
        def twice(self):
            return 2 * self.dim

    assert Halved(3, 8, rngs=dx.Rngs(0)).twice == 6


def test_bases_without_a_decorator():
    class Middle(Block):
        twice = Block.dim * 2

    with pytest.raises(errors.FieldError, match=r"this base of Last has none") as caught:

        @dx.dataclass
        class Last(Middle):
            pass

    assert caught.value.fix == "@dx.dataclass"


def test_the_decorator_of_the_standard_leaves_no_expressions():
    dim = dx.field()
    made = dataclasses.make_dataclass("Made", [("dim", int, dim)], bases=(dx.Module,), namespace={"twice": dim * 2})
    with pytest.raises(errors.FieldError, match="the declarations of a class require the decorator of declax"):
        made(3)


@pytest.mark.skipif(not hasattr(copy, "replace"), reason="Python 3.13 added it")
def test_copy_replace():
    assert copy.replace(Block(3, 8, rngs=dx.Rngs(0)), dim=2, rngs=dx.Rngs(1)).mixer.kernel.shape == (2, 2)


def test_a_part_without_rngs():
    with pytest.raises(
        errors.FieldError, match=r"Model.up: the part dx\.Linear\(dim, dim\) needs random keys"
    ) as caught:

        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field()
            up = dx.Linear(dim, dim)

    assert caught.value.fix == "class Model(dx.Layer): ...        # in place of dx.Module: its parts get its rngs"

    @dx.dataclass
    class Base(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()

    with pytest.raises(errors.FieldError, match=r"Sub\.up: the part .* needs random keys") as caught:

        @dx.dataclass
        class Sub(Base):
            up = dx.Linear(Base.dim, 2)

    assert caught.value.fix.startswith("_: dx.KW_ONLY\nrngs:")
