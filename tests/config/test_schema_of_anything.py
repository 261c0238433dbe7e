"""The schema where an annotation says nothing, and of what `Sequential` takes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import declax as dx
from config.schema_checks import refused_by


@dx.dataclass
class Own(dx.Module):
    size: int = 1


@dx.dataclass
class Model(dx.Module):
    net: dx.Sequential
    anything: Any = dx.data(default=None)


SCHEMA = dx.json_schema(Model, extra=[Own])
LINEAR = {"kind": "Linear", "in_features": 1, "out_features": 2}


def layers_of(*layers: Any, **more: Any) -> dict[str, Any]:
    return {"net": {"kind": "Sequential", "layers": list(layers)}, **more}


@pytest.mark.parametrize(
    "config",
    [
        layers_of(LINEAR, "relu", {"kind": "Own", "size": 2}, {"kind": "Sequential", "layers": [LINEAR]}),
        layers_of([LINEAR, "gelu"]),
        layers_of(LINEAR, {"$ref": "/net/layers/0"}),
        layers_of(LINEAR, anything={"a": [1, {"b": None, "c": "text"}], "d": True}),
        layers_of(LINEAR, anything=[LINEAR, {"kind": "Own"}, {"$tuple": [1, 2]}, {"$ref": "/net/layers/0"}]),
    ],
)
def test_what_may_stand(config):
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert dx.spec_from_config(Model, config, extra=[Own])
    assert not refused_by(SCHEMA, config)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (layers_of({**LINEAR, "kind": "Linaer"}), ("net", "layers", 0, "kind")),
        (layers_of({**LINEAR, "in_features": "1"}), ("net", "layers", 0, "in_features")),
        (layers_of({"kind": "Linear", "in_features": 1}), ("net", "layers", 0, "out_features")),
        (layers_of({**LINEAR, "features": 3}), ("net", "layers", 0, "features")),
        (layers_of([LINEAR, {"kind": "Own", "size": "x"}]), ("net", "layers", 0, 1, "size")),
        (layers_of("rleu"), ("net", "layers", 0)),
        (layers_of(3), ("net", "layers", 0)),
        (layers_of(anything={"kind": "Linaer"}), ("anything", "kind")),
        (layers_of(anything=[{"a": {"kind": 3}}]), ("anything", 0, "a", "kind")),
    ],
)
def test_what_is_wrong_is_so_to_both(config, path):
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.spec_from_config(Model, config, extra=[Own])
    assert [p.path for p in caught.value.problems] == [path]
    assert refused_by(SCHEMA, config)


def test_a_table_without_a_tag_is_no_layer():
    config = layers_of({"in_features": 1, "out_features": 2})
    with pytest.raises(dx.ConfigError, match="the key 'kind', which selects the class, is missing"):
        dx.spec_from_config(Model, config)
    assert refused_by(SCHEMA, config)


def test_there_is_no_default_where_there_is_none():
    assert "default" not in dx.json_schema(dx.Sequential)["properties"]["layers"]
    assert "MISSING" not in json.dumps(SCHEMA)


def test_schemas_stay_small():
    assert len(json.dumps(dx.json_schema(dx.Linear))) < 36_000
    assert len(json.dumps(SCHEMA)) < 2_400 * len(SCHEMA["definitions"])  # one for each layer, part and type
