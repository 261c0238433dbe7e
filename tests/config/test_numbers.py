"""Numbers that are mostly mistakes: NaN, infinity and huge ints; and a misspelt `kind`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

import declax as dx

INF, NAN = math.inf, math.nan
HUGE = 10**40


@dx.dataclass
class Inner(dx.Module):
    rate: float = 0.1


@dx.dataclass
class Model(dx.Module):
    rate: float = 0.1
    rates: Sequence[float] = ()
    table: dict[str, float] = dx.static(default_factory=dict)
    both: float | str | None = None
    lower: float = dx.field(default=1.0, ge=0.0)
    free: float = dx.field(default=0.1, allow_nan=True)
    free_list: list[float] = dx.static(default_factory=list, allow_nan=True)
    free_part: Inner | float = dx.field(default=0.0, allow_nan=True)
    unset: float = NAN
    bounds: tuple[float, float] = (-INF, 1.0)
    top: float = dx.field(default=1.0, ge=0.0, le=INF)
    steps: int = 1
    sizes: Sequence[int] = ()
    large: int = dx.field(default=1, ge=0, le=10**50)
    small: int = dx.field(default=1, ge=-(10**50))
    at_least: int = dx.field(default=1, ge=0)
    note: Any = None


REFUSED = [
    ("rate", NAN), ("rate", INF), ("rate", -INF), ("rates", [1.0, NAN]), ("rates", (0.5, INF)), ("table", {"a": NAN}),
    ("both", INF), ("lower", INF), ("lower", NAN), ("free_part", {"rate": INF}), ("steps", HUGE), ("steps", -HUGE),
    ("steps", 1 << 128), ("sizes", [1, HUGE]), ("at_least", HUGE), ("large", 10**51), ("small", HUGE), ("large", -HUGE),
]  # fmt: skip
ALLOWED = [
    ("free", NAN), ("free", INF), ("free_list", [NAN, 1]), ("free_part", INF), ("unset", INF), ("bounds", [-INF, INF]),
    ("top", INF), ("steps", (1 << 128) - 1), ("steps", -(1 << 127)), ("large", HUGE), ("small", -HUGE), ("note", NAN),
    ("note", HUGE), ("rate", 10**40),
]  # fmt: skip


def ways(name: str, value: Any) -> list[Any]:
    found = dx.Spec(Model, {name: value}) if not isinstance(value, dict) or name == "table" else None
    data = list(value) if isinstance(value, tuple) else value
    return [
        lambda: dx.spec_from_config(Model, {name: data}),
        *([found.check, found.build] if found is not None else []),
    ]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=str)
def test_refused_in_files_and_specs(name, value):
    for way in ways(name, value):
        with pytest.raises(dx.ConfigError, match="has one problem") as caught:
            way()
        assert caught.value.problems[0].path[0] == name


@pytest.mark.parametrize(("name", "value"), ALLOWED, ids=str)
def test_allowed_in_files_and_specs(name, value):
    for way in ways(name, value):
        way()
    read = dx.spec_from_config(Model, {name: list(value) if isinstance(value, tuple) else value})
    assert read == dx.Spec(Model, {name: value})
    again = dx.spec_from_config(Model, dx.to_config(read))
    assert again == read


def test_constructors_take_them():
    assert math.isnan(Model(rate=NAN).rate)
    assert Model(steps=HUGE).steps == HUGE


@pytest.mark.parametrize(("suffix", "text"), [
    (".toml", "rate = nan"), (".toml", "rates = [inf]"), (".json", '{"rate": NaN}'), (".yaml", "rate: .nan"),
    (".yaml", "rates: [1.0, -.inf]"),
])  # fmt: skip
def test_in_files(suffix, text, tmp_path):
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    file = tmp_path / f"model{suffix}"
    file.write_text(text)
    with pytest.raises(dx.ConfigError) as caught:
        dx.from_config(Model, file)
    (problem,) = caught.value.problems
    assert problem.code == "not-finite" or suffix == ".json"
    assert problem.place.line == 1


def test_on_the_command_line():
    with pytest.raises(SystemExit):
        dx.cli(Model, ["rate=nan"])
    assert math.isinf(dx.cli(Model, ["free=inf"]).free)


def test_the_texts_say_what_allows_it():
    with pytest.raises(dx.ConfigError, match="allow_nan=True"):
        dx.spec(Model, rate=NAN).check()
    with pytest.raises(dx.ConfigError, match=r"dx.field\(le=...\) allows"):
        dx.spec(Model, steps=HUGE).check()


def test_the_schema_says_it():
    properties = dx.json_schema(Model)["properties"]
    assert "NaN and infinity are allowed" in properties["free"]["description"]
    assert "description" not in properties["rate"]


def test_plain_dataclasses_too():
    @dataclasses.dataclass
    class Run:
        rate: float = dx.field(default=0.1, allow_nan=True)
        other: float = 0.1

    assert dx.from_config(Run, {"rate": INF}).rate == INF
    with pytest.raises(dx.ConfigError, match="not finite"):
        dx.from_config(Run, {"other": INF})


@pytest.mark.parametrize("key", ["kid", "Kind", "KIND", "knd", "kinds", "kimd"])
def test_a_misspelt_kind_of_a_known_class(key):
    table = {key: "Linear", "in_features": 2}
    for data in (table, [table], {"deep": table}):
        with pytest.raises(dx.ConfigError) as caught:
            dx.spec_from_config(Model, {"note": data})
        (problem,) = caught.value.problems
        assert (problem.code, problem.hint) == ("misspelt-kind", "did you mean 'kind'?")
        assert problem.path[-1] == key


@pytest.mark.parametrize("table", [
    {"kid": "Anna"}, {"kid": 3}, {"name": "Linear"}, {"type": "Linear"}, {"layer": "Linear"}, {"kid": ["Linear"]}, {},
])  # fmt: skip
def test_other_tables_stay_data(table):
    assert dx.to_config(dx.spec_from_config(Model, {"note": table}))["note"] == table


def test_a_dict_of_python_is_a_dict():
    spec = dx.spec(Model, note={"kid": "Linear"})
    spec.check()
    assert spec["note"]["kid"] == "Linear"
