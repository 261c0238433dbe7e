"""The report: how the loss fell, and the digits that the network misreads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from data import Digits, Labels

ROWS, COLUMNS = 3, 4


def save_report(path: Path, losses: Sequence[float], test: Digits, predicted: Labels) -> None:
    """Writes a PNG with the loss curve and a grid of misread digits.

    Args:
      path: the file to write.
      losses: the loss of each training step.
      test: the test digits.
      predicted: what the network reads in them, shape (n,).
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    halves: list[SubFigure] = list(np.ravel(figure.subfigures(1, 2, squeeze=False)))
    _draw_losses(halves[0].subplots(), losses)
    _draw_misread(halves[1], test, predicted)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)


def _draw_losses(axes: Axes, losses: Sequence[float]) -> None:
    steps = np.arange(1, len(losses) + 1)
    window = max(1, len(losses) // 25)
    smooth = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
    axes.plot(steps[window - 1 :], smooth, color="tab:blue", label=f"mean of {window} steps")
    axes.set(title="Training loss", xlabel="step", ylabel="cross entropy (nats)", yscale="log")
    axes.legend()


def _draw_misread(figure: SubFigure, test: Digits, predicted: Labels) -> None:
    wrong = np.flatnonzero(predicted != test.labels)
    figure.suptitle(f"{len(wrong)} of {len(test.labels)} test digits are misread")
    for position, axes in enumerate(np.ravel(figure.subplots(ROWS, COLUMNS))):
        axes.set_axis_off()
        if position < len(wrong):
            index = wrong[position]
            axes.imshow(test.images[index, :, :, 0], cmap="gray_r", vmin=0, vmax=1)
            axes.set_title(f"a {test.labels[index]} read as {predicted[index]}", fontsize=9)
