"""Checks that a field declares: `check=`, in the constructor and in configurations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import declax as dx
from declax.config._cli.scripts import parameter_table
from declax.errors import FieldError, LayerError

seen: list[object] = []


def even(size: int) -> str | None:
    """Sizes are even."""
    seen.append(size)
    return f"{size} is odd" if size % 2 else None


def sorted_sizes(sizes: Any) -> None:
    if list(sizes) != sorted(sizes):
        raise ValueError("the sizes do not grow.")


@dx.dataclass
class Net(dx.Module):
    width: int = dx.static(check=even, ge=2)
    sizes: tuple[int, ...] = dx.static(default=(), check=sorted_sizes)
    depth: int | None = dx.static(default=None, check=even)
    gain: float = dx.data(default=2.0, check=lambda gain: gain != 0)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs | None] = dx.field(default=None)
    inner = dx.when(dx.defer(bool)(rngs), dx.Linear(width, 1, rngs=rngs))


@dx.dataclass
class Stack(dx.Module):
    nets: list[Net] = dx.data(check=lambda nets: "too many" if len(nets) > 1 else None)


@dx.dataclass
class Plain(dx.Module):
    width: int = dx.static(default=1, ge=1)


# ----------------------------------------------------------------- the constructor


def test_the_constructor_checks():
    net = Net(4, (1, 2), depth=2, gain=1.0, rngs=dx.Rngs(0))
    assert net.inner is not None
    with pytest.raises(LayerError, match=r"^Net\.width: 3 is odd\. \[layer\]\n  got:      int 3$"):
        Net(3)
    with pytest.raises(LayerError, match=r"^Net\.sizes: the sizes do not grow\. \[layer\]"):
        Net(4, (2, 1))
    with pytest.raises(LayerError, match=r"^Net\.gain: the value does not pass the check of its field\."):
        Net(4, gain=0.0)
    with pytest.raises(LayerError, match=r"^Net\.depth: 5 is odd"):
        dx.replace(net, depth=5, rngs=None)


def test_values_are_checked_before_parts_are_made_of_them():
    with pytest.raises(LayerError, match="this value is out of bounds"):
        Net(-2, rngs=dx.Rngs(0))


def test_none_and_unset_fields_are_not_checked():
    assert Net(2, depth=None).depth is None


def test_other_errors_of_a_check_come_as_they_are():
    with pytest.raises(TypeError, match="has no len"):
        Stack(3)


def test_a_value_is_checked_once():
    class Own(Net):
        def __post_init__(self, rngs: dx.Rngs | None) -> None:
            super().__post_init__(rngs)

    @dx.dataclass
    class Further(Net):
        height: int = dx.static(default=4, check=even)

        def __post_init__(self, rngs: dx.Rngs | None) -> None:
            super().__post_init__(rngs)

    seen.clear()
    Own(2)
    Further(6)
    assert seen == [2, 6, 4]
    with pytest.raises(LayerError, match=r"^Further\.height: 5 is odd"):
        Further(6, height=5)


def test_subclasses_check_too():
    @dx.dataclass
    class Decorated(Net):
        def __post_init__(self, rngs: dx.Rngs | None) -> None:
            del rngs

    class Undecorated(Net):
        def __post_init__(self, rngs: dx.Rngs | None) -> None:
            del rngs

    @dx.dataclass
    class Other(Net):
        width: int = 3

    for cls in (Decorated, Undecorated):
        with pytest.raises(LayerError, match=rf"^{cls.__name__}\.width: 3 is odd"):
            cls(3)
    assert Other().width == 3
    with pytest.raises(LayerError, match=r"^Other\.depth: 3 is odd"):
        Other(depth=3)


def test_only_checks_without_parts():
    @dx.dataclass
    class Alone(dx.Pytree):
        width: int = dx.static(check=even)

    @dx.dataclass(frozen=True)
    class Frozen(dx.Pytree):
        width: int = dx.static(check=even)

    class Sub(Alone):
        def __post_init__(self) -> None:
            self.width += 1

    assert Alone(2).width == Frozen(2).width == 2
    assert Sub(2).width == 3
    assert dx.clone(Sub(2)).width == 3
    for cls in (Alone, Frozen, Sub):
        with pytest.raises(LayerError, match=rf"^{cls.__name__}\.width: 3 is odd"):
            cls(3)


def test_init_vars_are_checked():
    @dx.dataclass
    class Seeded(dx.Pytree):
        seed: dx.InitVar[int] = dx.static(check=even)
        width: int = dx.static(default=2, check=even)

        def __post_init__(self, seed: int) -> None:
            self.width += seed

    assert Seeded(2).width == 4
    with pytest.raises(LayerError, match=r"^Seeded\.seed: 3 is odd"):
        Seeded(3)


def test_classes_without_checks_have_no_more_to_do():
    @dx.dataclass
    class Unchecked(dx.Module):
        width: int = dx.data(default=1, help="a note that the constructor does not need")

    assert "__post_init__" not in vars(Unchecked)
    assert not hasattr(Unchecked, "__post_init__")


# ----------------------------------------------------------------- declarations


def test_a_check_needs_the_decorator_of_declax():
    @dataclasses.dataclass
    class Standard(dx.Pytree):
        width: int = dx.static(check=even)

    with pytest.raises(FieldError, match="require the decorator of declax"):
        Standard(2)


# ----------------------------------------------------------------- configurations


def problems_of(data, cls=Net):
    with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
        dx.spec_from_config(cls, data)
    return [(p.code, p.path, p.message) for p in caught.value.problems]


def test_configurations_are_checked():
    assert problems_of({"width": 3, "sizes": [2, 1], "depth": 7, "gain": 0}) == [
        ("check", ("width",), "3 is odd"),
        ("check", ("sizes",), "the sizes do not grow"),
        ("check", ("depth",), "7 is odd"),
        ("check", ("gain",), "the value does not pass the check of its field"),
    ]
    assert dx.spec_from_config(Net, {"width": 4, "depth": None}) == dx.spec(Net, 4)


def test_a_value_of_the_wrong_type_or_range_is_not_checked_besides():
    assert problems_of({"width": "3"}) == [("wrong-type", ("width",), "the value has the wrong type")]
    assert problems_of({"width": 1}) == [("out-of-range", ("width",), "the value is out of range")]


@dx.dataclass
class Shares(dx.Module):
    rates: tuple[float, ...] = dx.static(default=(), ge=0, le=1)
    sizes: list[list[int]] = dx.static(default_factory=list, ge=1)


def test_limits_are_those_of_each_item_in_files_and_specs_alike():
    data = {"rates": [0.5, 1.5], "sizes": [[1], [2, 0]]}
    told = [("out-of-range", path, "the value is out of range") for path in (("rates", 1), ("sizes", 1, 1))]
    assert problems_of(data, Shares) == told
    with pytest.raises(dx.ConfigError, match="the configuration has 2 problems") as caught:
        dx.spec(Shares, (0.5, 1.5), [[1], [2, 0]]).check()
    assert [(p.code, p.path, p.message) for p in caught.value.problems] == told
    assert dx.spec(Shares, (0.5, 1.0), [[1]]).check() is None


def test_problems_have_a_line(tmp_path):
    file = tmp_path / "net.toml"
    file.write_text("[[nets]]\nwidth = 4\nsizes = [\n  2, 1]\n")
    with pytest.raises(
        dx.ConfigError, match=r"net\.toml:3:1 nets\.0\.sizes: the sizes do not grow\n    got: +a list of 2"
    ):
        dx.spec_from_config(Stack, file)


def test_parts_are_checked_when_they_are_made():
    spec = dx.spec_from_config(Stack, {"nets": [{"width": 2}, {"width": 2}]})
    spec.check()
    with pytest.raises(LayerError, match=r"^Stack\.nets: too many") as caught:
        spec.build()
    assert caught.value.__notes__ == ["in the configuration at (the root) (Stack)"]


def test_specs_are_checked():
    with pytest.raises(dx.ConfigError, match=r"  width: 3 is odd\n    got: +the int 3\n  sizes: the sizes") as caught:
        dx.spec(Net, 3, (2, 1)).check()
    assert [p.code for p in caught.value.problems] == ["check", "check"]
    dx.spec(Net, 4, (1, 2)).check()


def test_a_check_that_breaks_is_a_problem_of_the_value():
    @dx.dataclass
    class Broken(dx.Module):
        a: Any = dx.static(default=None, check=lambda a: 1 / a)

    assert problems_of({"a": 0}, Broken) == [
        ("check", ("a",), "the check of the field raised ZeroDivisionError: division by zero")
    ]
    with pytest.raises(dx.ConfigError, match="the check of the field raised ZeroDivisionError"):
        dx.spec(Broken, 0).check()


def test_errors_of_declax_keep_their_problem():
    def refuse(value: int) -> None:
        raise LayerError("here", "it is too odd", expected="less")

    @dx.dataclass
    class Odd(dx.Module):
        a: int = dx.static(check=refuse)

    assert problems_of({"a": 0}, Odd) == [("check", ("a",), "it is too odd")]
    with pytest.raises(LayerError, match=r"^Odd\.a: it is too odd"):
        Odd(0)


def test_functions_and_plain_dataclasses_are_checked_by_configurations():
    @dataclasses.dataclass
    class Train:
        steps: int = dx.static(default=2, check=even)

    assert problems_of({"steps": 3}, Train) == [("check", ("steps",), "3 is odd")]
    assert Train(3).steps == 3  # the standard's constructor knows no checks


def test_the_schema_and_the_table_say_that_there_is_more():
    assert dx.json_schema(Net)["properties"]["width"] == {"type": "integer", "minimum": 2}
    assert "width: int, at least 2, checked by even" in parameter_table(Net)
    assert parameter_table(Net).endswith("gain: float, default 2.0")


@dx.dataclass
class Rates(dx.Module):
    rates: dict[str, float] = dx.static(default_factory=dict, ge=0, le=1)
    nested: dict[str, list[float]] | None = dx.static(default=None, le=1)


def test_limits_are_those_of_each_value_of_a_dict():
    dx.spec(Rates, {"a": 1.0, "b": 0.0}, {"a": [1.0]}).check()
    with pytest.raises(dx.ConfigError, match=r"rates\.b: the value is out of range") as caught:
        dx.spec(Rates, {"a": 1.0, "b": 2.0}, {"c": [1.0, 3.0]}).build()
    paths = [("rates", "b"), ("nested", "c", 1)]
    assert [problem.path for problem in caught.value.problems] == paths
    with pytest.raises(dx.ConfigError, match=r"rates\.b: the value is out of range") as caught:
        dx.from_config(Rates, {"rates": {"a": 1.0, "b": 2.0}, "nested": {"c": [1.0, 3.0]}})
    assert [problem.path for problem in caught.value.problems] == paths
    limited = {"type": "number", "minimum": 0, "maximum": 1}
    assert dx.json_schema(Rates)["properties"]["rates"]["additionalProperties"] == limited
