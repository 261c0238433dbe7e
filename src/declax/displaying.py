"""Showing models: foldable in a notebook, as text elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any, cast

from declax import _display


def display(*objects: object) -> None:
    """Shows models, Variables, States, or containers of them.

    In a notebook with treescope installed the result folds and draws arrays;
    elsewhere it is the text that ``repr`` gives, on standard output.

    Args:
      *objects: what to show, one after the other.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> display({"scale": Param(jnp.ones(2))})
    {
      'scale': Param( # 2 (8 B)
        value=Array([1., 1.], dtype=float32)
      )
    }
    """
    if _is_notebook() and find_spec("treescope") is not None:
        treescope = _display.treescope_module("treescope", "display")
        for obj in objects:
            treescope.display(obj)
    else:
        for obj in objects:
            sys.stdout.write(f"{_display.text_of(obj)}\n")


def to_html(obj: object) -> str:
    """What `display` shows in a notebook, as a page of HTML.

    Args:
      obj: what to show.

    Raises:
      MissingExtraError: treescope is not installed.

    >>> with open("model.html", "w") as page:  # doctest: +SKIP
    ...     page.write(to_html(model))
    """
    treescope = _display.treescope_module("treescope", "display.to_html")
    return cast(str, treescope.render_to_html(obj, compressed=False))


def _is_notebook() -> bool:
    """Whether Python runs in a kernel that shows HTML; an IPython in a terminal shows text."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
