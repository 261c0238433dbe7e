"""The keys of tables that stand for something else than their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from declax.config.problems import REF

USE: Final = "$use"
"""Names an alternative, whose values the other keys change."""

VALUE: Final = "$value"
"""An expression of other values."""

ENV: Final = "$env"
"""Names a variable of the environment; `default` may stand beside it."""

FILE: Final = "$file"
"""Names a file with a secret."""

_WHOLE: Final = frozenset({REF, VALUE, ENV, FILE, "$tuple"})


def is_value(table: Mapping[str, Any]) -> bool:
    """Whether a table stands for one value, so that it is not merged with another table."""
    return not _WHOLE.isdisjoint(table)
