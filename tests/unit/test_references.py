"""Names in a class body that stand for another name, or for the items of a literal."""

import jax
import pytest

import declax as dx
from declax.errors import ExpressionError, FieldError


def shape(layer):
    return (layer.in_features, layer.out_features)


def keys():
    return dx.Rngs(0)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_field_whose_default_is_another_field(is_frozen):
    @dx.dataclass(frozen=is_frozen)
    class Layer(dx.Module):
        a: int = dx.field()
        b: int = a
        c: dx.Static[int] = b
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        lin: dx.Linear = dx.Linear(a, b, rngs=rngs)
        out: dx.Linear = dx.Linear(b, c, rngs=rngs)

    made = Layer(3, rngs=keys())
    assert (made.b, made.c, shape(made.lin), shape(made.out)) == (3, 3, (3, 3), (3, 3))
    made = Layer(3, 5, rngs=keys())
    assert (made.b, made.c, shape(made.lin), shape(made.out)) == (5, 5, (3, 5), (5, 5))
    assert shape(Layer(3, c=5, rngs=keys()).out) == (3, 5)
    assert shape(dx.replace(made, b=7, rngs=keys()).lin) == (3, 7)
    assert shape(dx.spec(Layer, 3, 4).build(rngs=keys()).lin) == (3, 4)
    assert shape(dx.from_config(Layer, {"a": 3, "b": 4}, rngs=keys()).lin) == (3, 4)
    spec = dx.spec_of(made)
    assert spec == dx.spec(Layer, 3, 5)
    assert (spec["lin"]["out_features"], dx.spec(Layer, 3)["lin"]["out_features"]) == (5, 3)


def test_subclasses_give_a_name_another_value():
    @dx.dataclass
    class Base(dx.Module):
        a: int = dx.field()
        b = a
        c: int = dx.field(default=9)
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        lin: dx.Linear = dx.Linear(b, c, rngs=rngs)

    @dx.dataclass
    class Wide(Base):
        b = 2 * Base.a
        c: int = Base.a
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        d: int = c
        out: dx.Linear = dx.Linear(c, d, rngs=rngs)

    assert shape(Base(3, rngs=keys()).lin) == (3, 9)
    made = Wide(3, rngs=keys())
    assert (shape(made.lin), shape(made.out)) == ((6, 3), (3, 3))
    made = Wide(3, 4, d=5, rngs=keys())
    assert (shape(made.lin), shape(made.out)) == ((6, 4), (4, 5))


def test_a_class_without_a_class_body():
    @dx.dataclass
    class Base(dx.Module):
        a: int = dx.field()

    names = {"__annotations__": {"b": int}, "b": Base.a, "__module__": __name__}
    made = dx.dataclass(type("Made", (Base,), names))

    @dx.dataclass
    class Last(made):
        double = 2 * made.b

    assert (Last(2).double, Last(2, 5).double) == (4, 10)


def test_a_part_under_a_second_name_is_given():
    @dx.dataclass
    class Pair(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up: dx.Linear = dx.Linear(dim, dim, rngs=rngs)
        down: dx.Linear = up
        features = down.out_features
        chain = dx.Sequential(up, down)

    given = dx.Linear(3, 4, rngs=keys())
    made = Pair(3, rngs=keys())
    assert list(made.chain.layers) == [made.up, made.up]
    made = Pair(3, up=given, rngs=keys())
    assert (made.down, list(made.chain.layers)) == (given, [given, given])
    made = Pair(3, down=given, rngs=keys())
    assert (made.features, list(made.chain.layers)) == (4, [made.up, given])
    assert made.up is not given


def test_a_second_name_of_a_part_is_not_repeated():
    with pytest.raises(FieldError, match=r"repeat: the repeated value is the part again[\s\S]*dx\.Linear\(dim, dim"):

        @dx.dataclass
        class Tower(dx.Module):
            dim: int = dx.field()
            _: dx.KW_ONLY
            rngs: dx.InitVar[dx.Rngs] = dx.field()
            up = dx.Linear(dim, dim, rngs=rngs)
            again = up
            layers = dx.repeat(3, again)


def test_a_second_name_of_a_variable():
    @dx.dataclass
    class Tied(dx.Module):
        n: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        kernel: dx.Param[jax.Array] = dx.variable((n,), initializer=dx.initializers.ones)
        tied: dx.Param[jax.Array] = kernel
        table = {"kernel": kernel, "n": n}

    made = Tied(2, rngs=keys())
    assert made.kernel is made.tied is made.table["kernel"]
    assert len(jax.tree.leaves(dx.state(made))) == 1


def test_items_of_a_literal_are_those_of_the_instance():
    @dx.dataclass
    class Sizes(dx.Module):
        dim: int = dx.field()
        sizes: tuple[int, ...] = (3, dim)
        options: dict[str, int] = {"a": 4, "b": dim}
        first = sizes[0]
        last = sizes[-1]
        both = (options["a"], options["b"])
        other: tuple[int, ...] = sizes
        third: tuple[int, ...] = dx.field(default=sizes, help="a reference")
        ends = (other[0], third[1])

    made = Sizes(5)
    assert (made.first, made.last, made.both, made.ends) == (3, 5, (4, 5), (3, 5))
    made = Sizes(5, sizes=(7, 8), options={"a": 1, "b": 2})
    assert (made.first, made.last, made.both, made.ends) == (7, 8, (1, 2), (7, 8))
    made = Sizes(5, other=(7, 8))
    assert (made.first, made.last, made.ends) == (3, 5, (7, 5))
    assert Sizes(5, third=(7, 8)).ends == (3, 8)


def test_parts_in_literals_are_those_of_the_instance():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        one: dx.Linear = dx.Linear(dim, dim, rngs=rngs)
        layers: list[dx.Linear] = [one, dx.Linear(dim, dim, rngs=rngs)]
        last: dx.Linear = dx.field(default=layers[1], help="the second")
        again: list[dx.Linear] = layers
        nested = {"layers": layers, "act": dx.relu}
        chain = dx.Sequential(layers[0], layers[1], last, again[0], nested["act"])

    given = dx.Linear(3, 3, rngs=keys())
    made = Model(3, rngs=keys())
    assert made.layers is made.again is made.nested["layers"]
    assert list(made.chain.layers) == [made.one, made.layers[1], made.last, made.one, dx.relu]
    assert made.last is made.layers[1]
    made = Model(3, layers=[given, given], rngs=keys())
    assert list(made.chain.layers) == [given] * 4 + [dx.relu]
    made = Model(3, last=given, rngs=keys())
    assert list(made.chain.layers) == [made.one, made.layers[1], given, made.one, dx.relu]
    assert dx.spec(Model, 3).build(rngs=keys()).nested["act"] is dx.relu


def test_unpacking_a_second_name_of_a_list():
    with pytest.raises(ExpressionError, match="iteration or unpacking"):

        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field()
            sizes = [dim, 2]
            again = sizes
            both = dx.defer(max)(*again)


def test_another_length_of_a_literal_whose_items_are_read():
    @dx.dataclass
    class Sizes(dx.Module):
        dim: int = dx.field()
        sizes: tuple[int, ...] = (dim, 2 * dim)
        options: dict[str, int] = {"a": dim}
        last: int = sizes[-1]
        most = dx.defer(max)(sizes)
        a = options["a"]

    assert (Sizes(3).last, Sizes(3).most, Sizes(3).a) == (6, 6, 3)
    made = Sizes(1, (5, 4, 6), options={"a": 2, "b": 3})
    assert (made.last, made.most, made.a) == (6, 6, 2)
