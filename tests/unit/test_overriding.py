"""Subclasses: the MRO decides on fields, parts and methods, and an override keeps the argument that it overrides."""

import inspect
from typing import Generic, Protocol, TypeVar

import jax
import pytest

import declax as dx
from declax import errors

T = TypeVar("T")


class Mixer(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


@dx.dataclass
class Base(dx.Module):
    dim: int = dx.field(ge=1)
    _: dx.KW_ONLY
    size: int = dx.field(default=1)
    plain: int = 1
    scale_init: dx.InitVar[dx.initializers.Initializer] = dx.field(default=dx.initializers.ones)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, size, rngs=rngs)
    mixer: Mixer = dx.field(default=dx.Linear(dim, size, rngs=rngs), help="mixes")
    twice = 2 * size
    scale: dx.Param[jax.Array] = dx.variable((size,), initializer=scale_init)

    @dx.submodule
    def names(self):
        return ["Base"]


@dx.dataclass
class Left(Base):
    left: int = dx.field(default=0)

    @dx.submodule
    def names(self):
        return ["Left"]


@dx.dataclass
class Right(Base):
    _: dx.KW_ONLY
    size: int = dx.field(default=2)
    plain: int = 2
    scale_init: dx.InitVar[dx.initializers.Initializer] = dx.field(default=dx.initializers.zeros)
    up = dx.Sequential(Base.up, dx.relu)
    mixer: Mixer = dx.Sequential(Base.mixer)
    twice = 20 * size

    @dx.submodule
    def names(self, rngs: dx.Rngs):
        return ["Right"]


@dx.dataclass
class Both(Left, Right):
    pass


@dx.dataclass
class Last(Both):
    more = 3 * Both.twice


def keys():
    return dx.Rngs(0)


@pytest.mark.parametrize("cls", [Both, Last])
def test_a_field_that_two_bases_share_is_that_of_the_mro(cls):
    both = cls(3, rngs=keys())
    assert (both.size, both.plain, both.twice, float(both.scale[0])) == (2, 2, 40, 0.0)
    assert type(both.up) is type(both.mixer) is dx.Sequential
    assert both.names == ["Left"]
    assert cls(3, size=4, left=1, mixer=dx.relu, rngs=keys()).twice == 80
    assert list(inspect.signature(cls).parameters) == [*("dim", "left", "size", "plain", "scale_init", "rngs", "mixer")]
    with pytest.raises(AttributeError, match="scale_init is an InitVar: only the constructor"):
        both.scale_init  # it raises
    assert cls.size is Right.size
    with pytest.raises(errors.LayerError, match=r"dim: this value is out of bounds"):
        cls(0, rngs=keys())


def test_copies_and_specs_of_several_bases():
    last = Last(3, rngs=keys())
    assert last.more == 120
    assert dx.spec_of(last) == dx.spec(Last, 3)
    assert dx.replace(last, size=5, rngs=keys()).more == 300


def test_two_bases_without_a_decorator():
    class Plain(Left, Right):
        pass

    with pytest.raises(errors.FieldError, match=r"Plain\.size: the declarations of a class require the decorator") as e:
        Plain(3, rngs=keys())
    assert e.value.fix == "@dx.dataclass"

    class Mixed(Left, Generic[T]):
        pass

    assert Mixed(3, rngs=keys()).size == 1


@dx.dataclass
class Rectified(Base):
    mixer = dx.Sequential(Base.mixer, dx.relu)


@dx.dataclass
class Made(Base):
    @dx.submodule
    def mixer(self) -> dx.Sequential:
        return dx.Sequential(lambda x: self.size * x)


@pytest.mark.parametrize("cls", [Rectified, Made])
def test_an_override_without_an_annotation_keeps_the_argument(cls):
    assert type(cls(3, rngs=keys()).mixer) is dx.Sequential
    given = dx.Linear(3, 3, rngs=keys())
    model = cls(3, mixer=given, rngs=keys())
    assert model.mixer is given
    assert dx.replace(model, size=2, rngs=keys()).mixer is given
    assert dx.spec_of(model).arguments["mixer"] == dx.spec(dx.Linear, 3, 3)
    assert dx.spec_of(cls(3, rngs=keys())) == dx.spec(cls, 3)
    assert inspect.signature(cls).parameters["mixer"].kind is inspect.Parameter.KEYWORD_ONLY
    assert cls.__dataclass_fields__["mixer"].metadata["declax"].notes["help"] == "mixes"
    with pytest.raises(errors.ConstructionError, match=r"mixer: the given part is of the wrong class"):
        cls(3, mixer="a", rngs=keys())


