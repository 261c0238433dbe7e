"""Functions with arguments: a table names a function and binds all its arguments but the first."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from config.schema_checks import refused_by
from declax.config import registry

LEAKY = {"kind": "leaky_relu", "negative_slope": 0.2}
BOUND = functools.partial(dx.leaky_relu, negative_slope=0.2)


def scaled(x: jax.Array, factor: float, shift: int = 0, *, note: str = "") -> jax.Array:
    return factor * x + shift


@dx.dataclass
class Net(dx.Layer):
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.relu)
    other: Callable[[jax.Array], jax.Array] | None = None
    up = dx.Linear(2, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.up(x))


def problem(data: Any, extra: Any = ()) -> Any:
    with pytest.raises(dx.ConfigError) as caught:
        dx.spec_from_config(Net, data, extra=extra)
    (found,) = caught.value.problems
    return found


def test_a_table_binds_arguments():
    spec = dx.spec_from_config(Net, {"activation": LEAKY})
    assert spec == dx.spec(Net, activation=BOUND)
    assert hash(spec) == hash(dx.spec(Net, activation=BOUND))
    assert spec.fingerprint() == dx.spec(Net, activation=BOUND).fingerprint()
    assert spec != dx.spec(Net, activation=functools.partial(dx.leaky_relu, negative_slope=0.3))
    assert repr(spec) == "spec(Net, activation=functools.partial(leaky_relu, negative_slope=0.2))"
    assert dx.to_config(spec) == {"kind": "Net", "activation": LEAKY}
    assert pickle.loads(pickle.dumps(spec)) == spec
    model = spec.build(rngs=dx.Rngs(0))
    x = jnp.array([[-1.0, 3.0]])
    np.testing.assert_array_equal(model(x), jax.nn.leaky_relu(model.up(x), 0.2))
    assert dx.spec_of(model) == spec
    assert dx.to_config(model)["activation"] == LEAKY


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_a_file_of_it_is_read_again(suffix, tmp_path):
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    spec = dx.spec(Net, activation=BOUND, other=functools.partial(dx.softmax, axis=(0, 1)))
    dx.write_config(tmp_path / f"net{suffix}", spec)
    assert dx.spec_from_config(Net, tmp_path / f"net{suffix}") == spec


def test_jit_compiles_once():
    count = 0

    @dx.jit
    def run(model, x):
        nonlocal count
        count += 1
        return model(x)

    for _ in range(2):
        model = dx.from_config(Net, {"activation": LEAKY}, rngs=dx.Rngs(0))
        run(model, jnp.ones((1, 2)))
    assert count == 1
    graphdefs = [dx.split(dx.from_config(Net, {"activation": LEAKY}, rngs=dx.Rngs(n)))[0] for n in (0, 1)]
    assert graphdefs[0] == graphdefs[1]


def test_a_saved_model_keeps_it(tmp_path):
    model = dx.from_config(Net, {"activation": LEAKY}, rngs=dx.Rngs(0))
    dx.save(tmp_path / "saved", {"model": model})
    found = dx.load(tmp_path / "saved", extra=[Net])["model"]
    assert dx.split(found)[0] == dx.split(model)[0]


def test_a_name_in_a_table_is_the_function():
    for data in ("gelu", {"kind": "gelu"}):
        spec = dx.spec_from_config(Net, {"activation": data})
        assert spec["activation"] is dx.gelu
        assert dx.to_config(spec)["activation"] == "gelu"


def test_the_order_of_keys_does_not_count():
    tables = [{"kind": "scaled", "factor": 2, "shift": 1}, {"shift": 1, "factor": 2.0, "kind": "scaled"}]
    one, two = (dx.spec_from_config(Net, {"activation": table}, extra=[scaled]) for table in tables)
    assert one == two
    assert type(one["activation"].keywords["factor"]) is float  # as the annotation says
    mine = dx.spec(Net, activation=functools.partial(scaled, shift=1, factor=2.0))
    assert dx.spec_from_config(Net, dx.to_config(one, extra=[scaled]), extra=[scaled]) == one
    assert mine["activation"].keywords == one["activation"].keywords


@pytest.mark.parametrize(
    ("table", "path", "code", "said"),
    [
        ({"kind": "leaky_relu", "negative_slop": 0.2}, "negative_slop", "unknown-key", "did you mean 'negative_slope'"),
        ({"kind": "leaky_relu", "slope": 0.2}, "slope", "unknown-key", "negative_slope"),
        ({"kind": "leaky_relu", "negative_slope": "big"}, "negative_slope", None, "string 'big'"),
        ({"kind": "leaky_relu", "x": 1.0}, "x", "unknown-key", "remove 'x'"),
        ({"kind": "relu", "slope": 1.0}, "slope", "unknown-key", "no keys"),
        ({"kind": "leeky_relu"}, "kind", "unknown-activation", "did you mean 'leaky_relu'"),
        ({"kind": "scaled", "shift": 0.5}, "shift", "wrong-type", "int"),
        ({"kind": "scaled", "note": 3}, "note", "wrong-type", "string"),
        ({"kind": 3}, "kind", "wrong-type", "the name of an activation"),
        ({"negative_slope": 0.2}, "", "missing-kind", "leaky_relu"),
        ({}, "", "missing-kind", "'kind'"),
    ],
)
def test_wrong_tables(table, path, code, said):
    for name in ("activation", "other"):
        found = problem({name: table}, [scaled])
        assert found.path == ((name, path) if path else (name,))
        assert code is None or found.code == code
        assert said in str(found)


def test_functions_in_a_sequential():
    data = {"layers": [{"kind": "Linear", "in_features": 2, "out_features": 2}, LEAKY, "relu"]}
    spec = dx.spec_from_config(dx.Sequential, data)
    assert spec == dx.spec(dx.Sequential, dx.spec(dx.Linear, 2, 2), BOUND, dx.relu)
    assert dx.to_config(spec)["layers"] == [{"kind": "Linear", "in_features": 2, "out_features": 2}, LEAKY, "relu"]
    with pytest.raises(dx.ConfigError, match="did you mean 'negative_slope'"):
        dx.spec_from_config(dx.Sequential, {"layers": [{"kind": "leaky_relu", "negative_slop": 1}]})
    with pytest.raises(dx.ConfigError, match="did you mean 'Linear'"):
        dx.spec_from_config(dx.Sequential, {"layers": [{"kind": "Linaer"}]})


def test_registered_functions(monkeypatch):
    monkeypatch.setattr(registry, "_KINDS", {})
    dx.register_kind(Callable, scaled)
    try:
        spec = dx.spec_from_config(Net, {"activation": {"kind": "scaled", "factor": 3}})
        assert spec["activation"](jnp.ones(2)).tolist() == [3.0, 3.0]
    finally:
        for notify in registry._on_change:
            notify()


def test_in_python_a_partial_is_checked_by_the_same_rule():
    dx.spec(Net, activation=BOUND).check()
    with pytest.raises(dx.ConfigError, match="has no parameter"):
        dx.spec(Net, activation=functools.partial(dx.leaky_relu, slope=0.2)).check()
    dx.spec(Net, activation=functools.partial(scaled, anything=1)).check()  # data cannot name it


@pytest.mark.parametrize("name", list(registry.ACTIVATIONS))
def test_every_activation_can_be_a_table(name):
    assert dx.spec_from_config(Net, {"activation": {"kind": name}})["activation"] is registry.ACTIVATIONS[name]
    assert problem({"activation": {"kind": name, "nothing": 1}}).code == "unknown-key"


@pytest.mark.parametrize(
    ("table", "is_right"),
    [
        (LEAKY, True), ({"kind": "relu"}, True), ("relu", True), ({"kind": "gelu", "approximate": False}, True),
        ({"kind": "leaky_relu", "x": 1}, False), ({"kind": "leaky_relu", "slope": 1}, False), ({"kind": "no"}, False),
        ({"kind": "relu", "x": 1}, False), ({"kind": "gelu", "approximate": 3}, False), ({}, False),
        ({"negative_slope": 0.2}, False),
    ],
)  # fmt: skip
def test_the_schema_agrees(table, is_right):
    schema = dx.json_schema(Net)
    for name in ("activation", "other"):
        assert refused_by(schema, {name: table}) is not is_right, name
        if is_right:
            dx.spec_from_config(Net, {name: table})
        else:
            problem({name: table})


def test_what_has_no_hash_cannot_be_bound():
    def weighted(x: jax.Array, weights: list[float]) -> jax.Array:
        return x

    found = problem({"activation": {"kind": "weighted", "weights": [0.1]}}, [weighted])
    assert "hash" in str(found)
