"""Optimizers in configurations, and the tables of optax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import declax as dx


@dx.dataclass
class Training(dx.Module):
    model: dx.Linear
    optimizer: dx.Optimizer[dx.Linear]


ADAM = dx.spec(optax.adamw, dx.spec(optax.cosine_decay_schedule, 1e-3, 100))
SGD = {"kind": "sgd", "learning_rate": 0.1}
SPEC = dx.spec(Training, dx.spec(dx.Linear, 2, 3), dx.spec(dx.Optimizer, dx.Ref("/model"), ADAM, wrt=dx.Param))


def test_a_transformation_that_was_built_from_a_file_is_written_again():
    @dataclasses.dataclass
    class Run:
        tx: optax.GradientTransformation
        steps: int = 3

    config = {
        "tx": {"kind": "adamw", "learning_rate": {"kind": "linear_schedule", "init_value": 0.1, "end_value": 0.0}}
    }
    config["tx"]["learning_rate"]["transition_steps"] = 10
    run = dx.from_config(Run, config)
    assert dx.spec_of(run) == dx.spec_from_config(Run, config)
    assert dx.to_config(run) == {"kind": "Run", **config}
    with pytest.raises(dx.ConfigError, match=r"Run\.tx: a configuration cannot represent this value") as caught:
        dx.to_config(Run(optax.adamw(0.1)))
    assert "dx.spec(optax.adamw, ...)" in str(caught.value)


def test_a_spec_builds_an_optimizer_beside_its_model():
    training = SPEC.build(rngs=dx.Rngs(0))
    training.optimizer.update(training.model, dx.state(training.model, dx.Param))
    with pytest.raises(dx.ConfigError, match="Optimizer takes 'model', but has no attribute"):
        dx.spec_of(training)


# ----------------------------------------------------------------- the tables


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "lbfgs"},
        {"kind": "lbfgs", "linesearch": {"kind": "scale_by_zoom_linesearch", "max_linesearch_steps": 5}},
        {"kind": "lbfgs", "learning_rate": 0.1, "linesearch": None},
        {"kind": "MultiSteps", "opt": {"kind": "adam", "learning_rate": 0.1}, "every_k_schedule": 4},
        {"kind": "MultiSteps", "opt": SGD, "every_k_schedule": 2, "accumulator_dtype": "bfloat16"},
        {"kind": "named_chain", "args": [["clip", {"kind": "clip", "max_delta": 1.0}], ["x", {"kind": "identity"}]]},
        {"kind": "flatten", "inner": {"kind": "optimistic_adam_v2", "learning_rate": 0.1}},
        {"kind": "chain", "args": [{"kind": "apply_every", "k": 2}, {"kind": "signum", "learning_rate": 0.1}]},
    ],
    ids=lambda data: data["kind"],
)  # fmt: skip
def test_what_data_can_say_of_optax(data: dict[str, Any]):
    spec = dx.spec_from_config(optax.GradientTransformation, data)
    assert dx.to_config(spec) == data
    assert dx.spec_from_config(optax.GradientTransformation, dx.to_config(spec, full=True)) == spec
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    optimizer = dx.spec(dx.Optimizer, dx.spec(dx.Linear, 2, 3), spec).build(rngs=dx.Rngs(0))
    assert optimizer.opt_state is not None
    if data["kind"] != "lbfgs":
        optimizer.update(model, dx.state(model, dx.Param))
        assert jnp.isfinite(model.kernel.value).all()


@pytest.mark.parametrize(
    "kind", ["masked", "partition", "multi_transform", "inject_hyperparams", "stateless", "freeze"]
)
def test_what_data_cannot_say(kind):
    with pytest.raises(dx.ConfigError, match="unknown kind"):
        dx.spec_from_config(optax.GradientTransformation, {"kind": kind})


@pytest.mark.parametrize("kind", ["adm", "Adam", "optax.adam"])
def test_the_name_of_an_optimizer_is_suggested(kind):
    with pytest.raises(dx.ConfigError, match="did you mean 'adam'"):
        dx.spec_from_config(optax.GradientTransformation, {"kind": kind})


def refusal_of(data: dict[str, Any]) -> str:
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.spec_from_config(optax.GradientTransformation, data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("short", "name"),
    [("lr", "learning_rate"), ("wd", "weight_decay"), ("eps_rot", "eps_root"), ("LR", None), ("ab", None)],
)
def test_abbreviations_of_parameters_are_known(short: str, name: str | None):
    rest = {} if name == "learning_rate" else {"learning_rate": 0.1}
    text = refusal_of({"kind": "adamw", short: 0.1, **rest})
    assert f"adamw has no parameter '{short}'" in text
    assert (f"did you mean '{name}'?" in text) if name else ("did you mean" not in text)


def test_a_list_under_another_name_is_told_the_name():
    assert "fix:      args = [...]   # the list for *args" in refusal_of({"kind": "chain", "transforms": [SGD]})
    assert "fix:" not in refusal_of({"kind": "chain", "transforms": 3})
    assert "fix:" not in refusal_of({"kind": "clip", "max_delta": 1.0, "transforms": [SGD]})


def test_problems_are_typed():
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.spec_from_config(optax.GradientTransformation, {"kind": "adm"})
    (problem,) = caught.value.problems
    assert (problem.code, problem.path, problem.place.line) == ("unknown-kind", ("kind",), None)
