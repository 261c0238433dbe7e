"""How findings reach the user, and what happens when a check itself fails.

Vocabulary
----------
code:    the name in brackets behind an error; each check has one, by which it is switched off.
trial:   mypy tries an overload and throws its errors away; what is found then must still be told.
failure: an exception in a check. It is told once, and the run goes on.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Generator, Iterable
from typing import Any, Final

from mypy.errorcodes import ErrorCode
from mypy.errors import CompileError
from mypy.nodes import Context

DEBUG: Final = "DECLAX_PLUGIN_DEBUG"
"""The environment variable that makes a failing check end the run with its traceback."""

CODES: Final[dict[str, ErrorCode]] = {}
"""The codes of the plugin by name."""


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
      code: the code of the check.
    """

    __slots__ = ("api", "code")

    def __init__(self, api: Any, code: ErrorCode) -> None:
        self.api: Any = api
        self.code: ErrorCode = code

    def error(
        self, message: str, node: Context, *, fix: str | None = None, notes: Iterable[str] = (), always: bool = False
    ) -> None:
        """Tells one finding.

        Args:
          message: where, and what is wrong, in one line.
          node: the place.
          fix: the line that mends it.
          notes: further lines.
          always: whether to tell it in a trial too that has failed already, as for what no overload takes.
        """
        with outside_of_trials(self.api) as is_shown:
            if not is_shown and not always:
                return
            self.api.fail(message, node, code=self.code)
            for note in notes:
                self.api.note(note, node, code=self.code)
            if fix is not None:
                self.api.note(f"fix: {fix}", node, code=self.code)


@contextlib.contextmanager
def outside_of_trials(api: Any) -> Generator[bool]:
    """Lets errors through that mypy would throw away while it tries overloads.

    Yields:
      Whether to tell anything: not where the trial has already failed.
    """
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


class Failures:
    """Tells of checks that fail, so that none of them ends the run."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def tell(self, name: str, api: Any, node: Context, error: Exception) -> None:
        """Tells once that a check failed; runs in the handler of its error, which goes on where `DEBUG` is set."""
        if os.environ.get(DEBUG) or isinstance(error, CompileError):
            raise error
        kind = type(error).__name__
        if (name, kind) in self._told:
            return
        self._told.add((name, kind))
        Report(api, FAILED).error(
            f"the check {name} of declax.mypy_plugin failed here with {kind}: {error}",
            node,
            fix=f"report it, with the traceback that {DEBUG}=1 gives; disable_error_code = {FAILED.code} hides this",
        )


def suggest(name: str, options: Iterable[str]) -> str:
    """A question to put behind an unknown name, or nothing.

    >>> suggest("hiden", ["hidden", "dim"])
    "; did you mean 'hidden'?"
    """
    near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
