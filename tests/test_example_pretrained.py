"""The pretrained examples: files with the names of `transformers`, against formulas and against `transformers`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.checkpoint.safetensors import open_tensors, write_tensors

EXAMPLE = Path(__file__).parents[1] / "examples" / "pretrained"
WIDTH, HEADS, KV_HEADS, HIDDEN, DEPTH, VOCABULARY, CONTEXT = 16, 4, 2, 20, 2, 11, 8
TOKENS = np.arange(10).reshape(2, 5) * 3 % VOCABULARY

GPT2_CONFIG = {
    "vocab_size": VOCABULARY,
    "n_positions": CONTEXT,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_layer": DEPTH,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
LLAMA_CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
}
Tensors = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def gpt2(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("gpt2")


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("llama")


def random(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    draw = np.random.default_rng(0).normal
    return {name: draw(scale=0.2, size=shape).astype(np.float32) for name, shape in shapes.items()}


def gpt2_tensors() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for i in range(DEPTH):
        sizes = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
        sizes |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH), "ln_1": (WIDTH,), "ln_2": (WIDTH,)}
        for name, size in sizes.items():
            shapes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[-1:]}
    shapes |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    return random({f"transformer.{name}": shape for name, shape in shapes.items()})


def llama_tensors() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    keys = KV_HEADS * WIDTH // HEADS
    for i in range(DEPTH):
        sizes = {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
        sizes |= {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (keys, WIDTH)}
        sizes |= {"self_attn.v_proj": (keys, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH)}
        sizes |= {"mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN)}
        shapes |= {f"model.layers.{i}.{name}.weight": size for name, size in sizes.items()}
    return random(shapes | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)})


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention of (n, length, heads, features); `softmax(q k / sqrt(d)) v`."""
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / np.sqrt(query.shape[-1]).astype(np.float32)
    length = query.shape[1]
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    found = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), value)
    return found.reshape(*found.shape[:2], -1)


