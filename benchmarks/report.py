"""Reports of outcomes: a table in Markdown, and a plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import FLOOR, OURS, Count, Outcome
from benchmarks.harness import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"declax": "#1a73e8", "flax nnx": "#e8710a", "flax nnx, tuned": "#f4b183", "equinox": "#188038"}


def table(outcomes: Sequence[Outcome], names: Sequence[str]) -> str:
    """One line a figure: what each system takes over the reference, its time, and the bar.

    The number is the median over the rounds; the quartiles are behind it.
    """
    if not outcomes:
        return ""
    compared = [name for name in names if name != FLOOR]
    lines = [f"| what | over | {' | '.join(compared)} | bar |", "| --- " * (len(compared) + 3) + "|"]
    for outcome in outcomes:
        figure = outcome.figure
        over = figure.over
        if over in outcome.samples:
            over += f" ({duration(Spread.of(outcome.samples[over]).median)})"
        cells = [_cell(outcome, name) for name in compared]
        lines.append(f"| {figure.title} | {over} | {' | '.join(cells)} | {_bar(outcome)} |")
    return "\n".join(lines)


def counted(counts: Mapping[Count, float]) -> str:
    """One line for each number that was counted, with its bar."""
    if not counts:
        return ""
    rows = [
        f"| {count.title} | **{number:.3g}** | {count.bar:g}: {'met' if number <= count.bar else 'MISSED'} |"
        for count, number in counts.items()
    ]
    return "\n".join(["| counted | number | bar |", "| --- | --- | --- |", *rows])


def _cell(outcome: Outcome, name: str) -> str:
    if name not in outcome.samples:
        return ""
    time = duration(Spread.of(outcome.samples[name]).median)
    spread = outcome.compared(name)
    if spread is None or name == outcome.figure.over:
        return time
    if unit := outcome.figure.unit:
        return f"{spread.median:.3g} {unit} ({spread.low:.3g} to {spread.high:.3g})"
    number = f"**{spread.median:.3g}**" if name == OURS else f"{spread.median:.3g}"
    return f"{number} ({spread.low:.3g} to {spread.high:.3g}), {time}"


def _bar(outcome: Outcome) -> str:
    bar = outcome.figure.bar
    if bar is None:
        return ""
    verdict = {True: "met", False: "MISSED", None: "not measured"}[outcome.met]
    return f"{bar:g}{f' {outcome.figure.unit}' if outcome.figure.unit else ''}: {verdict}"


def duration(nanoseconds: float) -> str:
    """Three digits, with a suitable unit."""
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if nanoseconds < limit:
            return f"{nanoseconds / limit * 1e3:.3g} {unit}"
    return f"{nanoseconds / 1e9:.3g} s"


def added(outcomes: Sequence[Outcome]) -> str:
    """The microseconds that `jit` of declax adds to a call of raw `jax.jit`."""
    lines = []
    for outcome in outcomes:
        if outcome.figure.group == "jit" and OURS in outcome.samples:
            extra = [mine - floor for mine, floor in zip(outcome.samples[OURS], outcome.samples[FLOOR], strict=True)]
            lines.append(f"- {outcome.figure.title}: declax adds {Spread.of(extra).median / 1e3:.1f} µs to a call.")
    return "\n".join(lines)


def machine() -> str:
    """The machine and the versions of the libraries."""
    packages = []
    for package in ("jax", "flax", "equinox"):
        try:
            packages.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {', '.join(packages)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def write_table(path: Path, title: str, tables: Sequence[str], skipped: Mapping[str, str]) -> None:
    """Writes the page that the README of this folder explains."""
    parts = [f"# {title}", f"One run of `python -m benchmarks.{path.stem} --write` on {machine()}."]
    parts += tables
    parts += [f"Not measured: {name} ({why})." for name, why in skipped.items()]
    parts.append(f"[The README](../README.md) describes each line.\n\n![The same numbers]({path.stem}.png)")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def plot(path: Path, outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """Writes a panel of ratios, on a logarithmic axis, and one for each unit, with the bars as black strokes."""
    import matplotlib as mpl  # an extra, which only the plot needs

    mpl.use("agg")
    from matplotlib import pyplot as plt

    units = dict.fromkeys((None, *(outcome.figure.unit for outcome in outcomes)))
    panels = [[outcome for outcome in outcomes if outcome.figure.unit == unit] for unit in units]
    panels = [panel for panel in panels if panel]
    heights = [len(panel) + 0.6 for panel in panels]
    figure, axes = plt.subplots(
        len(panels),
        squeeze=False,
        figsize=(9, 1.2 + 0.62 * len(outcomes)),
        height_ratios=heights,
        layout="constrained",
    )
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        _draw(axis, panel, [name for name in names if name != FLOOR])
    axes[0, 0].legend(loc="lower right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(axis: Axes, panel: Sequence[Outcome], names: Sequence[str]) -> None:
    """Fills one panel: a group of bars for each figure, one bar for each system that has the figure."""
    thickness = 0.8 / len(names)
    for place, name in enumerate(names):
        shown = [(row, outcome.compared(name)) for row, outcome in enumerate(panel) if outcome.figure.over != name]
        spreads = [(row - 0.4 + (place + 0.5) * thickness, spread) for row, spread in shown if spread]
        if spreads:
            axis.barh(
                [at for at, _ in spreads],
                [spread.median for _, spread in spreads],
                thickness,
                xerr=[[s.median - s.low for _, s in spreads], [s.high - s.median for _, s in spreads]],
                error_kw={"linewidth": 0.8},
                color=COLORS.get(name),
                label=name,
            )
    for row, outcome in enumerate(panel):
        if outcome.figure.bar is not None:
            axis.plot([outcome.figure.bar] * 2, [row - 0.45, row + 0.45], color="black", linewidth=2)
    axis.set_yticks(range(len(panel)), [f"{o.figure.title}\nover {o.figure.over}" for o in panel], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    if unit := panel[0].figure.unit:
        axis.set_xlabel(f"{unit} more (black: the bar)")
    else:
        axis.set_xscale("log")
        axis.axvline(1, color="gray", linewidth=1)
        axis.set_xlabel("times the reference: less is better (black: the bar)")
