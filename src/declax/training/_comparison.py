"""Parameters compared with those that a tool of training was made for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from declax import errors
from declax._typing import Path


def shape_of(leaf: Any) -> Any:
    """The shape of an array; that of a number."""
    return getattr(leaf, "shape", ())


def difference(wanted: Iterable[Path], given: Iterable[Path]) -> str:
    """The paths that are missing, and those that are unexpected; empty if there are none."""
    if wanted == given:
        return ""
    wanted, given = dict.fromkeys(wanted), dict.fromkeys(given)
    missing = [errors.format_path(path) for path in wanted if path not in given]
    unexpected = [errors.format_path(path) for path in given if path not in wanted]
    return "\n".join(
        f"{what}: {_listed(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names
    )


def resized(rows: Iterable[tuple[Path, Any, Any]]) -> str:
    """The paths at which the shape is not that of the parameter; empty if there are none."""
    found = [f"{errors.format_path(path)} has {value}, not {wanted}" for path, wanted, value in rows if value != wanted]
    return f"other shapes: {_listed(list(dict.fromkeys(found)))}" if found else ""


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
