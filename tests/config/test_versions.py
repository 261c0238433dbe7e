"""Configurations of older versions of a class."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import declax as dx


def wider(table: dict[str, Any]) -> dict[str, Any]:
    """Version 1 said the width in units of 64."""
    table["width"] = table["width"] * 64
    return table


def split(table: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had one rate for both."""
    rate = table.pop("rate", 0.0)
    table.pop("fast", None)
    return {**table, "rate_in": rate, "rate_out": rate}


@dx.dataclass
class Layer(dx.Module):
    config_version: ClassVar[int] = 3
    config_upgrades: ClassVar[Any] = {1: wider, 2: split}

    width: int
    rate_in: float = 0.0
    rate_out: float = 0.0
    act: str = dx.static(default="relu", renamed_from="activation")


@dx.dataclass
class Net(dx.Module):
    layers: list[Layer]


OLD = {"kind": "Layer", "$version": 1, "width": 2, "rate": 0.5, "activation": "gelu"}
NEW = {"kind": "Layer", "$version": 3, "width": 128, "rate_in": 0.5, "rate_out": 0.5, "act": "gelu"}


def problems_of(data, **options):
    with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
        dx.spec_from_config(Layer, data, **options)
    return caught.value.problems


def test_an_old_table_is_brought_up_to_date():
    before = {**OLD}
    spec = dx.spec_from_config(Layer, OLD, migrate=True)
    assert before == OLD
    assert spec == dx.spec(Layer, 128, 0.5, 0.5, "gelu")
    assert dx.to_config(spec) == NEW
    assert dx.spec_from_config(Layer, NEW) == spec


def test_steps_in_between_are_where_a_table_starts():
    spec = dx.spec_from_config(Layer, {"$version": 2, "width": 128, "rate": 0.5}, migrate=True)
    assert spec == dx.spec(Layer, 128, 0.5, 0.5)


def test_parts_are_brought_up_to_date_each_by_its_own_version():
    spec = dx.spec_from_config(Net, {"layers": [OLD, NEW]}, migrate=True)
    assert spec.arguments["layers"][0] == spec.arguments["layers"][1]


def test_a_table_without_version_is_a_current_one_and_the_first_when_migrating():
    assert dx.spec_from_config(Layer, {"width": 2}) == dx.spec(Layer, 2)
    assert dx.spec_from_config(Layer, {"width": 2}, migrate=True) == dx.spec(Layer, 128)


def test_people_s_files_must_be_up_to_date():
    (problem,) = problems_of(OLD)
    assert (problem.code, problem.path) == ("version", ("$version",))
    assert "an older version of Layer" in problem.message
    assert "migrate=True" in problem.hint
    (problem,) = problems_of({"width": 2, "activation": "gelu"})
    assert "it was renamed to 'act'" in problem.message
    assert "migrate=True" in problem.hint
    (problem,) = problems_of({"width": 2, "fast": True})
    assert problem.message == "Layer has no parameter 'fast'"


def test_an_upgrade_drops_keys():
    assert dx.spec_from_config(Layer, {**OLD, "fast": True}, migrate=True) == dx.spec_from_config(Layer, NEW)


def test_both_names_of_one_parameter_are_too_many():
    (problem,) = problems_of({"$version": 3, "width": 2, "activation": "gelu", "act": "relu"}, migrate=True)
    assert problem.path == ("activation",)


def test_a_newer_table_and_what_is_no_version():
    (problem,) = problems_of({"$version": 4, "width": 2}, migrate=True)
    assert "a newer version of Layer" in problem.message
    for version in (True, "3", 0, 1.5):
        (problem,) = problems_of({"$version": version, "width": 2})
        assert problem.code == "wrong-type"


def test_what_an_upgrade_raises_is_a_problem():
    (problem,) = problems_of({"$version": 1}, migrate=True)
    assert "config_upgrades[1] of Layer: it raised KeyError: 'width'" in problem.message


class Wrong(dx.Module):
    config_version = "2"


def test_the_version_of_a_class_is_an_int():
    with pytest.raises(dx.DeclaxError, match="the version of a class must be an int of at least 1"):
        dx.spec_from_config(Wrong, {})


def test_a_class_without_version_has_the_first():
    assert dx.to_config(dx.spec(Net, []), full=True)["$version"] == 1
    assert "$version" not in dx.to_config(dx.spec(Net, []))
    assert dx.spec_from_config(Net, {"layers": [], "$version": 1}) == dx.spec(Net, [])


def test_a_key_under_its_old_and_its_new_name_is_a_problem():
    for migrate in (True, False):
        with pytest.raises(dx.ConfigError, match="it was renamed to 'act'") as caught:
            dx.from_config(Layer, {"$version": 3, "width": 1, "act": "a", "activation": "b"}, migrate=migrate)
        assert "remove 'activation'" in str(caught.value)
