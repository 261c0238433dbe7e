"""Errors of class bodies that name the class, the field and the line to write."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors


@dx.dataclass
class Base(dx.Module):
    dim: int = dx.field()
    size: int
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, dim, rngs=rngs)


def test_the_expression_of_a_field_without_a_specifier():
    with pytest.raises(AttributeError, match=r"'Base' has no attribute 'size': .*`size: \.\.\. = dx\.field\(\)`"):
        _ = Base.size
    with pytest.raises(AttributeError, match=r"has no attribute 'other'$"):
        _ = Base.other


def test_a_method_that_draws_no_keys():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()

        @dx.submodule
        def act(self) -> dx.Sequential:
            return dx.Sequential(dx.Dropout(self.dim / 10))

    assert Model(3).act.layers[0].rate == 0.3
    assert "self.act = act(self)" in dx.source_of(Model)


def test_a_method_gets_rngs_by_this_name_only():
    @dx.dataclass
    class Model(dx.Module):
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()

        @dx.submodule
        def size(self, size: int = 3) -> int:
            return size

        @dx.submodule
        def act(self, rngs: dx.Rngs, size: int = 3) -> dx.Linear:
            return dx.Linear(2, size, rngs=rngs)

    made = Model(rngs=dx.Rngs(0))
    assert (made.size, made.act.out_features) == (3, 3)


@pytest.mark.parametrize("option", [{"check": bool}, {"ge": 1}, {"le": 1}])
@pytest.mark.parametrize("specifier", [dx.field, dx.data, dx.static])
def test_bounds_and_checks_of_a_field_that_is_no_argument(specifier, option):
    with pytest.raises(errors.FieldError, match="ge, le, multiple_of and check test an argument of the constructor"):
        specifier(init=False, **option)


def test_a_method_that_takes_rngs_in_a_class_without_them():
    with pytest.raises(
        errors.FieldError, match=r"Model\.act: this method takes rngs, and the class has none"
    ) as caught:

        @dx.dataclass
        class Model(dx.Module):
            @dx.submodule
            def act(self, rngs: dx.Rngs) -> dx.Linear:
                return dx.Linear(2, 2, rngs=rngs)

    assert caught.value.fix.startswith("class Model(dx.Layer): ...        # in place of dx.Module")


def test_a_part_that_reads_a_field_which_the_constructor_does_not_set():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field(init=False)
        twice = 2 * dim

    with pytest.raises(AttributeError, match="dim"):
        Model()

    @dx.dataclass
    class Fixed(dx.Module):
        dim: int = dx.field(init=False, default=3)
        twice = 2 * dim

    assert Fixed().twice == 6


def test_an_internal_part_that_is_given():
    with pytest.raises(errors.ConstructionError, match=r"no parameter 'up'.*(\n.*)+fix:      up: \.\.\. = \.\.\."):
        Base(3, 4, up=None, rngs=dx.Rngs(0))
    base = Base(3, 4, rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError, match="replace got no field's name") as caught:
        dx.replace(base, upp=None)
    assert "did you mean" not in str(caught.value)
    with pytest.raises(errors.FieldError, match="replace takes an instance of a dataclass"):
        dx.replace(Base, dim=3)


def test_a_plain_value_that_hides_a_field():
    with pytest.raises(
        errors.FieldError, match=r"Narrow\.dim: this value hides(.*\n)*.*dim: \.\.\. = dx\.field\(default"
    ):

        class Narrow(Base):
            dim = 7


@pytest.mark.parametrize("decorator", [property, functools.cached_property, lambda method: method])
def test_a_read_only_property_that_hides_a_part(decorator):
    with pytest.raises(errors.FieldError, match=r"Narrow\.up: this value hides a field or part of a base") as caught:

        class Narrow(Base):
            @decorator
            def up(self): ...

    assert "under @dx.submodule" in caught.value.fix


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("part = dx.repeat(size, dx.Sequential())", "dx.repeat(size, dx.defer(dx.Sequential)(...))"),
        ("part: list[int] = dx.field(default=[1])", "part: list[int] = dx.field(default_factory=lambda: [1])"),
    ],
)
def test_the_line_in_place_of_what_needs_a_value(line, fix):
    with pytest.raises(errors.DeclaxError) as caught:
        exec(f"@dx.dataclass\nclass Model(dx.Module):\n    size: int = dx.field()\n    {line}", {"dx": dx})
    assert caught.value.fix == fix


def test_a_property_with_a_setter_over_a_field():
    @dx.dataclass
    class Narrow(Base):
        @property
        def dim(self):
            return 3

        @dim.setter
        def dim(self, value): ...

    assert Narrow(9, 4, rngs=dx.Rngs(0)).up.out_features == 3


def test_the_notes_of_variables_and_methods():
    def fail(key, shape, dtype):
        raise ValueError("no")

    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        scale: dx.Param[jax.Array] = dx.variable((dim, 2), initializer=fail, stream=None)

    with pytest.raises(ValueError, match="no") as caught:
        Model(3)
    assert caught.value.__notes__ == ["while Model.scale was made: dx.variable((3, 2), initializer=fail)"]


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("text = f'{dim}'", 'dx.defer("{}".format)(dim)'),
        ("text = f'{dim:.2f}'", 'dx.defer("{:.2f}".format)(dim)'),
        ("flag = not dim", "dx.defer(operator.not_)(dim)"),
        ("flag = not (dim == 3)", "dx.defer(operator.not_)(dim == 3)"),
        ("flag = 3 if dim else 4", "dx.when(dim, part, other)"),
        ("flag = dim in (1, 2)", "dx.defer(operator.contains)(values, dim)"),
        ("a, b = dim", "first, second = dim[0], dim[1]"),
        ("flag = 3 in dim", "dx.defer(operator.contains)(dim, 3)"),
        ("part = (1, 2)[dim]", "dx.defer(operator.getitem)(values, dim)"),
        ("text = 'block%d' % dim", "dx.defer(int)(dim)"),
        ("text = '%s' % dim", 'dx.defer("{}".format)(dim)'),
        ("parts = dx.Sequential(*dx.repeat(dim, dx.Linear(dim, dim)))", "dx.Sequential(dx.repeat("),
    ],
)
def test_fixes_of_formatting_and_unpacking(line, fix):
    scope = {"dx": dx, "__name__": __name__}
    with pytest.raises(errors.ExpressionError) as caught:
        exec(f"class Model(dx.Module):\n    dim: int = dx.field()\n    {line}", scope)
    assert fix in str(caught.value).partition("fix:")[2]


def test_a_sequential_takes_a_list():
    @dx.dataclass
    class Fixed(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        parts = dx.Sequential(dx.repeat(dim, dx.Linear(dim, dim, rngs=rngs)))

    assert len(Fixed(2, rngs=dx.Rngs(0)).parts.layers) == 2


def test_the_fix_of_a_shared_variable():
    with pytest.raises(errors.FieldError, match=r"w: dx\.Param\[jax\.Array\] = dx\.variable\(\(3,\), ini"):

        @dx.dataclass
        class Model(dx.Module):
            w = dx.Param(jnp.ones(3))


def test_a_subclass_without_a_decorator_is_given_its_field():
    class Sub(Base):
        wide: int = 3

    with pytest.raises(
        errors.FieldError, match=r"Sub\.wide: the declarations of a class require the decorator of declax"
    ):
        Sub(2, 3, wide=4, rngs=dx.Rngs(0))


@pytest.mark.parametrize("wrong", [3, dx.Sequential()])
def test_the_fix_of_a_part_of_the_wrong_class(wrong):
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        up: dx.Dropout = dx.Dropout(dim / 10)

    fix = (
        "leave up out, or give it dx.Dropout"
        if wrong == 3
        else "up: dx.Dropout | dx.Sequential = ...        # to allow both"
    )
    with pytest.raises(errors.ConstructionError) as caught:
        Model(3, up=wrong)
    assert fix in str(caught.value)


def test_a_transform_over_an_object_whose_parts_are_not_all_made():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
        up = dx.Linear(dim, dim, rngs=rngs)
        stack = dx.Stacked(dx.Linear(dim, dim, rngs=rngs), 3)
        out: dx.Linear = up
        names = dx.defer(sorted)(["b", "a"])  # its status is known by the value only, so that the layout is open

    model = Model(2, rngs=dx.Rngs(0))
    assert model.out is model.up
    assert model.stack.length == 3


def test_type_hints_of_a_model_are_its_fields():
    assert list(typing.get_type_hints(Base)) == ["dim", "size", "_", "rngs", "up"]


# --- statements and calls --------------------------------------------------------


def test_names_that_the_class_body_deletes():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        four = 4
        wide = four * dim
        twice = 2 * wide
        del four, wide

    assert Model(2).twice == 16
    assert not hasattr(Model, "four")
    assert Model(2).wide == 8


def test_a_compared_condition_of_a_variable():
    @dx.dataclass
    class Model(dx.Module):
        size: int | None = dx.field(default=None)
        w: dx.BatchStat[jax.Array] | None = dx.variable(
            (2,),
            initializer=dx.initializers.ones,
            stream=None,
            when=size != None,  # noqa: E711
        )

    assert Model().w is None
    assert Model(3).w is not None


def test_a_class_that_is_decorated_twice():
    with pytest.raises(errors.FieldError, match=r"Base: the class is decorated twice"):
        dx.dataclass(Base)


def test_notes_show_constants():
    class Config:
        def __repr__(self):
            return "Config(1)"

    @dx.dataclass
    class Model(dx.Module):
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        part = dx.Linear(
            np.float32(0.5), Config(), precision=np.arange(100), kernel_init=dx.initializers.ones, rngs=rngs
        )

    with pytest.raises(errors.StatusError) as caught:
        Model(dx.Rngs(0))
    (note,) = caught.value.__notes__
    assert note.endswith("Linear(np.float32(0.5), Config(1), precision=ndarray(...), kernel_init=ones, rngs=rngs)")


# --- attributes --------------------------------------------------------------------


@pytest.mark.parametrize("made", [dx.field, dx.static, lambda: dx.variable((), initializer=dx.initializers.ones)])
def test_a_specifier_in_an_assignment(made):
    class Model(dx.Module):
        weight: dx.Param[jax.Array]

        def __init__(self):
            self.dim = made()

    with pytest.raises(
        errors.FieldError, match=r"Model\.dim: an attribute cannot hold a declaration or(.*\n)+.*dim: int ="
    ):
        Model()
    base = Base(3, 4, rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError, match=r"Base\.up: an attribute cannot hold a declaration"):
        base.up = made()
    assert isinstance(base.up, dx.Linear)


def test_an_expression_in_an_assignment():
    base = Base(3, 4, rngs=dx.Rngs(0))
    for name in ("dim", "other", "up"):
        with pytest.raises(errors.FieldError, match=rf"Base\.{name}: an attribute cannot hold a .* field expression"):
            setattr(base, name, Base.dim)
    assert (base.dim, hasattr(base, "other")) == (3, False)


class Double:
    def __call__(self, x: jax.Array) -> jax.Array:
        return 2 * x


class Function(typing.Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


T = typing.TypeVar("T")
Bound = typing.TypeVar("Bound", bound=dx.Module)


@pytest.mark.parametrize("annotation", [typing.Any, object, T, "T | None"])
@pytest.mark.parametrize("value", ["text", 3, jnp.ones(2), dx.relu, dx.Linear, [1], dx.Sequential()])
def test_any_object_as_a_part(annotation, value):
    class Model(dx.Module):
        dim: int = dx.field()
        part: annotation = dx.Dropout(dim / 10)

    Model = dx.dataclass(Model)
    model = Model(3, part=value)
    assert model.part is value
    assert jax.jit(lambda model: model.dim * jnp.ones(1))(model).shape == (1,)
    assert isinstance(Model(3).part, dx.Dropout)
    assert Model(3, part=None).part is None


def test_a_part_of_a_bound_type_variable():
    @dx.dataclass
    class Model(dx.Module, typing.Generic[Bound]):
        dim: int = dx.field()
        part: Bound = dx.Dropout(dim / 10)

    assert isinstance(Model(3, part=dx.Sequential()).part, dx.Sequential)
    with pytest.raises(errors.ConstructionError, match="the given part is of the wrong class"):
        Model(3, part=3)


@pytest.mark.parametrize("value", [jnp.tanh, Double(), dx.Linear(2, 2, rngs=dx.Rngs(0))])
def test_a_protocol_of_a_function_without_a_default(value):
    @dx.dataclass
    class Model(dx.Module):
        part: Function
        other: Function = dx.field()

    model = Model(value, value)
    assert jax.jit(lambda model, x: model.part(model.other(x)))(model, jnp.ones(2)).shape == (2,)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("function", [jnp.tanh, Double(), lambda x: x])
def test_a_function_as_a_part(frozen, function):
    @dx.dataclass(frozen=frozen)
    class Model(dx.Module):
        rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
        dim: int = dx.field()
        part: Function = dx.Linear(dim, dim, rngs=rngs)
        again = part

    model = Model(2, function, rngs=dx.Rngs(0))
    assert model.part is model.again is function
    assert jax.tree.leaves(model) == []
    assert jax.jit(lambda model, x: model.again(x))(model, jnp.ones(2)).shape == (2,)
    assert dx.merge(*dx.split(model)).part is function
    layer = dx.Linear(2, 2, rngs=dx.Rngs(0))
    assert len(jax.tree.leaves(Model(2, layer, rngs=dx.Rngs(0)))) == 4


# --- constants of bases ------------------------------------------------------------


@dx.dataclass
class Rated(dx.Module):
    dim: int = dx.field()
    rate: float = 0.1
    COUNT: typing.ClassVar[int] = 3


class Undecorated(Rated):
    pass


@pytest.mark.parametrize(
    ("line", "reader"),
    [
        ("drop = dx.Dropout(Rated.rate, rngs=rngs)", "drop"),
        ("drop = dx.Dropout(Undecorated.rate, rngs=rngs)", "drop"),
        ("drop = dx.Dropout(scope.Rated.rate / 2, rngs=rngs)", "drop"),
        ("half = Rated.rate / 2\n    drop = dx.Dropout(half, rngs=rngs)", "drop"),
        ("wide: int = Rated.dim * Rated.rate", "wide"),
        ("w: dx.Param[jax.Array] = dx.variable((Rated.rate,), initializer=dx.initializers.ones)", "w"),
    ],
)
def test_a_plain_default_of_a_base_in_an_expression(line, reader):
    scope = {**globals(), "scope": type("scope", (), {"Rated": Rated})}
    body = f"class Sub(Undecorated):\n    _: dx.KW_ONLY\n    rngs: dx.InitVar[dx.Rngs] = dx.field()\n    {line}\n"
    with pytest.raises(errors.FieldError) as caught:
        exec(f"@dx.dataclass\n{body}", scope)
    assert f"Rated.rate: the expression of '{reader}' reads this field, which gives it" in str(caught.value)
    assert str(caught.value).endswith("rate: float = dx.field(default=0.1)")


def test_constants_of_bases_that_no_expression_reads():
    @dx.dataclass
    class Sub(Rated):
        rate: float = 2 * Rated.rate
        half: float = Rated.rate / 2
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up = dx.Linear(Rated.dim, Rated.COUNT, rngs=rngs)

    sub = Sub(2, rngs=dx.Rngs(0))
    assert (sub.rate, sub.half, sub.up.out_features) == (0.2, 0.05, 3)
    assert (Rated.rate, Sub.rate) == (0.1, 0.2)


# --- specifiers without an effect --------------------------------------------------


@pytest.mark.parametrize("build", [lambda self, rngs: dx.Linear(2, 2, rngs=rngs), "up", dx.Linear])
def test_submodule_decorates_methods_only(build):
    with pytest.raises(errors.FieldError, match="submodule decorates a method"):
        dx.submodule(build)


def test_a_class_variable_is_not_computed():
    with pytest.raises(errors.FieldError, match=r"Model\.n: a class variable has no value that is computed"):

        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field()
            n: typing.ClassVar[int] = 2 * dim


def test_a_frozen_class_and_a_base_that_is_not():
    with pytest.raises(errors.FieldError, match="Fixed: the class is frozen, and its base Layer is not") as caught:

        @dx.dataclass(frozen=True)
        class Fixed(dx.Layer):
            dim: int = dx.field()

    assert caught.value.fix.endswith("class Fixed(dx.Module): ...        # a dx.Layer is not frozen")

    @dx.dataclass(frozen=True)
    class Base(dx.Module):
        dim: int = dx.field()

    with pytest.raises(errors.FieldError, match="Open: the class is not frozen, and its base Base is frozen") as caught:

        @dx.dataclass
        class Open(Base):
            pass

    assert caught.value.fix == "@dx.dataclass(frozen=True)"


@pytest.mark.parametrize(
    ("part", "fix"),
    [
        ("dx.repeat(2, dx.variable((dim,), initializer=ones))", "part_1: dx.Param[jax.Array] = dx.variable(..., when"),
        (
            "dx.when(dim > 3, dx.variable((dim,), initializer=ones))",
            "part: dx.Param[jax.Array] | None = dx.variable(..., when=dim > 3)",
        ),
        ("dx.when(dim > 3, dx.variable((dim,), initializer=ones), dim)", "part_1: dx.Param[jax.Array] = dx.variable("),
        ("[dx.variable((dim,), initializer=ones)]", "part_1: dx.Param[jax.Array] = dx.variable(..., when=...)"),
        ("dx.Linear(dim, dx.field(default=3))", "part_1: ... = dx.field(...)"),
    ],
)
def test_a_specifier_in_an_expression(part, fix):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    part = {part}
"""
    with pytest.raises(
        errors.FieldError, match=r"^Model\.part: a specifier in an expression declares nothing"
    ) as caught:
        exec(source, {"dx": dx, "ones": dx.initializers.ones})
    assert caught.value.fix.startswith(fix)
