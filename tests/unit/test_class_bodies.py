"""Class bodies whose mistakes are refused, and objects that several places of a class body share."""

import copy
import dataclasses
import functools
import gc
import inspect
import math
import pickle
import subprocess
import sys
import weakref
from typing import Any, ClassVar, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors


class Mixer(Protocol):
    def __call__(self, x: jax.Array) -> jax.Array: ...


def smaller(size):
    return min(size, 3)


def make(dim, rngs):
    return dx.Linear(dim, dim, rngs=rngs)


SUBCLASS = """
@dx.dataclass
class Sub(Model):
    {}
"""
HEAD = """@dx.dataclass
class Model(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    flag: bool = dx.field(default=True)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
"""


def declare(*lines, **names):
    """The class `Model` with further lines in its body."""
    source = HEAD + "".join(f"    {line}\n" for line in lines)
    scope = {
        "dx": dx,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "math": math,
        "functools": functools,
        "Any": Any,
        "Mixer": Mixer,
        "ClassVar": ClassVar,
        "smaller": smaller,
        "make": make,
        "__name__": __name__,
        **names,
    }
    exec(source, scope)
    return scope["Model"]


def refused(*lines, **options):
    """The error of such a class body."""
    with pytest.raises((errors.FieldError, errors.ExpressionError)) as caught:
        declare(*lines, **options)
    return caught.value


# --- one object -------------------------------------------------------------------------


def listed(dim):
    return [dim]


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("dx.Linear(dim, dim, rngs=rngs)", 3),
        ("dx.Sequential(dx.Linear(dim, dim, rngs=rngs))", 2),
        ("dx.repeat(2, dx.Linear(dim, dim, rngs=rngs))", 2),
        ("dx.defer(make)(dim, rngs=rngs)", 2),
        ("dx.defer(make)(dim, rngs)", 2),
        ("layer(dim, dim, rngs=rngs)", 2),
    ],
)
@pytest.mark.parametrize(
    "form", ["[{}] * {}", "({},) * {}", "dx.Sequential(*[{}] * {})", "dict.fromkeys(range({1}), {0})"]
)
def test_a_call_without_a_name_that_stands_several_times(call, count, form):
    error = refused("layer: type[dx.Linear] = dx.field(default=dx.Linear)", f"parts = {form.format(call, count)}")
    assert error.where == "Model.parts"
    assert error.problem == f"the call {call} has no name, and stands at {count} places of this part"
    assert error.fix.startswith(f"dx.repeat({count}, {call})")
    assert f"shared = {call}        # then use `shared`" in error.fix


@pytest.mark.parametrize(
    "line",
    [
        "parts = (lambda part: (part, part))(dx.Linear(dim, dim, rngs=rngs))",
        "parts = (lambda part: (dx.Sequential(part).layers[0], part))(dx.Linear(dim, dim, rngs=rngs))",
        "parts = [[dx.Linear(dim, dim, rngs=rngs)]] * 2",
        "parts = dx.repeat(2, [dx.Linear(dim, dim, rngs=rngs)] * 2)",
        "parts: list[dx.Linear] = [dx.Linear(dim, dim, rngs=rngs)] * 2",
        "parts: list[dx.Linear] = dx.field(default=[dx.Linear(dim, dim, rngs=rngs)] * 2)",
    ],
)
def test_a_call_that_a_function_or_list_repeats(line):
    error = refused(line)
    assert "has no name, and stands at 2 places of this part" in error.problem


@pytest.mark.parametrize(
    "lines",
    [
        ["part = dx.Linear(dim, dim, rngs=rngs)", "parts = [part] * 2"],
        ["part = dx.Linear(dim, dim, rngs=rngs)", "parts = dx.Sequential(*[part] * 2).layers"],
        ["parts = [part := dx.Linear(dim, dim, rngs=rngs), part]"],
    ],
)
def test_a_call_with_a_name_that_stands_twice_is_one_object(lines):
    model = declare(*lines)(2, rngs=dx.Rngs(0))
    assert model.parts[0] is model.parts[1] is model.part
    assert len(jax.tree.leaves(dx.split(model)[1])) == 2


def test_calls_of_one_text_are_made_one_by_one():
    parts = declare("parts = [dx.Linear(dim, dim, rngs=rngs), dx.Linear(dim, dim, rngs=rngs)]")(
        2, rngs=dx.Rngs(0)
    ).parts
    assert parts[0] is not parts[1]


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("(dim // 2,) * 2", (1, 1)),
        ("(dx.defer(max)(dim, 3),) * 2", (3, 3)),
        ("[dx.defer(listed)(dim)] * 2", [[2], [2]]),
    ],
)
def test_values_that_stand_twice(value, made):
    assert declare(f"size = {value}", listed=listed)(2, rngs=dx.Rngs(0)).size == made


def test_the_source_of_a_call_that_stands_twice():
    source = dx.source_of(declare("parts = [dx.defer(listed)(dim)] * 3", listed=listed))
    assert source.splitlines()[1] == "    self.parts = [(shared := listed(self.dim)), shared, shared]"


@pytest.mark.parametrize(
    "line",
    [
        "parts = (lambda flag, part: (part, dx.when(flag, part)))(flag, CALL)",
        "parts = (lambda part: (part, dx.repeat(2, dx.Sequential(part))))(CALL)",
        "first, second = (lambda part: (dx.Sequential(part), dx.Sequential(part)))(CALL)",
    ],
)
def test_a_call_without_a_name_that_is_shared_too_far(line):
    call = "dx.Linear(dim, dim, rngs=rngs)"
    error = refused(line.replace("CALL", call))
    assert f"the call {call} has no name" in error.problem
    assert error.where in {"Model.parts", "Model.second"}
    assert error.fix.startswith(f"shared = {call}")
    assert declare(f"shared = {call}", line.replace("CALL", "shared"))(2, rngs=dx.Rngs(0))


# --- expressions where nothing evaluates them ---------------------------------------------


