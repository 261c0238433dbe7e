"""What is known of the parameters of classes and functions."""

import dataclasses
import inspect
import typing

import declax as dx
from config.spec_models import Block, Gate, Mixer, Mlp, Model, Open, Train, schedule
from declax._fields.meanings import members_of
from declax._typing import MISSING
from declax.config._reading.parameters import parameters_of


def test_a_declared_class():
    found = parameters_of(Mlp)
    assert (found.name, found.takes_rngs, found.needs_rngs, list(found.by_name)) == (
        "Mlp",
        True,
        True,
        ["dim", "hidden", "activation"],
    )
    hidden = found.by_name["hidden"]
    assert (hidden.annotation, hidden.default, hidden.notes) == (int, 8, {"ge": 1, "le": 1024})
    assert (hidden.owner, hidden.written, hidden.is_required) == (Mlp, "int", False)
    assert found.by_name["dim"].is_required
    assert found.required == ("dim",)


def test_help_is_of_the_field():
    assert parameters_of(Block).by_name["rate"].notes["help"] == "how much to drop"
    assert parameters_of(Gate).by_name["dim"].notes == {}


def test_defaults_by_factory():
    sizes = parameters_of(Block).by_name["sizes"]
    assert (sizes.default, sizes.make_default(), sizes.is_required) == (MISSING, [1, 2], False)


def test_annotations_are_evaluated_inside_too():
    assert parameters_of(Model).by_name["blocks"].annotation == list[Block]
    mixers = members_of(parameters_of(Block).by_name["mixer"].meaning())
    assert [mixer.cls for mixer in mixers] == [Mlp, Gate]
    assert parameters_of(Model).by_name["proto"].annotation == dx.Spec[Block] | None


def test_an_open_class_a_plain_dataclass_and_a_function():
    assert [p.name for p in parameters_of(Open)] == ["dim", "width"]
    assert parameters_of(Open).by_name["width"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters_of(Train).by_name["model"].annotation is Model
    found = parameters_of(schedule)
    assert (found.variadic, list(found.by_name), found.takes_rngs) == ("more", ["peak", "more", "warmup"], False)
    assert found.get("anything") is found.extra
    assert found.extra.annotation is float


def test_inherited_fields_know_their_owner():
    @dx.dataclass
    class Wide(Mlp):
        width: int = 3

    found = parameters_of(Wide)
    assert [found.by_name[name].owner for name in ("dim", "width")] == [Mlp, Wide]


def test_init_vars_are_unwrapped():
    @dx.dataclass
    class Scaled(Mixer):
        factor: dx.InitVar[float]
        rngs: dx.InitVar[dx.Rngs | None] = None

    assert parameters_of(Scaled).by_name["factor"].annotation is float
    assert not parameters_of(Scaled).needs_rngs


def test_a_dataclass_with_its_own_constructor():
    @dx.dataclass(init=False)
    class Own(dx.Module):
        dim: int

        def __init__(self, size: "int") -> None:
            self.dim = size

    assert [(p.name, p.annotation) for p in parameters_of(Own)] == [("size", int)]


def test_names_that_do_not_exist_stay_unresolved():
    @dataclasses.dataclass
    class Odd:
        x: "Nowhere"  # noqa: F821  # that is the point
        y: "list[Nowhere]" = dataclasses.field(default_factory=list)  # noqa: F821

    assert repr(parameters_of(Odd).by_name["x"].annotation) == "Nowhere"
    assert typing.get_origin(parameters_of(Odd).by_name["y"].annotation) is list
