"""Reporting errors and notes under the error code of a check."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterable
from typing import Any, Final

from mypy.errorcodes import ErrorCode
from mypy.messages import format_type_bare
from mypy.nodes import Context
from mypy.options import Options
from mypy.types import Type

from declax.errors import suggest as did_you_mean

CODES: Final[dict[str, ErrorCode]] = {}
"""The error codes of the plugin by name."""

_OPTIONS: Final = Options()


def error_code(name: str, description: str) -> ErrorCode:
    """Registers an error code with mypy, so that users can disable it."""
    made = ErrorCode(name, description, "declax")
    CODES[name] = made
    return made


FAILED: Final = error_code("declax-plugin", "A check of the plugin failed")


class Reporter:
    """Reports the findings of a check under its error code.

    Attributes:
      api: mypy's checker or semantic analyzer.
    """

    __slots__ = ("_code", "api")

    def __init__(self, api: Any, code: ErrorCode) -> None:
        self.api: Any = api
        self._code = code

    def error(self, message: str, node: Context, *, fix: str | None = None, notes: Iterable[str] = ()) -> None:
        """Reports one finding, with the line that fixes it."""
        with outside_of_trials(self.api) as is_shown:
            if is_shown:
                self.api.fail(message, node, code=self._code)
                for note in [*notes, *([] if fix is None else [f"fix: {fix}"])]:
                    self.api.note(note, node, code=self._code)


@contextlib.contextmanager
def outside_of_trials(api: Any) -> Generator[bool]:
    """Reports errors even where mypy tries an overload and discards errors; yields False if that overload failed."""
    errors = getattr(getattr(api, "msg", None), "errors", None)
    watchers = getattr(errors, "_watchers", None)
    if not watchers:
        yield True
        return
    is_shown = not any(watcher.has_new_errors() for watcher in watchers)
    errors._watchers = []  # type: ignore[union-attr]  # not None, since it has watchers
    try:
        yield is_shown
    finally:
        errors._watchers = watchers  # type: ignore[union-attr]  # as above


def suggest(name: str, options: Iterable[str]) -> str:
    """A suggestion to append to a message about an unknown name, or an empty string.

    >>> suggest("hiden", ["hidden", "dim"])
    "; did you mean 'hidden'?"
    """
    hint = did_you_mean(name, options)
    return "" if hint is None else f"; {hint}"


def text_of(typ: Type) -> str:
    """A type as an annotation."""
    return re.sub(r"\bArray\b", "jax.Array", format_type_bare(typ, _OPTIONS))
