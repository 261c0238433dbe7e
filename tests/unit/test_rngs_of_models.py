"""Streams inside of models: split, forked, reseeded and put back; the peer's keys."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declax._filters import Not, PathContains
from declax._graph.api import clone, merge, split, state
from declax._graph.array_refs import is_array_ref, to_refs
from declax._modes import set_graph_mode, set_graph_updates
from declax._module.containers import List
from declax._module.module import Module
from declax._module.viewing import view
from declax._random.changes import RngBackups, backup_keys, fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
from declax._random.streams import Rngs, RngStream, StreamBackup
from declax._variables.kinds import Param, RngKey, RngState
from declax.errors import FilterError, GraphError, RngError, TraceContextError
from declax.nn import Dropout


@pytest.fixture
def nnx() -> Any:
    return pytest.importorskip("flax.nnx")


def data(key: Any) -> Any:
    return np.asarray(jax.random.key_data(key)).tolist()


def contents(rngs: Any) -> dict[str, tuple[Any, ...]]:
    """Keys and counts of the streams, of ours or of the peer."""
    return {name: of_stream(stream) for name, stream in rngs.items()}


def of_stream(stream: Any) -> tuple[Any, ...]:
    return stream.key[...].shape, data(stream.key[...]), np.asarray(stream.count[...]).tolist()


class Net(Module):
    """Two streams of one name and one of another, a shared one, and parameters."""

    def __init__(self, rngs: Any) -> None:
        self.scale = Param(jnp.ones(3))
        self.drops = List([Dropout(0.5, rngs=rngs), Dropout(0.5, rngs=rngs)])
        self.rngs = rngs
        self.same = self.drops[0]


def net() -> Net:
    return Net(Rngs(params=0, dropout=1))


def streams_of(model: Net) -> list[RngStream]:
    rngs: Any = model.rngs
    return [model.drops[0].rngs, model.drops[1].rngs, rngs.params, rngs.dropout]


def all_of(model: Net) -> list[tuple[Any, ...]]:
    return [of_stream(stream) for stream in streams_of(model)]


SHAPES = [1, 3, 0, (), (2,), (2, 3)]

# ---- split_rngs


@pytest.mark.parametrize("splits", SHAPES)
@pytest.mark.parametrize("only", [..., "params", ("dropout", "default"), Not("params"), RngState])
@pytest.mark.parametrize("draws", [0, 2])
def test_split_gives_the_keys_of_the_peer(nnx: Any, splits: Any, only: Any, draws: int) -> None:
    theirs, ours = nnx.Rngs(4, params=0, dropout=1), Rngs(4, params=0, dropout=1)
    for rngs in (theirs, ours):
        for _ in range(draws):
            rngs.params()
    backups = nnx.split_rngs(theirs, splits=splits, only=as_nnx(nnx, only))
    own = split_rngs(ours, splits=splits, only=only)
    assert contents(ours) == contents(theirs)
    nnx.restore_rngs(backups)
    restore_rngs(own)
    assert contents(ours) == contents(theirs)
    assert len(own) == len(list(backups))


def as_nnx(nnx: Any, only: Any) -> Any:
    if only is RngState:
        return nnx.RngState
    return nnx.Not("params") if isinstance(only, Not) else only


def test_squeeze_gives_the_key_of_the_peer(nnx: Any) -> None:
    theirs, ours = nnx.Rngs(4), Rngs(4)
    with nnx.split_rngs(theirs, splits=1, squeeze=True), split_rngs(ours, splits=1, squeeze=True):
        assert contents(ours) == contents(theirs)
        assert ours.default.key.shape == ()
    assert contents(ours) == contents(theirs)


def test_sizes_of_numpy() -> None:
    ours, same = Rngs(0), Rngs(0)
    with split_rngs(ours, splits=np.int32(2)), split_rngs(same, splits=2):
        assert contents(ours) == contents(same)


def test_a_key_of_a_split_is_drawn_from_the_stream() -> None:
    rngs = Rngs(7)
    rngs()
    drawn = jax.random.fold_in(jax.random.key(7), 1)
    with split_rngs(rngs, splits=3):
        assert data(rngs.default.key.value) == data(jax.random.split(drawn, 3))
        assert rngs.default.count.value.dtype == np.uint32
        np.testing.assert_array_equal(rngs.default.count.value, np.zeros(3))
    assert of_stream(rngs.default) == ((), data(jax.random.key(7)), 2)


def test_what_is_shared_is_split_once() -> None:
    model = net()
    backups = split_rngs([model, model.rngs, view(model)], splits=2)  # a view has other nodes, and the same Variables
    assert len(backups) == 4
    assert {stream.key.shape for stream in streams_of(model)} == {(2,)}
    restore_rngs(backups)
    assert [int(stream.count.value) for stream in streams_of(model)] == [1, 1, 1, 3]  # two were drawn by the layers


def test_only_takes_streams_by_tag_kind_and_path() -> None:
    model = net()
    for only, expected in [
        ("params", [False, False, True, False]),
        (RngKey, [True] * 4),
        (PathContains("drops"), [True, True, False, False]),
        (lambda path, value: path[-2:] == ("params", "key"), [False, False, True, False]),
        (lambda path, value: path == ("rngs", "params"), [False, False, True, False]),
    ]:
        with split_rngs(model, splits=2, only=only):
            assert [bool(stream.key.shape) for stream in streams_of(model)] == expected
        assert not any(stream.key.shape for stream in streams_of(model))


def test_backups_are_a_context_manager_that_restores_on_errors() -> None:
    rngs = Rngs(0)
    backups = split_rngs(rngs, splits=3)
    with pytest.raises(KeyError, match="fails"), backups as entered:
        raise KeyError("fails")
    assert entered is backups
    assert isinstance(backups, RngBackups)
    assert [type(entry) for entry in backups] == [StreamBackup]
    assert of_stream(rngs.default) == ((), data(jax.random.key(0)), 1)


def test_nested_splits_of_different_streams() -> None:
    rngs = Rngs(params=0, dropout=1)
    with split_rngs(rngs, splits=2, only="params"), split_rngs(rngs, splits=3, only="dropout"):
        assert (rngs.params.key.shape, rngs.dropout.key.shape) == ((2,), (3,))
    assert contents(rngs) == {"params": ((), data(jax.random.key(0)), 1), "dropout": ((), data(jax.random.key(1)), 1)}


@pytest.mark.parametrize("options", [{"graph_updates": False}, {"graph": False}])
def test_without_updates_split_makes_a_new_node(nnx: Any, options: dict[str, bool]) -> None:
    theirs, ours = nnx.Rngs(4, params=0), Rngs(4, params=0)
    new = split_rngs(ours, splits=3, **options)
    assert contents(new) == contents(nnx.split_rngs(theirs, splits=3, **options))
    assert contents(ours) == contents(theirs)
    assert new.params.key is not ours.params.key


def test_the_default_mode_counts() -> None:
    rngs = Rngs(0)
    with set_graph_updates(False):
        assert split_rngs(rngs, splits=3).default.key.shape == (3,)
    with set_graph_mode(False):
        assert fork_rngs(rngs).default.key.shape == ()
    assert of_stream(rngs.default) == ((), data(jax.random.key(0)), 2)


@pytest.mark.parametrize("call", [split_rngs, fork_rngs, backup_keys, reseed, with_rngs])
def test_graph_false_refuses_what_is_shared(call: Any) -> None:
    rngs = Rngs(0)
    options = {split_rngs: {"splits": 2}, reseed: {"default": 1}, with_rngs: {"fork": ...}}.get(call, {})
    with pytest.raises(GraphError, match="reached twice"):
        call([rngs, rngs.default], graph=False, **options)
    assert of_stream(rngs.default) == ((), data(jax.random.key(0)), 0)


# ---- split_rngs as a decorator


def test_as_a_decorator_it_splits_all_arguments_as_the_peer(nnx: Any) -> None:
    def program(lib: Any, splits: Callable[..., Any]) -> Any:
        @splits(splits=3)
        def shapes(a: Any, n: int, b: Any = None, *, c: Any) -> list[Any]:
            """Documented."""
            return [contents(a[0]), n, contents(b), contents(c["x"])]

        a, b, c = (lib.Rngs(i) for i in range(3))
        assert shapes.__doc__ == "Documented."
        return shapes([a], 5, b, c={"x": c}), [contents(rngs) for rngs in (a, b, c)]

    import declax as ours

    assert program(ours, split_rngs) == program(nnx, nnx.split_rngs)


def test_decorated_methods_and_errors() -> None:
    class Model(Net):
        @split_rngs(splits=4, only="params")
        def shapes(self, fails: bool = False) -> list[Any]:
            if fails:
                raise KeyError("fails")
            return [stream.key.shape for stream in streams_of(self)]

    model = Model(Rngs(params=0, dropout=1))
    assert model.shapes() == [(), (), (4,), ()]
    with pytest.raises(KeyError, match="fails"):
        model.shapes(fails=True)
    assert of_stream(streams_of(model)[2]) == ((), data(jax.random.key(0)), 2)
    assert Model.shapes.__name__ == "shapes"


@pytest.mark.parametrize("options", [{"graph_updates": False}, {"graph": False}])
def test_decorators_without_updates_hand_over_new_nodes(options: dict[str, bool]) -> None:
    seen: list[Any] = []

    @split_rngs(splits=2, **options)
    def run(model: Any, x: Any, *, rngs: Any) -> Any:
        seen.append((model, rngs))
        return x

    model, rngs = Dropout(0.5, rngs=Rngs(0)), Rngs(1)
    assert run(model, "text", rngs=rngs) == "text"
    ((new, new_rngs),) = seen
    assert new is not model
    assert new.rngs.key.shape == new_rngs.default.key.shape == (2,)
    assert model.rngs.key.shape == rngs.default.key.shape == ()
    assert int(rngs.default.count) == 1


def test_a_callable_object_can_be_decorated() -> None:
    class Function:
        def __call__(self, rngs: Rngs) -> Any:
            return rngs.default.key.shape

    assert split_rngs(splits=2)(Function())(Rngs(0)) == (2,)


# ---- fork_rngs

SPLITS = [None, 3, (2, 3), {"params": 3}, {"params": (2, 3), "dropout": None}, {"params": None}, {Not("params"): 2}]


@pytest.mark.filterwarnings("ignore:The 'split' argument:DeprecationWarning")  # of the peer, of itself
@pytest.mark.parametrize("sizes", SPLITS)
def test_fork_gives_the_keys_of_the_peer(nnx: Any, sizes: Any) -> None:
    theirs, ours = nnx.Rngs(params=0, dropout=1), Rngs(params=0, dropout=1)
    as_theirs = {as_nnx(nnx, k): v for k, v in sizes.items()} if isinstance(sizes, dict) else sizes
    backups, own = nnx.fork_rngs(theirs, split=as_theirs), fork_rngs(ours, split=sizes)
    assert contents(ours) == contents(theirs)
    nnx.restore_rngs(backups)
    restore_rngs(own)
    assert contents(ours) == contents(theirs)


def test_draws_from_a_fork_do_not_count() -> None:
    rngs = Rngs(0)
    with fork_rngs(rngs):
        assert data(rngs.default.key.value) == data(jax.random.fold_in(jax.random.key(0), 0))
        drawn = [rngs() for _ in range(5)]
    assert of_stream(rngs.default) == ((), data(jax.random.key(0)), 1)
    assert data(drawn[4]) == data(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 4))


def test_the_first_filter_of_a_fork_counts() -> None:
    rngs = Rngs(params=0, dropout=1)  # the peer forks twice here, and fails
    with fork_rngs(rngs, split={"params": (2, 3), ...: None}):
        assert (rngs.params.key.shape, rngs.dropout.key.shape) == ((2, 3), ())
    assert [int(stream.count) for _, stream in rngs.items()] == [1, 1]


@pytest.mark.filterwarnings("ignore:The 'split' argument:DeprecationWarning")  # of the peer, of itself
def test_fork_as_a_decorator_gives_the_keys_of_the_peer(nnx: Any) -> None:
    def program(rngs: Any, fork: Callable[..., Any]) -> Any:
        @fork(split={"params": 2})
        def run(rngs: Any, fails: bool) -> Any:
            if fails:
                raise KeyError("fails")
            return contents(rngs)

        with pytest.raises(KeyError, match="fails"):
            run(rngs, True)
        return run(rngs, False), contents(rngs)

    names = {"params": 0, "dropout": 1}
    assert program(Rngs(**names), fork_rngs) == program(nnx.Rngs(**names), nnx.fork_rngs)


# ---- with_rngs

RULES: list[dict[str, Any]] = [
    {"split": 3},
    {"split": {"params": 3}},
    {"split": {"params": (2, 3), ...: 2}},
    {"fork": "params"},
    {"fork": ...},
    {"fork": ["params", "dropout"]},
    {"split": {"params": 2}, "fork": ...},
    {"broadcast": 3},
    {"broadcast": {"params": 2}, "split": 3},
    {"split": {"params": 3}, "broadcast": {"dropout": 2}, "fork": ...},
    {"split": 3, "only": "params"},
    {},
]


@pytest.mark.parametrize("rules", RULES)
def test_with_rngs_gives_the_keys_of_the_peer(nnx: Any, rules: dict[str, Any]) -> None:
    theirs, ours = nnx.Rngs(params=0, dropout=1), Rngs(params=0, dropout=1)
    theirs.params(), ours.params()
    new, expected = with_rngs(ours, **rules), nnx.with_rngs(theirs, graph_updates=False, **rules)
    assert contents(new) == contents(expected)
    assert contents(ours) == contents(theirs)
    assert new is not ours
    for name in ("params", "dropout"):
        assert (new[name].key is ours[name].key) == (expected[name].key is theirs[name].key)


def test_none_in_a_mapping_leaves_a_stream_to_the_other_rules() -> None:
    rngs = Rngs(params=0, dropout=1, noise=2)
    new = with_rngs(rngs, split={"params": None, "dropout": None, ...: 3}, fork="params")
    assert {name: stream.key.shape for name, stream in new.items()} == {"params": (), "dropout": (), "noise": (3,)}
    assert new.dropout.key is rngs.dropout.key
    assert data(new.params.key.value) == data(jax.random.fold_in(jax.random.key(0), 0))


@pytest.mark.parametrize(
    "rules",
    [
        {"split": {"params": 4}, "fork": "params"},
        {"split": {"params": 4, ...: 2}, "broadcast": {"params": 2}},
        {"broadcast": {"dropout": 4}, "fork": ["params", "dropout"]},
    ],
)
def test_a_stream_that_two_rules_name_is_refused(nnx: Any, rules: dict[str, Any]) -> None:
    rngs = Rngs(params=0, dropout=1)
    with pytest.raises(RngError, match=r"with_rngs, (params|dropout): this stream matches multiple rules"):
        with_rngs(rngs, **rules)
    assert contents(rngs) == contents(Rngs(params=0, dropout=1))
    with pytest.raises(ValueError, match="multiple rules"):
        nnx.with_rngs(nnx.Rngs(params=0, dropout=1), graph_updates=False, **rules)


def test_with_rngs_shares_what_is_not_new_and_keeps_what_is_shared() -> None:
    model = net()
    (new, label), again = with_rngs([(model, "x"), model], split={"params": 2})
    assert new is again
    assert new is not model
    assert label == "x"
    assert new.same is new.drops[0]
    assert new.scale is model.scale
    assert new.drops[0].rngs.key is model.drops[0].rngs.key
    assert new.rngs.params.key.shape == (2,)
    assert model.rngs.params.key.shape == ()


def test_with_rngs_as_a_decorator() -> None:
    @with_rngs(split=3)
    def run(rngs: Rngs, n: int, *, more: list[Rngs]) -> Any:
        return contents(rngs), n, contents(more[0])

    rngs, other = Rngs(0), Rngs(1)
    first, n, second = run(rngs, 4, more=[other])
    assert n == 4
    assert first == contents(Rngs(0).split(3))
    assert second == contents(Rngs(1).split(3))
    assert contents(rngs) == {"default": ((), data(jax.random.key(0)), 1)}
    assert of_stream(other.default)[0] == ()


def test_with_rngs_makes_nothing_in_place() -> None:
    assert with_rngs(Rngs(0), fork=..., graph_updates=False).default.key.shape == ()


# ---- reseed


def test_a_decorator_refuses_what_is_not_a_seed():
    """Also a model that is given by name, since all names are those of streams."""
    with pytest.raises(RngError, match=r"Rngs\.node: this is not a seed or a key") as caught:
        reseed(node=Dropout(0.5, rngs=Rngs(0)))
    assert caught.value.got == "a value of type Dropout"


@pytest.mark.parametrize("seed", [3, jax.random.key(4), jax.random.PRNGKey(4)])
def test_reseed_gives_the_keys_of_the_peer(nnx: Any, seed: Any) -> None:
    theirs, ours = nnx.Rngs(params=0, dropout=1), Rngs(params=0, dropout=1)
    ours.params(), theirs.params()
    assert [entry.stream.label for entry in reseed(ours, params=seed)] == ["params"]
    nnx.reseed(theirs, params=seed)
    assert contents(ours) == contents(theirs)


def test_reseed_of_several_layers_gives_the_keys_of_the_peer(nnx: Any) -> None:
    class Theirs(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.b, self.a = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
            self.c = rngs

    class Ours(Module):
        def __init__(self, rngs: Any) -> None:
            self.b, self.a = Dropout(0.5, rngs=rngs), Dropout(0.5, rngs=rngs)
            self.c = rngs

    theirs, ours = Theirs(nnx.Rngs(0)), Ours(Rngs(0))
    nnx.reseed(theirs, default=5)
    reseed(ours, default=5)
    for name in ("a", "b"):
        assert of_stream(getattr(ours, name).rngs) == of_stream(getattr(theirs, name).rngs)
    assert contents(ours.c) == contents(theirs.c)
    assert data(ours.a.rngs.key.value) != data(ours.b.rngs.key.value)


def test_policies_as_those_of_the_peer(nnx: Any) -> None:
    seen: list[Any] = []

    def policy(path: Any, key: Any, shape: Any) -> Any:
        seen.append((path, data(key), shape))
        return jax.random.split(key, shape)

    for chosen in ("match_shape", policy):
        theirs, ours = nnx.Rngs(params=0, dropout=1), Rngs(params=0, dropout=1)
        nnx.split_rngs(theirs, splits=(2, 3), only="params")
        split_rngs(ours, splits=(2, 3), only="params")
        nnx.reseed({"a": theirs}, policy=chosen, params=3)
        reseed({"a": ours}, policy=chosen, params=3)
        assert contents(ours) == contents(theirs)
    assert seen[0] == seen[1]
    assert seen[0][0] == ("a", "params")


def test_match_shape_of_a_stream_that_was_not_split(nnx: Any) -> None:
    theirs, ours = nnx.Rngs(0), Rngs(0)
    nnx.reseed(theirs, policy="match_shape", default=3)
    reseed(ours, policy="match_shape", default=3)
    assert contents(ours) == contents(theirs)


def test_a_model_reseeded_as_it_was_made_draws_as_at_first() -> None:
    model = net()
    x = jnp.ones((4, 5))
    fresh = Dropout(0.5, rngs=Rngs(dropout=9))
    first = [fresh(x) for _ in range(2)]
    fresh(x)
    reseed(fresh, dropout=9)
    np.testing.assert_array_equal([fresh(x) for _ in range(2)], first)
    with backup_keys(model):
        reseed(model, dropout=9)
        assert data(model.drops[0].rngs.key.value) == data(jax.random.fold_in(jax.random.key(9), 0))


def test_reseed_as_a_decorator_restores() -> None:
    @reseed(default=3)
    def draw(layer: Dropout) -> Any:
        return layer(jnp.ones(20))

    layer = Dropout(0.5, rngs=Rngs(0))
    layer(jnp.ones(2))
    assert isinstance(layer.rngs, RngStream)
    before = of_stream(layer.rngs)
    np.testing.assert_array_equal(draw(layer), draw(layer))
    assert of_stream(layer.rngs) == before


# ---- backups


def test_backup_keys_outlives_reseeding_and_splits() -> None:
    model = net()
    before = all_of(model)
    backups = backup_keys(model)
    reseed(model, params=4, dropout=5)
    split_rngs(model, splits=3)
    assert all(stream.key.shape == (3,) for stream in streams_of(model))
    restore_rngs(backups)
    assert all_of(model) == before


def test_restoring_never_moves_a_count_back_while_the_key_is_in_place() -> None:
    rngs = Rngs(0)
    backups = [backup_keys(rngs), split_rngs(rngs, splits=2)]
    for backup in backups[::-1]:
        restore_rngs(backup)
    drawn = [rngs() for _ in range(3)]
    for backup in backups:
        restore_rngs(backup)
    assert int(rngs.default.count) == 4
    rngs.default.key.value = jnp.copy(rngs.default.key.value)  # an equal key, as a jitted call gives it back
    restore_rngs(backups[0])
    assert int(rngs.default.count) == 4
    assert len({str(data(key)) for key in [*drawn, rngs()]}) == 4


def test_reseeding_with_the_same_key_repeats_nothing_afterwards() -> None:
    rngs = Rngs(default=jax.random.fold_in(jax.random.key(7), 0))
    drawn = [rngs() for _ in range(3)]
    with backup_keys(rngs):
        reseed(rngs, default=7)  # the key that is there already; counts from 0
        assert data(rngs()) == data(drawn[0])
    assert int(rngs.default.count) == 3
    with backup_keys(rngs):
        reseed(rngs, default=7)
        drawn = [rngs() for _ in range(5)]
    assert int(rngs.default.count) == 5


def test_backups_live_on_when_the_keys_are_donated() -> None:
    rngs = Rngs(0)
    backups = backup_keys(rngs)
    rngs.default.key.value.delete()
    rngs.default.count.value.delete()
    restore_rngs(backups)
    assert contents(rngs) == contents(Rngs(0))
    backups = backup_keys(rngs)
    rngs.default.key.value.delete()
    rngs.default.key.value = jax.random.key(5)
    restore_rngs(backups)
    assert contents(rngs) == contents(Rngs(0))


def test_backup_keys_as_a_decorator() -> None:
    @backup_keys()
    def run(rngs: Rngs) -> None:
        reseed(rngs, params=4, dropout=5)
        raise KeyError("fails")

    rngs = Rngs(params=0, dropout=1)
    with pytest.raises(KeyError, match="fails"):
        run(rngs)
    assert contents(rngs) == contents(Rngs(params=0, dropout=1))


def test_refs_stay_refs() -> None:
    rngs = to_refs(Rngs(0))
    stream = rngs.default
    rngs()
    for change in (lambda: split_rngs(rngs, splits=3), lambda: backup_keys(rngs)):
        with change():
            if stream.key.shape == ():
                reseed(rngs, default=4)
                assert data(stream.key.value) == data(jax.random.fold_in(jax.random.key(4), 0))
        assert is_array_ref(stream.key.raw_value)
        assert is_array_ref(stream.count.raw_value)
        assert of_stream(stream) == ((), data(jax.random.key(0)), 2)


# ---- errors


@pytest.mark.parametrize("size", [-1, 1.5, "3", [2], (2, -1), None, True, (2, True)])
def test_sizes_that_are_none(size: Any) -> None:
    rngs = Rngs(0)
    with pytest.raises(RngError, match="this is not a number of keys or a shape"):
        split_rngs(rngs, splits=size)
    if size is not None:
        for call, option in ((fork_rngs, "split"), (with_rngs, "split"), (with_rngs, "broadcast")):
            with pytest.raises(RngError, match=f"{call.__name__}: this is not a number of keys or a shape"):
                call(rngs, **{option: {"default": size}})
    assert contents(rngs) == contents(Rngs(0))


@pytest.mark.parametrize("splits", [3, (), (1, 1), 0])
def test_squeeze_needs_one_key(splits: Any) -> None:
    with pytest.raises(RngError, match="squeeze removes an axis of one key"):
        split_rngs(Rngs(0), splits=splits, squeeze=True)


def test_flags_that_are_none() -> None:
    for call, flag in ((split_rngs, "squeeze"), (split_rngs, "graph"), (split_rngs, "graph_updates")):
        with pytest.raises(GraphError, match="this is not a valid flag"):
            call(Rngs(0), splits=1, **{flag: 2})


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (split_rngs, {"splits": 2, "only": "dropuot"}),
        (fork_rngs, {"split": {"dropuot": None, ...: None}}),
        (with_rngs, {"fork": "dropuot"}),
        (with_rngs, {"split": {"dropuot": 2}, "fork": ...}),
        (with_rngs, {"fork": ..., "only": "dropuot"}),
    ],
)
def test_a_filter_that_takes_no_stream(call: Any, options: dict[str, Any]) -> None:
    model = net()
    before = all_of(model)
    with pytest.raises(RngError, match="the filter 'dropuot' matches no stream") as caught:
        call(model, **options)
    assert "streams named 'dropout', 'params'" in str(caught.value)
    assert "did you mean 'dropout'?" in str(caught.value)
    assert all_of(model) == before


@pytest.mark.parametrize("node", [None, 3, [jnp.ones(2)], Module(), Param(jnp.ones(2)), state(Rngs(0)), "text", len])
def test_nodes_without_streams(node: Any) -> None:
    for call, options in ((split_rngs, {"splits": 2}), (fork_rngs, {}), (backup_keys, {}), (reseed, {"a": 1})):
        with pytest.raises(RngError, match=r"matches no stream of random numbers[\s\S]*got: +no streams"):
            call(node, **options)


def test_calls_without_streams() -> None:
    @fork_rngs()
    def run(x: int, *, y: int) -> int:
        return x + y

    assert run(1, y=2) == 3


def test_streams_that_are_split_already() -> None:
    rngs = Rngs(params=0, dropout=1)
    split_rngs(rngs, splits=2, only="dropout")
    before = contents(rngs)
    for call, options in ((split_rngs, {"splits": 2}), (fork_rngs, {}), (with_rngs, {"broadcast": 2})):
        with pytest.raises(RngError, match="a stream with an array of keys cannot draw one key") as caught:
            call(rngs, **options)
        assert str(caught.value).startswith("dropout: ")
        assert contents(rngs) == before


def test_filters_that_are_none() -> None:
    for make in (lambda: split_rngs(Rngs(0), splits=2, only=3), lambda: fork_rngs(Rngs(0), split={3: 2})):
        with pytest.raises(FilterError, match="this is not a filter"):
            make()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dropuot": 1}, "the filter 'dropuot' matches no stream"),
        ({"dropout": 1, "x": 2}, "the filter 'x' matches no stream"),
        ({"dropout": 1.5}, "this is not a seed or a key"),
        ({"dropout": jax.random.split(jax.random.key(0), 2)}, "a stream with an array of keys cannot draw one key"),
        ({"dropout": 1, "policy": lambda path, key, shape: jnp.zeros(())}, "gives no keys of the shape of this stream"),
        ({"dropout": 1, "policy": lambda path, key, shape: None}, "gives no keys of the shape of this stream"),
        (
            {"dropout": 1, "policy": lambda path, key, shape: jax.random.split(key, 7)},
            "gives no keys of the shape of this stream",
        ),
    ],
)
def test_errors_of_reseed(options: dict[str, Any], problem: str) -> None:
    model = net()
    before = all_of(model)
    with pytest.raises(RngError, match=problem):
        reseed(model, **options)
    assert all_of(model) == before


def test_reseed_of_a_stream_that_was_split() -> None:
    rngs = Rngs(params=0, dropout=1)
    split_rngs(rngs, splits=2, only="dropout")
    before = contents(rngs)
    with pytest.raises(RngError, match="the policy gives no keys of the shape of this stream"):
        reseed(rngs, params=3, dropout=4)
    assert contents(rngs) == before


# ---- under transforms


def test_under_tracing_streams_of_that_trace_can_be_changed() -> None:
    def run(key: Any) -> Any:
        rngs = Rngs(key)
        with split_rngs(rngs, splits=3):
            graphdef, keys = split(rngs)
            drawn = jax.vmap(lambda keys: merge(graphdef, keys).uniform())(keys)
        with fork_rngs(rngs):
            more = rngs.uniform()
        with backup_keys(rngs):
            reseed(rngs, default=3)
        return drawn, more, with_rngs(rngs, split=2).default.key.value, rngs.default.key.value, rngs.default.count.value

    with jax.checking_leaks():
        traced = jax.jit(run)(jax.random.key(0))
    eager = run(jax.random.key(0))
    for a, b in zip(traced[:2], eager[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert data(traced[2]) == data(eager[2])
    assert data(traced[3]) == data(jax.random.key(0))
    assert int(traced[4]) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda model: split_rngs(model, splits=2),
        fork_rngs,
        lambda model: with_rngs(model, split=2),
        lambda model: reseed(model, dropout=3),
        backup_keys,
    ],
)
def test_under_tracing_outer_streams_cannot(change: Any) -> None:
    model = net()
    before = all_of(model)

    @jax.jit
    def run(x: Any) -> Any:
        change(model)
        return x

    with pytest.raises(TraceContextError, match="was changed from another trace level") as caught:
        run(1.0)
    assert str(caught.value).startswith("drops[0].rngs: ")
    assert all_of(model) == before


def test_backups_cannot_be_restored_under_tracing() -> None:
    rngs = Rngs(params=0, dropout=1)
    backups = split_rngs(rngs, splits=2)
    with pytest.raises(TraceContextError, match="was changed from another trace level"):
        jax.jit(lambda x: (restore_rngs(backups), x)[1])(1.0)
    assert rngs.params.key.shape == (2,)
    restore_rngs(backups)
    assert rngs.params.key.shape == ()


def test_places_in_arguments_read_as_code() -> None:
    @split_rngs(splits=2)
    def run(a: Any, *, b: Any) -> None: ...

    first, second = Rngs(0), Rngs(1)
    split_rngs(second, splits=2)
    with pytest.raises(RngError, match="a stream with an array of keys") as caught:
        run([first], b={"x": second})
    assert str(caught.value).startswith("kwargs.b.x.default: ")
    with pytest.raises(RngError, match="a stream with an array of keys") as caught:
        run([second], b=first)
    assert str(caught.value).startswith("args[0][0].default: ")


def test_each_row_of_a_vmap_drops_out_differently() -> None:
    layer = Dropout(0.5, rngs=Rngs(dropout=0))
    x = jnp.ones((4, 50))
    with split_rngs(layer, splits=4, only="dropout"):
        graphdef, keys, rest = split(layer, RngState, ...)
        masks = jax.vmap(lambda keys, x: merge(graphdef, keys, rest)(x))(keys, x)
    expected = jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0), 4)
    for key, row in zip(expected, masks, strict=True):
        mask = jax.random.bernoulli(jax.random.fold_in(key, 0), 0.5, (50,))
        np.testing.assert_array_equal(row, np.where(mask, 2.0, 0.0))
    assert len({row.tobytes() for row in np.asarray(masks)}) == 4
    assert of_stream(layer.rngs)[::2] == ((), 1)


# ---- properties


@st.composite
def models(draw: Any) -> Any:
    """Nested containers of Rngs, some of them shared."""
    names = st.lists(st.sampled_from(["params", "dropout", "noise"]), min_size=1, unique=True)
    rngs = [Rngs({name: draw(st.integers(0, 99)) for name in draw(names)}) for _ in range(draw(st.integers(1, 3)))]
    tree = st.recursive(
        st.sampled_from(rngs),
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)
            | st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=2)
        ),
    )
    for each in rngs:
        for name in each:
            stream = each[name]
            for _ in range(draw(st.integers(0, 2))):
                stream()
    return draw(tree)


def snapshot(model: Any) -> dict[Any, Any]:
    return {
        path: data(v[...]) if isinstance(v, RngKey) else int(v[...]) for path, v in state(List([model])).flat_state()
    }


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from([1, 2, (2, 2), (), 0]), st.sampled_from(["split", "fork", "reseed", "backup"]))
def test_after_a_context_keys_and_structure_are_as_before(model: Any, size: Any, kind: str) -> None:
    before = snapshot(model)
    graphdef = split(List([model]))[0]
    tags = {entry.stream.tag for entry in backup_keys(model)}
    if kind == "split":
        with split_rngs(model, splits=size):
            inside = {entry.key.shape for entry in backup_keys(model)}
            assert inside == {size if isinstance(size, tuple) else (size,)}
    elif kind == "fork":
        with fork_rngs(model, split={...: size}):
            pass
    else:
        with backup_keys(model):
            reseed(model, **dict.fromkeys(tags, 3))
    draws = 1 if kind in ("split", "fork") else 0
    expected = {path: value + draws if path[-1] == "count" else value for path, value in before.items()}
    assert snapshot(model) == expected
    assert split(List([model]))[0] is graphdef


@settings(max_examples=40, deadline=None)
@given(models(), st.sampled_from([2, (1, 2)]))
def test_in_place_and_in_a_copy_are_the_same_keys(model: Any, size: Any) -> None:
    other = clone(model)
    new = with_rngs(other, split=size)
    with split_rngs(model, splits=size) as backups:
        ours = [data(entry.stream.key.value) for entry in backups]
    assert ours == [data(entry.key) for entry in backup_keys(new)]
    assert snapshot(other) == snapshot(model)


# ---- size, depth, threads


def test_deep_models() -> None:
    deep: Any = Rngs(0)
    for _ in range(2000):
        outer = Module()
        outer.inner = deep
        deep = outer
    with split_rngs(deep, splits=2) as backups:
        assert len(backups) == 1


def test_threads_that_split_and_draw_get_no_key_twice() -> None:
    rngs = [Rngs(i) for i in range(4)]
    shared = Rngs(9)
    found: list[Any] = []

    def run(own: Rngs) -> None:
        for _ in range(5):
            with split_rngs(own, splits=2):
                found.extend(map(str, data(own.default.key.value)))
            found.append(str(data(with_rngs(shared, fork=...).default.key.value)))

    threads = [threading.Thread(target=run, args=(own,)) for own in rngs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 60
    assert int(shared.default.count) == 20


def test_copies_of_a_model_are_left_alone() -> None:
    model = net()
    other = copy.deepcopy(model)
    with split_rngs(model, splits=2):
        assert not any(stream.key.shape for stream in streams_of(other))


def test_reseed_for_a_block() -> None:
    rngs = Rngs(params=0, dropout=1)
    rngs.dropout()
    before = contents(rngs)
    with reseed(rngs, dropout=7) as backups:
        assert [entry.stream.label for entry in backups] == ["dropout"]
        inside = contents(rngs)
        assert {name for name in inside if inside[name] != before[name]} == {"dropout"}
        rngs.dropout()
    assert contents(rngs) == before
    with pytest.raises(ZeroDivisionError), reseed(rngs, dropout=7):
        raise ZeroDivisionError
    assert contents(rngs) == before
    backups = reseed(rngs, dropout=7)
    restore_rngs(backups)
    assert contents(rngs) == before
