"""The examples of one file each: short runs, their files, what is special in each, and their claims."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.stats import norm

import declax as dx

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = {
    "resnet": ("epochs=1", "batch_size=1437", "model.width=2", "required_accuracy=1.01"),
    "vae": ("epochs=1", "batch_size=700", "model.hidden=4", "required_bound=0"),
    "lstm": ("steps=1", "batch_size=4", "model.width=4", "required_accuracy=1.01"),
    "gan": ("epochs=1", "batch_size=700", "generator.hidden=4", "discriminator.hidden=4", "allowed_accuracy=0"),
    "ensemble": ("epochs=1", "batch_size=700", "model.hidden=4", "members=2", "required_loss=0"),
}
"""For each example, a run of few seconds that cannot succeed."""
PICTURES = ("vae", "gan")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES / request.param))
    return importlib.import_module(request.param)


def of(*names: Any) -> pytest.MarkDecorator:
    """The examples of these names, one after the other, as the argument `module`."""
    return pytest.mark.parametrize("module", names, indirect=True)


@pytest.mark.sampled(2)
@of(pytest.param("resnet", marks=pytest.mark.slow), "vae", "lstm", "gan", "ensemble")
def test_a_short_run_says_that_it_does_not_suffice(
    module: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "new" / "picture.png"
    words = [f"out={picture}"] if module.__name__ in PICTURES else []
    status = module.main([*SHORT[module.__name__], *words])
    printed = capsys.readouterr()
    assert status == 1
    assert "that the configuration" in printed.err
    assert "total" in printed.out  # the summary
    assert not words or picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", SHORT)
def test_the_file_is_as_its_schema_has_it(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = (EXAMPLES / name / f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith(f"#:schema {name}.schema.json\n")
    schema = (EXAMPLES / name / f"{name}.schema.json").read_text(encoding="utf-8")
    validator = jsonschema.Draft7Validator(json.loads(schema))
    assert validator.is_valid(tomllib.loads(text))
    assert not validator.is_valid({**tomllib.loads(text), "batch_size": "x"})


@of(*SHORT)
def test_the_saved_schema_is_that_of_the_class(module: ModuleType) -> None:
    name = module.__name__
    saved = json.loads((EXAMPLES / name / f"{name}.schema.json").read_text(encoding="utf-8"))
    file = f"examples/{name}/{name}"
    assert dx.json_schema(module.Run) == saved, f"declax schema {file}.py:Run -o {file}.schema.json"


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("name", SHORT)
def test_the_claim_of_the_example(name: str, tmp_path: Path) -> None:
    """What the file requires, in under two minutes, start-up and compilation included."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name / f"{name}.py")]
    words = [f"out={tmp_path / 'picture.png'}"] if name in PICTURES else []
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120", "MPLBACKEND": "agg"}
    started = time.perf_counter()
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.perf_counter() - started < 120


# ================================================================= ResNet-18


def resnet_of_the_peer(nnx: Any, width: int, rngs: Any) -> Any:
    """The same network in the style of Flax NNX."""

    class ConvNorm(nnx.Module):  # type: ignore[misc]  # the peer is an argument, so its base is unknown
        def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
            self.conv = nnx.Conv(inputs, outputs, (kernel, kernel), stride, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)

        def __call__(self, x: jax.Array) -> Any:
            return self.norm(self.conv(x))

    class Residual(nnx.Module):  # type: ignore[misc]  # the same
        def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
            self.first = ConvNorm(inputs, outputs, stride=stride)
            self.second = ConvNorm(outputs, outputs)
            self.shortcut = ConvNorm(inputs, outputs, 1, stride) if stride != 1 else None

        def __call__(self, x: jax.Array) -> Any:
            y = self.second(nnx.relu(self.first(x)))
            return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    class ResNet18(nnx.Module):  # type: ignore[misc]  # the same
        def __init__(self) -> None:
            self.stem = ConvNorm(1, width)
            sizes = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
            pairs = itertools.pairwise(sizes)
            self.blocks = nnx.Sequential(*(Residual(i, o, 1 if i == o else 2) for i, o in pairs))
            self.head = nnx.Linear(8 * width, 10, rngs=rngs)

        def __call__(self, images: jax.Array) -> Any:
            return self.head(self.blocks(nnx.relu(self.stem(images))).mean(axis=(1, 2)))

    return ResNet18()


@of("resnet")
def test_two_steps_of_the_resnet_agree_with_the_peer(module: ModuleType) -> None:
    """Equal seeds give equal parameters; losses and running statistics agree after updates."""
    nnx = pytest.importorskip("flax.nnx")
    images = jax.random.normal(jax.random.key(0), (6, 8, 8, 1))
    labels = jnp.arange(6)

    def losses_of(library: Any, model: Any) -> list[float]:
        optimizer = library.Optimizer(model, optax.sgd(0.05), wrt=library.Param)

        @library.jit  # type: ignore[untyped-decorator]  # the library is an argument
        def step(model: Any, optimizer: Any) -> jax.Array:
            def loss_of(model: Any) -> jax.Array:
                return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

            loss, grads = library.value_and_grad(loss_of)(model)
            optimizer.update(model, grads)
            return jnp.asarray(loss)

        return [float(step(model, optimizer)) for _ in range(3)]

    ours, peers = module.ResNet18(width=4, rngs=dx.Rngs(0)), resnet_of_the_peer(nnx, 4, nnx.Rngs(0))
    arrays, others = (
        jax.tree.leaves(dx.to_pure_dict(dx.state(ours))),
        jax.tree.leaves(nnx.to_pure_dict(nnx.state(peers))),
    )
    assert all((array == other).all() for array, other in zip(arrays, others, strict=True))
    np.testing.assert_allclose(losses_of(dx, ours), losses_of(nnx, peers), rtol=1e-4)
    arrays, others = (
        jax.tree.leaves(dx.to_pure_dict(dx.state(ours))),
        jax.tree.leaves(nnx.to_pure_dict(nnx.state(peers))),
    )
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4)


