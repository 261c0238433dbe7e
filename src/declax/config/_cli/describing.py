"""The parameters of a class as a table, for help."""

from __future__ import annotations

import textwrap
from typing import Any, Final

from declax._fields.annotations import annotation_text
from declax._typing import MISSING
from declax.config._reading.parameters import Parameter, parameters_of, target_name
from declax.config.schema import first_paragraph

_WIDTH: Final = 100
_INDENT: Final = "  "


def parameter_table(target: Any) -> str:
    """The parameters of a class: name, type, default, range and help.

    >>> import declax as dx
    >>> print(parameter_table(dx.Dropout).splitlines()[2])
      rate: float, at least 0.0, at most 1.0
    """
    lines = [target_name(target), *textwrap.wrap(first_paragraph(target), _WIDTH, initial_indent=_INDENT)[:1]]
    further = 3 * _INDENT
    for parameter in parameters_of(target):
        lines.append(f"{_INDENT}{parameter.name}: {', '.join(_facts(parameter))}")
        text = parameter.notes.help or ""
        lines += textwrap.wrap(text, _WIDTH, initial_indent=further, subsequent_indent=further)
    return "\n".join(lines)


def _facts(parameter: Parameter) -> list[str]:
    notes = parameter.notes
    facts = [parameter.written or annotation_text(parameter.annotation) or "any"]
    if notes.choices is not None:
        facts.append("one of " + ", ".join(map(repr, notes.choices)))
    facts += [f"{word} {bound}" for word, bound in (("at least", notes.ge), ("at most", notes.le)) if bound is not None]
    name = getattr(notes.check, "__name__", "<lambda>")
    facts += [f"checked by {name}"] if name != "<lambda>" else []
    if parameter.default is not MISSING or parameter.default_factory is not None:
        default = parameter.make_default()
        name = getattr(default, "__name__", None)
        text = name if isinstance(name, str) else repr(default)
        facts.append(f"default {text if len(text) <= 60 else f'{text[:57]}...'}")
    return facts
