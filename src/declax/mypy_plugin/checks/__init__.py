"""The checks, one a file; each has a function `register` that says where it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from declax.mypy_plugin.checks import (
    argnames,
    attribute,
    auxiliary,
    axes,
    config,
    field,
    filtering,
    gradients,
    model,
    path,
    post_init,
    replace,
    sizes,
    spec,
    static_values,
    submodule,
    undecorated,
    unset,
    variable,
)
from declax.mypy_plugin.registry import Registry

REGISTER: Final[tuple[Callable[[Registry], None], ...]] = (
    field.register,
    static_values.register,
    variable.register,
    submodule.register,
    undecorated.register,
    unset.register,
    post_init.register,
    replace.register,
    axes.register,
    argnames.register,
    auxiliary.register,
    gradients.register,
    path.register,
    attribute.register,
    filtering.register,
    model.register,
    sizes.register,
    spec.register,
    config.register,
)
"""The checks, in the order in which they run at a hook that several share."""


def registry() -> Registry:
    """All checks by the hook that runs them."""
    made = Registry()
    for register in REGISTER:
        register(made)
    return made