# ================================================================= the autoencoder


@of("vae")
def test_the_bound_is_that_of_an_integral(module: ModuleType) -> None:
    """With a code of one number, both the bound and -log p(image) are integrals over a line."""
    model = module.VAE(pixels=3, hidden=4, code=1, dropout=0.0, rngs=dx.Rngs(0))
    images = jnp.array([[0, 5, 16], [8, 9, 10]])
    line = jnp.linspace(-10, 10, 4001)
    step = line[1] - line[0]
    mean, log_variance = model.encode(images)
    prior, posterior = norm.logpdf(line), norm.logpdf(line, mean, jnp.exp(log_variance / 2))
    levels = dx.log_softmax(model.decode(line[:, None]))
    joint = prior + sum(levels[:, pixel, images[:, pixel]].T for pixel in range(3))
    bound = (jnp.exp(posterior) * (posterior - joint)).sum(axis=1) * step
    assert (bound > -jnp.log(jnp.exp(joint).sum(axis=1) * step)).all()
    drawn = module.negative_elbo(model, dx.Rngs(0), jnp.repeat(images, 20_000, axis=0))
    np.testing.assert_allclose(drawn, bound.mean(), rtol=0.01)


# ================================================================= the text classifier


@of("lstm")
def test_what_stands_behind_a_line_changes_nothing(module: ModuleType) -> None:
    model = module.LineClassifier(width=4, rngs=dx.Rngs(0))
    model.eval()
    tokens, lengths = jnp.arange(24).reshape(2, 12), jnp.array([5, 12])
    logits = model(tokens, lengths)
    np.testing.assert_allclose(model(tokens.at[0, 5:].set(99), lengths), logits, rtol=1e-6)
    assert (model(tokens.at[0, 4].set(99), lengths)[0] != logits[0]).all()
    np.testing.assert_allclose(model(tokens[:1, :5], lengths[:1])[0], logits[0], rtol=1e-4, atol=1e-6)


@of("lstm")
def test_no_held_out_line_is_in_the_training_lines(module: ModuleType) -> None:
    lines, held_out, texts = module.load_lines(np.random.default_rng(0))
    assert len(held_out.labels) == len(texts) > 500
    assert set(lines.labels.tolist()) == set(held_out.labels.tolist()) == {0, 1, 2, 3}
    known = {bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in np.asarray(lines.tokens)}
    assert len(known) == len(lines.labels)
    assert not known & set(texts)


# ================================================================= the adversarial network


@of("gan")
def test_the_nearest_neighbour_tells_what_differs(module: ModuleType) -> None:
    rng = np.random.default_rng(0)
    real, same, other = (rng.normal(size=(200, 4)).astype(np.float32) for _ in range(3))
    assert 0.4 < module.nearest_neighbour_accuracy(real, same) < 0.6
    assert module.nearest_neighbour_accuracy(real, other + 10) == 1
    collapsed = np.repeat(same[:1], 200, axis=0) + 1e-3 * other
    assert module.nearest_neighbour_accuracy(real, collapsed) > 0.9


@of("gan")
def test_each_optimizer_changes_its_model_alone(module: ModuleType) -> None:
    rngs = dx.Rngs(0)
    generator, discriminator = module.Generator(hidden=4, rngs=rngs), module.Discriminator(hidden=4, rngs=rngs)
    frozen = dx.Optimizer(generator, optax.sgd(0.0), wrt=dx.Param)
    moving = dx.Optimizer(discriminator, optax.sgd(0.1), wrt=dx.Param)
    before = dx.state(generator, dx.Param), dx.state(discriminator, dx.Param)
    module.train_epoch(generator, discriminator, frozen, moving, rngs, jnp.ones((3, 5, 64)))
    after = dx.state(generator, dx.Param), dx.state(discriminator, dx.Param)
    same = [jax.tree.map(lambda a, b: bool((a == b).all()), *pair) for pair in zip(before, after, strict=True)]
    assert jax.tree.all(same[0])
    assert not any(jax.tree.leaves(same[1]))
    assert int(frozen.step.value) == int(moving.step.value) == 3


# ================================================================= the ensemble


@of("ensemble")
def test_each_member_learns_as_if_it_were_alone(module: ModuleType) -> None:
    """The second of three members, beside one that is made and trained without `vmap`."""
    run = dx.from_config(module.Run, {"model": {"hidden": 4}, "members": 3})
    members, optimizers = module.make(run)
    images, labels = jax.random.normal(jax.random.key(1), (20, 64)), jnp.arange(20) % 10
    batches = jax.random.randint(jax.random.key(2), (3, 4, 5), 0, 20)
    module.train_epoch(members, optimizers, images, labels, batches)

    keys = dx.Rngs(run.seed).split(3)
    alone = run.model.build(rngs=dx.Rngs(keys.default.key[1]))
    optimizer = dx.Optimizer(alone, optax.adam(run.learning_rate), wrt=dx.Param)
    step = dx.jit(lambda at: optimizer.update(alone, dx.grad(module.loss_of)(alone, images[at], labels[at])))
    for batch in batches[1]:
        step(batch)
    np.testing.assert_allclose(members.head.kernel[1], alone.head.kernel[...], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(members.first.kernel[1], alone.first.kernel[...], rtol=1e-4, atol=1e-6)
    assert (members.first.kernel[0] != alone.first.kernel[...]).all()
