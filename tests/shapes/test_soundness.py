"""Soundness: a program that is proven fails at no size within its conditions.

The programs use what numpy and JAX share. numpy runs them: it refuses wrong reshapes, and indices beyond an axis.
"""

import collections
import functools
import itertools
import os
import random
import time

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from jaxtyping import Array, Float

import declax as dx
from declax._text.dimensions import parse_condition
from declax.shapes import proving
from declax.shapes.domains import Domain
from declax.shapes.equations import Reading

SIZES = 50
MOST_PROGRAMS = 5000
MINUTES = 15
CONDITIONS = ["n % 2 == 0", "n >= 3", "n <= 12", "b == n", "n <= m", "m % 3 == 0", "n % 2 == 1"]
TABLE = np.arange(16.0)


def put(xp, x, index):
    """An array with zeros at some places of its last axis."""
    if xp is jnp:
        return x.at[..., index].set(0.0)
    x = x.copy()
    x[..., index] = 0.0
    return x


# Each step takes the module, an array of any rank of at least 1, the inputs, and an integer from 0 to 5.
STEPS = {
    "half": lambda xp, x, inputs, k: x[..., : x.shape[-1] // 2],
    "even": lambda xp, x, inputs, k: x[..., ::2],
    "odd": lambda xp, x, inputs, k: x[..., 1::2],
    "drop": lambda xp, x, inputs, k: x[..., k:],
    "cut": lambda xp, x, inputs, k: x[..., : x.shape[-1] - k],
    "first": lambda xp, x, inputs, k: x[..., :k],
    "item": lambda xp, x, inputs, k: x[..., k],
    "last": lambda xp, x, inputs, k: x[..., -1],
    "transpose": lambda xp, x, inputs, k: xp.transpose(x),
    "pairs": lambda xp, x, inputs, k: x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2),
    "flat": lambda xp, x, inputs, k: x.reshape(-1),
    "more": lambda xp, x, inputs, k: x.reshape(*x.shape[:-1], x.shape[-1] + k),
    "split": lambda xp, x, inputs, k: x.reshape(x.shape[0] // (k + 1), k + 1, *x.shape[1:]),
    "add x": lambda xp, x, inputs, k: x + inputs[0],
    "add y": lambda xp, x, inputs, k: x + inputs[1],
    "add part": lambda xp, x, inputs, k: x + inputs[0][..., : x.shape[-1]],
    "join x": lambda xp, x, inputs, k: xp.concatenate([x, inputs[0]], axis=k % 2),
    "join itself": lambda xp, x, inputs, k: xp.concatenate([x, x], axis=-1),
    "matmul": lambda xp, x, inputs, k: x @ xp.swapaxes(inputs[1], 0, 1),
    "sum": lambda xp, x, inputs, k: x.sum(axis=-1),
    "mean": lambda xp, x, inputs, k: x - x.sum(axis=-1, keepdims=True),
    "positions": lambda xp, x, inputs, k: x + xp.asarray(TABLE)[xp.arange(x.shape[-1])],
    "modulo": lambda xp, x, inputs, k: x + xp.asarray(TABLE)[xp.arange(x.shape[-1]) % 16],
    "shifted": lambda xp, x, inputs, k: x + xp.asarray(TABLE)[xp.arange(x.shape[-1]) + k],
    "taken": lambda xp, x, inputs, k: x[..., xp.arange(inputs[1].shape[-1])],
    "one": lambda xp, x, inputs, k: x[0] if x.shape[0] == 1 else x,
    "if even": lambda xp, x, inputs, k: x[..., ::2] if x.shape[-1] % 2 == 0 else x[..., : x.shape[-1] // 2],
    "if long": lambda xp, x, inputs, k: x[..., :k] if x.shape[-1] > k else x,
    "if in": lambda xp, x, inputs, k: x[..., 1:] if x.shape[-1] in (3, 5, 7) else x,
    "if equal": lambda xp, x, inputs, k: x + inputs[1] if x.shape == inputs[1].shape else x,
    "if odd": lambda xp, x, inputs, k: x[..., 1:] if x.shape[-1] % 2 else x,
    "if in set": lambda xp, x, inputs, k: x[..., 1:] if x.shape[-1] in {2, 5} else x,
    "greatest": lambda xp, x, inputs, k: x.max(axis=-1),
    "from the end": lambda xp, x, inputs, k: x + xp.asarray(TABLE)[xp.arange(x.shape[-1]) - 4 * k],
    "put": lambda xp, x, inputs, k: put(xp, x, xp.arange(inputs[1].shape[-1]) + k),
    "limited": lambda xp, x, inputs, k: x[..., : min(x.shape[-1], 4)],
}


def run(steps, xp, x, y):
    value = x
    for name, k in steps:
        value = STEPS[name](xp, value, (x, y), k)
    return value


def check(steps, texts):
    """Whether a program is proven; if it is, it runs at many sizes."""
    try:
        report = dx.check_shapes(functools.partial(run, steps, jnp), "float32[b, n]", "float32[b, m]", where=texts)
    except dx.ShapeError:
        return "contradictory"
    if report.proven:
        domain = Domain("bnm", [c for text in texts for c in parse_condition(text)])
        known = list(itertools.islice(domain.samples([4, 5, 7, 16]), 400))
        for values in random.Random(0).sample(known, min(SIZES, len(known))):
            b, n, m = (values[name] for name in "bnm")
            run(steps, np, np.zeros((b, n)), np.zeros((b, m)))
    return report.checked[0].verdict


PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), min_size=1, max_size=4)
WHERE = st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, WHERE)
def test_what_is_proven_runs_at_all_sizes(steps, texts):
    event(check(steps, texts))


