"""The checks, one a file; each has a function `register` that says where it runs."""

from __future__ import annotations

from declax.mypy_plugin.checks import (
    argnames,
    attribute,
    axes,
    config,
    field,
    filtering,
    gradients,
    model,
    parts,
    path,
    replace,
    sizes,
    spec,
    undecorated,
    unset,
)
from declax.mypy_plugin.registry import Registry


def registry() -> Registry:
    """All checks by the hook that runs them, in the order in which they run at a hook that several share."""
    made = Registry()
    for check in (
        *(field, parts, undecorated, unset, replace, axes, argnames, gradients),
        *(path, attribute, filtering, model, sizes, spec, config),
    ):
        check.register(made)
    return made
