"""Plain dataclasses with defaults that are expressions: a configuration computes them, a call of the class raises."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

import declax as dx
from declax import errors


@dataclasses.dataclass
class Model:
    dim: int = dx.static(default=4)
    hidden: int = 4 * dim


@dataclasses.dataclass
class Training:
    steps: int = dx.static(default=100)
    warmup: int = steps // 10
    twice: int = 2 * warmup
    same: int = steps
    sizes: tuple[int, ...] = (1, steps)
    noted: int = dx.field(default=steps + 1, ge=1, help="one more")
    plain: int = 3


def values(made: Training) -> tuple[Any, ...]:
    return made.steps, made.warmup, made.twice, made.same, made.sizes, made.noted


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (100, 10, 20, 100, (1, 100), 101)),
        ({"steps": 50}, (50, 5, 10, 50, (1, 50), 51)),
        ({"steps": 50, "warmup": 3}, (50, 3, 6, 50, (1, 50), 51)),
        ({"sizes": [], "noted": 7, "same": 8}, (100, 10, 20, 8, (), 7)),
    ],
)
def test_what_a_configuration_computes(config, expected):
    assert values(dx.from_config(Training, config)) == expected
    config = {**config, **({"sizes": ()} if "sizes" in config else {})}
    spec = dx.spec(Training, **config)
    assert values(spec.build()) == expected
    assert dx.from_config(Training, dx.to_config(spec)) == spec.build()
    assert spec["warmup"] == expected[1]


def test_nested_tables_and_attributes_of_parts():
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Run:
        training: Training
        model: Model = dx.static()  # noqa: RUF009  # what is tested
        heads: int = model.hidden // 4

    made = dx.from_config(Run, {"training": {"steps": 30}, "model": {"dim": 8}})
    assert (made.training.warmup, made.model.hidden, made.heads) == (3, 32, 8)


def test_subclasses_compute_what_they_inherit():
    @dataclasses.dataclass
    class Longer(Training):
        more: int = dx.static(default=4)
        most: int = more + 1

    assert (dx.from_config(Longer, {"steps": 20}).warmup, dx.spec(Longer, more=6).build().most) == (2, 7)


def test_a_direct_call_needs_the_values():
    text = r"^Model\.hidden: this default is computed from other fields, which a plain dataclass does not do"
    with pytest.raises(errors.ExpressionError, match=text) as caught:
        Model(3)
    assert caught.value.got == "4 * dim"
    assert caught.value.fix.splitlines()[:2] == ["dx.spec(Model, ...).build()", "Model(..., hidden=...)"]
    made = Model(3, 5)
    assert dataclasses.replace(made, dim=4) == Model(4, 5)
    assert pickle.loads(pickle.dumps(copy.deepcopy(made))) == made
    assert "hidden: int = <factory>" in str(inspect.signature(Model))


def test_notes_of_computed_defaults_are_kept():
    fields = {field.name: field for field in dataclasses.fields(Training)}
    assert repr(fields["noted"].default_factory) == "steps + 1"
    schema = dx.json_schema(Training)["properties"]
    assert schema["noted"] == {"type": "integer", "minimum": 1, "description": "one more"}
    with pytest.raises(errors.ConfigError, match="noted"):
        dx.from_config(Training, {"noted": 0})


def test_a_default_that_cannot_be_computed():
    @dataclasses.dataclass
    class Divided:
        parts: int = dx.static(default=0)
        size: int = 12 // parts

    with pytest.raises(ZeroDivisionError) as caught:
        dx.from_config(Divided, {})
    assert caught.value.__notes__ == ["while the default of 'size' was computed"]
    assert dx.from_config(Divided, {"parts": 3}).size == 4
    assert dx.from_config(Divided, {"size": 2}).size == 2


def test_computed_defaults_are_within_the_limits_of_their_fields():
    @dataclasses.dataclass
    class Limited:
        steps: int = dx.static(default=100)
        warmup: int = dx.field(default=steps // 10, ge=1, le=20)
        size: int = dx.field(default=2 * steps, choices=(200, 20))
        even: int = dx.field(default=steps + 2, check=lambda value: None if value % 2 == 0 else "odd")
        half: int = steps / 2  # the annotation alone refuses no default

    made = dx.from_config(Limited, {})
    assert (made.warmup, made.size, made.even, made.half) == (10, 200, 102, 50.0)
    for given, name in (({"steps": 9}, "warmup"), ({"steps": 50}, "size"), ({"steps": 11, "size": 20}, "even")):
        for make in (lambda given: dx.from_config(Limited, given), lambda given: dx.spec(Limited, **given).build()):
            with pytest.raises(errors.ConfigError, match=rf"^Spec of Limited: .*\n  {name}: ") as caught:
                make(given)
            assert caught.value.__notes__ == [f"while the default of {name!r} was computed"]
    assert dx.from_config(Limited, {"steps": 50, "warmup": 3, "size": 20}).warmup == 3


def test_plain_classes_without_expressions_stay_as_they_are():
    @dataclasses.dataclass
    class Plain:
        steps: int = dx.static(default=3)
        names: list[str] = dx.field(default_factory=list)  # noqa: RUF009  # what is tested
        other: int = 4

    class Holder:
        expression = dx.Linear.in_features

    assert Plain() == dx.from_config(Plain, {}) == dx.spec(Plain).build()
    assert Holder.expression is dx.Linear.in_features
