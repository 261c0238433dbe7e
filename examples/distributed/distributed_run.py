"""The settings of a run, which `dx.cli` reads from a file and the command line."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import declax as dx

sys.path.append(str(Path(__file__).parents[1] / "gpt"))  # the model, and its training step
from gpt import GPT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run: a model that one process trains, and then several.

    Attributes:
      model: the model, which is built with the seed.
    """

    model: dx.Spec[GPT]
    processes: int = dx.static(default=2, ge=1)
    devices: int = dx.static(default=1, ge=1, help="of each process")
    learning_rate: float = dx.static(default=4e-3, ge=0)
    seed: int = dx.static(default=0, help="of the parameters, the dropout and the windows")
    steps: int = dx.static(default=30, ge=1)
    batch_size: int = dx.static(default=8, ge=1, help="of all devices together, which divide it")
    length: int = dx.static(default=64, ge=2, help="characters of a window")
    seconds: float = dx.static(default=300, ge=1, help="the time after which processes are ended")
    allowed_difference: float = dx.static(default=1e-3, ge=0, help="of the losses, in nats, at any step")
