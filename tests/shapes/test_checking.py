"""What `check_shapes` accepts, what its report says, and what it leaves as it was."""

import enum
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jaxtyping import Array, Float, Int

import declax as dx

if TYPE_CHECKING:
    from nowhere import Elsewhere

FLOAT = Annotated[jax.Array, dx.shape("b n {self.dim}")]


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(ge=1)
    up = dx.Linear(dim, 4 * dim)
    down = dx.Linear(4 * dim, dim)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        return x + self.down(dx.gelu(self.up(x)))


@dx.dataclass(where=("n <= {self.length}",))
class Net(dx.Layer):
    dim: int = dx.field(ge=1)
    depth: int = dx.field(default=2)
    length: int = dx.field(default=32)
    embed = dx.Embed(100, dim)
    position = dx.Embed(length, dim)
    blocks = dx.Stacked(Block(dim), depth)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n 100"]:
        x = self.embed(tokens) + self.position(jnp.arange(tokens.shape[1]))
        return self.embed.attend(self.blocks(x))


def test_a_class_a_spec_a_model_and_a_function():
    model = Net(8, rngs=dx.Rngs(0))
    for target in (Net, dx.spec(Net, 8), model, dx.as_abstract(model)):
        report = dx.check_shapes(target)
        assert report.proven, report
        assert [line.target for line in report.checked] == ["Net.__call__", "Block.__call__"]
        assert dx.check_shapes(target, "int32[b, n]").proven
        assert dx.check_shapes(target, tokens="int32[batch, length]").proven

    def loss(model, tokens):
        return model(tokens).mean()

    assert dx.check_shapes(loss, model, "int32[b, n]", where="n <= 32").proven
    assert dx.check_shapes(loss, model, "int32[b, n]").findings[0].condition == "n <= 32"


def test_the_report_says_for_which_sizes():
    text = str(dx.check_shapes(Net))
    assert "Net.__call__: proven for all b, n, dim, length ≥ 1 with n <= length" in text
    assert "defaults of depth" in text
    assert "values of indices are not checked" in text
    assert "Block.__call__: proven for all b, n, dim, length ≥ 1" in text


