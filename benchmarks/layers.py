"""Measures models of declax's layers beside the same models of the peer: ``python -m benchmarks.layers --help``.

The GPT and the ResNet-18 are those of docs/two_styles.md, each in the style of its library. Both libraries run the
same training step. All figures are over the peer, which must be installed.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import styles
from benchmarks.core import run
from benchmarks.figures import OURS, PEER, Count, Figure
from benchmarks.harness import Batch, Effort, Samples, compare, interleave
from benchmarks.systems import wait_for

LIBRARIES: Mapping[str, str] = {OURS: "declax", PEER: "flax.nnx"}
CONSTRUCTED = (256, 16, 256, 4, 12)
"""The arguments of the GPT whose construction is measured."""


@dataclass(frozen=True)
class Size:
    """A model and its input.

    Attributes:
        title: what the table calls it.
        bar: what a step may take, over that of the peer.
        make: makes the model of a library.
        x: the input.
    """

    title: str
    bar: float
    make: Callable[[Any], Any]
    x: jax.Array


def _class_of_the_page(title: str, name: str, library: Any) -> Any:
    """A class of docs/two_styles.md, as a library writes it."""
    program = next(p for p in styles.programs(title) if p.library == library.__name__)
    return program.run()[name]


def _of_the_page(title: str, name: str, *arguments: int) -> Callable[[Any], Any]:
    return lambda library: _class_of_the_page(title, name, library)(*arguments, rngs=library.Rngs(0))


def _lstm(width: int) -> Callable[[Any], Any]:
    """A text classifier, whose program both libraries run."""

    def make(library: Any) -> Any:
        class Classifier(library.Module):  # type: ignore[misc]  # the library is an argument, so its base is unknown
            def __init__(self, rngs: Any) -> None:
                self.embed = library.Embed(128, width, rngs=rngs)
                self.rnn = library.RNN(library.LSTMCell(width, width, rngs=rngs))
                self.head = library.Linear(width, 4, rngs=rngs)

            def __call__(self, tokens: jax.Array) -> Any:
                return self.head(self.rnn(self.embed(tokens)).mean(axis=1))

        return Classifier(library.Rngs(0))

    return make


def _tokens(batch: int, length: int) -> jax.Array:
    return jax.random.randint(jax.random.key(0), (batch, length), 0, 64)


def _images(batch: int, size: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (batch, size, size, 3))


def _gpt(width: int, depth: int) -> Callable[[Any], Any]:
    return _of_the_page("A GPT", "GPT", 64, 64, width, 4, depth)


def _resnet(width: int) -> Callable[[Any], Any]:
    return _of_the_page("A ResNet-18", "ResNet18", 10, width)


SIZES = (
    Size("GPT, width 16", 1.0, _gpt(16, 4), _tokens(8, 32)),
    Size("GPT, width 256", 1.02, _gpt(256, 4), _tokens(8, 64)),
    Size("ResNet-18, width 16", 1.0, _resnet(16), _images(4, 32)),
    Size("ResNet-18, width 64", 1.02, _resnet(64), _images(4, 64)),
    Size("LSTM, width 16", 1.0, _lstm(16), _tokens(8, 32)),
    Size("LSTM, width 256", 1.02, _lstm(256), _tokens(16, 32)),
)


# ================================================================= a forward pass and a training step


def _forward(model: Any, x: jax.Array) -> Any:
    return model(x)


def _step(library: Any, model: Any, optimizer: Any, x: jax.Array) -> Any:
    loss, grads = library.value_and_grad(lambda model: jnp.square(model(x)).mean())(model)
    optimizer.update(model, grads)
    return loss


def _forward_of(library: Any, size: Size) -> tuple[Any, tuple[Any, ...]]:
    """The compiled forward pass of evaluation, and its arguments."""
    model = size.make(library)
    model.eval()
    return library.jit(_forward), (model, size.x)


def _step_of(library: Any, size: Size) -> tuple[Any, tuple[Any, ...]]:
    """The compiled training step, and its arguments."""
    model = size.make(library)
    optimizer = library.Optimizer(model, optax.adam(1e-3), wrt=library.Param)
    return library.jit(partial(_step, library)), (model, optimizer, size.x)


Program = Callable[[Any, Size], tuple[Any, tuple[Any, ...]]]


def _calls(program: Program, size: Size, _: object, effort: Effort) -> Samples:
    def batch_of(package: str) -> Batch:
        function, arguments = program(importlib.import_module(package), size)

        def batch(n: int) -> None:
            for _ in range(n - 1):
                function(*arguments)
            wait_for(function(*arguments))

        return batch

    return compare({name: batch_of(package) for name, package in LIBRARIES.items()}, effort)


def _memory(size: Size) -> float:
    """The peak memory of a training step over that of the peer, as XLA plans both.

    To two digits: equal programs whose leaves come in another order differ in the third, by how XLA packs them.
    """
    peaks = []
    for package in LIBRARIES.values():
        function, arguments = _step_of(importlib.import_module(package), size)
        plan = function.lower(*arguments).compile().memory_analysis()
        peaks.append(
            plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
        )
    return float(round(peaks[0] / peaks[1], 2))


# ================================================================= construction and compilation


def _cold(_: object, effort: Effort) -> Samples:
    """The first construction in a process, with XLA's compilations and without the import of the library."""

    def sample(package: str) -> float:
        command = [sys.executable, "-c", f"from benchmarks import layers; print(layers.constructs({package!r}))"]
        return float(subprocess.check_output(command, text=True).split()[-1])

    return interleave({name: partial(sample, package) for name, package in LIBRARIES.items()}, min(effort.rounds, 9))


