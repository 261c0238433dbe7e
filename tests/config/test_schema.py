"""The JSON schema marks what `from_config` refuses, and nothing else that a schema can see."""

from __future__ import annotations

import copy
import enum
import json
from collections.abc import Callable
from typing import Any, Literal

import jax
import jsonschema
import optax
import pytest

import declax as dx
from config.schema_checks import refused_by


class Order(enum.Enum):
    PRE = "before"
    POST = "after"


@dx.dataclass
class Attention(dx.Module):
    """Looks at the others.

    It is no real one.
    """

    dim: int = dx.static(ge=1, help="the width")
    heads: int = dx.static(default=4, ge=1, le=64)
    rngs: dx.InitVar[dx.Rngs | None] = None


@dx.dataclass
class Mlp(dx.Module):
    dim: int
    hidden: int = 128
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)


@dx.dataclass
class Block(dx.Module):
    mixer: Attention | Mlp
    norm: Literal["pre", "post"] = "pre"
    order: Order = Order.PRE
    rate: float = dx.static(default=0.0, ge=0, le=1)


@dx.dataclass
class Net(dx.Module):
    blocks: list[Block]
    sizes: tuple[int, ...] = dx.static(default=(1, 2), ge=1)
    pair: tuple[int, str] = (1, "a")
    names: dict[str, int] = dx.static(default_factory=dict)
    title: str | None = None
    width: int | float = 1
    dtype: Any = dx.static(default=jax.numpy.float32)
    head: dx.Linear | None = None
    mode: str = dx.static(default="fast", choices=("fast", "exact"))
    anything: Any = None


