"""Errors of class bodies that name the class, the field and the line to write."""

import typing

import jax
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


def test_a_method_of_a_part_takes_rngs():
    with pytest.raises(errors.FieldError, match=r"Model\.act: submodule decorates a method of \(self, rngs\)"):

        @dx.dataclass
        class Model(dx.Module):
            @dx.submodule
            def act(self):
                return dx.Linear(2, 2, rngs=dx.Rngs(0))


def test_a_part_that_reads_a_field_which_the_constructor_does_not_set():
    with pytest.raises(errors.FieldError, match=r"Model\.twice: this part reads 'dim', which the constructor does not"):

        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field(init=False)
            twice = 2 * dim

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
        errors.FieldError, match=r"Narrow\.dim: this value hides(.*\n)*.*dim: int = dx.field\(default=7\)"
    ):

        class Narrow(Base):
            dim = 7


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
        ("text = '%s' % dim", 'dx.defer("{}".format)(dim)'),
        ("parts = dx.Sequential(*dx.repeat(dim, dx.Linear(dim, dim)))", "dx.repeat("),
    ],
)
def test_fixes_of_formatting_and_unpacking(line, fix):
    scope = {"dx": dx, "__name__": __name__}
    with pytest.raises(errors.ExpressionError) as caught:
        exec(f"class Model(dx.Module):\n    dim: int = dx.field()\n    {line}", scope)
    assert fix in str(caught.value).partition("fix:")[2]


def test_the_fix_of_unpacked_layers_is_a_list():
    with pytest.raises(errors.ExpressionError) as caught:

        class Model(dx.Module):
            dim: int = dx.field()
            parts = dx.Sequential(*dx.repeat(dim, dx.Linear(dim, dim)))

    assert str(caught.value).endswith("fix:      dx.Sequential(dx.repeat(dim, dx.Linear(dim, dim)))")

    @dx.dataclass
    class Fixed(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        parts = dx.Sequential(dx.repeat(dim, dx.Linear(dim, dim, rngs=rngs)))

    assert len(Fixed(2, rngs=dx.Rngs(0)).parts.layers) == 2


def test_type_hints_of_a_model_are_its_fields():
    assert list(typing.get_type_hints(Base)) == ["dim", "size", "_", "rngs", "up"]
