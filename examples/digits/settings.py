"""The settings of a run, which `dx.cli` reads from a file and the command line, and checks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import optax

import declax as dx
from model import CNN, MLP, Mixer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """How the images are split and moved about."""

    seed: int = 0
    test_fraction: float = dx.static(default=0.2, ge=0.05, le=0.95, help="the share that is kept for the test")
    shift: int = dx.static(default=1, ge=0, help="training images move by up to this many pixels")
    examples: int = dx.static(default=1797, ge=100, le=1797, help="use only so many images")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the network is trained, and what counts as success."""

    seed: int = dx.static(default=0, help="of the parameters, the dropout and the order of the images")
    epochs: int = dx.static(default=25, ge=1)
    batch_size: int = dx.static(default=64, ge=1)
    required_accuracy: float = dx.static(default=0.97, ge=0, help="the least share of right test digits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run: a network, and how it is trained.

    Attributes:
      model: the network, which is built with the seed of the training.
      optimizer: a transformation of optax, with its schedule. An epoch has 22 steps unless `data` says otherwise.
      out: the picture that is written; by default out/digits.png next to the script.
    """

    model: dx.Spec[CNN | MLP | Mixer]
    optimizer: optax.GradientTransformation
    data: Data = dataclasses.field(default_factory=Data)
    training: Training = dataclasses.field(default_factory=Training)
    out: Path | None = None
