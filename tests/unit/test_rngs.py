"""Random streams: the peer's keys, under threads, copies and transforms."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax import errors
from declax._filters import Not, PathContains
from declax._random.streams import Rngs, RngStream
from declax._variables.kinds import RngCount, RngKey, RngState
from declax.errors import MissingStreamError

pytestmark = pytest.mark.sampled(6)

SAMPLERS: dict[str, tuple[Any, ...]] = {
    "ball": (3,),
    "bernoulli": (0.3, (4,)),
    "beta": (2.0, 3.0, (4,)),
    "binomial": (10.0, 0.3, (4,)),
    "bits": ((4,),),
    "categorical": (np.zeros(5, np.float32),),
    "cauchy": ((4,),),
    "chisquare": (3.0,),
    "choice": (5, (3,)),
    "dirichlet": (np.ones(3, np.float32),),
    "double_sided_maxwell": (0.0, 1.0, (4,)),
    "exponential": ((4,),),
    "f": (3.0, 4.0),
    "gamma": (2.0, (4,)),
    "generalized_normal": (2.0, (4,)),
    "geometric": (0.3, (4,)),
    "gumbel": ((4,),),
    "laplace": ((4,),),
    "loggamma": (2.0, (4,)),
    "logistic": ((4,),),
    "lognormal": (1.0, (4,)),
    "maxwell": ((4,),),
    "multinomial": (np.float32(9), np.full(3, 1 / 3, np.float32)),
    "multivariate_normal": (np.zeros(2, np.float32), np.eye(2, dtype=np.float32)),
    "normal": ((4,),),
    "orthogonal": (3,),
    "pareto": (2.0, (4,)),
    "permutation": (5,),
    "poisson": (3.0, (4,)),
    "rademacher": ((4,),),
    "randint": ((4,), 0, 9),
    "rayleigh": (1.0, (4,)),
    "t": (3.0, (4,)),
    "triangular": (0.0, 0.5, 1.0, (4,)),
    "truncated_normal": (-1.0, 1.0, (4,)),
    "uniform": ((4,),),
    "wald": (1.0, (4,)),
    "weibull_min": (1.0, 2.0, (4,)),
}

INITIALIZERS: dict[str, tuple[Any, ...]] = {
    **{
        f"{name}_{kind}": ()
        for name in ("glorot", "he", "kaiming", "lecun", "xavier")
        for kind in ("normal", "uniform")
    },
    "delta_orthogonal": (),
    "variance_scaling": (2.0, "fan_in", "normal"),
}


def data(key: jax.Array) -> np.ndarray[Any, Any]:
    return np.asarray(jax.random.key_data(key))


def contents(rngs: Any) -> dict[str, tuple[Any, ...]]:
    """Tag, key and count of each stream, of ours or of the peer."""
    return {
        name: (s.tag, s.key.tag, s.count.tag, data(s.key[...]).tolist(), np.asarray(s.count[...]).tolist())
        for name, s in rngs.items()
    }


@pytest.fixture
def nnx() -> Any:
    return pytest.importorskip("flax.nnx")


# ---- streams


def test_a_draw_folds_the_count_into_the_key() -> None:
    stream, key = RngStream(7, "params"), jax.random.key(7)
    for count in range(4):
        assert int(stream.count) == count
        np.testing.assert_array_equal(data(stream()), data(jax.random.fold_in(key, count)))
    np.testing.assert_array_equal(data(stream.key.value), data(key))


def test_what_a_stream_holds() -> None:
    stream = RngStream(0, "params")
    stream()
    assert type(stream.key) is RngKey
    assert type(stream.count) is RngCount
    assert issubclass(RngKey, RngState)
    assert issubclass(RngCount, RngState)
    assert isinstance(stream.count.value, jax.Array)
    assert stream.count.dtype == np.uint32
    assert not stream.count.value.weak_type
    assert (
        stream.key.get_metadata(exclude_required=True)
        == stream.count.get_metadata(exclude_required=True)
        == {"tag": "params"}
    )
    assert stream.tag == "params"


@settings(max_examples=20, deadline=None)
@given(st.integers(-(2**31), 2**32 - 1), st.integers(0, 20))
def test_keys_depend_on_seed_and_count_only(seed: int, draws: int) -> None:
    rngs = Rngs(seed)
    for _ in range(draws):
        rngs()
    expected = jax.random.fold_in(jax.random.key(seed), np.uint32(draws))
    np.testing.assert_array_equal(data(rngs()), data(expected))


# ---- making them


KEY = jax.random.key(5)
RAW = jax.random.PRNGKey(5)


@pytest.mark.parametrize(
    "value",
    [5, np.int32(5), jnp.array(5), np.array(5), KEY, RAW, np.asarray(RAW), RngKey(KEY, tag="x"), RngStream(5, "x")]
    + [RngState(RAW, tag="x"), {"default": 5}, Rngs(5), {"default": RngStream(5, "x")}],
)
def test_what_a_stream_is_made_from(value: Any) -> None:
    for rngs in (Rngs(value), Rngs(default=value)):
        assert contents(rngs) == contents(Rngs(5))


def test_a_given_stream_counts_anew_under_the_new_name() -> None:
    stream = RngStream(5, "old")
    stream()
    assert contents(Rngs(new=stream)) == contents(Rngs(new=5))
    assert int(stream.count) == 1


def test_arrays_of_keys() -> None:
    keys = jax.random.split(KEY, 3)
    for value in (keys, jax.random.key_data(keys)):
        rngs = Rngs(value)
        assert rngs.default.key.shape == rngs.default.count.shape == (3,)


def test_keywords_win_over_a_mapping() -> None:
    assert contents(Rngs({"params": 1, "default": 2}, params=3)) == contents(Rngs(2, params=3))


def test_the_implementation_of_a_key_is_kept() -> None:
    key = jax.random.key(0, impl="rbg")
    assert jax.random.key_impl(Rngs(key)()) == jax.random.key_impl(key)


# ---- names


def test_a_name_that_is_not_there_means_default() -> None:
    rngs = Rngs(0, params=1)
    assert rngs.dropout is rngs.default
    assert rngs["dropout"] is rngs.default
    assert rngs["params"] is rngs.params
    assert rngs.next is rngs.default
    assert "params" in rngs
    assert "dropout" not in rngs
    assert 3 not in rngs
    assert list(rngs) == ["params", "default"]
    assert [name for name, _ in rngs.items()] == ["params", "default"]
    assert len(rngs) == 2
    assert hasattr(rngs, "dropout")


def test_rngs_draws_from_default() -> None:
    np.testing.assert_array_equal(data(Rngs(3, params=1)()), data(Rngs(3).default()))


def test_no_stream_and_no_default() -> None:
    rngs = Rngs(params=0)
    assert not hasattr(rngs, "dropout")
    assert getattr(rngs, "dropout", 3) == 3
    with pytest.raises(AttributeError, match="there is no stream 'dropout', and no 'default' to fall back to"):
        rngs.dropout
    with pytest.raises(KeyError, match="there is no stream 'dropout'"):
        rngs["dropout"]
    with pytest.raises(errors.RngError, match=r"(?s)no stream 'parms'.*streams 'params'.*did you mean 'params'"):
        rngs.parms()
    with pytest.raises(errors.RngError, match=r"no stream 'normall'[\s\S]*did you mean 'normal'"):
        rngs.normall((3,))  # type: ignore[call-arg]  # under test
    with pytest.raises(errors.RngError, match=r"no stream 'default'"):
        rngs()
    with pytest.raises(
        MissingStreamError, match=r"(?s)no stream 'params'.*got: +no streams.*fix: +dx.Rngs\(params=0\)"
    ):
        Rngs().params()


def test_names_of_protocols_do_not_fall_back() -> None:
    rngs = Rngs(0)
    for name in ("__jax_array__", "__array__", "_repr_html_", "_pytree__unknown"):
        assert not hasattr(rngs, name)


def test_a_name_that_would_hide_a_method() -> None:
    for name in ("fork", "normal", "items", "t"):
        with pytest.raises(errors.RngError, match=f"Rngs.{name}: this cannot be the name of a stream"):
            Rngs(**{name: 1})


def test_a_stream_can_be_set_and_deleted() -> None:
    rngs = Rngs(0)
    rngs.extra = RngStream(3, "extra")
    assert list(rngs) == ["default", "extra"]
    del rngs.extra
    assert rngs.extra is rngs.default


@pytest.mark.parametrize("value", [1.5, "a", jnp.ones(3), jnp.ones(()), object(), [0, 1]])
def test_what_makes_no_stream(value: Any) -> None:
    with pytest.raises(errors.RngError, match=r"Rngs.params: this is not a seed or a key[\s\S]*fix: +dx.Rngs\(0\)"):
        Rngs(params=value)
    with pytest.raises(errors.RngError, match=r"RngStream\('a'\): this is not a seed or a key"):
        RngStream(value, "a")


def test_keys_that_jax_refuses() -> None:
    with pytest.raises(errors.RngError, match=r"Rngs.default: this is not a seed or a key"):
        Rngs(np.zeros(3, np.uint32))
    with pytest.raises(errors.RngError, match=r"Rngs.default: this is not a seed or a key"):
        Rngs(2**70)


def test_names_are_strings() -> None:
    with pytest.raises(errors.RngError, match="this cannot be the name of a stream"):
        Rngs({3: 1})  # type: ignore[dict-item]  # under test


# ---- samplers


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers(name: str) -> None:
    args = SAMPLERS[name]
    expected = getattr(jax.random, name)(jax.random.fold_in(jax.random.key(0), 0), *args)
    for source in (Rngs(0, params=1), RngStream(0, "a")):
        np.testing.assert_array_equal(getattr(source, name)(*args), expected)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers_show_their_parameters(name: str) -> None:
    shown = inspect.signature(getattr(Rngs(0), name)).parameters
    assert list(shown) == list(inspect.signature(getattr(jax.random, name)).parameters)[1:]
    assert f"jax.random.{name}" in getattr(Rngs, name).__doc__


@pytest.mark.parametrize("name", sorted(INITIALIZERS))
def test_keyless_initializers(name: str) -> None:
    factory = getattr(jax.nn.initializers, name)(*INITIALIZERS[name])
    rngs, keys = Rngs(0, params=1), Rngs(0)
    made = getattr(rngs, name)(*INITIALIZERS[name])
    assert int(rngs.default.count) == 0
    for dtype in (jnp.float32, jnp.complex64):
        np.testing.assert_array_equal(np.asarray(made((2, 3, 4), dtype)), np.asarray(factory(keys(), (2, 3, 4), dtype)))
    assert int(rngs.default.count) == 2


# ---- fork, split, broadcast


def test_fork() -> None:
    rngs = Rngs(0, params=1)
    forked = rngs.fork()
    for name in rngs:
        np.testing.assert_array_equal(data(forked[name].key.value), data(Rngs(rngs)[name]()))
        assert int(rngs[name].count) == 1
        assert int(forked[name].count) == 0


def test_split_keys_differ_and_broadcast_keys_do_not() -> None:
    split, same = Rngs(0).split(4), Rngs(0).broadcast(4)
    assert len({tuple(k) for k in data(split.default.key.value)}) == 4
    assert len({tuple(k) for k in data(same.default.key.value)}) == 1
    draw = jax.vmap(lambda r: (r.uniform((2,)), r))  # which returns the streams: their counts are not lost
    assert len(np.unique(draw(split)[0])) == 8
    assert len(np.unique(draw(same)[0])) == 2


def test_fork_takes_its_size_by_position() -> None:
    assert contents(Rngs(0).fork(3)) == contents(Rngs(0).fork(split=3)) == contents(Rngs(0).split(3))
    stream = RngStream(0, "default").fork(3)
    assert data(stream.key.value).tolist() == contents(Rngs(0).split(3))["default"][3]


def test_forks_of_streams() -> None:
    stream = RngStream(0, "a")
    assert stream.fork().tag == "a"
    assert stream.fork(split=(2, 3)).key.shape == (2, 3)
    assert stream.broadcast(2).count.shape == (2,)
    assert int(stream.count) == 3


def test_the_first_filter_that_matches_counts() -> None:
    rngs = Rngs(0, params=1, dropout=2)
    split = rngs.split({("params", "dropout"): 2, ...: (3, 1)})
    assert split.params.key.shape == split.dropout.key.shape == (2,)
    assert split.default.key.shape == (3, 1)
    split = rngs.split({"params": 2, RngKey: 5})
    assert (split.params.key.shape, split.dropout.key.shape) == ((2,), (5,))
    split = rngs.split({PathContains("dropout"): 4, Not("default"): 3})
    assert [s.key.shape for _, s in split.items()] == [(3,), (4,), ()]


SIZES = [
    3,
    (2, 2),
    0,
    {"params": 2},
    {"params": 2, ...: 3},
    {("params", "dropout"): 2, ...: None},
    {...: 3, "params": 2},
]


@pytest.mark.parametrize("action", ["fork", "split", "broadcast"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_forks_against_the_peer(nnx: Any, action: str, size: Any) -> None:
    def run(kind: Callable[..., Any]) -> tuple[Any, ...]:
        rngs = kind(0, params=1, dropout=2)
        rngs.params()
        rngs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the peer's `fork(split=...)`
            made = rngs.fork(split=size) if action == "fork" else getattr(rngs, action)(size)
        return contents(made), contents(rngs)

    assert run(Rngs) == run(nnx.Rngs)


def test_plain_forks_against_the_peer(nnx: Any) -> None:
    acts: list[Callable[[Any], Any]] = [lambda r: r.fork(), lambda r: r.broadcast(None), lambda r: r.fork().fork()]
    for act in acts:
        ours, theirs = Rngs(0, params=1), nnx.Rngs(0, params=1)
        assert contents(act(ours)) == contents(act(theirs))
        assert contents(ours) == contents(theirs)


def test_streams_against_the_peer(nnx: Any) -> None:
    acts: list[Callable[[Any], Any]] = [
        lambda s: s(),
        lambda s: s.fork().key[...],
        lambda s: s.split(3).key[...],
        lambda s: s.split((2, 3)).key[...],
        lambda s: s.broadcast(2).key[...],
        lambda s: s(),
    ]
    ours, theirs = RngStream(3, tag="a"), nnx.RngStream(3, tag="a")
    for act in acts:
        np.testing.assert_array_equal(data(act(ours)), data(act(theirs)))
        assert int(ours.count[...]) == int(theirs.count[...])


@pytest.mark.parametrize(
    "args",
    [(0,), (jax.random.key(3),), (jax.random.PRNGKey(3),), ({"params": 1, "default": 4},), (True,), (-1,)]
    + [(jax.random.split(jax.random.key(3), 2),)],
    ids=str,
)
def test_constructors_against_the_peer(nnx: Any, args: tuple[Any, ...]) -> None:
    assert contents(Rngs(*args)) == contents(nnx.Rngs(*args))
    assert contents(Rngs(*args, dropout=2)) == contents(nnx.Rngs(*args, dropout=2))


def test_draws_against_the_peer(nnx: Any) -> None:
    ours, theirs = Rngs(0, params=1), nnx.Rngs(0, params=1)
    keys: list[Callable[[Any], Any]] = [
        lambda r: r.params(),
        lambda r: r(),
        lambda r: r.dropout(),
        lambda r: r["params"](),
    ]
    for act in keys:
        np.testing.assert_array_equal(data(act(ours)), data(act(theirs)))
    samples: list[Callable[[Any], Any]] = [
        lambda r: r.normal((3,)),
        lambda r: r.params.uniform((3,)),
        lambda r: r.lecun_normal()((3, 4)),
        lambda r: r.dropout.he_uniform()((3, 4), jnp.bfloat16),
    ]
    for act in samples:
        np.testing.assert_array_equal(np.asarray(act(ours), np.float32), np.asarray(act(theirs), np.float32))
    assert contents(ours) == contents(theirs)


def test_every_method_of_the_peer_is_here(nnx: Any) -> None:
    for ours, theirs in ((Rngs, nnx.Rngs), (RngStream, nnx.RngStream)):
        assert {n for n in dir(theirs) if not n.startswith("_")} <= set(dir(ours))


def test_sizes_that_are_none() -> None:
    rngs = Rngs(0)
    for size in (-1, "a", (2, -1), 1.5):
        with pytest.raises(errors.RngError, match=r"Rngs.fork: this is not a number of keys"):
            rngs.fork(split=size)  # type: ignore[arg-type]  # under test
        with pytest.raises(errors.RngError, match=r"(?s)RngStream.split: this is not a number of keys.*fix: +3 "):
            rngs.default.split(size)  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.RngError, match=r"Rngs.split: this is not a number of keys"):
        rngs.split(None)  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.RngError, match=r"Rngs.broadcast: this is not a number of keys"):
        rngs.broadcast({"default": -1})
    assert int(rngs.default.count) == 0


def test_a_split_stream_draws_under_vmap_only() -> None:
    rngs = Rngs(0, params=1).split({"params": 3})
    message = r"(?s)params: a stream with an array of keys cannot draw one key.*shape \(3,\).*fix:"
    with pytest.raises(errors.RngError, match=message):
        rngs.params()
    for act in (rngs.fork, lambda: rngs.split(2), lambda: rngs.broadcast(2), rngs.params.fork):
        with pytest.raises(errors.RngError, match=message):
            act()
    # Nothing was drawn from the streams that could draw.
    assert int(rngs.default.count) == 0


def test_a_filter_that_matches_no_stream() -> None:
    rngs = Rngs(0, params=1)
    for sizes in ({"params": 2, "dropout": 2}, {"dropout": None}):
        with pytest.raises(errors.RngError, match=r"Rngs.split: the filter 'dropout' matches no stream"):
            rngs.split(sizes)
    assert int(rngs.default.count) == 0


# ---- copies, trees, transforms


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda r: pickle.loads(pickle.dumps(r)),
    "deepcopy": copy.deepcopy,
    "tree.map": lambda r: jax.tree.map(lambda x: x, r),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    rngs = Rngs(0, params=1)
    rngs.params()
    made = COPIES[name](rngs)
    assert type(made) is Rngs
    expected = contents(rngs)
    assert contents(made) == expected
    np.testing.assert_array_equal(data(made.params()), data(fold(1, 1)))
    assert contents(rngs) == expected, "the copy counts by itself"


def fold(seed: int, count: int) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), count)


def test_as_a_tree() -> None:
    rngs = Rngs(0, params=1)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(rngs)]
    assert paths == [f".{name}.{part}.value" for name in ("default", "params") for part in ("count", "key")]
    treedefs: list[Any] = [jax.tree.structure(r) for r in (rngs, Rngs(7, params=3), Rngs(7, dropout=3))]
    assert treedefs[0] == treedefs[1]
    assert treedefs[0] != treedefs[2]


def test_as_an_argument_of_jit() -> None:
    @jax.jit
    def draw(rngs: Rngs) -> tuple[jax.Array, jax.Array, Rngs]:
        return rngs.params(), rngs.normal((2,)), rngs

    rngs = Rngs(0, params=1)
    with jax.checking_leaks():
        key, sample, after = draw(rngs)
    np.testing.assert_array_equal(data(key), data(fold(1, 0)))
    np.testing.assert_array_equal(sample, jax.random.normal(fold(0, 0), (2,)))
    assert [int(s.count) for _, s in after.items()] == [1, 1]
    assert [int(s.count) for _, s in rngs.items()] == [0, 0]
    assert after.params.count.dtype == np.uint32
    np.testing.assert_array_equal(data(after.params()), data(fold(1, 1)))


def test_made_inside_of_a_transform() -> None:
    with jax.checking_leaks():
        drawn = jax.jit(lambda seed: jax.random.key_data(Rngs(seed).params()))(3)
    np.testing.assert_array_equal(drawn, data(fold(3, 0)))
    shapes = jax.eval_shape(lambda: Rngs(0).normal((2, 3)))
    assert shapes.shape == (2, 3)


def test_a_captured_rngs_cannot_draw_under_a_raw_transform() -> None:
    rngs = Rngs(0)
    with pytest.raises(errors.TraceContextError, match="the value of a RngCount was changed from another trace level"):
        jax.jit(lambda: rngs.normal((2,)))()
    assert contents(rngs) == contents(Rngs(0))


@pytest.mark.parametrize("act", [Rngs.fork, lambda rngs: rngs.split(2), lambda rngs: rngs.broadcast({"params": 2})])
def test_a_captured_rngs_cannot_be_split_under_a_raw_transform(act: Any) -> None:
    rngs = Rngs(0, params=1)
    with pytest.raises(errors.TraceContextError, match=r"\w+: the value of a RngKey was changed from another"):
        jax.jit(lambda x: x + act(rngs).params.normal())(1.0)
    assert contents(rngs) == contents(Rngs(0, params=1))


def test_strict_promotion() -> None:
    with jax.numpy_dtype_promotion("strict"):
        assert Rngs(0).normal((2,)).shape == (2,)
        key, _ = jax.jit(lambda r: (r.fork(split=2).params.key.value, r))(Rngs(0))
        assert key.shape == (2,)


def test_without_jit() -> None:
    with jax.disable_jit():
        np.testing.assert_array_equal(data(Rngs(1)()), data(fold(1, 0)))


# ---- threads


def in_threads(count: int, act: Callable[[], Any]) -> list[Any]:
    results: list[Any] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        results.append(act())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_never_get_one_key() -> None:
    rngs = Rngs(0, params=1)

    def draw() -> list[bytes]:
        return [data(rngs.params()).tobytes() for _ in range(100)]

    drawn = [key for keys in in_threads(8, draw) for key in keys]
    assert len(drawn) == len(set(drawn)) == 800
    assert int(rngs.params.count) == 800


@pytest.mark.parametrize("trace", [dx.jit, jax.jit, lambda f: functools.partial(dx.eval_shape, f), dx.remat])
def test_streams_that_outlive_their_trace(trace) -> None:
    kept = []

    def keep(rngs: Rngs) -> None:
        kept.extend([rngs, Rngs(0), Rngs(params=jax.random.key(0))])

    trace(keep)(Rngs(params=0))
    for rngs in kept:
        before = rngs.params.count.raw_value if "params" in rngs else rngs.default.count.raw_value
        with pytest.raises(errors.TraceContextError):
            rngs.params()
        after = rngs.params.count.raw_value if "params" in rngs else rngs.default.count.raw_value
        assert after is before


def test_threads_that_trace() -> None:
    def trace() -> bytes:
        key, _ = jax.jit(lambda r: (r(), r))(Rngs(3))
        return data(key).tobytes()

    assert set(in_threads(8, trace)) == {data(fold(3, 0)).tobytes()}
