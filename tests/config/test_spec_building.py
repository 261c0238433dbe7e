"""From specs to models: order, rngs, sharing, and errors that say where."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from config.spec_models import Block, Gate, Mlp, Model, Open, Order, Train, half, small
from declax.config._reading.catalog import catalog_for
from declax.config._refs import keeps_specs, locate
from declax.config.problems import Problem
from declax.errors import ConfigError, ConstructionError, InitializerError


def leaves(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(dx.state(model))]


def assert_same_model(a, b):
    assert dx.graphdef(a) == dx.graphdef(b)
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_build_makes_what_nested_calls_make():
    rngs = dx.Rngs(3)
    embed = dx.Embed(11, 4, rngs=rngs)
    blocks = [Block(Mlp(4, 6, rngs=rngs)), Block(Gate(4, rngs=rngs))]
    by_hand = Model(embed, blocks, head=embed)
    assert_same_model(small().build(rngs=dx.Rngs(3)), by_hand)


def test_a_spec_builds_any_number_of_models():
    first, second = (small().build(rngs=dx.Rngs(0)) for _ in range(2))
    assert_same_model(first, second)
    assert first.blocks[0] is not second.blocks[0]


def test_rngs_go_to_every_part_that_declares_them_also_with_a_default():
    model = dx.spec(dx.Sequential, dx.spec(dx.Dropout, 0.5), dx.spec(Open, 3), half).build(rngs=dx.Rngs(0))
    assert model.layers[0].rngs is not None
    assert model.layers[2] is half
    assert dx.spec(dx.Dropout, 0.5).build().rngs is None


def test_missing_rngs_say_where():
    with pytest.raises(ConfigError, match="Gate takes rngs, but none were passed") as caught:
        dx.spec(Block, dx.spec(Gate, 4)).build()
    assert (caught.value.where, caught.value.fix) == ("Block.mixer", "spec.build(rngs=dx.Rngs(0))")
    with pytest.raises(ConfigError, match="Gate takes rngs, but none were passed"):
        dx.spec(Gate, 4).build()


def test_missing_rngs_of_a_layer_name_the_part_that_draws():
    @dx.dataclass
    class Deep(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)

    @dx.dataclass
    class Silent(dx.Layer):
        dim: int = dx.field()
        drop = dx.Dropout(0.1, rngs=None)

    with pytest.raises(ConfigError, match="Deep takes rngs, but none were passed") as caught:
        dx.spec(dx.Sequential, dx.spec(Deep, 4)).build()
    assert (caught.value.where, caught.value.fix) == ("Sequential.layers.0", "spec.build(rngs=dx.Rngs(0))")
    assert "Deep.up.kernel draws random keys" in str(caught.value)
    assert dx.spec(Silent, 4).build().drop.rngs is None


def test_equal_specs_are_two_parts_and_a_ref_is_the_same():
    gate = dx.spec(Gate, 4)
    model = dx.spec(dx.Sequential, gate, gate, dx.Ref("/layers/0")).build(rngs=dx.Rngs(0))
    assert model.layers[0] is not model.layers[1]
    assert model.layers[2] is model.layers[0]


def test_refs_lead_to_refs_and_to_lists():
    parts = {"first": dx.spec(Gate, 4), "again": dx.Ref("/entries/first"), "third": dx.Ref("/entries/again")}
    model = dx.spec(dx.Dict, parts).build(rngs=dx.Rngs(0))
    assert model.first is model.again is model.third
    shared = dx.spec(dx.List, [[dx.spec(Gate, 4)], dx.Ref("/elements/0/0"), dx.Ref("/elements/0")])
    several, one, again = shared.build(rngs=dx.Rngs(0))
    assert one is several[0]
    assert again is several


def test_specs_are_kept_where_the_annotation_says_so():
    proto = dx.spec(Block, dx.spec(Gate, 4))
    model = small(proto=proto, protos=[dx.spec(Mlp, 4)]).build(rngs=dx.Rngs(0))
    assert model.proto is proto
    assert model.protos == [dx.spec(Mlp, 4)]
    blocks = [model.proto.build(rngs=dx.Rngs(i)) for i in range(2)]
    assert blocks[0].mixer is not blocks[1].mixer
    assert not np.array_equal(blocks[0].mixer.scale.value, blocks[1].mixer.scale.value)


def test_a_model_that_holds_a_spec_can_be_split_and_jitted():
    model = small(proto=dx.spec(Block, dx.spec(Gate, 4))).build(rngs=dx.Rngs(0))
    graphdef, state = dx.split(model)
    assert graphdef.merge(state).proto == model.proto
    tokens = jnp.array([1, 2])
    np.testing.assert_allclose(dx.jit(lambda m, x: m(x))(model, tokens), model(tokens), rtol=1e-5)


def test_a_plain_dataclass_is_built_around_models():
    train = dx.spec(Train, small(), dx.spec(Mlp, 4), steps=3).build(rngs=dx.Rngs(0))
    assert isinstance(train, Train)
    assert isinstance(train.model, Model)


def test_parts_by_path():
    assert locate(small(), dx.Ref("/blocks/1/mixer")).value == dx.spec(Gate, 4)
    reader = catalog_for(()).root_reader
    assert not keeps_specs(reader(list[dx.Spec[Mlp]]))
    assert all(keeps_specs(reader(kept)) for kept in (dx.Spec[Mlp] | None, dx.Spec, dx.Spec[Any], int | dx.Spec))


def test_refs_lead_to_the_same_parts_when_a_spec_becomes_a_part():
    train = dx.spec(Train, small())
    assert train["model"] == small()
    assert train.arguments["model"].arguments["head"] == dx.Ref("/model/embed")
    twice = dx.spec(dx.Dict, {"a": [train, small(3)]})
    built = twice.build(rngs=dx.Rngs(0)).a
    assert built[0].model.head is built[0].model.embed
    assert built[1].head is built[1].embed
    assert twice["entries.a.0"] == train
    assert twice["entries.a.0.model"] == twice["entries.a.0"]["model"] == small()
    assert twice["entries.a.1"] == small(3)


def test_refs_to_parts_of_the_whole_are_left_for_it():
    block = dx.spec(dx.List, [dx.Ref("/embed")])
    whole = dx.spec(Model, dx.spec(dx.Embed, 3, 4), named={"a": dx.spec(dx.List, [block])})
    assert list(whole.arguments["named"]["a"].arguments["elements"][0].arguments["elements"]) == [dx.Ref("/embed")]
    with pytest.raises(ConfigError, match="no earlier part has this path"):
        block.build()


def test_refs_of_kept_specs_are_their_own():
    proto = small()
    whole = small().replace(proto=proto)
    assert whole.arguments["proto"] is proto
    assert whole["proto"] is proto
    nested = dx.spec(Train, whole)
    assert nested["model.proto"] == proto
    assert nested["model.proto.head"] == dx.Ref("/embed")
    assert nested["model"] == whole


def test_replace_moves_refs_as_well():
    train = dx.spec(Train, small(1)).replace(model=small(3))
    assert train == dx.spec(Train, small(3))
    assert dx.spec(dx.List, [1, 2]).replace({"elements.*": small()})["elements.1"] == small()


# ================================================================= what is wrong with Refs


@pytest.mark.parametrize(
    "ref", ["/embd", "/blocks/7", "/blocks/x", "/embed/features/x", "/named/a", "/proto/mixer", "/head"]
)
def test_refs_to_nothing(ref):
    spec = small(proto=dx.spec(Block, dx.spec(Gate, 4))).replace(head=dx.Ref(ref))
    with pytest.raises(ConfigError, match="head: the reference has no target: no earlier part has this path") as caught:
        spec.build(rngs=dx.Rngs(0))
    assert [p.path for p in caught.value.problems] == [("head",)]
    assert caught.value.problems[0].code == "ref-to-nothing"


@pytest.mark.parametrize(
    "elements",
    [
        [dx.Ref("/elements/0")],
        [dx.Ref("/elements/1"), dx.spec(dx.List, [])],
        [dx.Ref("/elements/1"), dx.Ref("/elements/0")],
        [[dx.Ref("/elements/0")]],
        [dx.spec(dx.List, [dx.Ref("/elements")])],
        [dx.spec(dx.List, [dx.Ref("/elements/1")]), dx.spec(dx.List, [dx.Ref("/elements/0")])],
    ],
)
def test_refs_lead_backwards_only(elements):
    with pytest.raises(ConfigError, match=r"no earlier part has this path|at a later part") as caught:
        dx.spec(dx.List, elements).build()
    assert {p.code for p in caught.value.problems} <= {"ref-to-nothing", "ref-to-later"}


def test_a_long_row_of_refs():
    count = 2_000
    backwards = [dx.spec(dx.List, [dx.Ref(f"/elements/{i - 1}")]) if i else 1 for i in range(count)]
    assert len(dx.spec(dx.List, backwards).build()) == count


# ================================================================= what is wrong with values


def problems(spec):
    with pytest.raises(ConfigError, match="the configuration has") as caught:
        spec.check()
    assert all(isinstance(problem, Problem) for problem in caught.value.problems)
    return {".".join(map(str, p.path)): (p.code, p.expected, p.got) for p in caught.value.problems}


def test_all_that_is_wrong_is_said_at_once():
    spec = small(blocks=2, named={"a": dx.spec(Mlp, "four")}, proto=dx.spec(Mlp, 4), protos=[dx.spec(Gate, 4)]).replace(
        {"blocks.*.rate": 1.5, "blocks.0.kind": "mid", "blocks.0.sizes": [1, "two"], "blocks.0.mixer.hidden": 0}
    )
    found = problems(spec)
    assert found == {
        "blocks.0.rate": ("out-of-range", "float, at least 0.0, at most 1.0", "1.5"),
        "blocks.1.rate": ("out-of-range", "float, at least 0.0, at most 1.0", "1.5"),
        "blocks.0.kind": ("no-choice", "string, one of 'pre', 'post'", "the string 'mid'"),
        "blocks.0.sizes.1": ("wrong-type", "int", "the string 'two'"),
        "blocks.0.mixer.hidden": ("out-of-range", "int, at least 1, at most 1024", "0"),
        "named.a.dim": ("wrong-type", "int", "the string 'four'"),
        "proto": ("wrong-type", found["proto"][1], "a spec of Mlp"),
        "protos.0": ("wrong-type", found["protos.0"][1], "a spec of Gate"),
    }
    assert "Block" in found["proto"][1]
    with pytest.raises(ConfigError, match="the configuration has 8 problems"):
        spec.build(rngs=dx.Rngs(0))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("embed", 3),
        ("embed", None),
        ("embed", dx.spec(Gate, 4)),
        ("embed.features", 3.0),
        ("embed.features", True),
        ("embed.features", None),
        ("embed.features", [3]),
        ("embed.features", half),
        ("embed.features", dx.spec(Gate, 4)),
        ("blocks", dx.spec(Gate, 4)),
        ("blocks", 3),
        ("blocks", {"a": dx.spec(Gate, 4)}),
        ("blocks.0", "Block"),
        ("blocks.0.mixer", dx.spec(dx.Linear, 1, 2)),
        ("blocks.0.rate", "high"),
        ("blocks.1.mixer.order", "second"),
        ("blocks.0.mixer.activation", "gleu"),
        ("named", [1]),
    ],
)
def test_wrong_types(path, value):
    assert set(problems(small().replace({path: value}))) == {path}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("blocks.0.rate", 1),
        ("blocks.0.mixer.activation", half),
        ("blocks.1.mixer.order", Order.LAST),
        ("blocks.1.mixer.order", "LAST"),
        ("blocks.0.mixer.activation", "relu"),
        ("blocks.1.mixer.init", dx.initializers.ones),
        ("blocks.1.mixer.init", dx.spec(dx.initializers.normal, stddev=0.5)),
        ("head", None),
        ("embed.param_dtype", "bfloat16"),
        ("embed.param_dtype", jnp.bfloat16),
    ],
)
def test_right_types(path, value):
    small().replace({path: value}).check()
    small().replace({path: value}).build(rngs=dx.Rngs(0))


def test_literals_and_tuples():
    from typing import Literal

    @dataclasses.dataclass
    class Typed:
        mode: Literal["a", 1] = "a"
        pair: tuple[int, str] = (1, "x")
        many: tuple[float, ...] = ()

    assert set(problems(dx.Spec(Typed, {"mode": True, "pair": (1, 2), "many": (1, "x")}))) == {
        "mode",
        "pair.1",
        "many.1",
    }
    assert set(problems(dx.Spec(Typed, {"pair": [1]}))) == {"pair"}
    assert dx.Spec(Typed, {"pair": [2, "x"]}).build() == Typed(pair=(2, "x"))
    assert dx.Spec(Typed, {"mode": 1, "many": (1, 2.5)}).build() == Typed(1, (1, "x"), (1, 2.5))


def test_arguments_by_position_are_checked_one_by_one():
    def total(*numbers: int) -> int:
        return sum(numbers)

    assert dx.spec(total, 1, 2).build() == 3
    assert set(problems(dx.Spec(total, {"numbers": [1, "x"]}))) == {"numbers.1"}


# ================================================================= errors of constructors


@dx.dataclass
class Even(dx.Module):
    size: int

    def __post_init__(self):
        if self.size % 2:
            raise ValueError("the size is odd")


def test_errors_of_post_init_say_where():
    with pytest.raises(ValueError, match="the size is odd") as caught:
        dx.spec(dx.List, [dx.spec(Even, 2), dx.spec(dx.List, [dx.spec(Even, 3)])]).build()
    assert caught.value.__notes__ == ["in the configuration at elements.1.elements.0 (Even)"]
    assert caught.value.config_path == ("elements", 1, "elements", 0)


def test_errors_of_initializers_say_where():
    spec = small().replace({"blocks.1.mixer.init": dx.initializers.delta_orthogonal()})
    with pytest.raises(InitializerError, match="cannot make an array of shape") as caught:
        spec.build(rngs=dx.Rngs(0))
    made = "while Gate.scale was made: dx.variable((4, 4), initializer=init)"
    assert caught.value.__notes__ == [made, "in the configuration at blocks.1.mixer (Gate)"]


def test_an_error_with_slots_has_the_note_at_least():
    class Slotted(ConstructionError):
        def __setattr__(self, name, value):
            if name == "config_path":
                raise AttributeError(name)
            super().__setattr__(name, value)

    def fail():
        raise Slotted("fail", "this fails")

    with pytest.raises(ConstructionError, match="this fails") as caught:
        dx.spec(fail).build()
    assert caught.value.__notes__ == ["in the configuration at (the root) (fail)"]


def test_positional_only_parameters():
    def join(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    assert dx.spec(join, 1).build() == (1, 2, 3, 4)
    assert dx.spec(join, 1, 5, d=6).build() == (1, 5, 3, 6)
    assert dx.spec(join, 1, c=7).build() == (1, 2, 7, 4)


def test_a_misspelt_ref_gets_a_suggestion():
    spec = small().replace(head=dx.Ref("/embd"))
    with pytest.raises(ConfigError, match="did you mean '/embed'"):
        spec.build(rngs=dx.Rngs(0))