def gpt2_formula(t: Tensors, tokens: np.ndarray[Any, Any]) -> jax.Array:
    def norm(x: jax.Array, name: str) -> jax.Array:
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * t[f"transformer.{name}.weight"] + t[f"transformer.{name}.bias"]

    def linear(x: jax.Array, name: str) -> jax.Array:
        return x @ t[f"transformer.{name}.weight"] + t[f"transformer.{name}.bias"]

    x = t["transformer.wte.weight"][tokens] + t["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(DEPTH):
        joined = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        heads = [part.reshape(*part.shape[:2], HEADS, -1) for part in jnp.split(joined, 3, axis=-1)]
        x = x + linear(attention(*heads), f"h.{i}.attn.c_proj")
        hidden = jax.nn.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate=True)
        x = x + linear(hidden, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ t["transformer.wte.weight"].T


def llama_formula(t: Tensors, tokens: np.ndarray[Any, Any]) -> jax.Array:
    def norm(x: jax.Array, name: str) -> jax.Array:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * t[f"{name}.weight"]

    def heads(x: jax.Array, name: str) -> jax.Array:
        return (x @ t[f"{name}.weight"].T).reshape(*x.shape[:2], -1, WIDTH // HEADS)

    def rotated(x: jax.Array) -> jax.Array:
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * 500.0 ** (-np.arange(half) / half)
        turns = jnp.asarray(np.exp(1j * angles)[:, None], jnp.complex64)
        turned = jax.lax.complex(x[..., :half], x[..., half:]) * turns
        return jnp.concatenate([turned.real, turned.imag], axis=-1)

    x = jnp.asarray(t["model.embed_tokens.weight"])[tokens]
    for i in range(DEPTH):
        name = f"model.layers.{i}"
        y = norm(x, f"{name}.input_layernorm")
        query, key = (rotated(heads(y, f"{name}.self_attn.{part}_proj")) for part in "qk")
        value = heads(y, f"{name}.self_attn.v_proj")
        key, value = (jnp.repeat(part, HEADS // KV_HEADS, axis=2) for part in (key, value))
        x = x + attention(query, key, value) @ t[f"{name}.self_attn.o_proj.weight"].T
        y = norm(x, f"{name}.post_attention_layernorm")
        hidden = jax.nn.silu(y @ t[f"{name}.mlp.gate_proj.weight"].T) * (y @ t[f"{name}.mlp.up_proj.weight"].T)
        x = x + hidden @ t[f"{name}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ t["lm_head.weight"].T


def folder_of(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    write_tensors(path / "model.safetensors", tensors)
    return path


def check_file(model: Any, given: Tensors, expected: jax.Array, file: Path, names: dx.weights.WeightMap) -> None:
    """Checks the logits of a model, and the file that it gives."""
    np.testing.assert_allclose(model(jnp.asarray(TOKENS)), expected, atol=1e-5)
    dx.save_weights(model, file, map=names)
    found = open_tensors(file)
    assert found.keys() == given.keys()
    assert all(np.array_equal(found[name], given[name]) for name in given)


def test_gpt2_from_a_file(gpt2, tmp_path):
    given = gpt2_tensors()
    old = {"lm_head.weight": given["transformer.wte.weight"], "transformer.h.0.attn.bias": np.ones((1, 1), np.float32)}
    model = gpt2.load_gpt2(folder_of(tmp_path / "gpt2", GPT2_CONFIG, given | old))
    check_file(model, given, gpt2_formula(given, TOKENS), tmp_path / "new.safetensors", gpt2.GPT2_MAP)


def test_llama_from_a_file(llama, tmp_path):
    given = llama_tensors()
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    model = llama.load_llama(folder_of(tmp_path / "llama", LLAMA_CONFIG, given | old))
    check_file(model, given, llama_formula(given, TOKENS), tmp_path / "new.safetensors", llama.LLAMA_MAP)


def test_weights_of_half_precision(llama, tmp_path):
    given = {name: tensor.astype(jnp.bfloat16) for name, tensor in llama_tensors().items()}
    model = llama.load_llama(folder_of(tmp_path / "llama", LLAMA_CONFIG, given))
    assert model.head.kernel.dtype == jnp.float32
    np.testing.assert_array_equal(model.head.kernel.value, given["lm_head.weight"].T.astype(np.float32))


@pytest.mark.parametrize(
    ("example", "change"),
    [
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"n_inner": 7}),
        ("llama", {"attention_bias": True}),
        ("llama", {"head_dim": 8}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}),
    ],
)
def test_variants_are_refused(example, change, tmp_path, request):
    module = request.getfixturevalue(example)
    config = (GPT2_CONFIG if example == "gpt2" else LLAMA_CONFIG) | change
    with pytest.raises(ValueError, match="a variant of"):
        getattr(module, f"load_{example}")(folder_of(tmp_path / "variant", config, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_transformers_computes_the_same_in_both_directions(name, tmp_path, request):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    module = request.getfixturevalue(name)
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(**GPT2_CONFIG, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
        make, load, names = transformers.GPT2LMHeadModel, module.load_gpt2, module.GPT2_MAP
    else:
        config = transformers.LlamaConfig(**LLAMA_CONFIG, initializer_range=0.2)
        make, load, names = transformers.LlamaForCausalLM, module.load_llama, module.LLAMA_MAP

    def logits(model: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            found: np.ndarray[Any, Any] = model.eval()(torch.tensor(TOKENS)).logits.numpy()
        return found

    theirs = make(config)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    ours = load(tmp_path / "theirs")
    assert np.abs(logits(theirs)).max() > 0.5
    np.testing.assert_allclose(ours(jnp.asarray(TOKENS)), logits(theirs), atol=1e-5, rtol=0)

    ours = type(ours)(*spec_arguments(ours), rngs=dx.Rngs(1))
    config.save_pretrained(tmp_path / "ours")
    dx.save_weights(ours, tmp_path / "ours" / "model.safetensors", map=names)
    again, report = make.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    np.testing.assert_allclose(ours(jnp.asarray(TOKENS)), logits(again), atol=1e-5, rtol=0)


def spec_arguments(model: Any) -> list[Any]:
    """The arguments of the class, in order."""
    names = ["vocabulary", "context", "width", "hidden", "heads", "depth", "kv_heads", "theta", "epsilon"]
    order = [name for name in type(model).__annotations__ if name in names]
    return [getattr(model, name) for name in order]
