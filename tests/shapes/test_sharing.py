"""Parts of a model are checked once where they are equal, and share models and symbols; verdicts stay the same."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

import declax as dx
from declax.shapes import targets


@dx.dataclass
class Cell(dx.Layer):
    inputs: int = dx.field()
    outputs: int = dx.field()
    norm = dx.RMSNorm(inputs)
    linear = dx.Linear(inputs, outputs)

    def __call__(self, x: Float[Array, "*n {self.inputs}"]) -> Float[Array, "*n {self.outputs}"]:
        return self.linear(self.norm(x))


@dx.dataclass
class Tower(dx.Layer):
    dim: int = dx.field(ge=1)
    cells = dx.Sequential(Cell(dim, dim), Cell(dim, 2 * dim), Cell(2 * dim, 2 * dim), Cell(2 * dim, 4 * dim))
    last = Cell(4 * dim, 3)

    def __call__(self, x: Float[Array, "n {self.dim}"]) -> Float[Array, "n 3"]:
        return self.last(self.cells(x))


def subjects(cls):
    (model,) = targets.models_of_class(cls, targets.Request((), {}, ()))
    return list(targets.subjects_of_model(model, targets.Request((), {}, ()), "__call__"))


def test_a_part_that_is_a_multiple_of_another_one_is_not_checked_again():
    """Of five cells, (dim, dim), (dim, 2 * dim) and (4 * dim, 3) are left, with 0, 1 and 2 axes in front."""
    assert [subject.title for subject in subjects(Tower)] == ["Tower.__call__"] + ["Cell.__call__"] * 9
    assert dx.check_shapes(Tower).proven


def test_models_and_symbols_are_made_once(monkeypatch):
    built = []
    instance_of = targets.instance_of
    monkeypatch.setattr(targets, "instance_of", lambda cls, fields: built.append(fields) or instance_of(cls, fields))
    assert dx.check_shapes(Tower).proven
    numbers = [fields["dim"] for fields in built if isinstance(fields["dim"], int)]
    assert len(numbers) == len(set(numbers))
    assert len(built) - len(numbers) <= 6  # 4 kinds of inputs, and twice and without inputs


def class_with_a_table(notes):
    @dx.dataclass
    class Part(dx.Layer):
        dim: int = dx.field()
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

        def __call__(self, x: Float[Array, "n {self.dim}"]) -> Float[Array, "n {self.dim}"]:
            return self.scale * x + jnp.arange(100.0)[jnp.arange(x.shape[1])]

    @dx.dataclass
    class Whole(dx.Layer):
        dim: int = dx.field(ge=1, **notes)
        one = Part(dim)
        two = Part(2 * dim)

        def __call__(self, x: Float[Array, "n {self.dim}"]) -> Float[Array, "n {self.dim}"]:
            return self.one(x)

    return Whole


@pytest.mark.parametrize(("most", "is_proven"), [(50, True), (51, False), (100, False)])
def test_a_condition_on_a_field_holds_for_no_multiple_of_it(most, is_proven):
    """`two` has up to 2 * most columns, and `one` is proven."""
    report = dx.check_shapes(class_with_a_table({"le": most}))
    assert report.proven is is_proven, report


@jax.jit
def shorter_at_29(x):
    return x[1:] if x.shape[0] == 29 else x


@dx.dataclass
class Inner(dx.Layer):
    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return shorter_at_29(x)


@dx.dataclass
class Outer(dx.Layer):
    inner = Inner()

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        return self.inner(x).sum()


def test_a_question_in_a_compiled_function_is_heard_for_each_part():
    """JAX traces the function once within a scope; a scope with a finding is not used again."""
    report = dx.check_shapes(Outer)
    assert {line.target: line.verdict for line in report.checked}["Inner.__call__"] != "proven", report
