"""The subjects of the peer's guide about randomness, with models of our own: each step gives the peer's numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agreement import agrees


def jittered(nnx):
    """A class whose noise comes with each call."""

    class Jittered(nnx.Module):
        def __init__(self, rngs):
            self.encode = nnx.Linear(6, 5, rngs=rngs)
            self.mask = nnx.Dropout(0.4, deterministic=False)
            self.decode = nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x, rngs):
            return self.decode(self.mask(nnx.tanh(self.encode(x)), rngs=rngs))

    return Jittered


def self_jittered(nnx):
    """A class that holds the streams of its noise."""

    class SelfJittered(nnx.Module):
        def __init__(self, rngs):
            self.encode = nnx.Linear(6, 5, rngs=rngs)
            self.mask = nnx.Dropout(0.4, rngs=rngs)

        def __call__(self, x):
            return self.mask(nnx.sigmoid(self.encode(x)))

    return SelfJittered


def keys_and_counts(nnx, node):
    return {
        "keys": [variable[...] for _, variable in nnx.to_flat_state(nnx.state(node, nnx.RngKey))],
        "counts": [variable[...] for _, variable in nnx.to_flat_state(nnx.state(node, nnx.RngCount))],
    }


# ================================================================= streams


@agrees
def test_one_rngs_makes_the_parameters_the_data_and_the_noise(nnx):
    rngs = nnx.Rngs(11)
    model = jittered(nnx)(rngs)
    x = rngs.uniform((4, 6), minval=-1.0)
    return {"x": x, "first": model(x, rngs=rngs), "second": model(x, rngs), "after": keys_and_counts(nnx, rngs)}


@agrees
def test_a_key_is_the_root_key_folded_with_the_count(nnx):
    root = jax.random.key(3)
    rngs = nnx.Rngs(weights=8, shuffle=root)
    drawn = [rngs.shuffle() for _ in range(3)]
    expected = [jax.random.fold_in(root, count) for count in range(3)]
    for key, other in zip(drawn, expected, strict=True):
        assert key == other
    assert (rngs.shuffle.key[...], rngs.shuffle.count[...], rngs.weights.count[...]) == (root, 3, 0)
    assert rngs.shuffle.tag == rngs.shuffle.key.tag == rngs.shuffle.count.tag == "shuffle"
    return drawn, keys_and_counts(nnx, rngs)


@agrees
def test_layers_draw_from_params_and_dropout(nnx):
    rngs = nnx.Rngs(params=1, dropout=2, spare=3)
    layer = nnx.Linear(4, 4, rngs=rngs)
    after_layer = [rngs.params.count[...], rngs.dropout.count[...]]
    masked = nnx.Dropout(0.5)(layer(jnp.ones((3, 4))), rngs=rngs)
    counts = [stream.count[...] for stream in (rngs.params, rngs.dropout, rngs.spare)]
    return layer.kernel[...], masked, after_layer, counts


@agrees
def test_a_stream_without_a_name_serves_for_all_others(nnx):
    rngs = nnx.Rngs(5, params=6)
    drawn = [rngs.params(), rngs.augment(), rngs(), rngs.anything_else()]
    assert [int(rngs.default.count[...]), int(rngs.params.count[...])] == [3, 1]
    return drawn


@agrees
def test_samplers_of_jax_random_are_methods(nnx):
    by_hand, short = nnx.Rngs(9, weights=10), nnx.Rngs(9, weights=10)
    expected = [
        jax.random.normal(by_hand(), (2, 3)),
        jax.random.permutation(by_hand.weights(), 7),
        jax.random.randint(by_hand(), (4,), 0, 9),
    ]
    drawn = [short.normal((2, 3)), short.weights.permutation(7), short.randint((4,), 0, 9)]
    assert all(jnp.array_equal(one, other) for one, other in zip(expected, drawn, strict=True))
    return drawn


# ================================================================= a stream for each row


@agrees
def test_split_streams_give_each_row_its_own_noise(nnx):
    model = jittered(nnx)(nnx.Rngs(0))
    noise = nnx.Rngs(dropout=4)
    rows = noise.split(3)
    assert rows.dropout.key.shape == rows.dropout.count.shape == (3,)
    assert noise.dropout.key.shape == ()

    @nnx.vmap(in_axes=(None, 0, 0))
    def call_rows(model, x, rngs):
        return model(x, rngs=rngs)

    out = call_rows(model, jnp.ones((3, 6)), rows)
    assert not jnp.allclose(out[0], out[1])
    return out, keys_and_counts(nnx, noise), keys_and_counts(nnx, rows)


# ================================================================= streams inside a model


@agrees
def test_a_model_holds_its_streams(nnx):
    model = self_jittered(nnx)(nnx.Rngs(params=0, dropout=1))
    x = jnp.linspace(-1.0, 1.0, 6)
    return model(x), model(x), keys_and_counts(nnx, model)


@agrees
def test_filters_find_the_streams(nnx):
    model = self_jittered(nnx)(nnx.Rngs(params=0, dropout=1))
    model(jnp.ones(6))
    found = {
        "all": nnx.state(model, nnx.RngState),
        "keys": nnx.state(model, nnx.RngKey),
        "counts": nnx.state(model, nnx.RngCount),
        "by_name": nnx.state(model, "dropout"),
        "counts_by_name": nnx.state(model, nnx.All(nnx.RngCount, "dropout")),
    }
    assert [len(nnx.to_flat_state(state)) for state in found.values()] == [2, 1, 1, 2, 1]
    return {name: nnx.to_pure_dict(state) for name, state in found.items()}


@agrees
def test_reseed_repeats_a_call(nnx):
    model = self_jittered(nnx)(nnx.Rngs(params=0, dropout=1))
    x = jnp.arange(6.0)
    first, second = model(x), model(x)
    nnx.reseed(model, dropout=1)
    again = model(x)
    nnx.reseed([model], dropout=jax.random.key(99))
    other = model(x)
    assert jnp.array_equal(first, again)
    assert not jnp.array_equal(first, second)
    assert not jnp.array_equal(first, other)
    return first, second, again, other, keys_and_counts(nnx, model)


@agrees
def test_one_model_samples_several_outputs(nnx):
    model = self_jittered(nnx)(nnx.Rngs(params=0, dropout=1))
    axes = nnx.prefix(model, {"dropout": 0, ...: None}, graph=False)

    @nnx.with_rngs(split=4, only="dropout", graph=False)
    @nnx.vmap(in_axes=(axes, None), out_axes=1, graph=False)
    def samples(model, x):
        return model(x)

    drawn = samples(model, jnp.ones((2, 6)))
    assert drawn.shape == (2, 4, 5)
    assert model.mask.rngs.count.shape == ()
    return drawn, samples(model, jnp.ones((2, 6))), keys_and_counts(nnx, model)


@agrees
def test_a_recurrent_cell_drops_the_same_units_at_each_step(nnx):
    class Steps(nnx.Variable):
        pass

    class Cell(nnx.Module):
        def __init__(self, rngs):
            self.mix = nnx.Linear(3 + 4, 4, rngs=rngs)
            self.mask = nnx.Dropout(0.5, rngs=rngs, rng_collection="recurrent")
            self.steps = Steps(jnp.array(0))

        def __call__(self, hidden, x):
            hidden = nnx.tanh(self.mix(jnp.concatenate([self.mask(hidden), x], axis=-1)))
            self.steps[...] += 1
            return hidden, hidden

    @nnx.jit(graph=False)
    def unroll(cell, xs):
        shared = nnx.with_rngs(cell, broadcast=xs.shape[0], graph=False)
        axes = nnx.prefix(shared, {"recurrent": 0, ...: None}, graph=False)

        @nnx.scan(in_axes=(axes, nnx.Carry, 0), out_axes=(nnx.Carry, 0), graph=False)
        def step(cell, hidden, x):
            return cell(hidden, x)

        return step(shared, jnp.zeros(4), xs)

    cell = Cell(nnx.Rngs(params=0, recurrent=1))
    last, outputs = unroll(cell, jax.random.normal(jax.random.key(2), (5, 3)))
    assert cell.steps[...] == 5
    return last, outputs, cell.steps[...], keys_and_counts(nnx, cell)
