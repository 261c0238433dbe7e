"""Constructors of declared classes check the types of arguments: what is refused, and what must not be."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, SupportsIndex, TypeVar, runtime_checkable

import cloudpickle
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Float

import declax as dx
from declax._typing import Dtype, Initializer
from declax.errors import ConstructionError, FieldError, LayerError

T = TypeVar("T")
L = TypeVar("L", bound=dx.Module)


class Color(enum.Enum):
    RED = 1


class Mixer(Protocol):
    def __call__(self, x: jax.Array) -> jax.Array: ...


@runtime_checkable
class Named(Protocol):
    name: str

    def apply(self, x: jax.Array) -> jax.Array: ...


class Applied:
    """Has less than `Named`, which is not asked of objects."""


def linear() -> dx.Linear:
    return dx.Linear(1, 2, rngs=dx.Rngs(0))


LAYER = linear()


def declared(annotation: Any, **options: Any) -> Any:
    """A declared class with one field."""
    body = {"__annotations__": {"value": annotation}, "value": dx.field(**options), "__module__": __name__}
    return dx.dataclass(type("Model", (dx.Module,), body))


# --- what is refused ----------------------------------------------------------------

WRONG: list[tuple[Any, Any, str, str]] = [
    (int, 3.0, "", "value=3"),
    (int, "3", "", "value=3"),
    (int, "many", "", "value: int | str = ...        # to allow both"),
    (int, 3.5, "", "value: int | float = ...        # to allow both"),
    (float, "0.5", "", "value=0.5"),
    (bool, "no", "", "value: bool | str = ...        # to allow both"),
    (bool, 2, "", "value: bool | int = ...        # to allow both"),
    (complex, "1", "", "value: complex | str = ...        # to allow both"),
    (str, 3, "", "value: str | int = ...        # to allow both"),
    (bytes, "a", "", "value: bytes | str = ...        # to allow both"),
    (int | None, "3", "", "value=3"),
    (Literal["mean", "sum"], "men", "", "value='mean'"),
    (Color, "RED", "", "value=Color.RED"),
    (pathlib.Path, "a", "", "value=Path('a')"),
    (tuple[int, ...], 3, "", "value=(3,)"),
    (list[int], 3, "", "value=[3]"),
    (tuple[int, int], (1,), "", "value: tuple[int, int] | tuple = ...        # to allow both"),
    (tuple[int, ...], (1, "a"), "[1]", "value: tuple[int | str, ...] = ...        # to allow both"),
    (list[int], "12", "", "value: list[int] | str = ...        # to allow both"),
    (set[int], [1], "", "value: set[int] | list = ...        # to allow both"),
    (dict[str, int], [("a", 1)], "", "value: dict[str, int] | list = ...        # to allow both"),
    (dict[str, int], {"a": "b"}, "['a']", "value: dict[str, int | str] = ...        # to allow both"),
    (Mapping[str, float], {1: 1.0}, "[1]", "value: Mapping[str | int, float] = ...        # to allow both"),
    (Callable[[int], int], "relu", "", "value: Callable[[int], int] | str = ...        # to allow both"),
    (type[dx.Module], "Linear", "", "value: type[dx.Module] | str = ...        # to allow both"),
    (type[dx.Module], int, "", "value: type[dx.Module] | type = ...        # to allow both"),
    (type[dx.Linear | dx.Conv], dx.Dropout, "",
     "value: type[dx.Linear | dx.Conv] | dx.PytreeMeta = ...        # to allow both"),
    (Sequence[int], "abc", "", "value: Sequence[int] | str = ...        # to allow both"),
    (Iterable[dx.Linear], "abc", "", "value: Iterable[dx.Linear] | str = ...        # to allow both"),
    (Named, 3, "", "value: Named | int = ...        # to allow both"),
    (list[Named], [Applied(), "a"], "[1]", f"value: list[{__name__}.Named | str] = ...        # to allow both"),
    (SupportsIndex, "a", "", "value: SupportsIndex | str = ...        # to allow both"),
    (dx.Linear, 3, "", "value: dx.Linear | int = ...        # to allow both"),
    (dx.Linear, dx.Dropout(0.1), "", "value: dx.Linear | dx.Dropout = ...        # to allow both"),
    (dx.Module, jnp.tanh, "", "value: dx.Module | PjitFunction = ...        # to allow both"),
    (list[dx.Linear], [LAYER, dx.Dropout(0.1)], "[1]",
     "value: list[dx.Linear | dx.Dropout] = ...        # to allow both"),
    (list[dx.Linear], LAYER, "", "value=[...]"),
    (list[dx.Linear], [LAYER, None], "[1]", "value: list[dx.Linear | None] = ...        # to allow both"),
    (dict[str, dx.Linear], {"a": 3}, "['a']", "value: dict[str, dx.Linear | int] = ...        # to allow both"),
    (dx.Param[jax.Array], dx.BatchStat(1.0), "", "value=dx.Param(...)"),
    (dx.Param[jax.Array] | None, jnp.ones(3), "", "value=dx.Param(...)"),
    (dx.Param, "a", "", "value: dx.Param | str = ...        # to allow both"),
    (L, 3, "", "value: ~L | int = ...        # to allow both"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "path", "fix"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_a_value_of_the_wrong_type(annotation, value, path, fix):
    model = declared(annotation)
    with pytest.raises((LayerError, ConstructionError), match=r"(has the wrong type|is of the wrong class)") as caught:
        model(value)
    assert caught.value.where == f"Model.value{path}"
    assert caught.value.fix.splitlines()[0] == fix
    assert caught.value.expected
    assert caught.value.got


def test_the_whole_text():
    with pytest.raises(LayerError) as caught:
        declared(int)(3.0)
    assert str(caught.value) == (
        "Model.value: this value has the wrong type. [layer]\n"
        "  expected: int\n"
        "  got:      float 3.0\n"
        "  fix:      value=3"
    )


def test_init_vars_and_computed_values_are_checked():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        scale: dx.InitVar[float] = dx.field(default=1.0)
        hidden: int = 4 * dim
        wide: int = dx.field(default=2)

    assert Model(3, 2, np.int32(3)).hidden == 3
    for wrong in ({"scale": "a"}, {"hidden": "8"}, {"hidden": 8.5}, {"wide": "8"}):
        with pytest.raises(LayerError, match=f"Model.{next(iter(wrong))}: this value has the wrong type"):
            Model(3, **wrong)


def test_names_that_the_generated_function_uses_itself():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field(ge=-math.inf, le=np.float64(8))
        value: dx.InitVar[int] = dx.field(default=1)
        get: dx.InitVar[int] = dx.field(default=2)
        abs: dx.InitVar[float] = dx.field(default=3)
        check_dim: dx.InitVar[str] = dx.field(default="a")

    assert Model(3, 4, 5, 6.0, "b").dim == 3
    for name, wrong in {"dim": "3", "value": "3", "get": "3", "abs": "3", "check_dim": 3}.items():
        with pytest.raises(LayerError, match=f"Model.{name}: this value has the wrong type"):
            Model(**{"dim": 3, name: wrong})
    with pytest.raises(LayerError, match="this value is out of bounds"):
        Model(9)


def test_a_class_that_was_used_can_be_pickled_by_value():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field(ge=1)
        sizes: list[int] = dx.field(default_factory=list)
        name: Literal["a", "b"] = dx.field(default="a")

    Model(3, [1], "b")
    copy = cloudpickle.loads(cloudpickle.dumps(Model))
    assert copy(3, [1]).sizes == [1]
    with pytest.raises(LayerError, match=r"Model.sizes\[0\]: this value has the wrong type"):
        copy(3, ["a"])


def test_iterators_are_not_used_up():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        items: dx.InitVar[Iterator[int]] = dx.field()
        more: dx.InitVar[Iterable[int]] = dx.field()

        def __post_init__(self, items: Iterator[int], more: Iterable[int]) -> None:
            self.dim += sum(items) + sum(more)

    assert Model(1, iter([2, 3]), iter([4])).dim == 10
    with pytest.raises(LayerError, match=r"Model.items: this value has the wrong type"):
        Model(1, [2], [3])


def test_bounds_and_types_are_one_check():
    model = declared(int | None, ge=1, le=8, default=None)
    assert [model(value).value for value in (None, 1, 8, np.int64(3))] == [None, 1, 8, 3]
    for wrong in ("3", 3.0, True):
        with pytest.raises(LayerError, match="this value has the wrong type") as caught:
            model(wrong)
        assert caught.value.expected == "an integer from 1 to 8"
    for wrong in (0, 9, np.int64(9)):
        with pytest.raises(LayerError, match="this value is out of bounds"):
            model(wrong)


def test_type_variables_that_a_subclass_binds():
    @dx.dataclass
    class Box(dx.Module, Generic[T]):
        item: T = dx.field()

    @dx.dataclass
    class Numbers(Box[int]):
        pass

    assert (Box("a").item, Numbers(3).item) == ("a", 3)
    with pytest.raises(LayerError, match=r"Numbers.item: this value has the wrong type"):
        Numbers("a")


# --- what must not be refused ------------------------------------------------------------

RIGHT: list[tuple[Any, list[Any]]] = [
    (int, [np.int64(3), np.uint8(3), True, None]),
    (float, [3, True, np.float32(3), np.int64(3), None]),
    (complex, [3, 0.5, 1j, np.complex64(1), np.float64(1)]),
    (bool, [np.bool_(True), 0, 1]),
    (str, [np.str_("a"), "b"]),
    (tuple[int, ...], [[1], (), range(3), (np.int64(1),)]),
    (list[int], [(1,), [np.int64(1)]]),
    (list[dx.Linear], [(LAYER,), dx.List([LAYER]), []]),
    (dict[str, dx.Linear], [dx.Dict(a=LAYER), {"a": LAYER}]),
    (Sequence[int], [(1,), [1], range(2)]),
    (Sequence[str], ["abc", ["a"]]),
    (Iterable[int], [{1}, {1: 2}, (1,), [1]]),
    (tuple[int, str], [[1, "a"], (1, "a")]),
    (tuple, [[1], ("a",)]),
    (list, [[1], ("a",)]),
    (dict[str, int], [{"a": 1}, types.MappingProxyType({"a": 1}), {}]),
    (Mapping[str, Any], [{"a": object()}, dx.Dict(a=1)]),
    (set[int], [{1}, frozenset({1})]),
    (Literal["a", 1], ["a", 1, np.str_("a"), None]),
    (Callable[..., Any], [jnp.tanh, jax.jit(jnp.tanh), functools.partial(jnp.sum, axis=0), dx.Linear, len, None]),
    (type[dx.Module], [dx.Linear, functools.partial(dx.Linear, 3)]),
    (type[dx.Linear | dx.Conv], [dx.Linear, dx.Conv, linear]),
    (type[float], [float, int, np.float32]),
    (type, [int, dx.Linear]),
    (type[T], [int, dx.Linear]),
    (Sequence[T], ["abc"]),
    (Sequence[Any], ["abc"]),
    (Sequence[str | int], ["abc"]),
    (Sequence[Literal["a", "b"]], ["ab"]),
    (Sequence[int], [b"abc"]),
    (Named, [Applied(), LAYER, None]),
    (SupportsIndex, [3, np.int8(3)]),
    (Mixer, [jnp.tanh, LAYER, "anything", 3]),
    (Initializer, [dx.initializers.ones, "anything"]),
    (Dtype, ["float32", jnp.float32, np.dtype("int8"), float, None]),
    (jax.typing.DTypeLike, ["float32", jnp.float32, np.dtype("int8"), float]),
    (Any, [3, "a", [1]]),
    (object, [3, "a"]),
    (T, [3, "a"]),
    (list[T], [[1, "a"]]),
    (dx.Module, [LAYER, dx.Sequential(), None]),
    (dx.Linear | Callable[..., Any], [LAYER, jnp.tanh]),
    (dx.List[dx.Linear], [[LAYER], dx.List([LAYER])]),
    (dx.Rngs, [dx.Rngs(0)]),
    (dx.Param[jax.Array], [dx.Param(jnp.ones(2)), None, 0]),
    (dx.Variable[Any], [dx.Param(1.0), dx.BatchStat(1.0)]),
    ("Nowhere", [3, "a"]),
    ("list[Nowhere]", [[3], ["a"]]),
    ("1 +", [3, "a"]),
    (jax.Array, [jnp.ones(2), np.ones(2), 3.0, None]),
    (jax.Array | float, [jnp.ones(2), 0.5]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "values"), RIGHT, ids=[str(row[0]) for row in RIGHT])
def test_what_is_accepted(annotation, values):
    model = declared(annotation)
    for value in values:
        assert model(value).value is value


def test_a_bound_that_an_array_or_a_name_of_the_user_has():
    """jaxtyping binds the names of axes when it is asked, so it is not."""

    @dx.dataclass
    class Model(dx.Module):
        x: Float[jax.Array, "batch dim"] = dx.field()  # the text of a shape
        y: Float[jax.Array, "batch dim"] = dx.field()  # as above

    @jaxtyping.jaxtyped(typechecker=None)
    def shapes() -> tuple[int, ...]:
        model = Model(jnp.ones((2, 3)), jnp.ones((4, 5)))
        assert isinstance(jnp.ones((7, 8)), Float[jax.Array, "batch dim"])  # nothing has bound the names
        return model.y.shape

    assert shapes() == (4, 5)


def test_defaults_are_not_checked():
    assert declared(int, default="three")().value == "three"
    assert declared(int, default="three")("three").value == "three"
    assert declared(int, default_factory=lambda: "three")().value == "three"
    with pytest.raises(LayerError, match="this value has the wrong type"):
        declared(int, default="three")(3.5)
    with pytest.raises(ConstructionError, match="is of the wrong class"):
        declared(list[dx.Linear], default_factory=list)([3])

    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        half: int = dim / 2

    assert Model(3).half == 1.5


def test_data_fields_are_not_checked():
    @dx.dataclass
    class Model(dx.Module):
        count: int = dx.data()
        rate: dx.Data[float] = dx.field()

    model = Model(jnp.ones(3), jnp.ones(2))
    assert Model("a", "b").count == "a"
    assert jax.tree.map(lambda leaf: leaf + 1, model).count.shape == (3,)


def test_what_stands_for_other_values():
    model, part = declared(dx.Linear), declared(dx.Param[jax.Array])
    mesh = jax.make_mesh((1,), ("x",))
    shape = jax.ShapeDtypeStruct((3,), "float32")
    sharding = jax.NamedSharding(mesh, jax.P("x"))
    for stand_in in (shape, sharding, jax.P("x"), jax.new_ref(jnp.ones(3))):
        assert part(stand_in).value is stand_in
    assert model(jax.P("x")).value == jax.P("x")
    spec = dx.spec(dx.Linear, 1, 2)
    assert model(spec).value is spec
    assert dx.spec(model, spec).build(rngs=dx.Rngs(0)).value.out_features == 2

    @jax.jit
    def traced(x: jax.Array) -> jax.Array:
        return part(x).value * 2

    assert traced(jnp.ones(3)).shape == (3,)
    assert jax.eval_shape(lambda: declared(dx.Linear)(linear())).value.in_features == 1


@dx.dataclass
class Pair(dx.Layer):
    scale: jax.Array = dx.field()
    layer: dx.Linear = dx.field()
    part: dx.Linear = dx.Linear(2, 1)


def pair() -> Pair:
    return Pair(jnp.ones(2), linear(), linear())


@pytest.mark.parametrize("label", [True, False, 0, 1])
def test_labels_in_place_of_parts(label):
    """An int for a part may be a slip of positions, so the constructor refuses labels and names the way."""
    for make in (
        lambda: Pair(label, label),
        lambda: Pair(label, linear(), label),
        lambda: dx.replace(pair(), layer=label),
    ):
        with pytest.raises(ConstructionError, match="the given part is of the wrong class") as caught:
            make()
        line = f"dx.prefix(model, {{...: {label}}})        # for a tree of labels or axes"
        assert caught.value.fix.splitlines()[1] == line


def test_trees_of_labels_and_axes():
    model = pair()
    is_part = functools.partial(lambda cls, leaf: isinstance(leaf, cls), dx.Linear)
    labels = dx.prefix(model, {...: True})
    parts = jax.tree.map(lambda leaf: 0, model, is_leaf=is_part)
    copied = dx.clone(model)
    copied.layer, copied.part = 0, None
    assert jax.tree.leaves(labels) == [True] * 5
    assert (parts.scale, parts.layer, parts.part) == (0, 0, 0)
    assert (copied.layer, copied.part) == (0, None)
    assert jax.tree.map(lambda leaf: leaf, parts).layer == 0
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), model)
    for given in (parts, dx.prefix(model, {...: 0})):
        made = dx.vmap(lambda model: model.layer(jnp.ones(1)), in_axes=(given,))(stacked)
        assert made.shape == (2, 2)
    assert Pair(0, None, rngs=dx.Rngs(0)).layer is None
    assert Pair(jax.P("x"), jax.P("x"), jax.P()).part == jax.P()

    @dx.dataclass
    class Plain(dx.Module):
        scale: jax.Array
        layer: dx.Linear

    assert (Plain(0, 1).layer, Plain(True, "frozen").layer) == (1, "frozen")  # as permissive as the peer


def test_classes_that_answer_isinstance_themselves():
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise AssertionError("asked")

    class Odd(metaclass=Meta):
        pass

    assert declared(Odd)(3).value == 3
    assert declared(Odd | int)("a").value == "a"


def test_symbolic_sizes():
    (size,) = jax.export.symbolic_shape("b")
    assert declared(int)(size).value is size
    assert declared(int, ge=1)(size).value is size


def test_plain_dataclasses_and_the_open_style_are_as_permissive_as_the_peer():
    @dx.dataclass
    class Plain(dx.Module):
        dim: int
        rngs: dx.InitVar[dx.Rngs | None] = None

    @dataclasses.dataclass
    class Standard(dx.Module):
        dim: int

    class Open(dx.Module):
        dim: int

        def __init__(self, dim: Any) -> None:
            self.dim = dim

    assert [cls("3").dim for cls in (Plain, Standard, Open)] == ["3", "3", "3"]


def test_undecorated_subclasses_are_as_permissive_as_the_peer():
    Base = declared(int)

    class Sub(Base):
        def __init__(self, value: Any) -> None:
            super().__init__(value)

    assert Sub("3").value == "3"

    @dx.dataclass
    class Declared(Base):
        more: int = 3

    with pytest.raises(LayerError, match=r"Declared.value: this value has the wrong type"):
        Declared("3")
    with pytest.raises(LayerError, match=r"Declared.more: this value has the wrong type"):
        Declared(3, "3")


def test_layers_of_the_library_take_what_those_of_the_peer_do():
    keys = dx.Rngs(0)
    dx.Linear(np.int64(2), np.int32(3), use_bias=1, rngs=keys)
    dx.Conv(np.int64(1), 2, [3, np.int64(3)], padding="SAME", strides=(1, 1), rngs=keys)
    dx.BatchNorm(2, use_running_average=None, rngs=keys)
    dx.LayerNorm(np.int64(2), epsilon=np.float32(1e-6), rngs=keys)
    dx.Linear(2, 3, dtype="bfloat16", precision="highest", rngs=keys)
    dx.Linear(2, 3, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32, rngs=keys)


def test_surgery_is_kept_by_replace():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        part: dx.Linear = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up: dx.Linear = dx.Linear(dim, 3, rngs=rngs)

    model = Model(1, LAYER, rngs=dx.Rngs(0))
    model.part = model.up = dx.Sequential(LAYER)
    replaced = dx.replace(model, dim=2, rngs=dx.Rngs(0))
    assert type(replaced.part) is type(replaced.up) is dx.Sequential
    with pytest.raises(ConstructionError, match=r"Model.part: the given part is of the wrong class"):
        dx.replace(model, part=3, rngs=dx.Rngs(0))
    with pytest.raises(ConstructionError, match=r"Model.part: the given part is of the wrong class"):
        Model(1, dx.Sequential(), rngs=dx.Rngs(0))


def test_none_for_a_bounded_number_is_still_refused():
    with pytest.raises(LayerError, match="this value has the wrong type"):
        declared(int, ge=1)(None)
    with pytest.raises(FieldError):
        declared(int, ge=1, init=False)