# --- operations that need a value ---------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("z = jnp.zeros((dim,))", "dx.defer(jnp.zeros)(...)"),
        ("z = np.zeros((dim, 3))", "dx.defer(np.zeros)(...)"),
        ("z = np.array([dim])", "dx.defer(np.array)(...)"),
        ("z = np.array(dim, int)", "dx.defer(np.array)(..., dim)"),
        ("z = table[dim]", "dx.defer(operator.getitem)(values, dim)"),
        ("z = math.sqrt(dim)", "dim ** 0.5        # in place of math.sqrt(dim)"),
        ("z = np.sqrt(dim)", "dim ** -0.5        # in place of 1 / np.sqrt(dim)"),
        ("z = 1 / np.sqrt(2 * dim)", "(2 * dim) ** -0.5        # in place of 1 / np.sqrt(2 * dim)"),
        ("z = np.log(dim)", "dx.defer(np.log)(dim)"),
        ("z = np.multiply.reduce(dim)", "dx.defer(np.multiply.reduce)(dim)"),
        ("z = jnp.arange(dim)", "dx.defer(jnp.arange)(dim)"),
        ("z = jnp.full((2,), dim)", "dx.defer(jnp.full)(..., dim)"),
        ("z = jnp.asarray(dim)", "dx.defer(jnp.asarray)(dim)"),
        ("z = functools.partial(jnp.arange, 0)(dim)", "dx.defer(function)(dim)"),
        ("z = max(dim, 3)", "dx.defer(max)(..., dim)"),
        ("z = smaller(dim)", "dx.defer(smaller)(dim)"),
        ("z = jax.P(dim, None)", "dx.defer(jax.P)(..., dim)"),
        ("z = sorted(dim)", "dx.defer(sorted)(dim)"),
        ("z = dim if smaller(2) and dim else 3", "dx.when(dim, part, other)"),
        ("z = 2 * dim in (2, 3)", "dx.defer(operator.contains)(values, (2 * dim))"),
        ("z = 3 if dim > 3 else 2", "dx.when(dim > 3, part, other)"),
        ("assert dim % 2 == 0", "def __post_init__(self): ...        # in place of `assert`"),
        ("z = jnp.sqrt(dim)", "dim ** 0.5        # in place of jnp.sqrt(dim)"),
        ("z = jnp.exp(2 * dim)", "dx.defer(jnp.exp)(2 * dim)"),
        ("z = jnp.sum(dim)", "dx.defer(jnp.sum)(dim)"),
        ("z = jax.nn.relu(dim)", "dx.defer(jax.nn.relu)(dim)"),
        ("z = jax.lax.rsqrt(2 * dim)", "dx.defer(jax.lax.rsqrt)(2 * dim)"),
        ("z = np.prod(dim)", "dx.defer(np.prod)(dim)"),
        ("z = {'a': 1}[dim]", "dx.defer(operator.getitem)(table, dim)"),
        ("z = {'a': 1}.get(dim)", "dx.defer(operator.getitem)(table, dim)"),
        ("z = {dim: 3}", "dx.defer(operator.getitem)(table, dim)"),
        ("z = {dim, 3}", "dx.defer(operator.getitem)(table, dim)"),
        ("z = dx.when(dim in {2, 3}, 1, 2)", "dx.defer(operator.contains)(values, dim)"),
        ("z = round(dim * 1.5)", "dx.defer(round)(dim * 1.5)"),
        ("z = math.trunc(dim)", "dx.defer(math.trunc)(dim)"),
        ("z = divmod(dim, 2)", "dx.defer(divmod)(dim, 2)"),
        ("z = divmod(7, 2 * dim)", "dx.defer(divmod)(7, 2 * dim)"),
        ("z = ~dim", "dx.defer(operator.not_)(dim)        # of a bool"),
        ("z = f'{dim!r}'", 'dx.defer("{!r}".format)(dim)'),
        ("z = repr(2 * dim)", 'dx.defer("{!r}".format)(2 * dim)'),
        ("z = [i for i in range(dim)]", "dx.repeat(dim, dx.Linear(dim, dim))        # in place of a comprehension"),
        ("z = [i for i in dim]", "def layers(self, rngs: dx.Rngs) -> list[dx.Linear]: ..."),
    ],
)
def test_the_fix_of_an_operation_that_needs_a_value(line, fix):
    error = refused(line, table=[1, 2])
    assert fix in error.fix
    assert error.where.startswith("Model")
    assert "a field has no value until an instance is created, and" in error.problem
    assert type(error) is errors.ExpressionError


@pytest.mark.parametrize("line", ["z = table * dim", "z = dim * table", "z = scale * dim"])
def test_arithmetic_with_numbers_of_numpy(line):
    made = declare(line, table=np.ones(2, np.int32), scale=np.int32(1))(3, rngs=dx.Rngs(0)).z
    assert np.all(made == 3)


def test_libraries_and_debuggers_hold_expressions():
    texts = []

    def note(value):
        texts.extend([f"{value!r}", eval("repr(value)", {}, {"value": value})])

    model = declare(
        "note(2 * dim)", "text = eval('repr(dim)')", "same = copy.copy({'a': 2 * dim})", note=note, copy=copy
    )
    assert texts == ["2 * dim", "2 * dim"]
    assert model.text == "dim"
    assert {model.dim: 1}[model.dim] == 1


def test_arithmetic_of_arrays_and_fields():
    model = declare("z = table * dim", table=jnp.ones(2))
    assert model(3, rngs=dx.Rngs(0)).z.tolist() == [3.0, 3.0]


def test_a_refused_class_body_leaves_the_caches_of_jax_usable():
    key = jax.random.key(0)
    with pytest.raises(errors.ExpressionError, match="has no value until an instance is created"):
        declare("z = jax.random.normal(key, (dim, 5))", key=key)
    assert jax.random.normal(key, (2, 5)).shape == (2, 5)


def test_signatures_with_parts_compare():
    first, second = (declare("part: dx.Linear = dx.Linear(dim, dim, rngs=rngs)") for _ in range(2))
    assert inspect.signature(first) == inspect.signature(first)
    assert inspect.signature(first) != inspect.signature(second)


@pytest.mark.parametrize(
    "lines",
    [
        ["layers = []", "for i in range(3): layers.append(dx.Linear(dim, dim, rngs=rngs))"],
        ["layers: dict = {}", "layers['a'] = dx.Linear(dim, dim, rngs=rngs)"],
    ],
)
def test_containers_that_statements_fill(lines):
    error = refused(*lines)
    assert error.where == "Model.layers"
    assert "statements of the class body put expressions into this" in error.problem
    assert "dx.repeat(depth, " in error.fix


@pytest.mark.parametrize("operation", [lambda: dx.when(dx.field(), 3, 4), lambda: dx.repeat(3, dx.field())])
def test_when_and_repeat_outside_of_class_bodies(operation):
    with pytest.raises(errors.ExpressionError, match="this is not in the body of a declared class"):
        operation()


def test_the_text_of_constants_outside_of_class_bodies():
    model = declare()
    with pytest.raises(errors.ExpressionError) as caught:
        dx.Linear(model.dim, 10, use_bias=True, rngs=dx.Rngs(0))
    assert caught.value.where == "dx.Linear(Model.dim, 10, use_bias=True, rngs=dx.Rngs(...))"


@pytest.mark.parametrize("condition", ["flag is None", "flag is not None"])
def test_a_condition_that_is_no_expression(condition):
    error = refused(f"part = dx.when({condition}, dx.Linear(dim, dim, rngs=rngs))")
    assert error.problem == "the class body applies `is` to 'flag', which has a value in an instance only"
    assert "dx.when(flag == None, ..., flag)" in error.fix
    equal = condition.replace("is not", "!=").replace("is", "==")
    part = declare(f"part = dx.when({equal}, dx.Linear(dim, dim, rngs=rngs))")(2, rngs=dx.Rngs(0)).part
    assert (part is not None) is ("not" in condition)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("size: int | None = None", "size: int | None = dx.field(default=None)"),
        ("size: type[dx.Linear] = dx.Linear", "size: type[dx.Linear] = dx.field(default=dx.Linear)"),
        ("size: Any = jnp.tanh", "size: Any = dx.field(default=tanh)"),
    ],
)
def test_a_condition_that_reads_a_plain_default(line, fix):
    error = refused(line, "part = dx.when(size == None, dx.Linear(dim, dim, rngs=rngs))")
    assert error.where == "Model.size"
    assert error.problem.startswith("the expression of 'part' reads this field, which gives it the constant")
    assert error.fix == fix


# --- constants and defaults -----------------------------------------------------------------


def test_constants_of_constants():
    error = refused("rate: float = 0.1", "half = rate / 2", "drop = dx.Dropout(half, rngs=rngs)")
    assert error.where == "Model.rate"
    assert error.fix == "rate: float = dx.field(default=0.1)"


@pytest.mark.parametrize("annotation", ["ClassVar[int]", "Final"])
def test_constants_of_the_class(annotation):
    names = {"ClassVar": ClassVar, "Final": Final}
    lines = [f"EXPANSION: {annotation} = 4", "up = dx.Linear(dim, EXPANSION * dim, rngs=rngs)"]
    assert declare(*lines, **names)(2, rngs=dx.Rngs(0)).up.out_features == 8


def test_specifiers_of_the_standard_are_expressions():
    lines = ["rate: int = dataclasses.field(default=3)", "part = dx.Linear(dim, 2 * rate, rngs=rngs)"]
    model = declare(*lines, dataclasses=dataclasses)
    assert model(2, rngs=dx.Rngs(0)).part.out_features == 6
    assert model(2, rngs=dx.Rngs(0)).rate == 3


def test_specifiers_with_expressions_as_defaults():
    model = declare(
        "hidden: int = dx.field(default=4 * dim, ge=1)",
        "same: int = dx.field(default=dim, metadata={'unit': 'm'}, repr=False)",
        "sizes: tuple[int, ...] = dx.static(default=(dim, hidden))",
        "up: dx.Linear = dx.field(default=dx.Linear(dim, hidden, rngs=rngs), help='widens')",
    )
    made = model(2, rngs=dx.Rngs(0))
    assert (made.hidden, made.same, made.sizes, made.up.out_features) == (8, 2, (2, 8), 8)
    given = model(2, hidden=3, same=7, rngs=dx.Rngs(0))
    assert (given.hidden, given.same, given.sizes, given.up.out_features) == (3, 7, (2, 3), 3)
    with pytest.raises(errors.LayerError, match=r"Model\.hidden: this value is out of bounds"):
        model(2, hidden=0, rngs=dx.Rngs(0))
    fields = {field.name: field for field in dataclasses.fields(model)}
    assert fields["same"].metadata["unit"] == "m"
    assert not fields["same"].repr
    assert dx.replace(made, dim=3, rngs=dx.Rngs(0)).up.out_features == 12
    assert dx.spec_of(made) == dx.spec(model, 2)
    assert dx.from_config(model, {"dim": 2, "up": {"use_bias": False}}, rngs=dx.Rngs(0)).up.bias is None


# --- names of bases ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ({}, r"Sub\.dim: the class body reads 'dim', a field of the base Model"),
        ({"dim": 5}, r"Sub\.up: the expression reads 'dim', a field of the base Model, and Python finds a global"),
    ],
)
def test_inherited_names_are_not_visible(names, match):
    source = SUBCLASS.format(
        "_: dx.KW_ONLY\n    rngs: dx.InitVar[dx.Rngs] = dx.field()\n    up = dx.Linear(dim, 2, rngs=rngs)"
    )
    with pytest.raises(errors.FieldError, match=match) as caught:
        exec(source, {"dx": dx, "Model": declare(), **names})
    assert caught.value.fix == "Model.dim"


def test_a_field_without_a_specifier_has_no_expression():
    model = declare("plain: int", "size: int = dx.field(kw_only=True)")
    with pytest.raises(AttributeError, match=r"Declare it as `plain: \.\.\. = dx.field"):
        _ = model.plain


def test_replace_takes_instances():
    with pytest.raises(errors.FieldError, match="replace takes an instance of a dataclass"):
        dx.replace(declare(), dim=3)


def test_an_internal_part_as_an_argument():
    with pytest.raises(errors.ConstructionError, match="there is no parameter 'up'") as caught:
        declare("up = dx.Linear(dim, dim, rngs=rngs)")(2, up=3, rngs=dx.Rngs(0))
    assert caught.value.fix.startswith("up: ... = ...        # an annotated part")


def test_names_that_the_generated_source_uses():
    lines = ["range: dx.InitVar[int] = dx.field(default=3)", "put: dx.InitVar[int] = dx.field(default=4)"]
    model = declare(*lines, "parts = dx.repeat(2, dx.defer(list)((dim, put)))")
    assert model(1, rngs=dx.Rngs(0)).parts == [[1, 4], [1, 4]]


# --- names that inner scopes do not see -----------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("parts = [dx.Linear(dim, dim, rngs=rngs) for _ in range(3)]", "dim"),
        ("parts = [dx.Linear(2, size, rngs=rngs) for size in (3, 4)]", "rngs"),
        ("parts = {i: dx.Linear(dim, dim, rngs=rngs) for i in range(3)}", "dim"),
        ("parts = dx.Sequential(*(dx.Linear(size, dim, rngs=rngs) for size in (3, 4)))", "dim"),
        ("part = dx.defer(lambda: dx.Linear(dim, 2, rngs=rngs))()", "dim"),
        ("parts: list[int] = dx.field(default_factory=lambda: [dim for _ in range(2)])", "dim"),
    ],
)
def test_comprehensions_and_lambdas_do_not_see_fields(line, name):
    for names in ({}, {"rngs": dx.Rngs(0), "dim": 3}):
        error = refused(line, **names)
        assert error.where == f"Model.{name}"
        assert error.problem == f"the comprehension or lambda in line 7 reads {name!r}"
        assert "dx.repeat(3, dx.Linear(dim, dim))" in error.fix


def test_a_name_of_a_function_around_the_class_in_a_comprehension():
    def make(dim):
        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field()
            sizes = tuple(dim for _ in range(3))

        return Model

    with pytest.raises(errors.FieldError, match=r"Model.dim: the comprehension or lambda in line \d+ reads 'dim'"):
        make(3)


def test_comprehensions_and_lambdas_that_read_no_field():
    model = declare(
        "sizes: tuple[int, ...] = tuple(dim * i for i, dim in enumerate((3, 4)))",
        "names: tuple[str, ...] = tuple(value.dim for value in values)",
        "function: Any = dx.field(default=lambda dim: dim + 1)",
        values=[],
    )(2, rngs=dx.Rngs(0))
    assert (model.sizes, model.names, model.function(1)) == ((0, 4), (), 2)


@pytest.mark.parametrize("base", ["(dx.Module)", ""])
@pytest.mark.parametrize("names", [{}, {"dim": 3}])
def test_nested_classes_do_not_see_fields(base, names):
    error = refused(f"class Inner{base}:", "    twice = 2 * dim", **names)
    assert error.problem == "the nested class Inner in line 8 reads 'dim'"
    assert error.fix == "class Inner(dx.Module): ...        # before Model, with a field for dim\npart = Inner(dim)"


def test_nested_classes_that_read_no_field():
    lines = [
        "@dx.dataclass",
        "class Inner(dx.Module):",
        "    dim: int = dx.field()",
        "    twice = dim * size",
        "",
        "inner = Inner(dim)",
    ]
    assert declare(*lines, size=2)(3, rngs=dx.Rngs(0)).inner.twice == 6


# --- the class itself ---------------------------------------------------------------------------


OUTSIDE = "a field has no value until an instance is created, and this is not in the body of a declared class"


@pytest.mark.parametrize(
    "operation",
    [
        lambda cls: cls.up.kernel + 1,
        lambda cls: cls.dim + 1,
        lambda cls: 2 * cls.dim,
        lambda cls: cls.up[0],
        lambda cls: -cls.dim,
        lambda cls: cls.dim > 3,
        lambda cls: cls.dim == 64 or None,
        lambda cls: bool(cls.dim),
        lambda cls: cls.up(jnp.ones(3)),
        lambda cls: dx.Linear(cls.dim, 3, rngs=dx.Rngs(0)),
    ],
)
def test_fields_of_a_class_outside_of_class_bodies(operation):
    model = declare("up = dx.Linear(dim, dim, rngs=rngs)")
    with pytest.raises((errors.ExpressionError, errors.MissingAttributeError), match=OUTSIDE) as caught:
        operation(model)
    assert "block.dim " in caught.value.fix


def test_what_fields_of_a_class_are_outside_of_class_bodies():
    model = declare("up = dx.Linear(dim, dim, rngs=rngs)")
    assert not hasattr(model.up, "kernel")
    assert repr(model.dim) == "dim"
    assert model.dim == model.dim
    assert model.dim != model.up


# --- objects that instances would share -----------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "t: Any = dx.field(default=(dx.Sequential(),))",
        "t: tuple = (1, (dx.Sequential(),))",
        "t: dict = {'a': dx.Sequential()}",
        "t: list = dx.static(default=[dx.Sequential()])",
        "t: dx.Linear = dx.Linear(2, 2, rngs=dx.Rngs(0))",
        "t: dx.Sequential = dx.Sequential()",
        "t = dx.Sequential(dx.Sequential(), dim)",
        "t = [dx.Linear(2, 2, rngs=dx.Rngs(0))]",
        "t = (dx.Param(1),)",
        "t = (dx.Rngs(0),)",
    ],
)
def test_objects_that_instances_would_share(line):
    error = refused(line)
    assert error.where == "Model.t"
    assert "shared by all instances" in error.problem or "all instances would share" in error.problem
    assert error.fix.startswith("dx.Linear(dim, dim)        # each instance makes a call")
    assert error.fix.endswith("class Block(dx.Layer): ...        # has rngs, in place of a dx.Rngs")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (
            "w: dx.Param = dx.Param(jnp.zeros((3, 2)))",
            "w: dx.Param[jax.Array] = dx.variable((3, 2), initializer=dx.init",
        ),
        (
            "w = dx.BatchStat(jnp.zeros(3))",
            "w: dx.BatchStat[jax.Array] = dx.variable((3,), initializer=dx.initializers",
        ),
        (
            "w = dx.Param(2 * dim)",
            "w: dx.Param[jax.Array] = dx.variable((...), initializer=...)",
        ),
        (
            "w = dx.Param(jnp.zeros(dim))",
            "w: dx.Param[jax.Array] = dx.variable((TERM,), initializer=dx.initializers.zeros)",
        ),
        (
            "w: dx.Param = dx.Param(jnp.ones(2 * dim))",
            "w: dx.Param[jax.Array] = dx.variable((2 * dim,), initializer=dx.",
        ),
        (
            "w = dx.Param(np.ones(dim))",
            "w: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)",
        ),
        (
            "w = dx.Param(jax.random.normal(jax.random.key(0), (dim,)))",
            "w: dx.Param[jax.Array] = dx.variable((...), initializer=dx.initializers.normal(0.02))",
        ),
        (
            "w = dx.Param(jnp.zeros((3, dim)))",
            "w: dx.Param[jax.Array] = dx.variable((...), initializer=dx.initializers.zeros)",
        ),
        (
            "w = dx.Param(jnp.full((3,), 2.0))",
            "w: dx.Param[jax.Array] = dx.variable((3,), initializer=dx.initializers.constant(2.0))",
        ),
        ("w = dx.Param(jnp.arange(3.0))", "w: dx.Param[jax.Array] = dx.variable((3,), initializer=...)"),
        ("w = dx.Param(jnp.eye(dim))", "w: dx.Param[jax.Array] = dx.variable((...), initializer=...)"),
        ("w = dx.Param(jnp.zeros(dim) + dim)", "w: dx.Param[jax.Array] = dx.variable((...), initializer=...)"),
    ],
)
def test_a_variable_in_the_class_body(line, fix):
    error = refused(line)
    assert error.where.startswith("Model")
    assert error.fix.startswith(fix.replace("TERM", "dim"))
    assert "\n" not in error.fix


@pytest.mark.parametrize(
    ("array", "shape", "initializer"),
    [
        ("jnp.zeros((3, dim))", "(3, dim)", "dx.initializers.zeros"),
        ("jnp.zeros(\n    (\n        3, dim))", "(3, dim)", "dx.initializers.zeros"),
        ("jnp.zeros(shape=[dim, dim], dtype=jnp.bfloat16)", "(dim, dim)", "dx.initializers.zeros"),
        ("jnp.ones(dim)", "(dim,)", "dx.initializers.ones"),
        ("jnp.ones((dim, 4)) * 0.1", "(dim, 4)", "..."),
        ("0.1 * jnp.ones((dim, 4))", "(dim, 4)", "..."),
        ("jnp.full((dim,), 2.0)", "(dim,)", "dx.initializers.constant(2.0)"),
        ("jnp.full((3, dim), dim)", "(3, dim)", "..."),
        ("jax.random.normal(jax.random.key(0), (3, dim))", "(3, dim)", "dx.initializers.normal(0.02)"),
        ("jax.nn.initializers.ones(jax.random.key(0), (3, dim))", "(3, dim)", "dx.initializers.ones"),
        ("jnp.arange(dim)", "(dim,)", "..."),
        ("jnp.arange(1, dim)", "(...)", "..."),
        ("jnp.zeros((3, dim)).T", "(...)", "..."),
        ("jnp.broadcast_to(0.0, (3, dim))", "(...)", "..."),
        ("jnp.eye(dim)", "(...)", "..."),
    ],
)
def test_the_shape_of_a_variable_in_a_class_body_with_source(tmp_path, array, shape, initializer):
    source = f"@dx.dataclass\nclass Model(dx.Layer):\n    dim: int = dx.field()\n    w = dx.Param({array})\n"
    path = tmp_path / "model.py"
    path.write_text(source)
    with pytest.raises(errors.ExpressionError) as caught:
        exec(compile(source, str(path), "exec"), {"dx": dx, "jax": jax, "jnp": jnp, "__name__": __name__})
    assert caught.value.fix == f"w: dx.Param[jax.Array] = dx.variable({shape}, initializer={initializer})"


def test_class_variables_hold_objects():
    model = declare("shared: ClassVar[tuple] = (dx.Sequential(),)", ClassVar=ClassVar)
    assert model(2, rngs=dx.Rngs(0)).shared is model.shared


# --- random keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (
            "rngs: dx.InitVar[dx.Rngs] = dx.field()",
            "Sub.rngs: this InitVar is positional, and that of the base Model is keyword-only",
        ),
        ("part = dx.Linear(Model.dim, 2, rngs=rngs)", "Sub.rngs: the class body reads rngs, which this class does not"),
        ("part = dx.Linear(Model.dim, 2, rngs=Model.rngs)", "Model.rngs is an InitVar, which is not inherited"),
    ],
)
def test_rngs_of_a_subclass(line, match):
    with pytest.raises((errors.FieldError, AttributeError), match=match) as caught:
        exec(SUBCLASS.format(line), {"dx": dx, "Model": declare()})
    lines = str(caught.value).splitlines()[-2:]
    assert lines[0].endswith("_: dx.KW_ONLY")
    assert lines[1].endswith("rngs: dx.InitVar[dx.Rngs] = dx.field()")


def test_rngs_of_a_subclass_of_fields_with_defaults():
    source = "@dx.dataclass\nclass Model(dx.Module):\n    dim: int = dx.field(default=2)\n"
    with pytest.raises(errors.FieldError, match="a field without a default follows one with a default") as caught:
        exec(source + SUBCLASS.format("rngs: dx.InitVar[dx.Rngs] = dx.field()"), {"dx": dx})
    assert caught.value.fix == "_: dx.KW_ONLY\nrngs: dx.InitVar[dx.Rngs] = dx.field()"


@pytest.mark.parametrize(
    ("line", "call", "fix"),
    [
        ("up = dx.Linear(dim, dim)", "dx.Linear(dim, dim)", "up = dx.Linear(dim, dim, rngs=rngs)"),
        ("up: dx.Linear = dx.Linear(dim, 1)", "dx.Linear(dim, 1)", "up: dx.Linear = dx.Linear(dim, 1, rngs=rngs)"),
        (
            "up = dx.Sequential(dx.Linear(dim, 2))",
            "dx.Linear(dim, 2)",
            "up = dx.Sequential(dx.Linear(dim, 2, rngs=rngs))",
        ),
        (
            "up = dx.repeat(3, dx.Linear(dim, dim))",
            "dx.Linear(dim, dim)",
            "up = dx.repeat(3, dx.Linear(dim, dim, rngs=rngs))",
        ),
        (
            "up = dx.Stacked(dx.Linear(dim, dim), 2)",
            "dx.Linear(dim, dim)",
            "up = dx.Stacked(dx.Linear(dim, dim, rngs=rngs), 2)",
        ),
        ("up = dx.defer(make)(dim)", "dx.defer(make)(dim)", "up = dx.defer(make)(dim, rngs=rngs)"),
        (
            "up = [dx.defer(make)(dim, rngs), dx.defer(dx.Linear)(2, 3)]",
            "dx.Linear(2, 3)",
            "up = [dx.defer(make)(dim, rngs), dx.Linear(2, 3, rngs=rngs)]",
        ),
    ],
)
def test_a_part_to_which_no_rngs_are_passed(line, call, fix):
    with pytest.raises(errors.FieldError, match=r"Model\.up: the part .* needs random keys") as caught:
        declare(line)
    assert caught.value.problem == f"the part {call} needs random keys, and no rngs are passed to it"
    assert caught.value.fix == fix


def test_a_method_that_passes_no_rngs():
    lines = ["@dx.submodule", "def up(self, rngs):", "    return dx.Linear(self.dim, 2)"]
    with pytest.raises(errors.MissingRngsError, match=r"Linear\.kernel: random keys are needed here") as caught:
        declare(*lines)(3, rngs=dx.Rngs(0))
    assert caught.value.__notes__ == ["while Model.up was made: the method up(self, rngs)"]


def test_a_field_without_an_annotation():
    assert refused("size = dx.field(default=3)").fix == "size: int = dx.field(...)"
    error = refused("scale = dx.variable((dim,), initializer=dx.initializers.ones)")
    assert error.problem == "this field has no annotation, which decides its kind"
    assert error.fix == "scale: dx.Param[jax.Array] = dx.variable(...)"


# --- the classes of parts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wrong", "right"),
    [
        ("part: dx.Linear = dx.Linear(dim, 3, rngs=rngs)", dx.Sequential(), dx.Linear(1, 1, rngs=dx.Rngs(0))),
        ("part: dx.Linear | dx.Sequential = dx.Linear(dim, 3, rngs=rngs)", 3, dx.Sequential()),
        ("part: dx.Linear | None = dx.when(flag, dx.Linear(dim, 3, rngs=rngs))", dx.Sequential(), None),
        ("part: dx.Module = dx.Linear(dim, 3, rngs=rngs)", jnp.ones, dx.Sequential()),
        ("part: Mixer = dx.Linear(dim, 3, rngs=rngs)", dx.Linear, dx.Sequential()),
        ("part: Mixer = dx.Linear(dim, 3, rngs=rngs)", "a", jnp.tanh),
        ("part: list[dx.Linear] = dx.repeat(dim, dx.Linear(dim, 3, rngs=rngs))", 3, []),
    ],
)
def test_a_given_part_of_the_wrong_class(line, wrong, right):
    model = declare(line)
    with pytest.raises(errors.ConstructionError, match=r"Model.part: the given part is of the wrong class"):
        model(2, part=wrong, rngs=dx.Rngs(0))
    assert model(2, part=right, rngs=dx.Rngs(0)).part is right


LINEAR = dx.Linear(1, 1, rngs=dx.Rngs(0))
LABELS = "dx.prefix(model, {...: 3})        # for a tree of labels or axes"


@pytest.mark.parametrize(
    ("annotation", "wrong", "fix"),
    [
        ("dx.Linear", 3, f"leave parts out, or give it dx.Linear\n{LABELS}"),
        ("Mixer", dx.Linear, "leave parts out, or give it Mixer"),
        ("list[dx.Linear]", [LINEAR, 3], f"leave parts out, or give it dx.Linear\n{LABELS}"),
        ("list[dx.Linear]", [dx.Dropout(0.1)], "parts: list[dx.Linear | dx.Dropout] = ...        # to allow both"),
    ],
)
def test_the_fix_of_a_given_part(annotation, wrong, fix):
    made = "dx.Linear(dim, dim, rngs=rngs)"
    model = declare(f"parts: {annotation} = {f'[{made}]' if 'list' in annotation else made}")
    with pytest.raises(
        errors.ConstructionError, match=r"Model.parts.*: the given part is of the wrong class"
    ) as caught:
        model(2, parts=wrong, rngs=dx.Rngs(0))
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("annotation", "wrong", "path", "right"),
    [
        ("list[dx.Linear]", [LINEAR, dx.Sequential()], "[1]", [LINEAR]),
        ("list[dx.Linear]", LINEAR, "", dx.List([LINEAR])),
        ("list[dx.Linear]", [3], "[0]", []),
        ("list[dx.Linear | None]", [None, dx.Sequential()], "[1]", [None, LINEAR]),
        ("tuple[dx.Linear, ...]", (LINEAR, dx.Sequential()), "[1]", (LINEAR, LINEAR)),
        ("tuple[dx.Linear, dx.Sequential]", (LINEAR, LINEAR), "[1]", (LINEAR, dx.Sequential())),
        ("tuple[dx.Linear, dx.Sequential]", (LINEAR,), "", (LINEAR, dx.Sequential())),
        ("dict[str, dx.Linear]", {"a": LINEAR, "b": 3}, "['b']", {"a": LINEAR}),
        ("dict[str, list[dx.Linear]]", {"a": [LINEAR, dx.Sequential()]}, "['a'][1]", dx.Dict(a=[LINEAR])),
        ("dx.Data[list[dx.Linear]]", [dx.Sequential()], "[0]", [LINEAR]),
        ("list[Mixer]", 3, "", [jnp.tanh]),
    ],
)
def test_given_items_of_the_wrong_class(annotation, wrong, path, right):
    parts = "(dx.Linear(dim, 3, rngs=rngs), dx.Sequential(dx.Linear(dim, 3, rngs=rngs)))"
    if annotation == "tuple[dx.Linear, ...]" or "list" in annotation:
        parts = "[dx.Linear(dim, 3, rngs=rngs)]"
    if "dict" in annotation:
        parts = f"{{'a': {parts if 'list' in annotation else 'dx.Linear(dim, 3, rngs=rngs)'}}}"
    model = declare(f"parts: {annotation} = {parts}")
    assert model(2, rngs=dx.Rngs(0)).parts
    with pytest.raises(errors.ConstructionError, match="the given part is of the wrong class") as caught:
        model(2, parts=wrong, rngs=dx.Rngs(0))
    assert caught.value.where == f"Model.parts{path}"
    assert model(2, parts=right, rngs=dx.Rngs(0)).parts is right


# --- objects made anew ------------------------------------------------------------------------


@dx.dataclass
class Pair(dx.Module):
    dim: int = dx.field()
    hidden: int = 4 * dim
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(dim, hidden, rngs=rngs)
    towers: list[dx.Linear] = dx.repeat(2, dx.Linear(dim, dim, rngs=rngs))


COPIES = (lambda model: model, copy.copy, copy.deepcopy, dx.clone, lambda model: pickle.loads(pickle.dumps(model)))


@pytest.mark.parametrize("copied", COPIES)
def test_replace_keeps_parts_that_were_assigned_since(copied):
    pair = Pair(2, rngs=dx.Rngs(0))
    other = pair.up = dx.Linear(2, 3, rngs=dx.Rngs(1))
    pair.towers[0] = other
    made = dx.replace(copied(pair), dim=5, rngs=dx.Rngs(2))
    assert made.up.kernel.shape == (2, 3)
    assert [tower.kernel.shape for tower in made.towers] == [(2, 3), (2, 2)]
    assert made.hidden == 20


@pytest.mark.parametrize("copied", COPIES)
def test_replace_makes_parts_anew_that_nobody_assigned(copied):
    pair = copied(Pair(2, rngs=dx.Rngs(0)))
    pair.up.kernel.value = jnp.zeros((2, 8))
    made = dx.replace(copied(pair), dim=5, rngs=dx.Rngs(2))
    assert (made.hidden, made.up.kernel.shape, made.towers[1].kernel.shape) == (20, (5, 20), (5, 5))
    pair.set_attributes(hidden=3)
    assert dx.replace(copied(pair), dim=5, rngs=dx.Rngs(2)).up.kernel.shape == (5, 3)


@dx.dataclass
class Whole(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    half = dim // 2
    up = dx.Linear(dim, 2, rngs=rngs)
    towers = dx.repeat(2, dx.Linear(dim, dim, rngs=rngs))
    pair = Pair(dim, rngs=rngs)
    given: Pair = Pair(dim, rngs=rngs)

    @dx.submodule
    def method(self):
        return [self.up]


def assign(whole):
    whole.up = dx.Linear(2, 2, rngs=dx.Rngs(1))


def assign_other(whole):
    whole.up = dx.LayerNorm(2, rngs=dx.Rngs(1))


def assign_none(whole):
    whole.up = None


def append(whole):
    whole.towers.append(dx.relu)


def assign_number(whole):
    whole.half = 7


def assign_within(whole):
    whole.pair.up = dx.Linear(2, 2, rngs=dx.Rngs(1))


def assign_item(whole):
    whole.method[0] = dx.relu


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize(
    ("change", "name", "fix"),
    [
        (assign, "up", "up: ... = dx.Linear(dim, 2, rngs=rngs)"),
        (append, "towers", "towers: ... = dx.repeat(2, dx.Linear(dim, dim, rngs=rngs))"),
        (assign_other, "up", "up: ... = dx.Linear(dim, 2, rngs=rngs)"),
        (assign_none, "up", "up: ... = dx.Linear(dim, 2, rngs=rngs)"),
        (assign_number, "half", "half: ... = dim // 2"),
        (assign_within, "pair", "pair: ... = Pair(dim, rngs=rngs)"),
        (assign_item, "method", "method: ... = ..."),
    ],
)
def test_an_internal_part_that_was_assigned_is_not_lost(change, name, fix, copied):
    whole = Whole(2, rngs=dx.Rngs(0))
    made = dx.replace(copied(whole), dim=4, rngs=dx.Rngs(0))
    assert (made.half, made.up.kernel.shape, made.pair.dim, made.given.dim) == (2, (4, 2), 4, 4)
    assert dx.spec_of(copied(whole)) == dx.spec(Whole, 2)
    change(whole)
    with pytest.raises(errors.FieldError, match="replace cannot keep this part: it was assigned after") as caught:
        dx.replace(copied(whole), dim=4, rngs=dx.Rngs(0))
    assert caught.value.where == f"Whole.{name}"
    assert caught.value.fix == f"{fix}        # in Whole: with an annotation it is an argument"
    with pytest.raises(errors.ConfigError, match=rf"Whole\.{name}: spec_of cannot keep this part"):
        dx.spec_of(copied(whole))


def test_a_part_in_which_another_was_assigned_is_kept():
    whole = Whole(2, rngs=dx.Rngs(0))
    whole.given.up = dx.Linear(2, 5, rngs=dx.Rngs(1))
    assert dx.replace(whole, dim=4, rngs=dx.Rngs(0)).given is whole.given
    assert dx.spec_of(whole) == dx.spec(Whole, 2, given=dx.spec(Pair, 2, up=dx.spec(dx.Linear, 2, 5)))


def test_assigned_parts_of_an_object_without_a_record():
    @dx.dataclass
    class Plain(dx.Module):
        dim: int = dx.field()
        rate = dim / 10
        part = dx.Dropout(rate)

    merged = dx.merge(*dx.split(Plain(2)))
    merged.part = dx.Dropout(0.9)  # of the declared class
    with pytest.raises(
        errors.FieldError, match=r"Plain\.rate: replace cannot tell whether this part was assigned"
    ) as caught:
        dx.replace(merged, dim=4)
    assert caught.value.why.startswith("merge, jax.tree.map and transforms return objects without")
    with pytest.raises(errors.ConfigError, match=r"Plain\.rate: spec_of cannot tell whether this part was assigned"):
        dx.spec_of(merged)
    assert dx.replace(dx.clone(Plain(2)), dim=4).part.rate == 0.4


def test_a_replaced_part_is_not_kept_alive():
    pair = Pair(2, rngs=dx.Rngs(0))
    old = weakref.ref(pair.up)
    pair.up = dx.Linear(2, 8, rngs=dx.Rngs(0))
    gc.collect()
    assert old() is None


def test_the_replace_of_the_standard_is_refused_where_it_would_mix_sizes():
    pair = Pair(2, rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError, match=r"dataclasses.replace passes on parts that were made for other"):
        dataclasses.replace(pair, dim=3, rngs=dx.Rngs(0))

    @dx.dataclass
    class Plain(dx.Module):
        dim: int = dx.field()
        twice = 2 * dim

    assert dataclasses.replace(Plain(2), dim=3).twice == 6


def test_a_class_that_is_pickled_by_value(tmp_path):
    cloudpickle = pytest.importorskip("cloudpickle")
    model = declare(
        "part: dx.Linear = dx.Linear(dim, dim, rngs=rngs)",
        "def __call__(self, x): return self.part(x)",
        __name__="__main__",
    )
    (tmp_path / "model").write_bytes(cloudpickle.dumps((model, model(2, rngs=dx.Rngs(0)))))
    program = """
import pickle, sys
import jax
import declax as dx
Model, model = pickle.load(open(sys.argv[1], "rb"))

@dx.dataclass
class Wide(Model):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(Model.dim, 2 * Model.dim, rngs=rngs)

print(len(dx.split(dx.clone(model))[1].flat_state()), dx.replace(model, dim=3, rngs=dx.Rngs(0)).part.in_features)
print(Wide(4, rngs=dx.Rngs(0)).up.out_features, *dx.eval_shape(model, jax.ShapeDtypeStruct((1, 2), "float32")).shape)
"""
    made = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model")], capture_output=True, text=True, check=False
    )
    assert made.stdout.split() == ["2", "3", "8", "1", "2"], made.stderr


def test_the_fields_of_a_class_that_is_pickled_by_value(tmp_path):
    """The standard compares its marks by identity, and cloudpickle makes others of them."""
    cloudpickle = pytest.importorskip("cloudpickle")

    @dataclasses.dataclass
    class Foreign:
        x: int

    @dataclasses.dataclass
    class Standard(Foreign, dx.Pytree):
        y: int = 3

    model = declare(
        "plain: float = 0.5",
        "sizes: list[int] = dx.static(default_factory=list)",
        "part = dx.Linear(dim, dim, rngs=rngs)",
    )
    stored = cloudpickle.dumps((model, Standard, Standard(2)))
    assert {type(field) for field in Foreign.__dataclass_fields__.values()} == {dataclasses.Field}
    (tmp_path / "classes").write_bytes(stored)
    program = """
import dataclasses, pickle, sys
model, Standard, instance = pickle.load(open(sys.argv[1], "rb"))
for cls in (model, Standard):
    for field in cls.__dataclass_fields__.values():
        print(field.name, field.default is dataclasses.MISSING, field.default_factory is dataclasses.MISSING)
print([field.name for field in dataclasses.fields(model)], dataclasses.replace(instance, x=5).x)
"""
    made = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "classes")], capture_output=True, text=True, check=False
    )
    table, names = made.stdout.splitlines()[:-1], made.stdout.splitlines()[-1:]
    assert {line.split()[0]: line.split()[1:] for line in table} == {
        "dim": ["True", "True"],
        "flag": ["False", "True"],
        "rngs": ["True", "True"],
        "plain": ["False", "True"],
        "sizes": ["True", "False"],
        "part": ["True", "True"],
        "x": ["True", "True"],
        "y": ["False", "True"],
    }, made.stderr
    assert names == ["['dim', 'flag', 'plain', 'sizes', 'part'] 5"]


def test_a_class_that_is_pickled_by_value_and_still_exists():
    cloudpickle = pytest.importorskip("cloudpickle")
    model = declare("part: dx.Linear = dx.Linear(dim, dim, rngs=rngs)", __name__="__main__")
    before = model(2, rngs=dx.Rngs(0))
    assert len(jax.tree.leaves(before)) == 2
    found, copied = pickle.loads(cloudpickle.dumps((model, before)))
    assert found is type(copied) is model  # cloudpickle sets the attributes of the class again
    for instance in (before, copied, model(3, rngs=dx.Rngs(0))):
        assert len(jax.tree.leaves(dx.merge(*dx.split(instance)))) == 2
        assert dx.replace(instance, dim=4, rngs=dx.Rngs(0)).part.kernel.shape == (4, 4)


def test_what_post_init_assigns_is_made_again():
    @dx.dataclass
    class Rounded(dx.Module):
        dim: int = dx.field()
        hidden: int = 4 * dim

        def __post_init__(self):
            self.hidden += 1

    assert dx.replace(Rounded(2), dim=3).hidden == 13
    assert dx.spec_of(Rounded(2)) == dx.spec(Rounded, 2)


