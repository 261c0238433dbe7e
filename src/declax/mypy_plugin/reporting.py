"""How findings reach the user.

Vocabulary
----------
code:  the name in brackets behind an error; each check has one, by which it is switched off.
trial: mypy tries an overload and discards its errors; findings must still be reported.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Generator, Iterable
from typing import Any, Final

from mypy.errorcodes import ErrorCode
from mypy.messages import format_type_bare
from mypy.nodes import Context
from mypy.options import Options
from mypy.types import Type

CODES: Final[dict[str, ErrorCode]] = {}
"""The codes of the plugin by name."""

_OPTIONS: Final = Options()


def error_code(name: str, description: str) -> ErrorCode:
    """Makes an error code that mypy knows, so that it can be disabled and enabled."""
    made = ErrorCode(name, description, "declax")
    CODES[name] = made
    return made


FAILED: Final = error_code("declax-plugin", "A check of the plugin failed")


class Report:
    """Tells what a check finds, under the check's code.

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
    """Lets errors through that mypy would throw away in a trial; yields False if the trial has already failed."""
    errors = getattr(getattr(api, "msg", None), "errors", None)
    watchers = getattr(errors, "_watchers", None)
    if not watchers:
        yield True
        return
    is_shown = not any(watcher.has_new_errors() for watcher in watchers)
    errors._watchers = []  # type: ignore[union-attr]  # there are watchers, so there is what they watch
    try:
        yield is_shown
    finally:
        errors._watchers = watchers  # type: ignore[union-attr]  # as above


def suggest(name: str, options: Iterable[str]) -> str:
    """A question to put behind an unknown name, or nothing.

    >>> suggest("hiden", ["hidden", "dim"])
    "; did you mean 'hidden'?"
    """
    near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def text_of(typ: Type) -> str:
    """A type as an annotation says it."""
    return re.sub(r"\bArray\b", "jax.Array", format_type_bare(typ, _OPTIONS))
