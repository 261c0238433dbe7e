"""Recurrent layers: formulas, the numbers of the peer, options of sequences, and errors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx

pytestmark = pytest.mark.sampled(3)

CELLS = ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"]
LENGTHS = jnp.array([2, 5, 0])


def make(name: str, library: Any = dx, **options: Any) -> Any:
    return getattr(library, name)(3, 4, rngs=library.Rngs(3), **options)


def sequences(normal: Any, dtype: Any = jnp.float32) -> jax.Array:
    return normal(3, 5, 3, dtype=dtype)


def assert_same_tree(ours: Any, theirs: Any) -> None:
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


# --- formulas -----------------------------------------------------------------


def step_of_lstm(cell: Any, carry: Any, x: jax.Array) -> Any:
    c, h = carry
    if isinstance(cell, dx.LSTMCell):
        gates = [
            w(x) + u(h) for w, u in [(cell.ii, cell.hi), (cell.if_, cell.hf), (cell.ig, cell.hg), (cell.io, cell.ho)]
        ]
    else:
        both = x @ cell.dense_i.kernel[...] + h @ cell.dense_h.kernel[...] + cell.dense_h.bias[...]
        gates = [both[..., 4 * k : 4 * k + 4] for k in range(4)]
    i, f, g, o = gates
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h


def step_of_gru(cell: Any, h: jax.Array, x: jax.Array) -> Any:
    a = x @ cell.dense_i.kernel[...] + cell.dense_i.bias[...]
    b = h @ cell.dense_h.kernel[...]
    r = jax.nn.sigmoid(a[..., :4] + b[..., :4])
    z = jax.nn.sigmoid(a[..., 4:8] + b[..., 4:8])
    n = jnp.tanh(a[..., 8:] + r * b[..., 8:])
    h = (1 - z) * n + z * h
    return h, h


def step_of_simple(cell: Any, h: jax.Array, x: jax.Array) -> Any:
    h = jnp.tanh(x @ cell.dense_i.kernel[...] + cell.dense_i.bias[...] + h @ cell.dense_h.kernel[...])
    return h, h


STEPS = {
    "LSTMCell": step_of_lstm,
    "OptimizedLSTMCell": step_of_lstm,
    "GRUCell": step_of_gru,
    "SimpleCell": step_of_simple,
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_its_formula_and_rnn_is_a_loop(name: str, normal: Any) -> None:
    cell = make(name, carry_init=dx.initializers.normal(1.0), bias_init=dx.initializers.normal(1.0))
    x = sequences(normal)
    carry = first = cell.initialize_carry((3, 3), dx.Rngs(1))
    outputs = []
    for t in range(5):
        carry, y = STEPS[name](cell, carry, x[:, t])
        outputs.append(y)
    last, got = dx.RNN(cell, return_carry=True)(x, initial_carry=first)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-6), last, carry)
    np.testing.assert_allclose(got, jnp.stack(outputs, axis=1), rtol=2e-6, atol=2e-6)
    apply = jax.jit(lambda x: dx.RNN(cell)(x, initial_carry=first))
    check_grads(apply, (x,), order=1, modes=["rev"], rtol=2e-2)


# --- the peer -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:(keep_rngs argument is deprecated|carry_init is provided)")  # in the peer
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_that_of_the_peer(name: str, dtype: Any, normal: Any, nnx: Any) -> None:
    options = {"carry_init": jax.nn.initializers.normal(1.0), "keep_rngs": True}
    if dtype is not None:
        options["dtype"] = dtype
    ours, theirs = make(name, **options), make(name, nnx, **options)
    assert_same_tree(dx.to_pure_dict(dx.state(ours, dx.Param)), nnx.to_pure_dict(nnx.state(theirs, nnx.Param)))
    assert_same_tree(ours.initialize_carry((2, 3)), theirs.initialize_carry((2, 3)))
    x = normal(2, 3, dtype=dtype or jnp.float32)
    carry = ours.initialize_carry((2, 3), dx.Rngs(1))
    assert_same_tree(carry, theirs.initialize_carry((2, 3), nnx.Rngs(1)))
    with jax.numpy_dtype_promotion("standard"):  # which the peer needs
        expected = theirs(carry, x)
    assert_same_tree(ours(carry, x), expected)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"seq_lengths": LENGTHS, "return_carry": True},
    {"reverse": True, "return_carry": True},
    {"reverse": True, "keep_order": True, "seq_lengths": LENGTHS},
]


@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_are_run_as_by_the_peer(time_major: bool, normal: Any, nnx: Any) -> None:
    x = sequences(normal)
    x = x.swapaxes(0, 1) if time_major else x
    ours, theirs = dx.RNN(make("GRUCell")), nnx.RNN(make("GRUCell", nnx))
    both = (
        dx.Bidirectional(ours, dx.RNN(make("SimpleCell"))),
        nnx.Bidirectional(theirs, nnx.RNN(make("SimpleCell", nnx))),
    )
    for options in OPTIONS:
        for mine, other in ((ours, theirs), both):
            got = mine(x, time_major=time_major, **options)
            expected = other(x, time_major=time_major, **options)
            if "seq_lengths" in options and options.get("return_carry"):
                # The peer takes the state of the last step for a sequence of length 0; here it is the first state.
                got, expected = jax.tree.map(lambda a: a[..., :2, :], (got, expected))
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), got, expected)


def test_flip_sequences_is_that_of_the_peer(normal: Any, nnx: Any) -> None:
    x = normal(3, 5, 2)
    for lengths, time_major in ((None, False), (LENGTHS, False), (None, True)):
        got = dx.nn.flip_sequences(x, lengths, num_batch_dims=1, time_major=time_major)
        np.testing.assert_array_equal(
            got, nnx.nn.recurrent.flip_sequences(x, lengths, num_batch_dims=1, time_major=time_major)
        )


# --- sequences ----------------------------------------------------------------


def test_steps_after_a_length_do_not_count(normal: Any) -> None:
    x = sequences(normal)
    rnn = dx.RNN(make("LSTMCell"), return_carry=True)
    (c, h), y = rnn(x, seq_lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        if length:
            (c_alone, h_alone), y_alone = rnn(x[row : row + 1, :length])
            np.testing.assert_allclose(c[row], c_alone[0], rtol=1e-6)
            np.testing.assert_allclose(h[row], h_alone[0], rtol=1e-6)
            np.testing.assert_allclose(y[row, :length], y_alone[0], rtol=1e-6)
    assert not c[2].any()  # no step: the first state


def test_both_directions_may_share_a_cell(normal: Any) -> None:
    rnn = dx.RNN(make("GRUCell"))
    layer = dx.Bidirectional(rnn, rnn, merge_fn=jnp.add)
    x = sequences(normal)
    expected = rnn(x) + rnn(x[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6)
    assert len(dx.state(layer, dx.Param).paths) == len(dx.state(rnn, dx.Param).paths)


class Noisy(dx.RNNCellBase[jax.Array]):
    """Adds its input, dropped out, and counts its steps."""

    num_feature_axes = 1

    def __init__(self, rngs: dx.Rngs) -> None:
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.count = dx.Variable(jnp.zeros((), int))

    def initialize_carry(self, input_shape: tuple[int, ...], rngs: Any = None, carry_init: Any = None) -> jax.Array:
        return jnp.zeros(input_shape)

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        self.count.value = self.count.value + 1
        return carry, self.dropout(inputs)


def test_a_cell_of_a_user_counts_and_draws() -> None:
    x = jnp.ones((8, 6, 16))
    cell = Noisy(dx.Rngs(dropout=0))
    each = dx.RNN(cell)(x)
    assert int(cell.count.value) == 6
    assert (each[:, 0] != each[:, 1]).any()
    shared = dx.RNN(cell, broadcast_rngs="dropout")(x)
    assert int(cell.count.value) == 12
    assert (shared == shared[:, :1]).all()
    again = dx.RNN(cell, broadcast_rngs="dropout")(x)
    assert (again != shared).any()


def test_a_jitted_layer_is_traced_once(normal: Any) -> None:
    traces = []

    @dx.jit
    def run(rnn: Any, x: jax.Array) -> jax.Array:
        traces.append(None)
        return rnn(x)

    rnn = dx.RNN(make("LSTMCell"))
    x = sequences(normal)
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(run(rnn, scale * x), rnn(scale * x), rtol=1e-5, atol=1e-6)
    assert len(traces) == 1
    first = rnn.cell.initialize_carry((3,), dx.Rngs(0))
    over_batch = dx.vmap(lambda rnn, x: rnn(x, initial_carry=first), in_axes=(None, 0))
    np.testing.assert_allclose(over_batch(rnn, x), rnn(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx.remat(lambda rnn, x: rnn(x))(rnn, x), rnn(x), rtol=1e-5, atol=1e-6)
    assert dx.eval_shape(lambda: dx.RNN(make("GRUCell"))(x)).shape == (3, 5, 4)


def test_strict_promotion_of_a_narrow_dtype(normal: Any) -> None:
    x = sequences(normal, jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        assert dx.RNN(make("LSTMCell", dtype=jnp.bfloat16, param_dtype=jnp.bfloat16))(x).dtype == jnp.bfloat16
        for name in CELLS:
            assert make(name, dtype=jnp.bfloat16)(make(name).initialize_carry((3, 3), dx.Rngs(0)), x[:, 0])[1].dtype


POLICIES = [dx.Policy(compute=jnp.bfloat16), dx.Policy(jnp.bfloat16), dx.Policy(jnp.bfloat16, jnp.bfloat16)]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_first_state_has_the_dtype_of_a_step(normal: Any, name: str, policy: dx.Policy, dtype: Any) -> None:
    """Also where the peer refuses the dtype of the state, and where it has no orthogonal kernels."""
    with policy:
        cell = make(name)
    x = sequences(normal, dtype)
    assert all(leaf.dtype == cell.param_dtype for leaf in dx.state(cell, dx.Param).leaves)
    is_mixed = policy.compute is None and dtype == jnp.float32  # which strict promotion refuses in each layer
    with jax.numpy_dtype_promotion("standard" if is_mixed else "strict"):
        last, y = dx.RNN(cell, return_carry=True)(x)
        carry = jax.tree.map(lambda leaf: leaf.astype(y.dtype), cell.initialize_carry((len(x), 3), dx.Rngs(0)))
        again = dx.RNN(cell)(x, initial_carry=carry)
    assert {leaf.dtype for leaf in jax.tree.leaves(last)} == {y.dtype}
    np.testing.assert_array_equal(again, y)


# --- errors -------------------------------------------------------------------


def test_what_is_missing_is_named(normal: Any) -> None:
    x = sequences(normal)
    with pytest.raises(dx.errors.LayerError, match=r"GRUCell.initialize_carry: there is no source of random numbers"):
        make("GRUCell").initialize_carry((2, 3))
    with pytest.raises(dx.errors.LayerError, match=r"LSTMCell.carry: the state of this cell consists of two arrays"):
        make("LSTMCell")(jnp.zeros((2, 4)), x[:2, 0])
    with pytest.raises(dx.errors.LayerError, match=r"RNN.cell: 'inputs' has no time axis(?s:.)*1 axes of features"):
        dx.RNN(make("GRUCell"))(jnp.ones(3))
    with pytest.raises(dx.errors.LayerError, match=r"RNN.seq_lengths: these are not the lengths(?s:.)*shape \(3,\)"):
        dx.RNN(make("GRUCell"))(x, seq_lengths=jnp.array([1, 2]))
    text = r"RNN.seq_lengths: a sequence cannot have this length(?s:.)*lengths from 0 to 5(?s:.)*got:      {}"
    for lengths, given in (([1, 6, 7], "6, 7\n  fix:      jnp.minimum"), ([-1, 2, 6], "-1, 6")):
        with pytest.raises(dx.errors.LayerError, match=text.format(given)):
            dx.RNN(make("GRUCell"))(x, seq_lengths=jnp.array(lengths))
        with pytest.raises(dx.errors.LayerError, match=text.format(given)):
            dx.nn.flip_sequences(x, jnp.array(lengths), num_batch_dims=1, time_major=False)
    with pytest.raises(dx.errors.LayerError, match=r"RNN.rngs: this is not a source of random keys"):
        dx.RNN(make("GRUCell"), rngs=0)  # type: ignore[arg-type]  # refused
    for member in ("initialize_carry", "__call__", "num_feature_axes"):
        with pytest.raises(NotImplementedError, match=rf"Module|RNNCellBase does not define {member}"):
            getattr(dx.RNNCellBase(), member)(*[None] * (member != "num_feature_axes") * (1 + (member == "__call__")))


def test_an_input_of_the_wrong_size_is_refused(normal: Any) -> None:
    with pytest.raises(dx.errors.LayerError, match="the last axis of 'inputs' has the wrong size"):
        dx.RNN(make("GRUCell"))(normal(2, 5, 7))


def test_a_sequence_without_steps_keeps_the_first_state():
    rnn = dx.RNN(dx.GRUCell(3, 4, rngs=dx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    last, _ = rnn(x, seq_lengths=jnp.array([0, 5]), initial_carry=jnp.ones((2, 4)), return_carry=True)
    np.testing.assert_array_equal(last[0], jnp.ones(4))


def test_traced_lengths_beyond_the_time_axis_count_as_all_steps(normal: Any) -> None:
    rnn, x = dx.RNN(make("GRUCell"), return_carry=True, reverse=True, keep_order=True), sequences(normal)
    run = dx.jit(lambda rnn, x, lengths: rnn(x, seq_lengths=lengths))
    expected = rnn(x, seq_lengths=jnp.array([5, 5, 0]))
    for one, other in zip(run(rnn, x, jnp.array([7, 5, -1])), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_gates_narrower_than_the_memory_run_under_strict_promotion():
    cell = dx.LSTMCell(3, 4, dtype=jnp.bfloat16, rngs=dx.Rngs(0))
    with jax.numpy_dtype_promotion("strict"):
        _, y = cell((jnp.ones((2, 4)), jnp.ones((2, 4))), jnp.ones((2, 3)))
    assert y.dtype == jnp.float32


@pytest.mark.parametrize("layer", [3, dx.Linear(3, 4, rngs=dx.Rngs(0))])
def test_what_is_not_a_cell_is_refused(layer: Any) -> None:
    with pytest.raises(dx.errors.LayerError, match=r"RNN\.cell: this is not a recurrent cell, such as a dx\.LSTMCell"):
        dx.RNN(layer)


def test_steps_that_are_compiled_as_one() -> None:
    rnns = [dx.RNN(dx.GRUCell(3, 4, rngs=dx.Rngs(0)), unroll=unroll) for unroll in (1, 2, True)]
    outputs = [rnn(jnp.ones((2, 5, 3))) for rnn in rnns]
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], rtol=1e-6)
    with pytest.raises(dx.errors.LayerError, match=r"RNN\.unroll: this value is out of bounds"):
        dx.RNN(dx.GRUCell(3, 4, rngs=dx.Rngs(0)), unroll=0)
