"""Specs as programs."""

import enum
import functools
import pickle
import subprocess
import sys
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from config.spec_models import Block, Gate, Mlp, Open, Order, Point, Train, half, pick, schedule, small
from declax.config._printing import public_name
from naming import name_of


def run(code):
    names: dict[str, object] = {}
    exec(code, names)
    return names["model"]


def test_a_program_of_constructor_calls():
    assert small(proto=dx.spec(Block, dx.spec(Mlp, 4))).to_python(rngs="dx.Rngs(params=1)") == (
        "import declax as dx\n"
        "from config.spec_models import Block, Gate, Mlp, Model\n"
        "\n"
        "rngs = dx.Rngs(params=1)\n"
        "model = Model(\n"
        "    embed=(embed := dx.Embed(num_embeddings=11, features=4, rngs=rngs)),\n"
        "    blocks=[Block(mixer=Mlp(dim=4, hidden=6, rngs=rngs)), Block(mixer=Gate(dim=4, rngs=rngs))],\n"
        "    head=embed,\n"
        "    proto=dx.spec(Block, mixer=dx.spec(Mlp, dim=4)),\n"
        ")\n"
    )


@pytest.mark.parametrize(
    "spec",
    [
        small(5, protos=[small(1).replace(head=None)["blocks.0.mixer"]], named={"a": dx.spec(Mlp, 1, activation=half)}),
        dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4, param_dtype=jnp.bfloat16), dx.relu, dx.spec(Open, 4, width=3)),
        dx.spec(
            dx.List,
            [dx.Ref("/elements/1"), dx.spec(Gate, 2, Order.LAST), [1.5, (), ("x",)], {"a": dx.Ref("/elements/1")}],
        ),
        dx.spec(Gate, 3, init=dx.initializers.variance_scaling(2.0, "fan_in", "normal", dtype="float32")),
        dx.spec(dx.Sequential, dx.spec(dx.Sequential, *[dx.spec(dx.Linear, 3, 3, use_bias=False) for _ in range(4)])),
    ],
)
def test_programs_make_what_build_makes(spec):
    made, built = run(spec.to_python()), spec.build(rngs=dx.Rngs(0))
    assert dx.spec_of(made) == dx.spec_of(built)
    for a, b in zip(jax.tree.leaves(dx.state(made)), jax.tree.leaves(dx.state(built)), strict=True):
        np.testing.assert_array_equal(a, b)


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
    code = spec.to_python().replace("model = schedule(", "model = dx.spec(schedule, ")
    assert run(f"import declax as dx\n{code}") == spec


def test_nan_as_code():
    assert dx.spec(schedule, float("nan")).to_python().endswith("model = schedule(peak=float('nan'))\n")


def test_programs_without_rngs_have_none():
    assert dx.spec(schedule, 1.0, 2.0, late=3.0).to_python(name="it") == (
        "from config.spec_models import schedule\n\nit = schedule(1.0, 2.0, late=3.0)\n"
    )


def test_defaults_before_positions_are_written():
    code = dx.Spec(pick, {"more": (3,)}).to_python()
    assert code == "from config.spec_models import pick\n\nmodel = pick(1, 'x', 3)\n"
    assert run(code) == (1, "x", 3)


def test_two_classes_of_one_name():
    class Linear(dx.Module):
        pass

    Linear.__module__, Linear.__qualname__ = "config.spec_models", "Mlp"
    code = dx.spec(dx.List, [dx.spec(Mlp, 3), dx.spec(dx.Linear, 3, 4)]).to_python(name="Mlp")
    assert "import config.spec_models\n" in code
    assert "config.spec_models.Mlp(dim=3, rngs=rngs)" in code


def test_shared_parts_have_names_that_nothing_else_has():
    part = dx.spec(dx.List, [dx.spec(Gate, 2), dx.Ref("/elements/0")])
    code = dx.spec(dx.Dict, {"rngs": part, "class": dx.Ref("/entries/rngs/elements/0"), "x": dx.Ref("/entries/rngs")})
    text = code.to_python()
    assert "(rngs_2 := " in text
    assert dx.spec_of(run(text)) == code


def test_long_programs_are_broken_into_lines():
    text = small(12).to_python()
    assert max(map(len, text.splitlines())) <= 100
    assert dx.spec_of(run(text)) == small(12)


@pytest.mark.slow
def test_programs_run_on_their_own():
    code = dx.spec(Train, small()).to_python() + "print(model.model.head is model.model.embed)\n"
    env = {"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"}
    here = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_public_names():
    class Local:
        pass

    assert public_name(jax.nn.relu) == "jax.nn:relu"
    assert public_name(jax.lax.dot_general) == "jax.lax:dot_general"
    assert public_name(Local) == "config.test_spec_printing:test_public_names.<locals>.Local".replace(
        "config.test_spec_printing", __name__
    )
    assert public_name(lambda: 0) is None
    assert public_name(functools.partial(half)) is None
    assert public_name(3) is None
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
    assert "Mode.A" in dx.spec(schedule, Mode.A).to_python()


def test_class_methods_are_targets():
    spec = dx.spec(Open.square, 3)
    assert spec == dx.spec(Open.square, 3)
    assert public_name(Open.square) == "config.spec_models:Open.square"
    assert "model = Open.square(dim=3, rngs=rngs)" in spec.to_python()
    assert run(spec.to_python()).width == spec.build(rngs=dx.Rngs(0)).width == 3


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
    assert "tx=optax.chain(optax.clip(max_delta=1.0), optax.adamw(learning_rate=0.001))" in train.to_python()
    assert run(train.to_python()).optimizer.step.value == 0
    assert train.fingerprint() == pickle.loads(pickle.dumps(train)).fingerprint()


class Saves(dx.Module):
    def __init__(self, folder: Path, other: PurePath | None = None):
        self.folder, self.other = folder, other


def test_paths_are_written_as_code():
    spec = dx.spec(Saves, Path("runs/it's"), PurePosixPath("a/b"))
    assert "import pathlib\n" in spec.to_python()
    made = run(spec.to_python())
    assert (made.folder, made.other) == (Path("runs/it's"), PurePosixPath("a/b"))
    assert "pathlib.PureWindowsPath('c')" in dx.spec(Saves, Path("x"), PureWindowsPath("c")).to_python()
    assert "pathlib.Path('x')" in repr(dx.spec(Saves, Path("x")))


def test_specs_with_paths_have_a_fingerprint():
    assert dx.spec(Saves, Path("x")).fingerprint() == dx.spec(Saves, Path("x")).fingerprint()
    assert dx.spec(Saves, Path("x")).fingerprint() != dx.spec(Saves, Path("y")).fingerprint()
