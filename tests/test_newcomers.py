"""Two GPTs and two U-Nets that were written from the pages alone: they train, and are saved, configured and changed."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from newcomers import gpt, gpt_blind, unet, unet_blind

INPUTS = jnp.zeros((2, 16, 16, 1)), jnp.zeros(2)


@pytest.fixture(scope="module")
def trained() -> tuple[gpt.GPT, list[float]]:
    return gpt.train(60)


def test_a_gpt_learns_its_text(trained: tuple[gpt.GPT, list[float]]) -> None:
    _, losses = trained
    assert losses[0] > 3.0 > 2.0 > sum(losses[-5:]) / 5


def test_a_gpt_samples_the_letters_that_it_knows(trained: tuple[gpt.GPT, list[float]]) -> None:
    model = dx.clone(trained[0])
    model.eval()
    prompt = jnp.array([[1, 2, 3], [4, 5, 6]])
    text = model.generate(prompt, 4, rngs=dx.Rngs(sample=1))
    assert text.shape == (2, 7)
    assert (text[:, :3] == prompt).all()
    assert (text < model.vocabulary).all()
    assert (text == model.generate(prompt, 4, rngs=dx.Rngs(sample=1))).all()


def test_a_gpt_looks_at_earlier_letters_only(trained: tuple[gpt.GPT, list[float]]) -> None:
    model = dx.clone(trained[0])
    model.eval()
    tokens = jnp.zeros((1, model.length), jnp.int32)
    changes = jnp.any(gpt.logits_of(model, tokens) != gpt.logits_of(model, tokens.at[0, 5].set(7)), axis=(0, 2))
    assert not changes[:5].any()
    assert changes[5]


def test_a_saved_gpt_computes_the_same(trained: tuple[gpt.GPT, list[float]], tmp_path: Path) -> None:
    model = dx.clone(trained[0])
    model.eval()
    dx.save(tmp_path / "gpt", {"model": model})
    rebuilt = dx.load(tmp_path / "gpt", extra=[gpt.GPT])["model"]
    filled = gpt.GPT(model.vocabulary, rngs=dx.Rngs(9))
    dx.load(tmp_path / "gpt", into={"model": filled})
    filled.eval()
    tokens = jnp.zeros((1, model.length), jnp.int32)
    for loaded in (rebuilt, filled):
        assert loaded.head is loaded.embed
        assert (gpt.logits_of(loaded, tokens) == gpt.logits_of(model, tokens)).all()


def test_a_gpt_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "gpt.toml").write_text(gpt.CONFIG)
    model = dx.from_config(gpt.GPT, tmp_path / "gpt.toml", rngs=dx.Rngs(0))
    assert [block.mlp.up.kernel.shape for block in model.blocks] == [(16, 24), (16, 24)]
    assert {block.attention.rate for block in model.blocks} == {0.0}
    assert {block.drop.rate for block in model.blocks} == {0.1}
    assert model.head is model.embed


def test_a_configured_gpt_resumes_and_writes_with_a_cache(tmp_path: Path) -> None:
    (tmp_path / "gpt.toml").write_text(gpt_blind.CONFIG)
    run = dx.from_config(gpt_blind.Run, tmp_path / "gpt.toml")
    model, optimizer = gpt_blind.start(run, 0)
    losses = gpt_blind.train(run, model, optimizer, 0, 20)
    dx.save(tmp_path / "run", {"model": model, "optimizer": optimizer, "step": 20})
    losses += gpt_blind.train(run, model, optimizer, 20, run.steps)
    assert losses[0] > 2.5 > 2.0 > losses[-1]

    into = dict(zip(("model", "optimizer"), gpt_blind.start(run, 99), strict=True))
    found = dx.load(tmp_path / "run", into={**into, "step": 0})
    rebuilt = dx.load(tmp_path / "run", extra=[gpt_blind.GPT])
    for items in (found, rebuilt):
        again = gpt_blind.train(run, items["model"], items["optimizer"], items["step"], run.steps)
        assert again == losses[20:]  # to the last bit, dropout included

    model.eval()
    prompt = jnp.array([[gpt_blind.LETTERS.index(letter) for letter in "the d"]])
    written = gpt_blind.generate(model, prompt, 8)
    best = jnp.argmax(gpt_blind.logits_of(model, written), axis=-1)
    assert (written[:, 5:] == best[:, 4:-1]).all()
    assert model.blocks[0].attention.decode is False
    assert model.blocks[0].attention.cached_key is None


def test_a_unet_learns_the_noise() -> None:
    model = unet.UNet(rngs=dx.Rngs(0))
    losses = unet.train(model, 40)
    assert losses[0] > 1.0
    assert sum(losses[-5:]) / 5 < 0.5
    assert f"{sum(leaf.size for leaf in jax.tree.leaves(model)):,}" in str(dx.summary(model)).splitlines()[-1]


def test_a_unet_with_other_parts() -> None:
    spec = dx.spec(unet.UNet, multipliers=(1, 2, 2)).replace({"time.dim": 16, "middle.groups": 2})
    abstract = dx.eval_shape(lambda: spec.build(rngs=dx.Rngs(0)))
    assert dx.eval_shape(abstract, *INPUTS).shape == (2, 16, 16, 1)
    assert (len(abstract.down), abstract.time.dim, spec["middle.groups"]) == (3, 16, 2)
    assert isinstance(abstract.middle, unet.ResBlock)
    assert abstract.middle.groups == 2


def test_a_unet_with_another_middle() -> None:
    light = dx.eval_shape(lambda: unet.LightUNet(multipliers=(1, 3), rngs=dx.Rngs(0)))
    assert isinstance(light.middle, unet.Scale)
    assert light.middle.scale.shape == (24,)
    assert dx.eval_shape(light, *INPUTS).shape == (2, 16, 16, 1)


def test_a_unet_from_a_file_learns_and_comes_back(tmp_path: Path) -> None:
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        losses = unet_blind.main(tmp_path / "checkpoint")
        assert losses[-1] < 0.8 * losses[0]
        unet_blind.load(tmp_path / "checkpoint")  # without a target: model, optimizer, average, streams and mode