CONFIG: dict[str, Any] = {
    "kind": "Net",
    "blocks": [
        {"kind": "Block", "mixer": {"kind": "Mlp", "dim": 3, "activation": "relu"}, "norm": "post", "order": "POST"},
        {"mixer": {"kind": "Attention", "dim": 3, "heads": 2}, "rate": 0.5},
    ],
    "sizes": [1, 2, 3],
    "pair": [1, "b"],
    "names": {"a": 1},
    "title": None,
    "width": 0.5,
    "dtype": "bfloat16",
    "head": {
        "in_features": 3,
        "out_features": 4,
        "kernel_init": {"kind": "normal", "stddev": 0.1},
        "bias_init": "zeros",
    },
    "mode": "exact",
    "anything": [1, {"a": None}],
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = dx.json_schema(Net)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(json.loads(json.dumps(schema)))


def is_taken(config: Any) -> bool:
    try:
        dx.spec_from_config(Net, config)
    except dx.ConfigError:
        return False
    return True


def test_the_configuration_is_taken(validator):
    assert is_taken(CONFIG)
    assert list(validator.iter_errors(CONFIG)) == []


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def changed(config: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    made = copy.deepcopy(config)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return made


def put(value: Any) -> Callable[[Any, Any], None]:
    return lambda holder, key: holder.__setitem__(key, copy.deepcopy(value))


def rename(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
    else:
        holder[key] = "renamed"


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "removed": lambda holder, key: holder.__delitem__(key),
    "renamed": rename,
    **{
        f"is {value!r}": put(value)
        for value in (None, True, 0, 7, -1, 0.25, "text", "relu", "PRE", [], [1], {}, {"kind": "Mlp"})
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_schema_says_what_from_config_says(change, validator):
    """Each value of a configuration, changed in many ways."""
    for path in places(CONFIG)[1:]:
        if path[0] != "anything":
            config = changed(CONFIG, path, CHANGES[change])
            errors = [error.message for error in validator.iter_errors(config)]
            assert is_taken(config) == (not errors), (path, change, errors[:2])


def test_what_to_config_writes_is_taken(validator):
    for full in (False, True):
        written = dx.to_config(dx.spec_from_config(Net, CONFIG), full=full)
        assert ("$version" in written) == full
        assert [error.message for error in validator.iter_errors(written)] == []
        assert is_taken(written)


@pytest.mark.parametrize("version", [1, 2, 0, "1", None, True, []])
def test_versions_are_those_of_the_class(version, validator):
    for path in [path for path in places(CONFIG) if path[-1:] == ("kind",) and path[0] != "anything"]:
        config = changed(CONFIG, (*path[:-1], "$version"), put(version))
        errors = [error.message for error in validator.iter_errors(config)]
        assert is_taken(config) == (not errors), (path, errors[:2])


def test_a_reference_stands_for_a_part_only(validator):
    reference = {"$ref": "/blocks/0/mixer"}
    assert validator.is_valid(changed(CONFIG, ("blocks", 1, "mixer"), put(reference)))
    assert is_taken(changed(CONFIG, ("blocks", 1, "mixer"), put(reference)))
    for wrong in ({"$ref": 3}, {"$ref": "blocks/0"}, {**reference, "dim": 3}):
        assert not validator.is_valid(changed(CONFIG, ("blocks", 1, "mixer"), put(wrong)))
    assert not validator.is_valid(changed(CONFIG, ("width",), put(reference)))


def test_what_fields_say_is_there(validator):
    definitions = validator.schema["definitions"]
    attention = definitions["Attention"]
    assert attention["description"] == "Looks at the others."
    assert attention["properties"]["dim"] == {"type": "integer", "minimum": 1, "description": "the width"}
    assert attention["properties"]["heads"] == {
        "type": "integer", "minimum": 1, "maximum": 64, "default": 4,
    }  # fmt: skip
    assert attention["required"] == ["kind", "dim"]
    assert "rngs" not in attention["properties"]
    mixer = definitions["Block"]["properties"]["mixer"]
    assert [option["$ref"].rpartition("/")[2] for option in definitions[mixer["$ref"].rpartition("/")[2]]["oneOf"]] == [
        "Attention", "Mlp", "reference",
    ]  # fmt: skip
    assert validator.schema["properties"]["mode"] == {"enum": ["fast", "exact"], "default": "fast"}
    assert validator.schema["properties"]["sizes"]["items"] == {"type": "integer", "minimum": 1}
    assert validator.schema["required"] == ["blocks"]


def test_each_reference_in_it_leads_somewhere():
    @dx.dataclass
    class Run(dx.Module):
        net: Net
        tx: optax.GradientTransformation | None = dx.static(default=None)

    schema = dx.json_schema(Run)
    jsonschema.Draft7Validator.check_schema(schema)
    text = json.dumps(schema)
    named = {piece.partition('"')[0] for piece in text.split("#/definitions/")[1:]}
    assert named == set(schema["definitions"])
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in named)
    adam = {"net": CONFIG, "tx": {"kind": "adamw", "learning_rate": {"kind": "constant_schedule", "value": 0.1}}}
    assert jsonschema.Draft7Validator(schema).is_valid(adam)
    assert not jsonschema.Draft7Validator(schema).is_valid({"net": CONFIG, "tx": {"kind": "adamm"}})


def test_a_union_and_a_function_have_schemas_too():
    schema = dx.json_schema(Attention | Mlp)
    assert jsonschema.Draft7Validator(schema).is_valid({"kind": "Mlp", "dim": 3})
    assert not jsonschema.Draft7Validator(schema).is_valid({"dim": 3})
    assert jsonschema.Draft7Validator(dx.json_schema(optax.adam)).is_valid({"learning_rate": 0.1})


def test_what_nothing_describes_has_none():
    with pytest.raises(dx.ConfigError, match="no configuration can describe this"):
        dx.json_schema(int)


@pytest.mark.parametrize(
    "initializer",
    [{"kind": "normal", "stddev": "x"}, {"kind": "normal", "sdtdev": 1.0}, {"kind": "nromal"}],
    ids=str,
)
def test_the_schema_refuses_mistakes_in_an_initializer(initializer):
    data = {"in_features": 1, "out_features": 2, "kernel_init": initializer}
    assert refused_by(dx.json_schema(dx.Linear), data)


@pytest.mark.parametrize("depth", [120, 300])
def test_a_chain_of_many_classes(depth):
    """Their definitions refer to each other, and each is written apart from the others."""
    inner: Any = int
    for number in range(depth):
        body = {"__annotations__": {"part": inner}, "__module__": __name__, "__qualname__": f"Link{number}"}
        inner = dx.dataclass(type(dx.Module)(f"Link{number}", (dx.Module,), body))
    definitions = dx.json_schema(inner)["definitions"]
    assert len(definitions) >= depth - 1
    assert definitions["Link0"]["properties"]["part"] == {"type": "integer"}


def test_base_classes_are_no_kinds():
    @dx.dataclass
    class Model(dx.Layer):
        part: Any = dx.field()
        layer: dx.Layer = dx.field()
        cell: dx.RNNCellBase[Any] = dx.field()

    text = json.dumps(dx.json_schema(Model))
    assert '"GRUCell"' in text
    assert not [name for name in ("Layer", "Module", "Pytree", "RNNCellBase") if f'"{name}"' in text]
    for data in ({"part": {"kind": "Layer"}}, {"layer": {}}, {"layer": {"kind": "Layer"}}, {"cell": {}}):
        with pytest.raises(dx.errors.ConfigError):
            dx.spec_from_config(Model, {"part": 1, "layer": None, "cell": {"kind": "GRUCell"}} | data)


class Blank(dx.Layer):
    pass


@pytest.mark.parametrize("base", [dx.Module, dx.Layer])
def test_a_part_of_a_base_class_without_kinds(base):
    @dx.dataclass
    class Model(dx.Layer):
        part: base = dx.field()

    with pytest.raises(dx.errors.ConfigError, match="Blank could not be read back") as caught:
        dx.to_config(Model(Blank()))
    assert caught.value.fix.startswith("extra=[Blank]")
    with pytest.raises(dx.errors.ConfigError, match=r"unknown kind(.|\n)*dx.register_kind, or extra=\[...\]"):
        dx.spec_from_config(Model, {"part": {"kind": "Blank"}})
    with pytest.raises(dx.errors.ConfigError, match=f"a table of a {base.__name__}|a table of a dx.{base.__name__}"):
        dx.spec_from_config(Model, {"part": 3})
    data = {"kind": "Model", "part": {"kind": "Blank"}}
    assert dx.to_config(Model(Blank()), extra=[Blank]) == data
    assert dx.from_config(Model, data, extra=[Blank]).part.__class__ is Blank


def test_a_configuration_names_a_cell():
    data = {"cell": {"kind": "GRUCell", "in_features": 2, "hidden_features": 3}}
    spec = dx.spec_from_config(dx.RNN, data)
    assert spec == dx.spec(dx.RNN, dx.spec(dx.GRUCell, 2, 3))
    assert dx.to_config(spec)["cell"] == data["cell"]
