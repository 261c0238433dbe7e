"""The parameters of a class as a table for people."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from declax._annotations import annotation_text
from declax._typing import MISSING
from declax.config._parameters import Parameter, parameters_of, target_name

_WIDTH = 100


def parameter_table(target: Any, *, indent: str = "  ") -> str:
    """What a class takes: name, type, default, range and help of each parameter.

    >>> import declax as dx
    >>> print(parameter_table(dx.Dropout).splitlines()[2])
      rate: float, at least 0.0, at most 1.0
    """
    parameters = parameters_of(target)
    about = inspect.getdoc(target) or ""
    if isinstance(target, type) and about.startswith(f"{target.__name__}("):
        about = ""
    lines = [target_name(target), *textwrap.wrap(about.partition("\n\n")[0], _WIDTH, initial_indent=indent)]
    lines = [lines[0], *lines[1:2]] if about else lines
    for parameter in parameters:
        lines.append(f"{indent}{parameter.name}: {', '.join(_facts(parameter))}")
        lines += textwrap.wrap(parameter.help or "", _WIDTH, initial_indent=indent * 3, subsequent_indent=indent * 3)
    return "\n".join(lines)


def _facts(parameter: Parameter) -> list[str]:
    """The type of a parameter, and what its value may be."""
    notes = parameter.notes
    facts = [parameter.written or annotation_text(parameter.annotation) or "any"]
    if notes.choices is not None:
        facts.append("one of " + ", ".join(map(repr, notes.choices)))
    facts += [f"{word} {bound}" for word, bound in (("at least", notes.ge), ("at most", notes.le)) if bound is not None]
    if parameter.default is not MISSING:
        facts.append(f"default {_default_text(parameter.default)}")
    elif parameter.default_factory is not None:
        facts.append(f"default {_default_text(parameter.make_default())}")
    return facts


def _default_text(value: object) -> str:
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
