"""Draws that are said to be the same in every row."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from declax._filters import PathContains
from declax._random.changes import broadcast_rngs, is_broadcast_allowed
from declax._random.streams import RngStream
from declax._variables.kinds import RngCount
from declax.errors import FilterError

COUNT = RngStream(0, "dropout").count
PATH = ("encoder", "rngs", "count")


def is_meant(path: Any = PATH, variable: Any = COUNT) -> bool:
    return is_broadcast_allowed(path, variable)


def test_nothing_is_meant_by_default() -> None:
    assert not is_meant()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), True),
        (("dropout",), True),
        (("noise",), False),
        (("noise", "dropout"), True),
        ((RngCount,), True),
        ((PathContains("encoder"),), True),
        ((PathContains("decoder"),), False),
        ((False,), False),
    ],
)
def test_filters_say_what_is_meant(filters: Any, expected: bool) -> None:
    with broadcast_rngs(*filters):
        assert is_meant() is expected
    assert not is_meant()

    @broadcast_rngs(*filters)
    def run(say: bool, *, fails: bool = False) -> bool:
        """Documented."""
        if fails:
            raise KeyError("fails")
        return say and is_meant()

    assert run(True) is expected
    assert run.__doc__ == "Documented."
    with pytest.raises(KeyError, match="fails"):
        run(True, fails=True)
    assert not is_meant()


def test_blocks_add_up_and_end_one_by_one() -> None:
    drop = broadcast_rngs("dropout")
    with broadcast_rngs("noise"):
        with drop, drop:  # one object, twice
            assert is_meant()
        assert not is_meant()
        with drop:
            assert is_meant(variable=RngStream(0, "noise").count)
        assert is_meant(variable=RngStream(0, "noise").count)
    assert not is_meant(variable=RngStream(0, "noise").count)


def test_an_error_ends_a_block() -> None:
    with pytest.raises(KeyError, match="fails"), broadcast_rngs():
        raise KeyError("fails")
    assert not is_meant()


def test_methods() -> None:
    class Model:
        @broadcast_rngs("dropout")
        def run(self, x: int) -> tuple[Any, int, bool]:
            return self, x, is_meant()

    model = Model()
    assert model.run(2) == (model, 2, True)


def test_it_holds_in_its_thread_only() -> None:
    seen: list[bool] = []
    with broadcast_rngs():
        thread = threading.Thread(target=lambda: seen.append(is_meant()))
        thread.start()
        thread.join()
        assert is_meant()
    assert seen == [False]


def test_what_is_no_filter() -> None:
    with pytest.raises(FilterError, match="this is not a filter"):
        broadcast_rngs(3)