def test_a_training_step():
    model = dx.MLP(8, 16, 1, rngs=dx.Rngs(0))
    optimizer = dx.Optimizer(model, optax.adam(1e-3))

    @dx.jit
    def step(model, optimizer, x, y):
        loss, grads = dx.value_and_grad(lambda model: jnp.mean((model(x)[:, 0] - y) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    assert dx.check_shapes(step, model, optimizer, "float32[b, 8]", "float32[b]").proven
    found = dx.check_shapes(step, model, optimizer, "float32[b, 8]", "float32[m]")
    assert [line.verdict for line in found.checked] == ["wrong"]


def test_models_that_a_function_captures_and_changes():
    norm = dx.BatchNorm(8, rngs=dx.Rngs(0))
    drop = dx.Dropout(0.5, rngs=dx.Rngs(0))
    assert dx.check_shapes(lambda x: drop(norm(x)), "float32[b, n, 8]").proven
    assert float(norm.mean.value.sum()) == 0.0


def test_nothing_changes():
    model = Net(8, rngs=dx.Rngs(0))
    before, call = dx.state(model), Net.__call__
    assert dx.check_shapes(model).proven
    assert Net.__call__ is call
    assert "__call__" in vars(Net)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(dx.state(model)), strict=True):
        assert old is new
    (size,) = jax.export.symbolic_shape("n")
    assert type(size).__eq__.__module__.startswith("jax")
    assert model(jnp.zeros((2, 4), jnp.int32)).shape == (2, 4, 100)


def test_without_jaxtyping():
    @dx.dataclass
    class Scale(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: FLOAT) -> FLOAT:
            return x[:, 1:]

    report = dx.check_shapes(Scale)
    (found,) = report.findings
    assert (found.expected, found.got) == ("(b, n, dim)", "(b, n - 1, dim)")
    assert found.line == Scale.__call__.__wrapped__.__code__.co_firstlineno + 1


class Pair(NamedTuple):
    left: Float[Array, "b n"]
    right: Float[Array, "b n"]


def test_trees_of_arrays():
    @dx.dataclass
    class Trees(dx.Layer):
        def __call__(
            self, x: tuple[Float[Array, "b n"], Float[Array, "b m"]], pair: Pair, many: list[Float[Array, " b"]]
        ) -> dict[str, Float[Array, "b n"]]:
            return {"sum": x[0] + pair.left * pair.right, "many": x[0] + sum(many)[:, None]}

    assert dx.check_shapes(Trees).proven

    @dx.dataclass
    class Wrong(dx.Layer):
        def __call__(self, pair: Pair) -> tuple[Float[Array, "b n"], Pair]:
            return pair.left, Pair(pair.left, pair.right[:, None])

    (found,) = dx.check_shapes(Wrong).findings
    assert "the result[1].right" in found.message


def test_any_number_of_axes():
    @dx.dataclass
    class Many(dx.Layer):
        def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch 1"]:
            return x[..., :1]

    assert dx.check_shapes(Many).proven

    @dx.dataclass
    class Two(dx.Layer):
        def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
            return jnp.swapaxes(x, 0, 1)

    assert not dx.check_shapes(Two).proven

    @dx.dataclass
    class Broadcast(dx.Layer):
        def __call__(self, x: Float[Array, "b n"], y: Float[Array, "b #n"]) -> Float[Array, "b n"]:  # noqa: F821
            return x + y

    assert dx.check_shapes(Broadcast).proven


def test_what_cannot_be_read_is_said():
    @dx.dataclass
    class Unread(dx.Layer):
        def __call__(self, x: "Elsewhere") -> Float[Array, "b n"]:
            return x

        def other(self, x: Float[Array, "b n"], y: "Elsewhere" = None) -> Float[Array, "b n"]:
            return x

        def broken(self, x: Float[Array, "b n)"]) -> None:
            return None

    report = dx.check_shapes(Unread)
    lines = {line.target: line for line in report.checked}
    assert "'Elsewhere' does not exist at run time" in lines["Unread.__call__"].text
    assert lines["Unread.other"].verdict == "proven"
    assert "unread annotation of y" in lines["Unread.other"].text
    assert "is no shape" in lines["Unread.broken"].text
    assert not report.proven
    report.raise_for_findings()  # notes are no errors


def test_local_names_are_unread():
    Local = Float[Array, "b n"]

    @dx.dataclass
    class Inside(dx.Layer):
        def __call__(self, x: "Local") -> "Local":  # noqa: F821  # deleted below
            return x

    del Local
    assert "'Local' does not exist at run time, or is a local name" in str(dx.check_shapes(Inside))


def test_parameters_without_shapes():
    @dx.dataclass
    class Flags(dx.Layer):
        def __call__(self, x: Float[Array, " n"], train: bool, *, rngs: dx.Rngs) -> Float[Array, " n"]:
            return x * rngs.normal(x.shape) if train else x

        def table(self, x: dict[str, Float[Array, " n"]]) -> None:
            return None

        def model(self, x: Float[Array, " n"], y: object) -> None:
            return None

    lines = {line.target: line for line in dx.check_shapes(Flags).checked}
    assert lines["Flags.__call__"].verdict == "proven"
    assert "the parameter 'y' has no shape" in lines["Flags.model"].text
    assert "the keys of a dict are not known" in str(dx.check_shapes(Flags))


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


def test_fields_with_few_values_run_through_them():
    @dx.dataclass
    class Options(dx.Layer):
        dim: int = dx.field(ge=1)
        rate: float = dx.field(ge=0.0, le=0.25)
        use_bias: bool = dx.field(default=True)
        mode: Mode = dx.field(default=Mode.FAST)
        kind: Literal["a", "b"] = dx.field(default="a")
        linear = dx.Linear(dim, dim, use_bias=use_bias)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.dim}"]:
            x = self.linear(x)
            return x[1:] if self.mode is Mode.EXACT and self.kind == "b" and not self.use_bias else x

    report = dx.check_shapes(Options)
    assert [line.verdict for line in report.checked] == ["wrong"]
    assert "use_bias=False" in str(report)
    assert "rate=0.25" in str(report)


def test_a_field_that_the_code_needs_as_a_number():
    @dx.dataclass
    class Deep(dx.Layer):
        dim: int = dx.field(ge=1)
        depth: int = dx.field(ge=1)
        blocks = dx.repeat(depth, Block(dim))

        def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
            for block in self.blocks:
                x = block(x)
            return x

    (line, *_) = dx.check_shapes(Deep).checked
    assert line.verdict == "tested only"
    assert line.text.startswith("for all b, n, dim ≥ 1 at depth = 1, 2, 3")

    @dx.dataclass
    class Scaled(dx.Layer):
        dim: int = dx.field(ge=1)
        width: int = dx.field(ge=1)
        up = dx.Linear(dim, width)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.width}"]:
            return self.up(x) * self.dim**-0.5

    (line,) = dx.check_shapes(Scaled).checked
    assert line.text.startswith("for all b, width ≥ 1 at dim = 1, 2, 3")


def test_the_constructor_refuses_sizes():
    @dx.dataclass
    class Even(dx.Layer):
        dim: int = dx.field(ge=1, check=lambda dim: "an odd size" if dim % 2 else None)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.dim}"]:
            half = x.reshape(x.shape[0], 2, self.dim // 2)
            return half.reshape(x.shape)

    (line,) = dx.check_shapes(Even).checked
    assert line.verdict == "tested only"  # the check of the field says nothing to symbols

    @dx.dataclass
    class Refuses(dx.Layer):
        dim: int = dx.field(ge=1)

        def __post_init__(self) -> None:
            if self.dim > 0:
                raise ValueError("never")

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.dim}"]:
            return x

    assert "no object is made: no sizes satisfy the conditions of its fields" in str(dx.check_shapes(Refuses))

    @dx.dataclass
    class Fails(Refuses):
        part = dx.Linear(0 * Refuses.dim, "a")

    assert "no object is made: Linear.in_features" in str(dx.check_shapes(Fails))