def program(chance):
    steps = [(chance.choice(sorted(STEPS)), chance.randrange(6)) for _ in range(chance.randint(1, 4))]
    return steps, chance.sample(CONDITIONS, chance.randrange(3))


@pytest.mark.slow
@pytest.mark.campaign
def test_no_program_is_proven_falsely():
    """For `DECLAX_SOUNDNESS_MINUTES` at most, from `DECLAX_SOUNDNESS_SEED`, which is drawn otherwise."""
    minutes = float(os.environ.get("DECLAX_SOUNDNESS_MINUTES", MINUTES))
    seed = int(os.environ.get("DECLAX_SOUNDNESS_SEED", random.SystemRandom().randrange(10**9)))
    chance, end, start = random.Random(seed), time.monotonic() + 60 * minutes, time.process_time()
    verdicts, false = collections.Counter(), []
    while verdicts.total() < MOST_PROGRAMS and time.monotonic() < end:
        steps, texts = program(chance)
        try:
            verdicts[check(steps, texts)] += 1
        except Exception as error:  # noqa: BLE001  # numpy refuses what was proven
            verdicts["proven"] += 1
            false.append(f"{steps} where {texts}: {type(error).__name__}: {error}")
        if verdicts.total() % 200 == 0:
            jax.clear_caches()
    checked, proven, seconds = verdicts.total(), verdicts["proven"], time.process_time() - start
    print(f"\nseed {seed}: {checked} programs checked, {proven} proven, {len(false)} falsely, in {seconds:.0f} s")
    print(dict(verdicts))
    assert not false, "\n".join(false)
    assert checked >= 2 * seconds, "the check has become slow: it was 8 programs a second of processor time"
    assert proven >= checked // 4, "few programs are proven, so that this test says little"


def halved(x):
    return run([("even", 0), ("if even", 0)], jnp, x, x)


def in_chunks(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    y = jnp.pad(x, ((0, 0), (0, x.shape[1] % 8)))
    return y.reshape(x.shape[0], y.shape[1] // 8, 8).reshape(x.shape[0], -1)[:, : x.shape[1]]


@pytest.mark.parametrize(("function", "verdict"), [(halved, "proven"), (in_chunks, "wrong")])
def test_a_search_of_jax_that_is_too_long_is_given_up(function, verdict, monkeypatch):
    """JAX makes 900,000 subtractions to decide whether a size of `halved` may be 0; of `in_chunks`, it does not end."""
    (size,) = jax.export.symbolic_shape("n")
    subtractions, plain = [], type(size).__sub__
    monkeypatch.setattr(type(size), "__sub__", lambda one, other: subtractions.append(one) or plain(one, other))
    assert dx.check_shapes(function, "float32[b, n]").checked[0].verdict == verdict
    assert len(subtractions) < 100_000


@pytest.mark.parametrize(
    "steps", [[("drop", 2), ("if even", 1), ("item", 5)], [("even", 5), ("cut", 4), ("if equal", 0)]]
)
def test_a_search_of_jax_that_calls_itself_without_end_is_given_up(steps):
    """For some equations of rounded sizes, JAX raises a RecursionError; nothing is proven then, and nothing wrong."""
    assert check(steps, ()) in ("needs a condition", "tested only")


def test_a_false_proof_is_seen(monkeypatch):
    """Without the check of reshapes, and without the sizes in numbers."""
    assert check([("pairs", 0)], ()) == "needs a condition"
    monkeypatch.setattr(Reading, "_check_reshape", lambda self, equation, place: None)
    monkeypatch.setattr(proving._Search, "_repeat", lambda self, leaves: (0, None))
    with pytest.raises(ValueError, match="reshape"):
        check([("pairs", 0)], ())


@pytest.mark.parametrize("name", STEPS)
def test_each_step_alone(name):
    """Many programs of the property are proven, and many are not."""
    verdicts = {check([(name, k)], texts) for k in (0, 1, 3) for texts in ((), ("n >= 6", "n <= 8", "n % 2 == 0"))}
    assert verdicts <= {"proven", "wrong", "needs a condition", "tested only"}
    if name not in (
        "add y",
        "join x",
        "more",
        "taken",
        "positions",
        "shifted",
        "matmul",
        "split",
        "if equal",
        "put",
        "if in set",
    ):
        assert "proven" in verdicts
