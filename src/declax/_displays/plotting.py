"""A picture of the sizes of the parts of a model."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from declax._displays.summarizing import summary
from declax.errors import MissingExtraError, format_path


def plot(model: Any, *, depth: int | None = None, axes: Any = None) -> Any:
    """Draws a bar for each part of a model: its elements, by kind of Variable.

    Args:
      model: a Module, or a container of modules; may be abstract.
      depth: arrays of modules with longer paths count for the module around them; None for no limit.
      axes: axes of matplotlib to draw on; None for new ones.

    Returns:
      The axes.

    Raises:
      MissingExtraError: matplotlib is not installed.
      GraphError: this is not a model, or `depth` is negative.

    >>> from importlib.util import find_spec
    >>> import declax as dx
    >>> if find_spec("matplotlib"):
    ...     axes = dx.plot(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plot", "matplotlib is not installed", fix='pip install "declax[plot]"')
    found = summary(model, depth=depth)
    rows = [row for row in found.rows if row.entries]
    if axes is None:
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
        axes = pyplot.subplots(figsize=(8, 1 + 0.3 * len(rows)), layout="constrained")[1]
    names = [format_path(row.path) if row.path else "(root)" for row in rows]
    start = [0] * len(rows)
    for kind in found.kinds:
        counts = [sum(entry.count for entry in row.entries if entry.kind == kind) for row in rows]
        axes.barh(names, counts, left=start, label=kind)
        start = [a + b for a, b in zip(start, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("elements")
    if found.kinds:
        axes.legend()
    return axes


__all__ = ["plot"]
