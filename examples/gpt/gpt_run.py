"""The settings of a run, which `dx.cli` reads from a file and the command line."""

from __future__ import annotations

import dataclasses

import optax

import declax as dx
from gpt import GPT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the model is trained, and what counts as success."""

    seed: int = dx.static(default=0, help="of the parameters, the dropout, the windows and the sample")
    steps: int = dx.static(default=400, ge=1)
    batch_size: int = dx.static(default=8, ge=1)
    length: int = dx.static(default=160, ge=2, help="characters of a window")
    required_loss: float = dx.static(default=1.5, help="the largest loss on held-out text, in nats a character")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The text that the trained model continues."""

    prompt: str = "The statement "
    count: int = dx.static(default=140, ge=1, help="characters that are added")
    temperature: float = dx.static(default=0.8, ge=0.01)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run: a model, how it is trained, and what it then writes.

    Attributes:
      model: the model, which is built with the seed of the training.
      optimizer: a transformation of optax, with its schedule.
    """

    model: dx.Spec[GPT]
    optimizer: optax.GradientTransformation
    training: Training = dataclasses.field(default_factory=Training)
    sample: Sample = dataclasses.field(default_factory=Sample)