def constructs(package: str) -> int:
    """How many nanoseconds the construction of a GPT of 12 blocks takes, its classes not included."""
    library = importlib.import_module(package)
    cls = _class_of_the_page("A GPT", "GPT", library)
    library.Rngs(0).params()  # JAX sets itself up
    start = time.perf_counter_ns()
    wait_for(jax.tree.leaves(cls(*CONSTRUCTED, rngs=library.Rngs(0))))
    return time.perf_counter_ns() - start


def _stacked(_: object, effort: Effort) -> Samples:
    """Compiling a forward pass of 48 stacked blocks, over one of 4."""
    dx = importlib.import_module("declax")
    block = styles.programs("A GPT")[0].run()["DecoderBlock"]
    x = jnp.ones((4, 16, 64))

    def sample(depth: int) -> float:
        blocks = dx.Stacked(lambda rngs: block(64, 4, rngs=rngs), depth, rngs=dx.Rngs(0))
        start = time.perf_counter_ns()
        dx.jit(lambda blocks, x: blocks(x)).lower(blocks, x).compile()
        return float(time.perf_counter_ns() - start)

    return interleave({OURS: partial(sample, 48), "4 blocks": partial(sample, 4)}, min(effort.rounds, 9))


FIGURES = (
    *(Figure("forward", f"forward pass, {s.title}", PEER, partial(_calls, _forward_of, s), s.bar) for s in SIZES),
    *(Figure("step", f"training step, {s.title}", PEER, partial(_calls, _step_of, s), s.bar) for s in SIZES),
    Figure("construction", "first construction of a GPT of 12 blocks in a process", PEER, _cold, bar=1.0),
    Figure("stacked", "compiling 48 stacked blocks", "4 blocks", _stacked, bar=1.3),
)
COUNTS = tuple(Count("memory", f"peak memory of a step, {s.title}", partial(_memory, s), bar=1.0) for s in SIZES)


def main(words: Any = None) -> int:
    """Measures models of layers, prints, and returns the exit status."""
    return run(FIGURES, "layers", "The layers, measured", __doc__, words, COUNTS)


if __name__ == "__main__":
    sys.exit(main())