def test_a_class_that_needs_a_spec():
    @dx.dataclass
    class Needs(dx.Layer):
        name: str = dx.field()

        def __call__(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
            return x

    report = dx.check_shapes(Needs)
    assert "the field 'name' has no default; check a Spec: dx.check_shapes(dx.spec(Needs, ...))" in str(report)
    assert not report.proven
    assert dx.check_shapes(dx.spec(Needs, "a")).proven


def test_a_free_name_that_is_spelt_like_a_field():
    @dx.dataclass
    class Named(dx.Layer):
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b dim"]) -> Float[Array, "b dim"]:
            return x

    report = dx.check_shapes(Named)
    assert report.proven
    (notice,) = report.findings
    assert "'dim' in an annotation is a free name, and not the field: write {self.dim} for the field" in notice.message


def test_a_field_that_is_no_size():
    @dx.dataclass
    class Texts(dx.Layer):
        name: str = dx.field(default="a")

        def __call__(self, x: Float[Array, "b {self.name}"]) -> None:
            return None

    with pytest.raises(dx.errors.FieldError, match="uses this as a size, and it is none"):
        dx.check_shapes(Texts)


def test_contradictory_conditions():
    @dx.dataclass(where=("n <= 4", "n >= 6"))
    class Never(dx.Layer):
        def __call__(self, x: Float[Array, " n"]) -> Float[Array, "7 7"]:
            return x

    with pytest.raises(dx.ShapeError, match="no sizes are found that satisfy its conditions") as caught:
        dx.check_shapes(Never)
    assert "test_checking.py:" in caught.value.why
    with pytest.raises(dx.ShapeError, match="no sizes are found"):
        dx.check_shapes(lambda x: x, "float32[n]", where=("n < 1",))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dx.check_shapes(Block, "float32[b, n"), "this is no size or condition|does not describe"),
        (lambda: dx.check_shapes(3), "there is nothing to check"),
        (lambda: dx.check_shapes(int), "there is nothing to check"),
        (
            lambda: dx.check_shapes(Block(4, rngs=dx.Rngs(0)), "float32[b]", method="missing"),
            "there is no such method to check",
        ),
        (lambda: dx.check_shapes(lambda x: x, "float32[n]", where="n"), "this is no size or condition"),
        (lambda: dx.shape("b n ("), "this is no size or condition"),
    ],
)
def test_wrong_calls(call, text):
    with pytest.raises(dx.errors.FieldError, match=text):
        call()


def test_errors_are_raised_together():
    @dx.dataclass
    class Two(dx.Layer):
        def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
            return x[1:]

        def other(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
            return x[:, 1:]

    with pytest.raises(dx.ShapeError, match="2 calls are not right for all sizes") as caught:
        dx.check_shapes(Two).raise_for_findings()
    assert "Two.other" in str(caught.value)
    assert "fix" not in caught.value.why


def test_places_under_transforms():
    """The user's line is named inside of jit, scan, vmap, grad, remat and Stacked."""

    def wrong(x):
        return x.reshape(x.shape[0] + 1)  # here

    line = wrong.__code__.co_firstlineno + 1
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    ways: list[Any] = [
        lambda x: jax.jit(wrong)(x[0]).sum(),
        lambda x: jax.vmap(wrong)(x).sum(),
        lambda x: jax.lax.scan(lambda carry, row: (carry, wrong(row)), 0.0, x)[1],
        lambda x: jax.checkpoint(wrong)(x[0]),
        lambda x: dx.grad(lambda model: wrong(x[0]).sum() * model.bias.sum())(model),
        lambda x: dx.jit(wrong)(x[0]),
    ]
    for way in ways:
        (found,) = dx.check_shapes(way, "float32[b, n]").findings
        assert (found.line, found.source) == (line, "return x.reshape(x.shape[0] + 1)  # here")
        assert found.column == 16


def test_equal_parts_are_checked_once():
    @dx.dataclass
    class Pairs(dx.Layer):
        dim: int = dx.field(ge=1)
        blocks = dx.repeat(3, Block(dim))

    assert [line.target for line in dx.check_shapes(Pairs).checked] == ["Block.__call__"]


def test_nothing_is_imported_by_others():
    code = (
        "import sys, declax as dx, jax\n"
        "dx.Linear(2, 3, rngs=dx.Rngs(0))(jax.numpy.ones((1, 2)))\n"
        "print([name for name in sys.modules if name.startswith(('declax.shapes', 'jaxtyping'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout
