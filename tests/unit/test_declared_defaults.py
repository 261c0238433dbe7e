"""Declarations over expressions: specifiers with a derived default, and overrides that read what they override."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax import errors


@dx.dataclass
class Base(dx.Module):
    dim: int = dx.field(default=3)
    hidden: int = 4 * dim
    inner = hidden + 1
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, 2, rngs=rngs)
    down: dx.Linear = dx.Linear(2, dim, rngs=rngs)
    layers = [dx.Linear(dim, 1, rngs=rngs), dx.Linear(dim, 2, rngs=rngs)]
    first = layers[0]


# --- overrides that read what they override -----------------------------------------------


@dx.dataclass
class Wrapped(Base):
    dim: int = Base.dim + 1
    hidden: int = 2 * Base.hidden
    inner = 10 * Base.inner
    up = dx.Sequential(Base.up, dx.relu)
    down: dx.Sequential = dx.Sequential(Base.down, dx.tanh)
    layers = [*map(Base.layers.__getitem__, range(2)), dx.relu]
    first = layers[0]


def test_an_override_evaluates_what_it_overrides():
    model = Wrapped(rngs=dx.Rngs(0))
    assert (model.dim, model.hidden, model.inner) == (4, 32, 330)
    base = Base(4, rngs=dx.Rngs(0))
    assert jnp.array_equal(model.up.layers[0].kernel.value, base.up.kernel.value)
    assert jnp.array_equal(model.down.layers[0].kernel.value, base.down.kernel.value)
    assert model.up.layers[1] is dx.relu
    assert len(model.layers) == 3
    assert model.first is model.layers[0]
    assert jnp.array_equal(model.layers[1].kernel.value, base.layers[1].kernel.value)
    assert Wrapped(1, 7, rngs=dx.Rngs(0)).inner == 80


def test_an_override_of_an_override():
    @dx.dataclass
    class Twice(Wrapped):
        hidden: int = Wrapped.hidden + 5
        up = dx.Sequential(Wrapped.up, dx.tanh)
        also = Base.up

    model = Twice(1, rngs=dx.Rngs(0))
    assert model.hidden == 13
    assert type(model.up.layers[0].layers[0]) is dx.Linear
    assert model.also is model.up  # what a name of a base says is the attribute of the instance
    assert "self.up = Sequential(Sequential(Linear(self.dim, 2, rngs=rngs), relu), tanh)" in dx.source_of(Twice)


def test_copies_and_specs_of_such_a_class():
    model = dx.replace(Wrapped(rngs=dx.Rngs(0)), dim=2, rngs=dx.Rngs(1))
    assert model.up.layers[0].kernel.shape == (2, 2)
    assert model.down.layers[0].kernel.shape == (2, 2)
    spec = dx.spec(Wrapped)
    assert (spec["dim"], spec["hidden"]) == (4, 32)
    assert "down: Sequential()\n    layers[0]: Linear(in_features=2, out_features=4)" in str(spec)
    assert dx.spec_of(spec.build(rngs=dx.Rngs(0))) == spec


def test_the_note_of_such_a_part_shows_all_of_it():
    @dx.dataclass
    class Narrow(Base):
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up = dx.Sequential(Base.up, dx.Linear(Base.hidden, -1, rngs=rngs))

    with pytest.raises(errors.LayerError) as caught:
        Narrow(3, rngs=dx.Rngs(0))
    shown = "while Narrow.up was made: Sequential(Linear(3, 2, rngs=rngs), Linear(12, -1, rngs=rngs))"
    assert caught.value.__notes__ == [shown]


def test_an_override_of_what_has_no_default():
    @dx.dataclass
    class Plain(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()

        @dx.submodule
        def up(self, rngs):
            return dx.Linear(self.dim, 2, rngs=rngs)

    with pytest.raises(errors.FieldError, match=r"Wider\.dim: this part reads 'Plain\.dim', a field of a class that"):

        @dx.dataclass
        class Wider(Plain):
            dim: int = Plain.dim + 1

    with pytest.raises(errors.FieldError, match=r"Wrapper\.up: (.*\n)+.*that this declaration overrides"):

        @dx.dataclass
        class Wrapper(Plain):
            up = dx.Sequential(Plain.up, dx.relu)


# --- specifiers with a derived default ----------------------------------------------------


@dx.dataclass
class Noted(dx.Module):
    dim: int = dx.field()
    hidden: int = dx.field(default=dim // 2, ge=1, help="the width")
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.field(default=dx.Linear(dim, hidden, rngs=rngs), help="the first layer", repr=False)
    out: dx.Linear = dx.field(default=up)
    layers: list[dx.Linear] = dx.data(default=[dx.Linear(hidden, 3, rngs=rngs)])
    scale: int = dx.static(default=3 * dim)
    count: int = dx.field(default=dim + 1, init=False)


def test_a_specifier_with_a_derived_default():
    model = Noted(4, rngs=dx.Rngs(0))
    assert (model.hidden, model.scale, model.count) == (2, 12, 5)
    assert model.up.kernel.shape == (4, 2)
    assert model.out is model.up
    assert model.layers[0].kernel.shape == (2, 3)
    assert len(jax.tree.leaves(model)) == 6
    assert "up=" not in repr(model)
    assert Noted(4, 3, rngs=dx.Rngs(0)).up.kernel.shape == (4, 3)
    assert dx.replace(model, dim=6, rngs=dx.Rngs(0)).up.kernel.shape == (6, 3)
    assert Noted._pytree__info.specs["hidden"].notes["help"] == "the width"
    given = Noted(4, up=dx.Linear(4, 2, use_bias=False, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
    assert given.out.bias is None


def test_bounds_of_a_derived_default_are_checked_in_its_place():
    for arguments in [(1,), (4, 0)]:
        with pytest.raises(errors.LayerError, match=r"Noted\.hidden: this value is out of bounds") as caught:
            Noted(*arguments, rngs=dx.Rngs(0))
        assert not hasattr(caught.value, "__notes__")

    @dx.dataclass
    class Checked(dx.Module):
        dim: int = dx.field()
        hidden: int = dx.field(default=4 * dim, check=lambda size: size < 10)

    assert Checked(2).hidden == 8
    with pytest.raises(errors.LayerError, match=r"Checked\.hidden: the value does not pass the check of its field"):
        Checked(3)


def test_configurations_know_the_notes_of_a_derived_default():
    spec = dx.spec(Noted, 4)
    assert spec["hidden"] == 2
    assert dx.spec_of(spec.build(rngs=dx.Rngs(0))) == spec
    assert spec.replace({"up.use_bias": False}).build(rngs=dx.Rngs(0)).out.bias is None
    with pytest.raises(errors.ConfigError, match=r"hidden: .*\n.*expected: .*at least 1"):
        dx.from_config(Noted, {"dim": 4, "hidden": 0}, rngs=dx.Rngs(0))


def test_subclasses_keep_a_derived_default_with_its_notes():
    @dx.dataclass
    class Kept(Noted):
        hidden: int
        scale: int = Noted.scale

    @dx.dataclass
    class Wider(Noted):
        hidden: int = dx.field(default=8 * Noted.hidden)

    assert Kept(4, rngs=dx.Rngs(0)).hidden == 2
    assert Kept(4, rngs=dx.Rngs(0)).scale == 12
    assert Wider(4, rngs=dx.Rngs(0)).up.kernel.shape == (4, 16)
    with pytest.raises(errors.LayerError, match=r"Kept\.hidden"):
        Kept(4, 0, rngs=dx.Rngs(0))
    assert Noted.__dataclass_fields__["scale"] is not Kept.__dataclass_fields__["scale"]


def test_what_a_derived_default_cannot_be():
    with pytest.raises(errors.FieldError, match=r"its annotation or specifier makes it static.*\n.*dx.static\(...\)"):

        @dx.dataclass
        class Fixed(dx.Module):
            dim: int = dx.field()
            up: object = dx.static(default=dx.Linear(dim, dim))

    with pytest.raises(errors.FieldError, match=r"Loose\.up: this field has no annotation"):

        @dx.dataclass
        class Loose(dx.Module):
            dim: int = dx.field()
            up = dx.field(default=4 * dim)

    for default in ["4 * dim", "dx.field(default=4 * dim)"]:
        scope = {"dx": dx, "__name__": __name__}
        body = f"class Used(dx.Module):\n    dim: int = dx.field()\n    up: dx.InitVar[int] = {default}"
        with pytest.raises(errors.FieldError, match=r"Used.up: an InitVar has no value .*\n.*\n.*up: ... = 4 \* dim"):
            exec(f"@dx.dataclass\n{body}", scope)


def test_a_standard_dataclass_takes_no_expression():
    @dataclasses.dataclass
    class Size:
        dim: int = dx.field(default=3)

    assert Size().dim == 3


# --- names of InitVars --------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
def test_init_vars_with_names_that_the_generated_function_uses(frozen):
    @dx.dataclass(frozen=frozen)
    class Named(dx.Pytree):
        range: dx.InitVar[int] = dx.field(default=3)
        abs: dx.InitVar[int] = dx.field(default=-4)
        put: dx.InitVar[int] = dx.field(default=5)
        parts = dx.repeat(range, 2 * put)
        size = abs.__abs__()

    assert (Named().parts, Named().size) == ([10, 10, 10], 4)
    assert (Named(range=1).parts, Named(abs=-1, put=6).size) == ([10], 1)


def test_a_bound_tells_a_wrong_type_from_a_number_out_of_bounds():
    @dx.dataclass
    class Sized(dx.Module):
        size: int = dx.field(ge=1)

    for wrong, problem in ((0, "out of bounds"), (2.0, "the wrong type"), ("3", "the wrong type")):
        with pytest.raises(errors.LayerError, match=rf"Sized\.size: this value (is|has) {problem}"):
            Sized(wrong)
