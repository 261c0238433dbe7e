"""A right program: what is done to random streams keeps its types, on objects, as context and as decorator."""

from __future__ import annotations

from typing import assert_type

import jax

import declax as dx


class Model(dx.Module):
    def __init__(self) -> None:
        self.rngs = dx.Rngs(0, dropout=1, params=2)

    @dx.split_rngs(splits=2)
    def split_streams(self, x: int, *, y: str = "a") -> float:
        return float(self.rngs.params.key.shape[0])

    @dx.fork_rngs(split=3)
    def fork(self, x: int) -> float:
        return 1.0

    @dx.with_rngs(fork=...)
    def on_copies(self, x: int) -> float:
        return 1.0

    @dx.reseed(dropout=1)
    def reseeded(self, x: int) -> float:
        return 1.0

    @dx.backup_keys()
    def backed_up(self, x: int) -> float:
        return 1.0

    @dx.broadcast_rngs("dropout")
    def broadcast(self, x: int) -> float:
        return 1.0


def methods_keep_their_types(model: Model) -> None:
    assert_type(model.split_streams(1, y="b"), float)
    assert_type(model.fork(1), float)
    assert_type(model.on_copies(1), float)
    assert_type(model.reseeded(1), float)
    assert_type(model.backed_up(1), float)
    assert_type(model.broadcast(1), float)


def functions_keep_their_types() -> None:
    assert_type(dx.split_rngs(dx.Rngs(0), splits=3), dx.RngBackups)
    assert_type(dx.split_rngs(dx.Rngs(0), splits=3, graph_updates=False), dx.Rngs)
    assert_type(dx.split_rngs(dx.Rngs(0), splits=3, graph=False), dx.Rngs)
    rngs = dx.Rngs(0, params=1)
    assert_type(dx.with_rngs(rngs, split={"params": 3, ...: None}), dx.Rngs)
    assert_type(dx.with_rngs([rngs], fork=["params", "default"]), list[dx.Rngs])
    assert_type(dx.fork_rngs(dx.Rngs(0)), dx.RngBackups)
    assert_type(dx.fork_rngs(rngs, split={dx.RngKey: None}, graph=False), dx.Rngs)
    backups = dx.backup_keys(rngs)
    assert_type(backups, dx.RngBackups)
    dx.restore_rngs(backups)
    dx.reseed(rngs, params=3, policy="match_shape")
    with dx.split_rngs(rngs, splits=2) as kept:
        assert_type(kept, dx.RngBackups)


def streams_draw_arrays(rngs: dx.Rngs) -> None:
    assert_type(rngs(), jax.Array)
    assert_type(rngs.dropout, dx.RngStream)
    assert_type(rngs["dropout"], dx.RngStream)
    assert_type(rngs.normal((2, 3)), jax.Array)
    assert_type(rngs.params.uniform((2,), minval=-1.0), jax.Array)
    assert_type(rngs.lecun_normal()((2, 3)), jax.Array)
    assert_type(rngs.fork(), dx.Rngs)
