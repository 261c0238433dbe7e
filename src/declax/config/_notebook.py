"""A spec as a tree that folds, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from declax.config._data import SpecData
from declax.config._declared import exact_arguments, has_parts
from declax.config._printing import value_text
from declax.config._reading.docstrings import first_paragraph
from declax.config._reading.parameters import target_name
from declax.config._refs import keys_of

_STYLE = "margin-left:1.2em;font-family:monospace;white-space:nowrap"
_DEFAULT = "opacity:.55"


def html_tree(spec: SpecData) -> str:
    """The parts of a spec as ``<details>``, with all values: those that are not said are pale, and help is a hint."""
    return f'<div style="{_STYLE}">{_part("", spec)}</div>'


def _part(label: str, spec: SpecData) -> str:
    said, made = exact_arguments(spec)
    values = {**said, **made}
    named = [
        *filter(values.__contains__, spec.parameters.by_name),
        *(n for n in values if n not in spec.parameters.by_name),
    ]
    lines = "".join(line for name in named for line in _lines(spec, name, values[name]))
    about = escape(first_paragraph(spec.target), quote=True)
    head = f'{escape(label)}<b title="{about}">{escape(target_name(spec.target))}</b>'
    return f'<details open style="{_STYLE}"><summary>{head}</summary>{lines}</details>'


def _lines(spec: SpecData, name: str, value: Any) -> Iterator[str]:
    """The line of one argument, or the trees of the parts in it."""
    if isinstance(value, SpecData):
        yield _part(f"{name}: ", value)
    elif has_parts(value):
        for key in keys_of(value):
            yield from _lines(spec, f"{name}[{key!r}]", value[key])
    else:
        parameter = spec.parameters.get(name.partition("[")[0])
        about = "" if parameter is None else escape(parameter.help or "", quote=True)
        style = "" if name in spec.arguments else f"{_DEFAULT};"
        text = escape(value_text(value))
        yield f'<div style="{style}margin-left:1.2em" title="{about}">{escape(name)} = {text}</div>'
