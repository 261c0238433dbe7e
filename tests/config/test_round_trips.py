"""What `to_config` writes is read back as the same, or is refused with its path."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.config.loading import spec_from_config

HIGH = jax.lax.Precision.HIGH


@dx.dataclass
class Loose(dx.Module):
    act: str | Callable[..., Any] = "relu"
    size: int | tuple[int, ...] | list[int] = 1
    options: dict[str, Any] = dx.static(default_factory=dict)


def back(spec: dx.Spec[Any], **options: Any) -> Any:
    """The spec that is read of what is written."""
    return spec_from_config(spec.target, dx.to_config(spec, **options), extra=options.get("extra", ()))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "spec",
    [
        dx.spec(dx.Linear, 2, 3, precision=HIGH),
        dx.spec(dx.Linear, 2, 3, precision="high"),
        dx.spec(dx.Linear, 2, 3, precision=(HIGH, jax.lax.Precision.DEFAULT)),
        dx.spec(dx.Linear, 2, 3, precision=("high", "float32")),
        dx.spec(dx.Linear, 2, 3, kernel_metadata={"sharding": ["a", "b"]}),
        dx.spec(dx.Conv, 2, 3, (3, 3), padding=((1, 1), (1, 1))),
        dx.spec(Loose, "gelu", (1, 2), {"a": [1, {"b": None}], "pair": (1, 2)}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_written_is_read_back(spec, full):
    assert back(spec, full=full) == spec


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (dx.spec(Loose, dx.gelu), "Loose.act"),
        (dx.spec(Loose, size=[1, 2]), "Loose.size"),
        (dx.spec(Loose, options={"dtype": jnp.bfloat16}), "Loose.options.dtype"),
        (dx.spec(Loose, options={"act": [dx.relu]}), "Loose.options.act.0"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_would_be_read_as_another_value_is_refused(spec, path):
    with pytest.raises(dx.ConfigError, match="the written data would be read back as another value") as caught:
        dx.to_config(spec)
    assert caught.value.where == path
    assert caught.value.fix


def test_what_does_not_fit_is_not_written():
    with pytest.raises(dx.ConfigError, match="the written data could not be read back") as caught:
        dx.to_config(dx.spec(dx.Linear, 2, "three"))
    assert caught.value.where == "Linear.out_features"


def test_a_precision_may_be_the_name_of_an_algorithm():
    data = {"in_features": 2, "out_features": 3, "precision": "F32_F32_F32"}
    assert spec_from_config(dx.Linear, data)["precision"] == "F32_F32_F32"


# --- parts where an annotation says nothing -------------------------------------

T = TypeVar("T")
LINEAR = dx.spec(dx.Linear, 2, 2)


@dx.dataclass
class Mlp(dx.Module):
    dim: int = 3


@dx.dataclass
class Wrap(dx.Module, Generic[T]):
    inner: T
    more: list[T] = dx.data(default_factory=list)


@dx.dataclass
class WrapMlp(Wrap[Mlp]):
    pass


@dx.dataclass
class Holder(dx.Module):
    f: Any = None
    wrap: Wrap[Mlp] | None = None
    named: Mapping[str, Any] = dx.data(default_factory=dict)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "spec",
    [
        dx.spec(dx.Sequential, LINEAR, dx.relu, dx.spec(dx.Dropout, 0.5), dx.gelu, dx.spec(dx.LayerNorm, 2)),
        dx.spec(dx.Sequential, [LINEAR, dx.relu]),
        dx.spec(dx.Sequential, dx.spec(dx.Sequential, LINEAR), dx.Ref("/layers/0/layers/0")),
        dx.spec(dx.List, [LINEAR, LINEAR]),
        dx.spec(dx.List, [1, 2]),
        dx.spec(dx.Dict, {"a": LINEAR, "b": dx.spec(dx.List, [LINEAR])}),
        dx.spec(Holder, LINEAR),
        dx.spec(Holder, [LINEAR, {"a": LINEAR}], named={"x": LINEAR}),
        dx.spec(Holder, wrap=dx.spec(Wrap, dx.spec(Mlp, 4), [dx.spec(Mlp)])),
        dx.spec(WrapMlp, dx.spec(Mlp, 4)),
        dx.spec(Wrap, LINEAR),
    ],
    ids=lambda value: str(value)[:60],
)
def test_parts_may_stand_where_an_annotation_says_nothing(spec, full):
    assert back(spec, full=full) == spec


def test_data_of_a_sequential_is_what_people_write():
    spec = dx.spec(dx.Sequential, LINEAR, dx.relu)
    assert dx.to_config(spec)["layers"] == [{"kind": "Linear", "in_features": 2, "out_features": 2}, "relu"]
    model = dx.from_config(dx.Sequential, dx.to_config(spec), rngs=dx.Rngs(0))
    assert model(jnp.ones((1, 2))).shape == (1, 2)
    assert dx.spec_of(model) == spec


def test_a_class_under_any_is_let_in_by_code():
    spec = dx.spec(Holder, [dx.spec(Mlp, 4)])
    with pytest.raises(dx.ConfigError, match="Mlp could not be read back: it is not one of the choices here") as caught:
        dx.to_config(spec)
    assert caught.value.where == "Holder.f.0"
    assert "extra=[Mlp]" in str(caught.value)
    assert back(spec, extra=[Mlp]) == spec
    with pytest.raises(dx.ConfigError, match=r"f\.0\.kind: unknown kind") as caught:
        spec_from_config(Holder, dx.to_config(spec, extra=[Mlp]))
    assert "did you mean 'MLP'?" in str(caught.value)
    with pytest.raises(dx.ConfigError, match=r"extra=\[...\], adds a class"):
        spec_from_config(Holder, {"f": [{"kind": "Xyzzy"}]})


@pytest.mark.parametrize("layer", ["rellu", 3, {"kind": "Nothing"}, {"kind": 3}])
def test_what_is_no_layer_of_a_sequential(layer):
    with pytest.raises(dx.ConfigError, match="the configuration has one problem"):
        spec_from_config(dx.Sequential, {"layers": [layer]})


def test_the_arguments_of_a_generic_class_are_what_its_variables_stand_for():
    data = {"inner": {"kind": "Mlp", "dim": 4}, "more": [{"dim": 5}]}
    assert spec_from_config(Wrap[Mlp], data) == dx.spec(Wrap, dx.spec(Mlp, 4), [dx.spec(Mlp, 5)])
    with pytest.raises(dx.ConfigError, match="the value has the wrong type"):
        spec_from_config(Wrap[Mlp], {"inner": 3})
    assert spec_from_config(Wrap[int], {"inner": 3}) == dx.spec(Wrap, 3)


# --- one object in two places ---------------------------------------------------


@dx.dataclass
class Pair(dx.Module):
    left: dx.Linear
    right: dx.Linear


@dx.dataclass
class Tied(Pair):
    def __post_init__(self):
        self.right.kernel = self.left.kernel


@dx.dataclass
class Lists(dx.Module):
    a: list[dx.Linear]
    b: list[dx.Linear]


def linear() -> dx.Linear:
    return dx.Linear(2, 2, rngs=dx.Rngs(0))


@pytest.mark.parametrize("read", [dx.spec_of, dx.to_config])
def test_variables_that_were_tied_by_hand_are_no_part_of_a_spec(read):
    pair = Pair(linear(), linear())
    assert read(pair)
    pair.right.kernel = pair.left.kernel
    with pytest.raises(
        dx.ConfigError, match=r"this is the same object as left\.kernel, but building the spec"
    ) as caught:
        read(pair)
    assert caught.value.where == "Pair.right.kernel"


def test_variables_that_building_ties_are_no_matter():
    tied = Tied(linear(), linear())
    assert tied.left.kernel is tied.right.kernel
    spec = dx.spec_of(tied)
    again = spec.build(rngs=dx.Rngs(0))
    assert again.left.kernel is again.right.kernel
    assert dx.spec_of(again) == spec
    assert back(spec) == spec


def test_ties_beside_a_shared_part_are_found():
    shared = linear()
    model = dx.List([shared, shared, linear()])
    assert dx.spec_of(model) == dx.spec(dx.List, [LINEAR, dx.Ref("/elements/0"), LINEAR])
    model[2].bias = shared.bias
    with pytest.raises(dx.ConfigError, match=r"this is the same object as \[0\]\.bias"):
        dx.spec_of(model)


def test_a_list_in_two_places_has_a_spec_and_no_configuration():
    layers = [linear()]
    model = Lists(layers, layers)
    spec = dx.spec_of(model)
    again = spec.build(rngs=dx.Rngs(0))
    assert again.a[0] is again.b[0]
    with pytest.raises(dx.ConfigError, match="a list or dict cannot be in two places"):
        dx.to_config(model)


# --- values of other classes ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Range:
    low: int
    high: int = 9


@dataclasses.dataclass(frozen=True)
class WideRange(Range):
    width: int = 1


class Plain:
    pass


@dx.dataclass
class Ranged(dx.Module):
    one: Range
    many: dict[str, Range | None] = dx.static(default_factory=dict)
    few: tuple[Range, ...] = ()
    any: Any = dx.static(default=None)


@pytest.mark.parametrize("full", [False, True])
def test_frozen_dataclasses_that_fields_name_go_back(full):
    spec = dx.spec(Ranged, dx.spec(Range, 1), {"a": dx.spec(Range, 2, 3), "b": None}, (dx.spec(Range, 4),))
    model = Ranged(Range(1), {"a": Range(2, 3), "b": None}, (Range(4),))
    assert dx.spec_of(model) == spec == dx.spec_of(spec.build())
    assert back(spec, full=full) == spec
    assert dx.from_config(Ranged, dx.to_config(model, full=full)).few == (Range(4),)


def test_a_frozen_dataclass_of_another_class_is_let_in_by_code():
    model = Ranged(WideRange(1, 2, 3))
    with pytest.raises(dx.ConfigError, match="WideRange could not be read back"):
        dx.to_config(model)
    assert dx.from_config(Ranged, dx.to_config(model, extra=[WideRange]), extra=[WideRange]).one == WideRange(1, 2, 3)


@pytest.mark.parametrize("value", [Plain(), Range(1)], ids=["undecorated", "frozen"])
def test_an_object_has_no_words(value):
    with pytest.raises(dx.ConfigError, match="a configuration cannot represent this value") as caught:
        dx.to_config(dx.spec(Ranged, dx.spec(Range, 1), any=value))
    assert caught.value.where == "Ranged.any"
    assert f"dx.spec({type(value).__name__}, ...) instead of the object" in str(caught.value.fix)
    assert "register_kind" not in str(caught.value)


class Side(enum.Enum):
    LEFT = 1
    RIGHT = "right"


@dx.dataclass
class Sets(dx.Module):
    sides: frozenset[Side] = dx.static(default=frozenset())
    mixed: frozenset[int | str] = dx.static(default=frozenset())


def test_sets_of_what_has_no_order_are_written_in_one():
    spec = dx.spec(Sets, frozenset({Side.RIGHT, Side.LEFT}), frozenset({2, "a", 10}))
    assert dx.to_config(spec) == {"kind": "Sets", "sides": ["LEFT", "RIGHT"], "mixed": [2, 10, "a"]}
    assert back(spec) == spec


@dx.dataclass
class Sizes(dx.Module):
    first: list[int]
    second: list[int]
    third: Any = None


def test_a_list_in_two_places_is_no_file():
    sizes = [1, 2]
    with pytest.raises(dx.ConfigError, match=r"Sizes\.second: the written data could not be read back"):
        dx.to_config(Sizes(sizes, sizes))
    with pytest.raises(dx.ConfigError, match=r"Sizes\.third: the written data could not be read back"):
        dx.to_config(Sizes(sizes, [1, 2], sizes))
    options = {"a": 1}
    with pytest.raises(dx.ConfigError, match=r"Sizes\.third\.1: the written data could not be read back"):
        dx.to_config(Sizes([1], [2], [options, options]))