@pytest.mark.parametrize(
    "line",
    [
        "part = 4 * dim if hidden is None else hidden",
        "part = hidden if hidden is not None else dim",
        "part = hidden is dim",
        "match hidden:\n        case None: part = 1",
        "part = dim if hidden.real is None else 3",
        "part = 1 if hidden[0] is None else 2",
        "part = 1 if (2 * hidden) is not None else 2",
        "part = (dx, hidden) is None",
    ],
)
def test_an_expression_has_no_identity_of_its_value(line):
    source = (
        "@dx.dataclass\nclass Block(dx.Module):\n"
        "    dim: int = dx.field()\n    hidden: int | None = dx.field(default=None)\n    {}\n"
    )
    with pytest.raises(errors.FieldError) as raised:
        exec(source.format(line), {"dx": dx})
    assert "Block.hidden: the class body applies `is` to 'hidden'" in str(raised.value)
    assert "dx.when(hidden == None, ..., hidden)" in str(raised.value)
    names = {"dx": dx}
    exec(source.format("part = dx.when(hidden == None, 4 * dim, hidden)"), names)  # the line of the error
    assert (names["Block"](2).part, names["Block"](2, 5).part) == (8, 5)


@pytest.mark.parametrize(
    ("line", "test"),
    [
        ("part = dx.when(isinstance(hidden, int), hidden, dim)", "isinstance"),
        ("part = hidden if isinstance(hidden[0], int) else dim", "isinstance"),
        ("part = dx.when(callable(hidden), 1, 2)", "callable"),
        ("part = 1 if hasattr(hidden, 'real') else 2", "hasattr"),
        ("part = dim if type(hidden) == int else 2", "type"),
    ],
)
def test_an_expression_has_no_type_of_its_value(line, test):
    error = refused("hidden: int = dx.field(default=3)", line)
    assert error.where == "Model.hidden"
    assert error.problem == f"the class body applies {test} to 'hidden', which has a value in an instance only"
    assert error.fix.startswith(f"dx.defer({test})(hidden, ...)")


def test_tests_of_types_in_class_bodies():
    lines = ["part = dx.when(dx.defer(isinstance)(dim, int), dim, 3)", "last = dim if callable(len) else 2"]
    made = declare(*lines, "other = type(2)(3) * dim", "same = type([])([2 * dim])")(2, rngs=dx.Rngs(0))
    assert (made.part, made.last, made.other, made.same) == (2, 2, 6, [4])


def test_constants_of_a_class_body_may_be_tested():
    size, sizes = None, (2, None)

    @dx.dataclass
    class Block(dx.Module):
        dim: int = dx.field()
        factor = 2 if size is None else size
        kind = dx.defer(int)(dim) if isinstance(size, int) else factor * dim
        wide = dim if sizes[1] is None else 4 * dim
        kinds = type(size), dx.defer(int)(dim), type(dict)("Kind", (), {})

        match size:
            case None:
                name = "none"
            case int() | [_]:
                name = "some"

    assert (Block(3).kind, Block.name, Block(3).wide) == (6, "none", 3)


def test_a_literal_pattern_needs_a_value():
    with pytest.raises(errors.ExpressionError, match=r"Model: mode == 'a': a field has no value .* a truth test"):

        class Model(dx.Module):
            mode: str = dx.field()
            match mode:
                case "a":
                    part = 1
                case _:
                    part = 2


Rngs = dx.Rngs
GLOBAL = {"dx": dx, "size": 3, "date": type("date", (), {"today": 5})}


@pytest.mark.parametrize(
    "line", ["wide = 4 * size", "part = dx.Dropout(size / 10)", "sizes = [size for _ in (size, 2)]"]
)
def test_a_constant_of_a_global_with_the_name_of_a_field(line):
    with pytest.raises(errors.FieldError, match=r"Model\.size: the expression of '\w+' reads this field") as caught:
        exec(f"class Model(dx.Module):\n    size: int\n    {line}", GLOBAL)
    assert caught.value.why == "Python finds a global of this name"
    assert caught.value.fix == "size: int = dx.field()"


def test_globals_that_fields_may_have_the_names_of():
    model = declare("size: int = size", "k = smaller(2)", "smaller: int = dx.field(default=3)", size=7)
    assert (model(1, rngs=dx.Rngs(0)).size, model(1, rngs=dx.Rngs(0)).smaller) == (7, 3)


@pytest.mark.parametrize("line", ["end: date = None", "def f(self, size=size): ...", "Inner = date", "size = 4 * size"])
def test_globals_with_names_of_fields_that_no_constant_reads(line):
    names = dict(GLOBAL)
    source = "@dx.dataclass\nclass Model(dx.Module):\n    date: date\n    size: int\n    {}\n"
    exec(source.format(line) + "    dim: int = dx.field(default=2)", names)
    assert names["Model"].dim is not None


def test_the_annotation_of_a_field_is_no_constant_of_the_next_one():
    @dx.dataclass
    class Model(dx.Module):
        Rngs: dx.Rngs | None
        other: Rngs | None = dx.field()  # the global
        wide = dx.defer(str)(other)

    assert Model(None, None).wide == "None"


def test_inner_scopes_may_have_variables_named_like_fields():
    @dx.dataclass
    class Block(dx.Module):
        w: int = dx.field(check=lambda w: all(w > k for k in (1, 2)))
        near = dx.defer(lambda w: [w + i for i in range(2)])(w)
        add = dx.defer(lambda w: lambda k: w + k)(w)

    assert (Block(3).near, Block(3).add(1)) == ([3, 4], 4)


def doubled(size):
    return 2 * size


@pytest.mark.parametrize("line", ["b: int = dx.defer(doubled)(a)", "b: int = int(a * 2)", "b: float = math.sqrt(a)"])
def test_functions_in_the_body_of_a_plain_dataclass(line):
    names = {"dx": dx, "math": math, "dataclasses": dataclasses, "doubled": doubled, "__name__": __name__}
    with pytest.raises(errors.ExpressionError, match="not in the body of a declared class") as caught:
        exec(f"@dataclasses.dataclass\nclass Sizes:\n    a: int = dx.field(default=3)\n    {line}\n", names)
    assert caught.value.fix.startswith("@dx.dataclass\nclass Sizes(dx.Pytree): ...")


def test_a_layer_in_the_body_of_a_plain_class():
    for head in ("", "@dx.dataclass\n", "@dataclasses.dataclass\n"):
        names = {"dx": dx, "dataclasses": dataclasses, "__name__": __name__}
        with pytest.raises(errors.ExpressionError, match="not in the body of a declared class") as caught:
            exec(f"{head}class Net:\n    dim: int = dx.field()\n    up = dx.Linear(dim, 3)\n", names)
        assert caught.value.fix.startswith("@dx.dataclass\nclass Net(dx.Layer): ...")


def test_a_function_in_the_body_of_a_declared_pytree():
    @dx.dataclass
    class Sizes(dx.Pytree):
        a: int = dx.field(default=3)
        b: int = dx.defer(doubled)(a)

    assert Sizes(4).b == 8
