"""Configurations over the parts that class bodies declare: overrides of arguments, and replacements."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from config.schema_checks import refused_by
from declax.config import registry
from declax.config._cli.main import main
from declax.config._reading.catalog import catalog_for
from declax.errors import ConstructionError

T = TypeVar("T")
N = TypeVar("N", bound=dx.Module)


class Mixer(Protocol):
    def mix(self, x: jax.Array) -> jax.Array: ...


@dx.dataclass
class Mix(dx.Module):
    dim: int = dx.field(ge=1)
    scale: float = dx.field(default=1.0)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    inner: dx.Linear = dx.Linear(dim, dim, rngs=rngs)

    def mix(self, x: jax.Array) -> jax.Array:
        return self.scale * self.inner(x)


@dx.dataclass
class Block(dx.Module):
    dim: int = dx.field(ge=1)
    hidden: int = 4 * dim
    _: dx.KW_ONLY
    use_norm: bool = dx.field(default=True)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(dim, hidden, rngs=rngs)
    mixer: Mixer = Mix(hidden, inner=dx.Linear(hidden, hidden, use_bias=False, rngs=rngs), rngs=rngs)
    norm: dx.LayerNorm | None = dx.when(use_norm, dx.LayerNorm(dim, rngs=rngs))
    down = dx.Linear(up.out_features, dim, rngs=rngs)


@dx.dataclass
class Tower(dx.Module):
    depth: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    blocks: list[Block] = dx.repeat(depth, Block(2, hidden=3, rngs=rngs))


@dx.dataclass
class Heads(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    named: dict[str, dx.Linear] = {
        "a": dx.Linear(dim, 2, rngs=rngs),
        "b": dx.Linear(dim, 3, rngs=rngs),
    }  # made anew by each instance
    pair: tuple[dx.Linear, int] = (dx.Linear(dim, 4, rngs=rngs), 5)
    listed: list[dx.Linear] = [dx.Linear(dim, 6, rngs=rngs)]


@dx.dataclass
class Tied(dx.Module):
    first: dx.Linear
    second: dx.Linear
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(2, 3, rngs=rngs)


@dx.dataclass
class Pair(dx.Module):
    tied: Tied
    last: dx.Linear


@dx.dataclass
class Model(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    block: Block = Block(dim, rngs=rngs)
    tower: Tower = Tower(2, rngs=rngs)


class Layer(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


@dx.dataclass
class Scaled(dx.Module):
    by: float = dx.field(default=2.0)
    shift: float = dx.field(default=0.0)

    def __call__(self, x: jax.Array, /) -> jax.Array:
        return self.by * x + self.shift


@dx.dataclass
class Called(dx.Module):
    """Parts whose annotations are types of functions."""

    by: float = dx.field(default=3.0)
    layer: Layer = Scaled(by)
    function: Callable[[jax.Array], jax.Array] | None = Scaled(by)


@dx.dataclass
class Doubled(dx.Module):
    def __call__(self, x: jax.Array, /) -> jax.Array:
        return 2 * x

    def mix(self, x: jax.Array) -> jax.Array:
        return 2 * x


CALLED = pytest.mark.parametrize("name", ["layer", "function"])


def build(cls: Any, config: dict[str, Any]) -> Any:
    return dx.from_config(cls, config, rngs=dx.Rngs(0))


def refusal(cls: Any, config: dict[str, Any]) -> str:
    with pytest.raises(dx.ConfigError) as caught:
        dx.spec_from_config(cls, config)
    return str(caught.value)


# --- overriding ----------------------------------------------------------------


def test_a_table_without_a_kind_overrides_arguments_of_the_declared_call():
    block = build(Block, {"dim": 2, "up": {"use_bias": False}})
    assert (block.up.in_features, block.up.out_features, block.up.bias) == (2, 8, None)
    assert block.down.in_features == 8


def test_what_is_not_named_keeps_its_declared_expression():
    block = build(Block, {"dim": 2, "hidden": 5, "up": {"use_bias": False}})
    assert (block.up.out_features, block.down.in_features) == (5, 5)
    assert build(Block, {"dim": 2, "up": {"out_features": 7}}).down.in_features == 7


def test_a_kind_replaces_the_part():
    block = build(Block, {"dim": 2, "up": {"kind": "Linear", "in_features": 2, "out_features": 9}})
    assert block.down.in_features == 9
    assert "Linear requires 'in_features'" in refusal(Block, {"dim": 2, "up": {"kind": "Linear", "use_bias": False}})


def test_the_same_keys_are_drawn_as_without_overrides():
    plain, over = Block(2, rngs=dx.Rngs(0)), build(Block, {"dim": 2, "up": {"use_bias": False}})
    assert (plain.up.kernel[...] == over.up.kernel[...]).all()


def test_an_argument_of_the_call_is_overridden_where_it_is_declared():
    block = build(Block, {"dim": 2, "mixer": {"inner": {"use_bias": True}, "scale": 2}})
    assert block.mixer.inner.bias is not None
    assert (block.mixer.inner.in_features, block.mixer.scale) == (8, 2.0)
    assert build(Block, {"dim": 2, "mixer": {"scale": 2}}).mixer.inner.bias is None


def test_overrides_of_parts_of_parts():
    model = build(Model, {"dim": 2, "block": {"up": {"use_bias": False}, "hidden": 6}})
    assert (model.block.up.bias, model.block.up.out_features, model.block.norm.num_features) == (None, 6, 2)
    model = build(Model, {"dim": 2, "tower": {"depth": 3, "blocks": {"up": {"use_bias": False}}}})
    assert [block.up.bias for block in model.tower.blocks] == [None] * 3


def test_a_table_for_a_repeated_part_is_for_each_element():
    config = {"depth": 2, "blocks": {"up": {"kind": "Linear", "in_features": 2, "out_features": 5}}}
    first, second = build(Tower, config).blocks
    assert first.up is not second.up
    assert (first.up.kernel[...] != second.up.kernel[...]).any()
    assert first.down.in_features == 5
    written = build(Tower, {"depth": 2, "blocks": [{"kind": "Block", "dim": 4}]})
    assert [block.dim for block in written.blocks] == [4]


def test_an_override_of_a_part_that_is_not_made_is_refused():
    assert build(Block, {"dim": 2, "norm": {"epsilon": 0.5}}).norm.epsilon == 0.5
    with pytest.raises(ConstructionError, match=r"Block.norm: this part is not made here, and the arguments epsilon"):
        build(Block, {"dim": 2, "use_norm": False, "norm": {"epsilon": 0.5}})
    assert dx.spec_from_config(Block, {"dim": 2, "norm": None}).build(rngs=dx.Rngs(0)).norm is None


def test_overrides_in_literals():
    heads = build(
        Heads,
        {"dim": 3, "named": {"a": {"use_bias": False}, "c": {"kind": "Linear", "in_features": 1, "out_features": 1}}},
    )
    assert list(heads.named) == ["a", "b", "c"]
    assert (heads.named["a"].bias, heads.named["a"].in_features, heads.named["b"].out_features) == (None, 3, 3)
    heads = build(Heads, {"dim": 3, "pair": [{"use_bias": False}, 6], "listed": [{"use_bias": False}]})
    assert (heads.pair[0].bias, heads.pair[0].out_features, heads.pair[1]) == (None, 4, 6)
    assert (heads.listed[0].bias, heads.listed[0].out_features) == (None, 6)
    assert build(Heads, {"dim": 3, "listed": []}).listed == []
    assert "listed.1.in_features: Linear requires" in refusal(Heads, {"dim": 3, "listed": [{}, {}]})


@dx.dataclass
class Open(dx.Module, Generic[T, N]):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    any: Any = dx.Linear(dim, 3, rngs=rngs)
    typed: T = dx.Linear(dim, 3, rngs=rngs)
    bounded: N = dx.Linear(dim, 3, rngs=rngs)
    several: list[Any] = [dx.Linear(dim, 3, rngs=rngs), "text"]
    stacked: dx.Stacked[dx.Linear] = dx.Stacked(dx.Linear(dim, 3, rngs=rngs), 2)


@pytest.mark.parametrize("path", ["any", "typed", "bounded", "several.0", "stacked.build"])
def test_overrides_of_parts_with_open_annotations(path):
    """`Any` accepts tables as dicts; where the class declares a call, a table is for its arguments."""
    first, *_ = path.split(".")
    table = {"use_bias": False}
    config = {"any": table, "typed": table, "bounded": table, "several": [table, "text"], "stacked": {"build": table}}
    spec = dx.spec_from_config(Open, {"dim": 4, first: config[first]})
    assert spec == dx.spec(Open, 4).replace({f"{path}.use_bias": False}) == dx.spec(Open, 4, **{first: config[first]})
    assert dx.to_config(spec) == {"kind": "Open", "dim": 4, first: config[first]}
    model = spec.build(rngs=dx.Rngs(0))
    part = {"several": lambda: model.several[0], "stacked": lambda: model.stacked.layers}.get(first)
    made = getattr(model, first) if part is None else part()
    assert (made.use_bias, made.in_features) == (False, 4)
    assert dx.spec_of(model) == spec
    with pytest.raises(dx.ConfigError, match="did you mean 'use_bias'"):
        dx.spec_from_config(Open, json.loads(json.dumps({"dim": 4, first: config[first]}).replace("bias", "bais")))


def test_a_kind_replaces_a_part_with_an_open_annotation():
    table = {"kind": "Linear", "in_features": 5, "out_features": 2}
    assert dx.spec_from_config(Open, {"dim": 4, "any": table}) == dx.spec(Open, 4, any=dx.spec(dx.Linear, 5, 2))
    assert dx.spec_from_config(Open, {"dim": 4, "any": [1, {"a": 2}]}) == dx.spec(Open, 4, any=[1, {"a": 2}])


def test_an_argument_that_the_class_lacks(tmp_path):
    file = tmp_path / "block.toml"
    file.write_text("dim = 2\n[up]\nuse_bia = false\n")
    with pytest.raises(dx.ConfigError) as caught:
        dx.spec_from_config(Block, file)
    text = str(caught.value)
    assert "block.toml:3:1 up.use_bia: Linear has no parameter 'use_bia'" in text
    assert "did you mean 'use_bias'?" in text
    assert "out of range" in refusal(Block, {"dim": 2, "up": {"in_features": 0}})


def test_refs_lead_around_what_its_owner_makes():
    text = refusal(Model, {"dim": 2, "block": {"up": {"$ref": "/tower/blocks"}}, "tower": {"blocks": {"dim": 3}}})
    assert "has no target" in text
    inner = {"kind": "Linear", "in_features": 2, "out_features": 8}
    config = {"dim": 2, "block": {"mixer": {"inner": {"kind": "Linear", "in_features": 8, "out_features": 8}}}}
    assert build(Model, config).block.mixer.inner.in_features == 8
    spec = dx.spec(Model, 2, block={"up": dx.Ref("/tower/blocks/up")}, tower={"blocks": {"up": inner}})
    with pytest.raises(dx.ConfigError, match="no earlier part has this path"):
        spec.check()


# --- specs -----------------------------------------------------------------------

SPECS = [
    dx.spec(Block, 2),
    dx.spec(Block, 2, up={"use_bias": False}),
    dx.spec(Block, 2, mixer={"inner": {"use_bias": True}}, norm={"epsilon": 0.5}),
    dx.spec(Block, 2, up={"kernel_init": dx.initializers.zeros}, norm=None),
    dx.spec(Model, 2, block={"up": {"use_bias": False}}, tower={"depth": 1, "blocks": {"hidden": 5}}),
    dx.spec(Tower, 2, blocks={"up": dx.spec(dx.Linear, 2, 5)}),
    dx.spec(Tower, 2, blocks=[dx.spec(Block, 2, up={"use_bias": False})]),
    dx.spec(Heads, 3, named={"a": {"use_bias": False}}, listed=[{"use_bias": False}]),
    dx.spec(Tied, dx.spec(dx.Linear, 2, 3), dx.Ref("/first"), up={"use_bias": False}),
    dx.spec(
        Pair,
        dx.spec(Tied, dx.spec(dx.Linear, 2, 3), dx.Ref("/first"), up={"use_bias": False}),
        dx.Ref("/tied/first"),
    ),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("full", [False, True])
def test_round_trips(spec, full, tmp_path):
    assert dx.spec_from_config(spec.target, dx.to_config(spec, full=full)) == spec
    for suffix in (".json", ".toml") if spec.arguments.get("norm", 0) is not None and not full else (".json",):
        dx.write_config(tmp_path / f"model{suffix}", spec, full=full)
        assert dx.spec_from_config(spec.target, tmp_path / f"model{suffix}") == spec
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)).fingerprint() == spec.fingerprint()
    names = {"spec": dx.spec, **vars(dx.initializers), **vars(dx), **globals()}
    assert eval(repr(spec), names) == spec


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_models_say_what_they_were_built_from(spec):
    model = spec.build(rngs=dx.Rngs(0))
    assert dx.spec_of(model) == dx.spec_of(dx.clone(model)) == spec
    assert dx.spec_of(pickle.loads(pickle.dumps(model))) == spec
    spec.check()
    assert spec.summary().count("Param") == dx.summary(model).count("Param")


def test_only_what_is_overridden_is_written():
    config = {"kind": "Block", "dim": 2, "up": {"use_bias": False}}
    assert dx.to_config(dx.spec(Block, 2, up={"use_bias": False})) == config
    assert dx.to_config(dx.spec_of(build(Block, config))) == config
    assert dx.spec(Block, 2, up={"use_bias": True}, mixer={}) == dx.spec(Block, 2)


def test_fingerprints_differ_by_what_is_overridden():
    assert len({spec.fingerprint() for spec in SPECS}) == len(SPECS)


def test_changes_at_paths():
    spec = dx.spec(Model, 2)
    changed = spec.replace({"block.up.use_bias": False})
    assert changed == dx.spec(Model, 2, block={"up": {"use_bias": False}})
    assert changed.replace({"block.hidden": 3}).build(rngs=dx.Rngs(0)).block.up.kernel.shape == (2, 3)
    assert changed.replace({"block.up": {}}) == changed.replace(block={}) == spec
    whole = changed.replace({"block.up": dx.spec(dx.Linear, 2, 8)})
    assert whole != changed
    repeated = dx.spec(Tower, 2)
    assert repeated.replace({"blocks.up.use_bias": False})["blocks.1.up.use_bias"] is False
    for path in ("blocks.1.hidden", "blocks.*", "blocks.*.hidden"):
        with pytest.raises(dx.ConfigError, match=r"there is no '(1|\*)' at blocks") as caught:
            repeated.replace({path: 3})
        assert caught.value.where == "Tower.blocks"
    with pytest.raises(dx.ConfigError, match=r"there is no 'use_bia' at block\.up; did you mean 'use_bias'"):
        spec.replace({"block.up.use_bia": False})


OPERANDS = st.sampled_from(["a", "b", "2", "0.5", "(-3)", "pair[1]", "pair[0]"])
SOURCES = st.recursive(
    OPERANDS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+ - * == != < <=".split()), inner),
        st.builds("({} ** 2)".format, inner),
        st.builds("(-{})".format, inner),
        st.builds("abs({})".format, inner),
        st.builds("dx.when({}, {}, {})".format, inner, inner, inner),
        st.builds("dx.repeat(2, (a, {}))[1][1]".format, inner),
        st.builds("dx.defer(max)({}, {})".format, inner, inner),
        st.builds("dx.defer(operator.sub)({}, {})".format, inner, inner),
        st.builds("dx.defer(operator.getitem)([2, {}], -1)".format, inner),
    ),
    max_leaves=6,
)


@given(source=SOURCES, a=st.integers(-3, 3), b=st.integers(-3, 3))
def test_a_spec_and_the_constructor_evaluate_alike(source, a, b):
    """The evaluator of descriptions, the generated source and Python itself."""
    lines = [
        "@dx.dataclass",
        "class Computed(dx.Module):",
        "    a: int = dx.field()",
        "    b: int = dx.field()",
        "    pair: tuple[int, int] = (b, 2 * a)",
        f"    x: float = {source}",
    ]
    names: dict[str, Any] = {"dx": dx, "operator": operator, "__name__": __name__}
    exec("\n".join(lines), names)
    plain = types.SimpleNamespace(
        when=lambda flag, item, other: item if flag else other, repeat=lambda n, item: [item] * n, defer=lambda f: f
    )
    expected = eval(source, {"dx": plain, "operator": operator, "a": a, "b": b, "pair": (b, 2 * a)})
    assert names["Computed"](a, b).x == expected
    assert dx.spec(names["Computed"], a, b)["x"] == expected


class Free(dx.Module):
    def __init__(self, dim: int, **options: int) -> None:
        self.dim = dim
        self.options = dx.static(options)


@dx.dataclass
class Chosen(dx.Module):
    dim: int = dx.field()
    make: type[dx.Linear] = dx.field(default=dx.Linear)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    part: dx.Linear = make(dim, 2 * dim, rngs=rngs)
    open: Free = Free(dim, scale=2)


def test_parts_of_a_class_that_is_a_field():
    spec = dx.spec(Chosen, 3)
    assert spec["part"] == dx.spec(dx.Linear, 3, 6)
    assert spec["part.out_features"] == 6


def test_values_that_build_on_each_other():
    lines = ["@dx.dataclass", "class Chain(dx.Module):", "    x0: int = dx.field()"]
    lines += [f"    x{n}: int = x{n - 1} + x{n - 1}" for n in range(1, 60)]  # each is looked at once
    lines += ["    y0 = x0 + 1", *(f"    y{n} = dx.when(x0 == 1, y{n - 1}, y{n - 1})" for n in range(1, 60))]
    names: dict[str, Any] = {"dx": dx, "__name__": __name__}
    exec("\n".join(lines), names)
    assert dx.spec(names["Chain"], 1)["x59"] == names["Chain"](1).x59 == 2**59
    assert names["Chain"](1).y59 == 2


def test_parts_with_further_keywords():
    assert dx.spec(Chosen, 3)["open"] == dx.spec(Free, 3, scale=2)
    made = build(Chosen, {"dim": 3, "open": {"shift": 1}})
    assert (made.open.dim, made.open.options) == (3, {"scale": 2, "shift": 1})


def test_parts_of_a_spec_have_evaluated_expressions():
    spec = dx.spec(Model, 2, block={"up": {"use_bias": False}})
    assert spec["block.up"] == dx.spec(dx.Linear, 2, 8, use_bias=False)
    assert (spec["block.hidden"], spec["block.mixer.inner.in_features"]) == (8, 8)
    assert spec["tower.blocks.1.up"] == dx.spec(dx.Linear, 2, 3)
    assert spec["block.norm"] == dx.spec(dx.LayerNorm, 2)
    assert dx.spec(Block, 2, use_norm=False)["norm"] is None
    assert str(spec) == (
        "Model(dim=2)\n"
        "  block: Block(dim=2)\n"
        "    up: Linear(in_features=2, out_features=8, use_bias=False)\n"
        "    mixer: Mix(dim=8)\n"
        "      inner: Linear(in_features=8, out_features=8, use_bias=False)\n"
        "    norm: LayerNorm(num_features=2)\n"
        "    down: Linear(in_features=8, out_features=2)\n"
        "  tower: Tower(depth=2)\n"
        "    blocks[0], blocks[1]: Block(dim=2, hidden=3)\n"
        "      up: Linear(in_features=2, out_features=3)\n"
        "      mixer: Mix(dim=3)\n"
        "        inner: Linear(in_features=3, out_features=3, use_bias=False)\n"
        "      norm: LayerNorm(num_features=2)\n"
        "      down: Linear(in_features=3, out_features=2)"
    )


def test_what_only_an_instance_has_stays_an_expression():
    @dx.dataclass
    class Tied(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        embed: dx.Embed = dx.Embed(5, dim, rngs=rngs)
        head: dx.Linear = dx.Linear(embed.embedding.shape[1], 5, rngs=rngs)

    spec = dx.spec(Tied, 3, head={"use_bias": False})
    assert repr(spec["head.in_features"]) == "embed.embedding.shape[1]"
    assert spec.build(rngs=dx.Rngs(0)).head.kernel.shape == (3, 5)


def test_replace_of_an_object_keeps_what_was_overridden():
    block = dx.replace(build(Block, {"dim": 2, "up": {"use_bias": False}}), dim=3, rngs=dx.Rngs(0))
    assert (block.up.in_features, block.up.bias) == (3, None)


def test_a_part_that_is_assigned_takes_the_place_of_an_override():
    block = build(Block, {"dim": 2, "up": {"use_bias": False}})
    assert dx.spec_of(block)["up"]["use_bias"] is False
    block.up = dx.Linear(2, 8, kernel_init=dx.initializers.zeros, rngs=dx.Rngs(1))
    for model in (block, dx.clone(block)):
        assert dx.spec_of(model)["up"] == dx.spec(dx.Linear, 2, 8, kernel_init=dx.initializers.zeros)
        assert dx.replace(model, rngs=dx.Rngs(0)).up is model.up


def test_parts_that_do_not_fit_an_assigned_one_are_made_again_or_have_no_spec():
    block = build(Block, {"dim": 2, "up": {"use_bias": False}})
    block.up = dx.Linear(2, 7, rngs=dx.Rngs(1))
    with pytest.raises(dx.ConfigError, match=r"Block\.down\.in_features"):
        dx.spec_of(block)
    assert dx.replace(block, rngs=dx.Rngs(0)).down.in_features == 7


# --- one interpretation ------------------------------------------------------------

LINEAR = st.fixed_dictionaries(
    {},
    optional={
        "use_bias": st.sampled_from([True, False, 1]),
        "in_features": st.sampled_from([3, 0, "3"]),
        "out_features": st.integers(1, 4),
        "use_bia": st.just(False),
        "kind": st.sampled_from(["Linear", "Conv"]),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"dim": st.integers(1, 3)},
    optional={
        "block": st.fixed_dictionaries(
            {},
            optional={
                "up": LINEAR,
                "norm": st.none() | st.fixed_dictionaries({}, optional={"epsilon": st.sampled_from([0.5, "a"])}),
                "kind": st.just("Block"),
                "dim": st.integers(0, 2),
            },
        ),
        "tower": st.fixed_dictionaries(
            {}, optional={"blocks": st.fixed_dictionaries({}, optional={"up": LINEAR}) | st.lists(LINEAR, max_size=2)}
        ),
    },
)
SCHEMA = dx.json_schema(Model)


@given(config=CONFIGS)
def test_schema_files_and_checks_agree(config):
    def is_fine(do: Any) -> bool:
        try:
            do()
        except dx.DeclaxError:
            return False
        return True

    is_read = is_fine(lambda: dx.spec_from_config(Model, config))
    assert is_read != refused_by(SCHEMA, config), config
    assert is_read == is_fine(lambda: dx.Spec(Model, config).check()), config
    if is_read:
        spec = dx.spec_from_config(Model, config)
        assert spec == dx.Spec(Model, config) == dx.spec_from_config(Model, dx.to_config(spec))


def test_the_schema_offers_both():
    schema = dx.json_schema(Block)
    assert json.loads(json.dumps(schema)) == schema
    names = [option["$ref"].rpartition("/")[2] for option in schema["definitions"]["Linear-or-reference"]["oneOf"]]
    assert names == ["Block.up", "Linear", "reference"]
    assert "required" not in schema["definitions"]["Block.up"]
    assert schema["definitions"]["Linear"]["required"] == ["kind", "in_features", "out_features"]


# --- annotations without a class ---------------------------------------------------


@CALLED
def test_parts_that_are_annotated_as_functions(name):
    assert getattr(build(Called, {}), name).by == 3.0
    over = getattr(build(Called, {name: {"shift": 1.0}}), name)
    assert (over.by, over.shift) == (3.0, 1.0)
    other = getattr(build(Called, {name: {"kind": "Scaled", "shift": 1.0}}), name)
    assert (other.by, other.shift) == (2.0, 1.0)
    assert getattr(build(Called, {name: "gelu"}), name) is dx.gelu


@CALLED
def test_extra_kinds_of_functions(name):
    config = {name: {"kind": "Doubled"}}
    assert "expected: Scaled" in refusal(Called, config)
    assert isinstance(getattr(dx.from_config(Called, config, extra=[Doubled]), name), Doubled)
    with pytest.raises(dx.ConfigError, match=r"expected: Scaled\n"):  # a Mix cannot be called
        dx.from_config(Called, {name: {"kind": "Mix", "dim": 2}}, extra=[Mix])


def test_registered_kinds_of_functions(monkeypatch):
    monkeypatch.setitem(registry._KINDS, Layer, {})
    dx.register_kind(Layer, Doubled)
    assert isinstance(build(Called, {"layer": {"kind": "Doubled"}}).layer, Doubled)
    assert "unknown function" in refusal(Called, {"layer": "Doubled"})  # the class is not a function of an array
    monkeypatch.undo()
    catalog_for.cache_clear()


@pytest.mark.parametrize(
    "model",
    [
        lambda: Called(layer=Scaled(5.0)),
        lambda: Called(function=Scaled(5.0)),
        lambda: Called(layer=dx.gelu, function=None),
        lambda: Block(2, mixer=Mix(8, scale=5.0, rngs=dx.Rngs(1)), rngs=dx.Rngs(0)),
    ],
)
def test_the_declared_class_reads_back(model):
    spec = dx.spec_of(model())
    assert dx.spec_from_config(spec.target, dx.to_config(spec)) == spec


def test_another_class_is_written_if_it_is_registered():
    spec = dx.spec(Block, 2, mixer=dx.spec(Doubled))
    with pytest.raises(dx.ConfigError, match=r"not one of the choices(.|\n)*extra=\[Doubled\], or dx.register_kind"):
        dx.to_config(spec)
    written = dx.to_config(spec, extra=[Doubled])
    assert dx.spec_from_config(Block, written, extra=[Doubled]) == spec


def test_a_model_in_the_place_of_a_protocol_is_refused():
    assert "a spec cannot hold a model" in refusal(Block, {"dim": 2, "mixer": Doubled()})


def test_the_schema_offers_the_kinds_of_functions():
    schema = dx.json_schema(Called, extra=[Doubled])
    choice, functions = schema["properties"]["layer"]["anyOf"]
    names, *_ = schema["definitions"][functions["$ref"].rpartition("/")[2]]["anyOf"]
    assert "gelu" in names["enum"]
    options = schema["definitions"][choice["$ref"].rpartition("/")[2]]["oneOf"]
    assert [option["$ref"].rpartition("/")[2] for option in options] == [
        "Called.layer", "Scaled", "Doubled", "reference",
    ]  # fmt: skip
    assert not refused_by(schema, {"layer": {"kind": "Doubled"}, "function": {"shift": 1.0}})
    assert refused_by(schema, {"layer": {"kind": "Mix"}})


# --- command lines -----------------------------------------------------------------

WIDE = """import declax as dx
@dx.dataclass
class Wide(dx.Module):
    dim: int = dx.field(ge=1)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(dim, 4 * dim, rngs=rngs)