def test_an_override_of_an_internal_part_stays_internal():
    @dx.dataclass
    class Sub(Base):
        up = dx.Sequential(Base.up)

    assert "up" not in inspect.signature(Sub).parameters


def test_an_annotation_without_a_value_keeps_the_expression():
    @dx.dataclass
    class Sub(Right):
        size: int

    @dx.dataclass
    class Last(Sub):
        more = 10 * Sub.size

    assert (Last(3, rngs=keys()).more, Last(3, size=4, rngs=keys()).more) == (20, 40)


def test_an_override_that_reads_a_later_part():
    with pytest.raises(errors.FieldError, match=r"Sub\.up: this part reads 'twice', which is made later") as caught:

        @dx.dataclass
        class Sub(Base):
            up = dx.Sequential(dx.defer(lambda n: dx.Dropout(n / 10))(Base.twice))

    line = "up_2 = dx.Sequential(dx.defer(<lambda>)(Base.twice))"
    assert caught.value.fix == f"{line}        # made after the parts of the bases"

    with pytest.raises(errors.FieldError, match="made later") as caught:

        @dx.dataclass
        class Wide(Base):
            mixer: Mixer = dx.Dropout(Base.twice)

    assert caught.value.fix.startswith("mixer_2: Mixer = dx.Dropout(Base.twice)        # made after")


def test_a_base_that_was_defined_again():
    def define():
        @dx.dataclass
        class Cell(dx.Module):
            dim: int = dx.field()

        return Cell

    Old, New = define(), define()
    with pytest.raises(errors.FieldError, match=r"not a base(.*\n)*.*was defined again since"):

        @dx.dataclass
        class Sub(Old):
            wide = 2 * New.dim


def test_the_text_of_an_expression_names_the_base():
    @dx.dataclass
    class Sub(Left):
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
        gate = dx.Linear(Left.dim, 2 * Left.size, rngs=rngs)

    assert repr(Sub.gate) == "dx.Linear(Base.dim, 2 * Base.size, rngs=rngs)"
    sub = Sub(2, rngs=dx.Rngs(0))
    sub.gate = dx.Linear(2, 3, rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError) as caught:
        dx.replace(sub, rngs=dx.Rngs(0))
    assert "gate: ... = dx.Linear(Base.dim, 2 * Base.size, rngs=rngs)" in str(caught.value)


# --- classes that are made in an unusual way or order -----------------------------------------


def test_a_base_that_is_decorated_after_its_subclass():
    class Late(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 4)

    class Sub(Late):
        def __post_init__(self):
            self.size = self.up.out_features

    dx.dataclass(Late)
    assert Sub(3, rngs=dx.Rngs(0)).size == 4
    assert repr(Sub.dim) == "dim"


def test_an_undecorated_subclass_before_the_base_is_decorated():
    class Late(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 4)

    class Sub(Late):
        pass

    with pytest.raises(errors.FieldError, match="require the decorator"):
        Sub(3, rngs=dx.Rngs(0))


def test_a_class_with_the_entries_of_a_declared_one():
    names = {name: value for name, value in vars(Base).items() if name not in ("__dict__", "__weakref__")}
    copied = type(Base)("Copied", (dx.Module,), names)
    made, plain = copied(3, rngs=dx.Rngs(0)), Base(3, rngs=dx.Rngs(0))
    assert (type(made), type(plain), made.up.in_features) == (copied, Base, 3)
    assert len(jax.tree.leaves(made)) == len(jax.tree.leaves(plain)) > 2


def test_the_nearest_post_init_of_several_bases_makes_the_parts():
    calls = []

    @dx.dataclass
    class First(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 2)

        def __post_init__(self):
            calls.append("First")

    class Plain(First):
        pass

    @dx.dataclass
    class Second(First):
        down = dx.Linear(First.dim, 3)

        def __post_init__(self):
            calls.append("Second")

    class Both(Plain, Second):
        pass

    made = Both(3, rngs=dx.Rngs(0))
    assert (made.up.out_features, made.down.out_features, calls) == (2, 3, ["Second"])


@pytest.mark.parametrize("name", ["sow", "set_attributes"])
def test_a_field_that_hides_a_method_of_a_further_base(name):
    class Mixin(dx.Pytree):
        pass

    with pytest.raises(errors.FieldError, match="hides a method of its base class"):
        dx.dataclass(type("Model", (Mixin, dx.Module), {"__annotations__": {name: int}}))
