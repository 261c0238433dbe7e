"""Several processes that make one run: the first one keeps the folder, and tells the others which it is."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from declax.config._cli.output import usage_error

_PROCESSES: Final = "DECLAX_PROCESSES"
"""The variable with the number of processes that `declax.launch` has started."""

_SIZE: Final = 4096  # bytes: longer paths do not exist


class Team(NamedTuple):
    """The processes of a program.

    Attributes:
      number: of this one, from 0.
      size: how many there are.
    """

    number: int
    size: int


def team_of_process() -> Team:
    """The processes that are connected to this one.

    Raises:
      DeclaxError: there are others, but they are not connected yet, so that each would make a run of its own.
    """
    if jax.distributed.is_initialized():
        return Team(jax.process_index(), jax.process_count())
    count = os.environ.get(_PROCESSES, "1")
    if count != "1":
        problem = "these processes make one run, and are not connected yet"
        raise usage_error(problem, got=f"{count} processes", fix="dx.launch.initialize()        # before dx.cli")
    return Team(0, 1)


def agreed(text: str) -> str:
    """The text of the first process, in all of them; each has to call this."""
    content = text.encode()[:_SIZE]
    sent = np.zeros(_SIZE, np.uint8)
    sent[: len(content)] = np.frombuffer(content, np.uint8)
    multihost_utils: Any = importlib.import_module("jax.experimental.multihost_utils")
    found = np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8)
    return found.tobytes().rstrip(b"\0").decode()
