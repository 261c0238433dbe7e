"""Checks of models for the tests of their users."""

from __future__ import annotations

import importlib
from types import ModuleType

from declax.shapes.checking import report_of_module
from declax.shapes.report import ShapeReport


def check_shapes_of(module: ModuleType | str, *, strict: bool = False) -> ShapeReport:
    """Checks all declared classes of a module whose calls have shapes in their annotations, as `check_shapes` does.

    Args:
      module: the module, or its name.
      strict: whether warnings are errors.

    Returns:
      The report of all classes. What is tested only raises nothing; `ShapeReport.proven` says whether all are proven.

    Raises:
      ShapeError: a call fails at a size, or needs a condition.

    >>> import declax as dx
    >>> report = dx.testing.check_shapes_of("declax.nn")
    >>> report
    ShapeReport(0 checked, 0 findings)
    """
    report = report_of_module(importlib.import_module(module) if isinstance(module, str) else module, strict=strict)
    report.raise_for_findings()
    return report
