"""Specs as text: values as code, and the names of classes and functions."""

import enum
import functools
import pickle
import subprocess
import sys
from pathlib import Path, PurePath

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from config.spec_models import Mlp, Open, Order, Point, half, schedule
from declax.config._printing import canonical_text, importable_name
from naming import name_of

VALUES = [
    [1, 2.5, -0.0, float("inf"), True, None, b"x", 1j, "tab\t'\""],
    jnp.float32,
    jnp.bool_,
    np.int8,
    jnp.dtype("bfloat16"),
    jax.lax.Precision.HIGHEST,
    jax.lax.dot_general,
    jax.nn.gelu,
    np.tanh,
    half,
    int,
    Order.LAST,
    dx.initializers.ones,
    functools.partial(half, 1, x=(2, half)),
    Point(1, jnp.float32),
    jax.P("a", None, ("b", "c")),
    (range(3), ..., frozenset({1})),
    {"a b": [{"c": ()}]},
]


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_values_as_code(value):
    spec = dx.spec(schedule, value)
    names = {"spec": dx.spec, "dx": dx, "jax": jax, "jnp": jnp, "np": np, "functools": functools, "optax": optax}
    own = {"schedule": schedule, "half": half, "Point": Point, "Order": Order, "P": jax.P, "Path": Path}
    used = {"Precision": jax.lax.Precision, "dot_general": jax.lax.dot_general, "gelu": jax.nn.gelu, "tanh": np.tanh}
    assert eval(repr(spec), names | own | used | vars(dx.initializers)) == spec


def test_nan_as_code():
    assert repr(dx.spec(schedule, float("nan"))) == "spec(schedule, peak=float('nan'))"


def test_names_of_classes_and_functions():
    class Local:
        pass

    assert importable_name(half) == "spec_models:half"
    assert importable_name(optax.adamw).endswith(":adamw")
    assert importable_name(jax.lax.dot_general).endswith(":dot_general")
    assert importable_name(Local) == f"{__name__.rpartition('.')[2]}:test_names_of_classes_and_functions.<locals>.Local"
    assert importable_name(lambda: 0) is None
    assert importable_name(functools.partial(half)) is None
    assert importable_name(3) is None
    assert "activation=relu" in canonical_text(dx.spec(Mlp, 3, activation=dx.relu))
    assert "param_dtype=jnp.bool_)" in repr(dx.spec(dx.Linear, 3, 4, param_dtype=jnp.bool_))


@pytest.mark.slow
def test_the_main_script_counts_as_the_module_that_it_is(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import declax as dx\n"
        "@dx.dataclass\nclass Net(dx.Module):\n    dim: int\n"
        "if __name__ == '__main__': print(dx.spec(Net, 3).fingerprint())\n"
    )
    env = {"PYTHONPATH": ":".join([*sys.path, str(tmp_path)]), "JAX_PLATFORMS": "cpu"}
    commands = [
        [str(script)],
        ["-m", "train"],
        ["-c", "import train; print(train.dx.spec(train.Net, 3).fingerprint())"],
    ]
    found = {
        subprocess.run([sys.executable, *c], env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for c in commands
    }
    assert len(found) == 1


def test_enums_of_strings_are_enums():
    class Mode(enum.StrEnum):
        A = "a"

    assert dx.spec(schedule, Mode.A) != dx.spec(schedule, "a")
    assert dx.spec(schedule, Mode.A).fingerprint() != dx.spec(schedule, "a").fingerprint()
    assert "Mode.A" in repr(dx.spec(schedule, Mode.A))


def test_class_methods_are_targets():
    spec = dx.spec(Open.square, 3)
    assert spec == dx.spec(Open.square, 3)
    assert importable_name(Open.square) == "spec_models:Open.square"
    assert repr(spec) == "spec(Open.square, dim=3)"
    assert spec.build(rngs=dx.Rngs(0)).width == 3


def test_an_optimizer_of_a_model():
    train = dx.spec(
        dx.Dict,
        {
            "model": dx.spec(dx.Linear, 3, 4),
            "optimizer": dx.spec(
                dx.Optimizer,
                dx.Ref("/entries/model"),
                dx.spec(optax.chain, dx.spec(optax.clip, 1.0), dx.spec(optax.adamw, 1e-3)),
                wrt=dx.Param,
            ),
        },
    )
    built = train.build(rngs=dx.Rngs(0))
    gradients = dx.grad(lambda model: model(jnp.ones(3)).sum())(built.model)
    built.optimizer.update(built.model, gradients)
    assert train.fingerprint() == pickle.loads(pickle.dumps(train)).fingerprint()


class Saves(dx.Module):
    def __init__(self, folder: Path, other: PurePath | None = None):
        self.folder, self.other = folder, other


def test_specs_with_paths_have_a_fingerprint():
    assert dx.spec(Saves, Path("x")).fingerprint() == dx.spec(Saves, Path("x")).fingerprint()
    assert dx.spec(Saves, Path("x")).fingerprint() != dx.spec(Saves, Path("y")).fingerprint()
