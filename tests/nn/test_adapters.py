"""`lora` and `merge_lora`: which layers get adapters, what they share, and what the result computes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import LayerError


class Net(dx.Module):
    def __init__(self, rngs: dx.Rngs, dtype=jnp.float32) -> None:
        self.blocks = dx.List([dx.MLP(3, 8, param_dtype=dtype, rngs=rngs) for _ in range(2)])
        self.head = dx.Linear(3, 2, use_bias=False, param_dtype=dtype, kernel_metadata={"tag": 1}, rngs=rngs)
        self.again = self.blocks[0].up

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trained(model):
    """Gives the second factors numbers, as training would."""

    def fill(path, variable):
        return variable.replace(jnp.full_like(variable.value, 0.1)) if path[-1] == "lora_b" else variable

    return dx.map(fill, model)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_adapted_model_first_computes_the_same(normal, close, dtype):
    model, x = Net(dx.Rngs(0), dtype), normal(2, 3, dtype=dtype)
    adapted = dx.lora(model, rank=2, rngs=dx.Rngs(1), lora_param_dtype=dtype)
    np.testing.assert_array_equal(adapted(x), model(x))
    merged = dx.merge_lora(adapted)
    np.testing.assert_array_equal(merged(x), model(x))
    assert dx.graphdef(merged) == dx.graphdef(model)
    changed = trained(adapted)
    assert (changed(x) != model(x)).any()
    close(dx.merge_lora(changed)(x).round(1), changed(x).round(1))
    assert dx.merge_lora(changed)(x).dtype == dtype


def test_a_filter_selects_by_path_and_class():
    model = Net(dx.Rngs(0))
    head = dx.lora(model, dx.PathContains("head"), rank=1, rngs=dx.Rngs(1))
    assert isinstance(head.head, dx.LoRALinear)
    assert type(head.blocks[0].up) is dx.Linear
    assert dx.state(head, dx.LoRAParam).head.lora.lora_a.shape == (3, 1)
    every = dx.lora(model, dx.Linear, rank=1, rngs=dx.Rngs(1))
    assert len([m for _, m in dx.iter_modules(every) if isinstance(m, dx.LoRALinear)]) == 5


def test_variables_and_sharing_stay():
    model = Net(dx.Rngs(0))
    before = dx.state(model)
    adapted = dx.lora(model, rank=1, rngs=dx.Rngs(1))
    assert adapted.blocks[0].up.kernel is model.blocks[0].up.kernel
    assert adapted.head.bias is model.head.bias is None
    assert adapted.again is adapted.blocks[0].up
    assert type(model.head) is dx.Linear
    assert all(new is old for new, old in zip(dx.state(model).leaves, before.leaves, strict=True))
    merged = dx.merge_lora(adapted)
    assert merged.again is merged.blocks[0].up
    assert merged.head.kernel.tag == 1
    assert merged.head.kernel is not model.head.kernel
    assert merged.again.bias is model.again.bias


@pytest.mark.slow
def test_the_base_is_frozen_in_training(normal):
    adapted = dx.lora(Net(dx.Rngs(0)), rank=2, rngs=dx.Rngs(1))
    x, before = normal(4, 3), dx.state(adapted)
    with jax.numpy_dtype_promotion("standard"):
        optimizer = dx.Optimizer(adapted, optax.sgd(0.1), wrt=dx.LoRAParam)
        grads = dx.grad(lambda model: (model(x) ** 2).sum(), argnums=dx.DiffState(0, dx.LoRAParam))(adapted)
        optimizer.update(adapted, grads)
    after = dx.state(adapted)
    changed = [p[-1] for p, a, b in zip(after.paths, after.leaves, before.leaves, strict=True) if (a != b).any()]
    assert set(changed) == {"lora_b"}


def test_a_lora_with_a_linear_base_is_folded(normal, close):
    base = dx.Linear(3, 2, rngs=dx.Rngs(0))
    layer = dx.LoRA(3, 1, 2, base_module=base, b_initializer=dx.initializers.normal(), rngs=dx.Rngs(1))
    merged = dx.merge_lora({"layer": layer})["layer"]
    assert type(merged) is dx.Linear
    close(merged(normal(4, 3)), layer(normal(4, 3)))
    other = dx.LoRA(3, 1, 3, base_module=dx.Dropout(0.5), rngs=dx.Rngs(1))
    with pytest.raises(LayerError, match=r"merge_lora: layer: the adapter cannot be folded into its base"):
        dx.merge_lora({"layer": other})


def test_a_filter_that_selects_nothing_and_a_model_without_adapters():
    with pytest.raises(LayerError, match=r"lora: the filter .* selects no linear layer of the model"):
        dx.lora(Net(dx.Rngs(0)), dx.PathContains("tail"), rank=1, rngs=dx.Rngs(1))
    with pytest.raises(LayerError, match=r"merge_lora: the model has no adapters"):
        dx.merge_lora(Net(dx.Rngs(0)))
    with pytest.raises(dx.DeclaxError, match="lora_rank"):
        dx.lora(Net(dx.Rngs(0)), rank=0, rngs=dx.Rngs(1))


@pytest.mark.slow
def test_stacked_layers_have_an_adapter_each(normal, close):
    model = dx.Stacked(lambda rngs: dx.MLP(3, 8, rngs=rngs), 4, rngs=dx.Rngs(0))
    adapted, x = dx.lora(model, rank=2, rngs=dx.Rngs(1)), normal(2, 3)
    first = adapted.layers.up.lora.lora_a.value
    assert first.shape == (4, 3, 2)
    assert len(np.unique(np.asarray(first), axis=0)) == 4
    close(adapted(x), model(x))
    changed = trained(adapted)
    assert not np.allclose(changed(x), model(x))
    close(dx.merge_lora(changed)(x), changed(x))
    close(changed[1](x), dx.merge_lora(changed)[1](x))


class Attending(dx.Module):
    def __init__(self, rngs: dx.Rngs) -> None:
        self.attention = dx.MultiHeadAttention(2, 4, 8, 3, num_kv_heads=1, decode=False, rngs=rngs)
        self.out = dx.Einsum("ta,ab->tb", (3, 2), rngs=rngs)
        self.batched = dx.LinearGeneral(2, 3, batch_axis={0: 2}, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.batched(self.out(self.attention(x, is_causal=True)))


def test_projections_of_attention_are_adapted(normal, close):
    model, x = Attending(dx.Rngs(0)), normal(2, 4)
    adapted = dx.lora(model, rank=1, rngs=dx.Rngs(1), lora_param_dtype=jnp.float32)
    parts = {path[0] if len(path) == 4 else path[:2] for path in dx.state(adapted, dx.LoRAParam).paths}
    assert parts == {"attention"}
    assert adapted.attention.query.kernel is model.attention.query.kernel
    assert adapted.attention.key.lora.lora_b.shape == (1, 4)
    assert adapted.attention.out.lora.lora_a.shape == (8, 1)
    np.testing.assert_array_equal(adapted(x), model(x))
    changed = trained(adapted)
    assert not np.allclose(changed(x), model(x))
    merged = dx.merge_lora(changed)
    close(merged(x), changed(x))
    assert dx.graphdef(merged) == dx.graphdef(model)


@pytest.mark.parametrize("axis", [(-2, -1), (-1, -2), (0, 2)])
def test_the_adapter_of_a_linear_general_is_that_of_its_matrix(normal, close, axis):
    x = normal(2, 3, 4)
    sizes = tuple(x.shape[a] for a in axis)
    linear = dx.LinearGeneral(sizes, (2, 3), axis=axis, rngs=dx.Rngs(0))
    changed = trained(dx.lora({"a": linear}, rank=2, rngs=dx.Rngs(1)))["a"]
    low_rank = (changed.lora.lora_a.value @ changed.lora.lora_b.value).reshape(linear.kernel.shape)
    expected = linear(x) + jnp.tensordot(x, low_rank, axes=(axis, (0, 1)))
    close(changed(x), expected)
    close(dx.merge_lora({"a": changed})["a"](x), expected)


def test_stacked_projections_have_an_adapter_each(normal, close):
    model = dx.Stacked(lambda rngs: dx.LinearGeneral((2, 2), (2, 2), axis=(-2, -1), rngs=rngs), 3, rngs=dx.Rngs(0))
    changed, x = trained(dx.lora(model, rank=1, rngs=dx.Rngs(1))), normal(5, 2, 2)
    assert changed.layers.lora.lora_a.shape == (3, 4, 1)
    close(dx.merge_lora(changed)(x), changed(x))


def test_an_adapter_that_does_not_fit_its_layer():
    adapter = dx.LoRA(4, 1, 6, rngs=dx.Rngs(0))
    fitting = dx.LoRALinearGeneral((2, 2), (2, 3), axis=(-2, -1), lora=adapter, rngs=dx.Rngs(0))
    assert fitting.lora is adapter
    with pytest.raises(LayerError, match=r"LoRALinearGeneral\.lora: the adapter does not fit the layer"):
        dx.LoRALinearGeneral((2, 2), (2, 2), axis=(-2, -1), lora=adapter, rngs=dx.Rngs(0))
    with pytest.raises(LayerError, match=r"and batch_axis=\{0: 2\}"):
        dx.LoRALinearGeneral(4, 6, batch_axis={0: 2}, lora=adapter, rngs=dx.Rngs(0))
