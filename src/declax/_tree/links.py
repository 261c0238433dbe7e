"""Paths that are not built until somebody asks for them.

Those of a deep walk would grow with the square of its depth. A link is None for the root, and otherwise the link of
the holder with a key.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from declax._typing import Path

Link: TypeAlias = "tuple[Link, Any] | None"


def path_of(link: Link) -> Path:
    """The path that a link stands for."""
    keys = []
    while link is not None:
        link, key = link
        keys.append(key)
    keys.reverse()
    return tuple(keys)
