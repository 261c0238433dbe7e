"""`summary`: right counts and bytes by module and kind, and a table that reads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._displays.summarizing import Summary
from declax.errors import GraphError


class Scale(dx.Module):
    def __init__(self, size: int, dtype: object = jnp.float32) -> None:
        self.weight = dx.Param(jnp.ones((size,), dtype))


class Net(dx.Module):
    def __init__(self) -> None:
        self.inner = dx.List([Scale(3), Scale(4, jnp.bfloat16)])
        self.mean = dx.BatchStat(jnp.zeros((2, 2)))
        self.table = dx.data([dx.Param(jnp.ones(5, jnp.int8))])
        self.raw = jnp.ones((), jnp.complex64)


def test_counts_and_bytes_by_kind() -> None:
    found = dx.summary(Net())
    assert isinstance(found, Summary)
    assert found.kinds == ("Param", "BatchStat", "array")
    assert found.count("Param") == 3 + 4 + 5
    assert found.nbytes("Param") == 3 * 4 + 4 * 2 + 5
    assert found.count("BatchStat") == 4
    assert found.nbytes("BatchStat") == 16
    assert found.count() == 12 + 4 + 1
    assert found.nbytes() == 25 + 16 + 8
    assert found.count("Cache") == 0


def test_rows_are_modules_and_entries_what_they_hold_themselves() -> None:
    rows = {row.path: row for row in dx.summary(Net()).rows}
    assert set(rows) == {(), ("inner", 0), ("inner", 1)}
    assert rows[()].module == "Net"
    assert [str(entry) for entry in rows[()].entries] == ["mean f32[2,2]", "raw c64[]", "table[0] i8[5]"]
    assert [str(entry) for entry in rows["inner", 1].entries] == ["weight bf16[4]"]


def test_the_table() -> None:
    assert str(dx.summary(Net())) == (
        "module    class  holds                                         Param  BatchStat    array\n"
        "--------  -----  ----------------------------------------  ---------  ---------  -------\n"
        "inner[0]  Scale  weight f32[3]                              3 (12 B)\n"
        "inner[1]  Scale  weight bf16[4]                              4 (8 B)\n"
        "(root)    Net    mean f32[2,2], raw c64[], table[0] i8[5]    5 (5 B)   4 (16 B)  1 (8 B)\n"
        "--------  -----  ----------------------------------------  ---------  ---------  -------\n"
        "total                                                      12 (25 B)   4 (16 B)  1 (8 B)"
    )
    assert repr(dx.summary(Net())) == "Summary(3 modules, 17 elements, 49 B)"


def test_shared_variables_count_once() -> None:
    class Tied(dx.Module):
        def __init__(self) -> None:
            self.left = Scale(3)
            self.right = self.left
            self.again = self.left.weight

    found = dx.summary(Tied())
    assert found.count() == 3


def test_abstract_models_random_keys_and_trees_in_variables() -> None:
    class Sown(dx.Module):
        def __init__(self) -> None:
            self.key = dx.Variable(jax.random.key(0))
            self.seen = dx.Intermediate((jnp.ones(2), jnp.ones(3)))
            self.shape = dx.Param(jax.ShapeDtypeStruct((100, 100), jnp.float32))

    found = dx.summary(Sown())
    assert found.nbytes("Param") == 40_000
    assert [str(entry) for entry in found.entries] == [
        "key key<fry>[]",
        "seen[0] f32[2]",
        "seen[1] f32[3]",
        "shape f32[100,100]",
    ]


def test_many_entries_are_clipped_and_an_empty_model_has_only_a_total() -> None:
    class Wide(dx.Module):
        def __init__(self) -> None:
            self.parts = dx.data([dx.Param(jnp.ones(1)) for _ in range(30)])

    assert "parts[0] f32[1], parts[1] f32[1], parts[2] f32[1], parts[...  30 (120 B)" in str(dx.summary(Wide()))
    assert str(dx.summary(dx.Module())).splitlines()[-1] == "total"


@pytest.mark.parametrize("value", [3, None, "model", Net])
def test_what_is_not_a_model_is_refused(value: Any) -> None:
    with pytest.raises(
        GraphError, match=r"summary\.model: this is not a model(?s:.)*Module, or a container of modules"
    ):
        dx.summary(value)


@pytest.mark.parametrize("depth", [-1, "1", True])
def test_a_depth_is_a_length(depth: Any) -> None:
    for display in (dx.summary, dx.tabulate):
        with pytest.raises(GraphError, match=rf"{display.__name__}\.depth: this is not the length of a path(?s:.)*0"):
            display(Net(), depth=depth)
