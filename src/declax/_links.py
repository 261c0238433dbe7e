"""Paths that are not built until somebody asks for them.

Vocabulary
----------
link: None for the root; otherwise the link of the holder, and a key.

A walk that goes deep would build a path at each step, and so a number of keys
that grows with the square of the depth.
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