"""


def test_words_override_or_replace_declared_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "wide", raising=False)
    (tmp_path / "wide.py").write_text(WIDE)
    (tmp_path / "wide.toml").write_text("dim = 2\n[up]\nuse_bias = false\n")

    def run(*words: str) -> tuple[int, str]:
        status = main([*words])
        return status, "".join(capsys.readouterr())

    assert run("show", "wide:Wide", "dim=2", "up.use_bias=false") == (
        0,
        'kind = "Wide"\ndim = 2\nup = { use_bias = false }\n',
    )
    assert run("show", "wide:Wide", "wide.toml", "up.use_bias=true") == (0, 'kind = "Wide"\ndim = 2\n')
    status, text = run("build", "wide:Wide", "dim=2,3", "up.use_bias=false")
    assert status == 0
    assert "kernel f32[2,8]" in text
    assert "kernel f32[3,12]" in text
    status, text = run("summary", "wide:Wide", "wide.toml", "up")
    assert status == 0
    assert "kernel f32[2,8]" in text
    assert "there is no item * at up" in run("check", "wide:Wide", "dim=2", "up[*].use_bias=false")[1]
    words = ("up.kind=Linear", "up.in_features=2", "up.out_features=5")
    assert "kernel f32[2,5]" in run("summary", "wide:Wide", "dim=2", *words)[1]
    status, text = run("check", "wide:Wide", "wide.toml", "up.use_bia=false")
    assert status == 1
    assert "command line: up.use_bia=false up.use_bia: Linear has no parameter 'use_bia'" in text


def test_a_second_name_of_a_part_follows_its_overrides():
    @dx.dataclass
    class Tied(dx.Module):
        features: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
        embed: dx.Embed = dx.Embed(10, features, rngs=rngs)
        out: dx.Embed = embed
        norm = dx.LayerNorm(embed.features, rngs=rngs)

    for spec in (dx.spec(Tied, 3).replace({"embed.features": 9}), dx.spec(Tied, 3, embed=dx.spec(dx.Embed, 10, 9))):
        model = spec.build(rngs=dx.Rngs(0))
        assert model.out is model.embed
        assert (model.out.features, model.norm.num_features) == (9, 9)
        assert str(spec).splitlines()[1:] == [
            "  embed: Embed(num_embeddings=10, features=9)",
            "  out: Embed(num_embeddings=10, features=9)",
            "  norm: LayerNorm(num_features=9)",
        ]


# --- items of lists, and parts of methods ------------------------------------------


@dx.dataclass
class Mixed(dx.Module):
    depth: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixers: list[Mixer] = dx.repeat(depth, Mix(4, rngs=rngs))
    pair: tuple[Mix, Mix] = (Mix(2, rngs=rngs), Mix(3, rngs=rngs))
    named: dict[str, Mixer] = {"a": Mix(2, rngs=rngs)}

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.depth, 5, rngs=rngs), dx.Linear(5, 6, rngs=rngs)]

    head = dx.Linear(layers[-1].out_features, 7, rngs=rngs)


def test_a_list_changes_items_of_a_default():
    made = build(Mixed, {"depth": 1, "pair": [{}, {"scale": 0.5}]})
    assert ([mix.dim for mix in made.pair], [mix.scale for mix in made.pair]) == ([2, 3], [1.0, 0.5])
    replaced = {"kind": "Mix", "dim": 9}
    assert [mix.dim for mix in build(Mixed, {"depth": 1, "pair": [replaced, {}]}).pair] == [9, 3]
    spec = dx.spec_from_config(Mixed, {"depth": 1, "pair": [{}, {"scale": 0.5}]})
    assert spec == dx.spec(Mixed, 1).replace({"pair.1.scale": 0.5})
    assert dx.spec_from_config(Mixed, dx.to_config(spec)) == spec
    assert "a list of 2" in refusal(Mixed, {"depth": 1, "pair": {"1": {"scale": 0.5}}})
    assert "Mix has no parameter '0'" in refusal(Mixed, {"depth": 1, "mixers": {"0": {"scale": 2.0}}})


def test_words_change_items_of_a_default_dict(capsys):
    found = dx.cli(Mixed, ["depth=1", "named.a.scale=1e-3"], rngs=dx.Rngs(0))
    assert found.named["a"].scale == 1e-3
    with pytest.raises(SystemExit):
        dx.cli(Mixed, ["depth=1", "pairs.1.scale=.5"])
    assert "command line: pairs.1.scale=.5 pairs: Mixed has no parameter 'pairs'" in capsys.readouterr().err


def test_the_class_of_a_repeated_part_is_a_kind_of_its_items():
    made = build(Mixed, {"depth": 5, "mixers": [{"kind": "Mix", "dim": 2}, {"kind": "Mix", "dim": 3}]})
    assert [mix.dim for mix in made.mixers] == [2, 3]
    assert build(Mixed, {"depth": 1, "named": {"b": {"kind": "Mix", "dim": 6}}}).named["b"].dim == 6
    spec = dx.spec(Mixed, 1, mixers=[dx.spec(Mix, 2)])
    assert dx.spec_from_config(Mixed, dx.to_config(spec)) == spec
    assert not refused_by(dx.json_schema(Mixed), {"depth": 1, "mixers": [{"kind": "Mix", "dim": 2}]})


def test_the_tree_and_the_summary_show_parts_of_methods():
    spec = dx.spec(Mixed, 3)
    assert str(spec).splitlines()[-2:] == [
        "  layers: list[dx.Linear] by a method (unevaluated)",
        "  head: Linear(in_features=layers[(-1)].out_features, out_features=7)",
    ]
    paths = {".".join(map(str, row.path)) for row in spec.summary().rows}
    assert {"layers.0", "layers.1", "head"} <= paths
    assert spec.summary().count() == dx.summary(spec.build(rngs=dx.Rngs(0))).count()


@dx.dataclass
class Private(dx.Layer):
    dim: int = dx.field()
    _half = dim // 2
    _shape = dx.defer(sorted)([dim, _half])
    _up = dx.Linear(dim, _half)


def test_the_tree_shows_private_names_that_are_in_the_model():
    assert str(dx.spec(Private, 4)) == "Private(dim=4)\n  _up: Linear(in_features=4, out_features=2)"
    assert str(dx.spec(dx.Conv, 3, 8, 3)) == "Conv(in_features=3, out_features=8, kernel_size=3)"


def test_the_tree_shows_a_part_whose_number_only_an_instance_knows():
    @dx.dataclass
    class Counted(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)

        @dx.submodule
        def first(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.dim, 2, rngs=rngs)

        blocks = dx.repeat(first.out_features, dx.Linear(dim, dim, rngs=rngs))

    assert str(dx.spec(Counted, 3)).splitlines() == [
        "Counted(dim=3)",
        "  first: dx.Linear by a method (unevaluated)",
        "  blocks: dx.repeat(first.out_features, dx.Linear(dim, dim, rngs=rngs)) (unevaluated)",
    ]
    assert len(dx.spec(Counted, 3).summary().rows) == 3, "the first part, and two blocks"


def test_definitions_have_readable_names():
    names = set(dx.json_schema(Mixed)["definitions"])
    assert all(name[0].isalpha() for name in names), names
    assert {"Mix-or-reference", "reference"} <= names


def test_a_part_without_an_annotation_is_no_parameter():
    class_text = refusal(Inner, {"dim": 2, "up": {"use_bias": False}})
    assert "Inner has no parameter 'up': the object makes it" in class_text
    assert "annotate a part in the class to make it a parameter" in class_text


@dx.dataclass
class Inner(dx.Module):
    dim: int = dx.field()
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, 2, rngs=rngs)
