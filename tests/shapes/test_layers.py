"""The layers of `dx.nn` for every size: what is proven, and what is tested only, with the reason."""

import jax.numpy as jnp
import pytest

import declax as dx

RNGS = dx.Rngs


def layer(make):
    return make(RNGS(0))


# name: (the layer or a function of it, inputs, conditions)
CASES = {
    "Linear": (dx.Linear, ["float32[b, n, {self.in_features}]"], ()),
    "LinearGeneral": (lambda r: dx.LinearGeneral((4, 2), (3, 5), axis=(-2, -1), rngs=r), ["float32[b, n, 4, 2]"], ()),
    "Einsum": (lambda r: dx.Einsum("bnd,de->bne", (4, 5), (5,), rngs=r), ["float32[b, n, 4]"], ()),
    "Embed": (dx.Embed, ["int32[b, n]"], ()),
    "Conv": (lambda r: dx.Conv(3, 8, (3, 3), rngs=r), ["float32[b, h, w, 3]"], ()),
    "Conv, strides": (lambda r: dx.Conv(3, 8, (3, 3), strides=2, rngs=r), ["float32[b, h, w, 3]"], ()),
    "Conv, VALID": (lambda r: dx.Conv(3, 8, (3,), padding="VALID", rngs=r), ["float32[b, n, 3]"], ("n >= 3",)),
    "ConvTranspose": (lambda r: dx.ConvTranspose(3, 8, (2, 2), strides=2, rngs=r), ["float32[b, h, w, 3]"], ()),
    "BatchNorm": (dx.BatchNorm, ["float32[b, n, {self.num_features}]"], ()),
    "LayerNorm": (dx.LayerNorm, ["float32[b, n, {self.num_features}]"], ()),
    "RMSNorm": (dx.RMSNorm, ["float32[b, n, {self.num_features}]"], ()),
    "GroupNorm": (lambda r: dx.GroupNorm(8, num_groups=2, rngs=r), ["float32[b, h, w, 8]"], ()),
    "InstanceNorm": (dx.InstanceNorm, ["float32[b, h, w, {self.num_features}]"], ()),
    "WeightNorm": (lambda r: dx.WeightNorm(dx.Linear(4, 3, rngs=r), rngs=r), ["float32[b, 4]"], ()),
    "SpectralNorm": (lambda r: dx.SpectralNorm(dx.Linear(4, 3, rngs=r), rngs=r), ["float32[b, 4]"], ()),
    "Dropout": (lambda r: dx.Dropout(0.5, rngs=r), ["float32[b, n, d]"], ()),
    "DropPath": (lambda r: dx.DropPath(0.5, rngs=r), ["float32[b, n, d]"], ()),
    "MultiHeadAttention": (lambda r: dx.MultiHeadAttention(2, 8, decode=False, rngs=r), ["float32[b, n, 8]"], ()),
    "MultiHeadAttention, two inputs": (
        lambda r: dx.MultiHeadAttention(2, 8, decode=False, rngs=r),
        ["float32[b, n, 8]", "float32[b, m, 8]"],
        (),
    ),
    "MultiHeadAttention, rope": (
        lambda r: dx.MultiHeadAttention(2, 8, rope=dx.RoPE(), decode=False, rngs=r),
        ["float32[b, n, 8]"],
        (),
    ),
    "SimpleCell": (lambda r: dx.SimpleCell(3, 4, rngs=r), ["float32[b, 4]", "float32[b, 3]"], ()),
    "GRUCell": (lambda r: dx.GRUCell(3, 4, rngs=r), ["float32[b, 4]", "float32[b, 3]"], ()),
    "LSTMCell": (
        lambda r: dx.LSTMCell(3, 4, rngs=r),
        [("float32[b, 4]", "float32[b, 4]"), "float32[b, 3]"],
        (),
    ),
    "OptimizedLSTMCell": (
        lambda r: dx.OptimizedLSTMCell(3, 4, rngs=r),
        [("float32[b, 4]", "float32[b, 4]"), "float32[b, 3]"],
        (),
    ),
    "RNN": (lambda r: dx.RNN(dx.LSTMCell(3, 4, rngs=r), rngs=r), ["float32[b, n, 3]"], ()),
    "Bidirectional": (
        lambda r: dx.Bidirectional(dx.RNN(dx.GRUCell(3, 4, rngs=r), rngs=r), dx.RNN(dx.GRUCell(3, 4, rngs=r), rngs=r)),
        ["float32[b, n, 3]"],
        (),
    ),
    "MLP": (lambda r: dx.MLP(3, 8, 2, rngs=r), ["float32[b, n, 3]"], ()),
    "GatedMLP": (lambda r: dx.GatedMLP(3, 8, rngs=r), ["float32[b, n, 3]"], ()),
    "MoE": (lambda r: dx.MoE(3, 8, 4, rngs=r), ["float32[b, n, 3]"], ()),
    "MoE, with a capacity": (lambda r: dx.MoE(3, 8, 4, capacity_factor=1.25, rngs=r), ["float32[b, n, 3]"], ()),
    "LoRA": (lambda r: dx.LoRA(3, 2, 4, rngs=r), ["float32[b, n, 3]"], ()),
    "LoRALinear": (lambda r: dx.LoRALinear(3, 4, lora_rank=2, rngs=r), ["float32[b, n, 3]"], ()),
    "PReLU": (lambda r: dx.PReLU(), ["float32[b, n]"], ()),
    "Stacked": (lambda r: dx.Stacked(lambda rngs: dx.Linear(3, 3, rngs=rngs), 2, rngs=r), ["float32[b, n, 3]"], ()),
    "max_pool": (lambda r: lambda x: dx.max_pool(x, (2, 2), (2, 2)), ["float32[b, h, w, c]"], ("h >= 2", "w >= 2")),
    "max_pool, SAME": (lambda r: lambda x: dx.max_pool(x, (3, 3), (2, 2), padding="SAME"), ["float32[b, h, w, c]"], ()),
    "avg_pool": (lambda r: lambda x: dx.avg_pool(x, (3, 3), padding="SAME"), ["float32[b, h, w, c]"], ()),
    "global_avg_pool": (lambda r: dx.global_avg_pool, ["float32[b, h, w, c]"], ()),
    "dot_product_attention": (
        lambda r: dx.dot_product_attention,
        ["float32[b, n, heads, d]", "float32[b, m, heads, d]", "float32[b, m, heads, d]"],
        (),
    ),
    "make_causal_mask": (lambda r: dx.make_causal_mask, ["float32[b, n]"], ()),
    "make_attention_mask": (lambda r: dx.make_attention_mask, ["float32[b, n]", "float32[b, m]"], ()),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CASES)
def test_layers_are_proven_for_every_size(name):
    make, inputs, where = CASES[name]
    target = make if isinstance(make, type) else layer(make)
    report = dx.check_shapes(target, *inputs, where=where)
    assert report.proven, report
    assert not report.findings, report


def test_a_layer_that_is_tested_only_says_why():
    circular = dx.Conv(3, 8, (3,), padding="CIRCULAR", rngs=dx.Rngs(0))
    report = dx.check_shapes(circular, "float32[b, n, 3]")
    assert [line.verdict for line in report.checked] == ["tested only"]
    assert [finding.severity for finding in report.findings] == ["note"]


def test_a_layer_says_what_it_needs():
    report = dx.check_shapes(lambda x: dx.max_pool(x, (2, 2), (2, 2)), "float32[b, h, w, c]")
    assert set(report.findings[0].condition.split(" and ")) == {"h >= 2", "w >= 2"}


def test_layers_speak_in_symbols():
    report = dx.check_shapes(dx.Linear(4, 3, rngs=dx.Rngs(0)), "float32[b, n, d]", where="d >= 5")
    (found,) = report.findings
    assert found.got == "an array of shape (b, n, d), while tracing (float32)"
    assert jnp.asarray(list(found.sizes.values())).min() >= 1
