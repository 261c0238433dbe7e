"""Dicts whose keys are ints, such as the boundaries of a schedule."""

from __future__ import annotations

import optax
import pytest

import declax as dx
from declax.config._data import FrozenDict, key_like
from declax.config.loading import config_text, spec_from_config


class Steps(dx.Module):
    def __init__(self, boundaries: dict[int, float], names: dict[str, int] | None = None):
        self.boundaries = tuple(boundaries.items())
        self.names = None if names is None else tuple(names.items())


class Trains(dx.Module):
    def __init__(self, schedule: optax.Schedule):
        self.schedule = schedule


SPEC = dx.spec(Steps, boundaries={100: 0.5, 2000: 0.1}, names={"100": 1})


def test_a_spec_holds_ints_as_keys():
    assert SPEC.build().boundaries == ((100, 0.5), (2000, 0.1))
    assert SPEC == dx.spec(Steps, boundaries={"100": 0.5, "2000": 0.1}, names={"100": 1})
    assert SPEC["boundaries.100"] == 0.5
    assert SPEC["names.100"] == 1
    changed = SPEC.replace({"boundaries.100": 0.25})
    assert changed.build().boundaries == ((100, 0.25), (2000, 0.1))
    assert "{100: 0.5, 2000: 0.1}" in repr(SPEC)
    assert key_like(FrozenDict({100: 1}), "0100") is None
    with pytest.raises(dx.ConfigError, match="the keys of a dict in a spec must be strings or ints"):
        dx.spec(Steps, boundaries={0.5: 0.5})
    with pytest.raises(dx.ConfigError, match="the keys of a dict in a spec must be strings or ints"):
        dx.spec(Steps, boundaries={True: 0.5})


def test_ints_as_keys_are_texts_in_data_and_read_back():
    data = dx.to_config(SPEC)
    assert data["boundaries"] == {"100": 0.5, "2000": 0.1}
    assert spec_from_config(Steps, data) == SPEC
    assert spec_from_config(Steps, {**data, "boundaries": {100: 0.5, 2000: 0.1}}) == SPEC


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_ints_as_keys_read_back_from_files(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_text(config_text(SPEC, suffix), encoding="utf-8")
    assert spec_from_config(Steps, path) == SPEC


@pytest.mark.parametrize("boundaries", [{"+1": 0.5}, {"01": 0.5}, {"x": 0.5}, {"1.0": 0.5}, {"-0": 0.5}])
def test_a_key_that_is_no_int_is_a_problem(boundaries):
    with pytest.raises(dx.ConfigError, match="the value has the wrong type"):
        dx.from_config(Steps, {"boundaries": boundaries})


def test_a_key_that_is_given_as_a_text_and_as_an_int_is_a_problem():
    with pytest.raises(dx.ConfigError, match="the key is given twice, as a string and as a number"):
        dx.from_config(Steps, {"boundaries": {100: 0.5, "100": 0.25}})
    with pytest.raises(dx.ConfigError, match="a string as the key"):
        dx.from_config(Steps, {"boundaries": {}, "names": {1: 1}})


def test_the_boundaries_of_a_schedule_read_back():
    make = optax.piecewise_constant_schedule
    spec = dx.spec(Trains, dx.spec(make, 1.0, {100: 0.5, 200: 0.5}))
    schedule = spec_from_config(Trains, dx.to_config(spec)).build().schedule
    assert [float(schedule(step)) for step in (0, 150, 250)] == [1.0, 0.5, 0.25]
    assert spec_from_config(Trains, dx.to_config(spec)) == spec
