"""The GPT example: a short run, decoding with caches, its files, and its claim."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

pytest.importorskip("rich")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt"
SMALL = ("model.width=16", "model.depth=2", "training.steps=2", "training.length=8", "sample.count=5")
OPTAX = "0.2.8"
"""The version whose transformations and schedules the saved schema describes."""


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *map(str, words)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("gpt")


def test_two_steps_and_a_sample() -> None:
    done = python(EXAMPLE / "train_gpt.py", *SMALL)
    assert "on held-out text" in done.stdout, done.stderr
    written = done.stdout[done.stdout.index("The statement ") :].removesuffix("\n")
    assert len(written) == len("The statement ") + 5
    assert "more than the 1.5 that the configuration requires" in done.stderr
    assert done.returncode == 1


def test_decoding_agrees_with_one_pass(example: ModuleType) -> None:
    model = example.GPT(width=16, depth=3, rngs=dx.Rngs(0))
    model.eval()
    tokens = jnp.arange(20).reshape(2, 10)
    wanted = model(tokens)
    model.start_decoding(2, 10)
    found = [example.next_logits(model, tokens[:, :4])]
    found += [example.next_logits(model, tokens[:, i : i + 1]) for i in range(4, 10)]
    for number, logits in enumerate(found, 3):
        np.testing.assert_allclose(logits, wanted[:, number], rtol=1e-4, atol=1e-5)
    past_the_end = example.next_logits(model, tokens[:, :1])  # in the loop over the blocks, the position is traced
    assert jnp.isnan(past_the_end).all()


def test_a_sample_compiles_once_for_all_characters(example: ModuleType) -> None:
    model = example.GPT(width=16, depth=2, rngs=dx.Rngs(0))
    before = dx.state(model)
    traces = example.next_logits.num_traces
    first = example.sample(model, jnp.ones((1, 4), jnp.int32), 6, key=jax.random.key(0))
    assert example.next_logits.num_traces == traces + 2  # the prompt, and one character
    again = example.sample(model, jnp.ones((1, 4), jnp.int32), 6, key=jax.random.key(0))
    assert example.next_logits.num_traces == traces + 2
    np.testing.assert_array_equal(first, again)
    assert jax.tree.structure(before) == jax.tree.structure(dx.state(model))
    assert model.blocks.layers.attention.cached_key is None


def test_the_file_is_as_its_schema_has_it() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = (EXAMPLE / "topics.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema gpt.schema.json\n")
    validator = jsonschema.Draft7Validator(json.loads((EXAMPLE / "gpt.schema.json").read_text(encoding="utf-8")))
    assert validator.is_valid(tomllib.loads(text))
    assert not validator.is_valid({**tomllib.loads(text), "training": {"steps": "x"}})


def test_the_saved_schema_is_that_of_the_class() -> None:
    optax = pytest.importorskip("optax")
    if optax.__version__ != OPTAX:
        pytest.skip("another version of optax has other functions, so another schema")
    done = python("-m", "declax", "schema", f"{EXAMPLE / 'gpt_run.py'}:Run")
    saved = json.loads((EXAMPLE / "gpt.schema.json").read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == saved, "declax schema examples/gpt/gpt_run.py:Run -o examples/gpt/gpt.schema.json"


def test_adapters_train_alone() -> None:
    done = python(EXAMPLE / "adapt.py", *SMALL)
    assert "with 3,072 parameters of adapters" in done.stdout, done.stderr
    assert done.returncode == 1


@pytest.mark.timed  # compiled as users compile it, which trains three times as fast
def test_the_claims_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts run in this process: adapt.py begins with the training of train_gpt.py, which is done only once."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    training, adapting = importlib.import_module("train_gpt"), importlib.import_module("adapt")
    done: list[tuple[Any, object, dx.State]] = []

    def train(model: dx.Module, run: Any, text: object, **options: object) -> object:
        if not done or options:
            losses = train_anew(model, run, text, **options)
            done.append((dataclasses.replace(run, optimizer=None), text, jax.tree.map(jnp.copy, dx.state(model))))
            return losses
        assert dataclasses.replace(run, optimizer=None) == done[0][0]  # functions are not equal
        np.testing.assert_array_equal(done[0][1], text)
        dx.update(model, done[0][2])
        return None

    train_anew = training.train
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(adapting, "train", train)
    with jax.numpy_dtype_promotion("standard"):  # as for users
        assert training.main([]) == 0
        assert adapting.main([]) == 0
    assert len(done) == 2
