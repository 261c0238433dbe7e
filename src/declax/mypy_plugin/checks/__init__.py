"""The checks, one in each file. Its function `register` adds the check to hooks."""

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
    """All checks by hook; checks of one hook run in this order."""
    made = Registry()
    for check in (
        *(field, parts, undecorated, unset, replace, axes, argnames, gradients),
        *(path, attribute, filtering, model, sizes, spec, config),
    ):
        check.register(made)
    return made
