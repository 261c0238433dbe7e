"""What is asked of Python about threads."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np

from declax._threads import is_alone


def test_a_thread_counts_from_its_start_to_its_end():
    before = threading.active_count()
    was_alone = is_alone()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    assert is_alone() == was_alone, "a thread that is not started counts"
    thread.start()
    assert not is_alone()
    stop.set()
    thread.join()
    for _ in range(1000):  # it is joined a moment before it is counted out
        if is_alone() == was_alone:
            break
        threading.Event().wait(0.001)
    assert is_alone() == was_alone
    assert threading.active_count() == before


def test_inside_of_a_thread_it_is_not_alone():
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(is_alone()))
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_callback_of_jax_that_asks_who_it_is_leaves_nobody_behind():
    was_alone = is_alone()

    def who(x: np.ndarray) -> np.ndarray:
        threading.current_thread()
        return x

    for n in range(3):
        jax.jit(lambda x, n=n: jax.pure_callback(who, x, x) + n)(jnp.ones(64)).block_until_ready()
    assert is_alone() == was_alone
