"""Measures the cost of the mypy plugin: ``python -m benchmarks.typing_cost --help``.

mypy checks a generated file of 3,000 lines of models and training in fresh processes, in turns: with the plugin, with a
plugin that does nothing, and without one. Other modules come from mypy's cache, as after an edit of one file. The
figures compare processor time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks import report
from benchmarks.harness import Sampler, Samples, Spread, interleave, ratio

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WITHOUT, EMPTY, WITH = "mypy", "mypy with an empty plugin", "mypy with the plugin"
BAR = 1.15
LINES = 3000

NOTHING = """\
from mypy.plugin import Plugin


class Empty(Plugin):
    pass


def plugin(version):
    return Empty
"""

OPENING = '''\
"""Models, losses and training steps, written by benchmarks/typing_cost.py."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

import declax as dx
'''

PART = '''

@dx.dataclass
class Block{n}(dx.Layer):
    """A block with a bias that can be left out."""

    dim: int = dx.field()
    hidden: int = dx.field()
    _: dx.KW_ONLY
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    use_shift: bool = dx.field(default=True)
    tags: tuple[str, ...] = dx.static(default=())
    offset: jax.Array | None = dx.data(default=None)
    up: dx.Linear = dx.Linear(dim, hidden)
    down: dx.Linear = dx.Linear(hidden, dim)
    norm: dx.LayerNorm = dx.LayerNorm(dim)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    shift: dx.Param[jax.Array] | None = dx.variable((dim,), initializer=dx.initializers.zeros, when=use_shift)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.down(self.activation(self.up(self.norm(x))))
        return x + self.scale * y if self.shift is None else x + self.scale * y + self.shift


def loss_{n}(model: Block{n}, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(x)
    return jnp.mean((logits - y) ** 2), logits


@dx.jit(static_argnames=("verbose",))
def step_{n}(model: Block{n}, optimizer: dx.Optimizer[Block{n}], x: jax.Array, verbose: bool = False) -> jax.Array:
    (loss, _), grads = dx.value_and_grad(loss_{n}, has_aux=True)(model, x, x)
    optimizer.update(model, grads)
    return loss


def train_{n}(x: jax.Array) -> jax.Array:
    model = Block{n}(4, 8, use_shift=False, rngs=dx.Rngs({n}))
    optimizer = dx.Optimizer(model, optax.adam(1e-3), wrt=dx.Param)
    for _ in range(3):
        step_{n}(model, optimizer, x, verbose=True)
    graphdef, params, rest = dx.split(model, dx.Param, ...)
    merged = dx.merge(graphdef, params, rest)
    wider = dx.replace(model, hidden=16, rngs=dx.Rngs(0))
    chain = dx.Sequential(dx.Linear(4, 8, rngs=dx.Rngs(0)), dx.relu, dx.Linear(8, 4, rngs=dx.Rngs(1)))
    outputs = dx.vmap(lambda model, x: model(x), in_axes=(None, 0))(wider, x)
    result: jax.Array = outputs + merged(x) + chain(x) + params.up.kernel.value.sum()
    return result
'''


def model_file() -> str:
    """The text that is checked: the same part with other names, until there are enough lines."""
    text, number = OPENING, 0
    while text.count("\n") < LINES:
        text += PART.format(n=number)
        number += 1
    return text


def checker(folder: Path, name: str) -> Callable[[], None]:
    """A function that runs mypy over the file in a folder, which it changes first, so that all of it is checked."""
    plugins = {WITH: "plugins = declax.mypy_plugin\n", EMPTY: "plugins = empty.py\n"}.get(name, "")
    # declax itself is checked as an installed package is: for its types, and in silence.
    silent = "[mypy-declax.*]\nfollow_imports = silent\n"
    config = f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'src'}:{ROOT / 'stubs'}\n{plugins}{silent}"
    (folder / "mypy.ini").write_text(config, encoding="utf-8")
    (folder / "empty.py").write_text(NOTHING, encoding="utf-8")
    text, runs, env = model_file(), itertools.count(), environment(folder)

    def check() -> None:
        # mypy takes a file of the same size and second for the same file
        (folder / "models.py").write_text(f"{text}\n#{'.' * (next(runs) % 99)}\n", encoding="utf-8")
        words = [sys.executable, "-m", "mypy", "models.py"]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} rejects the file:\n{done.stdout}{done.stderr}")

    return check


def environment(folder: Path) -> dict[str, str]:
    """Where mypy finds the plugin, and its bytecode, which is there for a package that is installed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def timed(work: Callable[[], None]) -> Sampler:
    """Nanoseconds that the processor works for the processes that `work` starts; what else runs hardly adds to it."""

    def sample() -> float:
        before = worked()
        work()
        return 1e9 * (worked() - before)

    return sample


def worked() -> float:
    """Seconds that the processor has worked for all processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(rounds: int) -> Samples:
    """Nanoseconds of all, in alternating rounds; the first run of each fills its cache and does not count."""
    with tempfile.TemporaryDirectory() as name:
        samplers = {}
        for subject in (WITHOUT, EMPTY, WITH):
            folder = Path(name) / subject.replace(" ", "_")
            folder.mkdir()
            check = checker(folder, subject)
            check()
            samplers[subject] = timed(check)
        return interleave(samplers, rounds)


def page(samples: Samples) -> str:
    """The table, with the medians of the ratios and the quartiles behind them."""
    lines = ["| what | mypy | with it | ratio | bar |", "| --- | --- | --- | --- | --- |"]
    spread = ratio(samples, WITH, WITHOUT)
    lines.append(row("the plugin", samples, WITH, f"{BAR:g}: {'met' if spread.median <= BAR else 'MISSED'}"))
    lines.append(row("a plugin that does nothing", samples, EMPTY, ""))
    return "\n".join(lines)


def row(what: str, samples: Samples, subject: str, bar: str) -> str:
    """One line of the table."""
    spread = ratio(samples, subject, WITHOUT)
    times = [report.duration(Spread.of(samples[name]).median) for name in (WITHOUT, subject)]
    count = model_file().count("\n")
    shown = f"**{spread.median:.3g}** ({spread.low:.3g} to {spread.high:.3g})"
    return f"| {what}, a changed file of {count} lines | {times[0]} | {times[1]} | {shown} | {bar} |"


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typing_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/typing.md")
    parser.add_argument("--check", action="store_true", help="fail where the bar is missed")
    chosen = parser.parse_args(words)
    samples = measure(5 if chosen.quick else 15)
    table = page(samples)
    print(table)
    if chosen.write:
        made = (
            f"One run of `python -m benchmarks.typing_cost --write` with mypy {version('mypy')} on {report.machine()}."
        )
        parts = [
            "# What the mypy plugin costs",
            made,
            table,
            "[The README](../README.md) describes the line.",
        ]
        (RESULTS / "typing.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return int(chosen.check and ratio(samples, WITH, WITHOUT).median > BAR)


if __name__ == "__main__":
    sys.exit(main())
