"""The output of commands: text, coloured on a terminal if rich is installed, or one JSON document."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import warnings
from collections.abc import Generator
from typing import IO, Any, Final, cast

from declax import errors
from declax.config._files.json_format import format_json

WRONG: Final = 1  # the exit status of a wrong configuration
USAGE: Final = 2  # the exit status of a wrong command line
_CLOSED_PIPE: Final = 141  # the exit status of programs that SIGPIPE ends

_OF_TRACEBACKS: Final = "JAX_TRACEBACK_FILTERING"
"""Notes of JAX with this text refer to a traceback, which the command does not print."""

_LANGUAGES: Final = ("toml", "json", "yaml", "diff")


def usage_error(
    problem: str,
    *,
    expected: str | None = None,
    got: str | None = None,
    why: str | None = None,
    fix: str | None = None,
) -> errors.DeclaxError:
    return errors.DeclaxError("the command line", problem, expected=expected, got=got, why=why, fix=fix)


class Output:
    """Prints the results and errors of a command."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.status: int = 0
        self.is_json = is_json
        self._found: list[Any] = []
        self._has_runs = False

    def add(self, run: str, text: str, data: Any, style: str = "") -> None:
        """Prints a result as text or data; `run` is the name of the run in a sweep."""
        if self.is_json:
            self._has_runs = self._has_runs or bool(run)
            self._found.append({"run": run, "result": data} if run else data)
            return
        if run:
            write(f"# {run}")
        write(text, style)

    def wrong(self, text: str, data: Any, *, is_wrong: bool) -> None:
        """Prints what was found in code; the status is that of a wrong configuration if it is an error."""
        self.status = max(self.status, WRONG) if is_wrong else self.status
        if self.is_json:
            self._found.append(data)
        else:
            write(text, "error" if is_wrong else "", sys.stderr if is_wrong else None)

    def fail(self, error: errors.DeclaxError) -> None:
        """Prints an error, with its notes about the place in a configuration."""
        is_of_configuration = isinstance(error, errors.ConfigError) or hasattr(error, "config_path")
        self.status = max(self.status, WRONG if is_of_configuration else USAGE)
        notes = [note for note in getattr(error, "__notes__", ()) if _OF_TRACEBACKS not in note]
        if self.is_json:
            problems = error.problems if isinstance(error, errors.ConfigError) else ()
            message = str(error).partition("\n")[0] if problems else str(error)
            data = {"message": message, "notes": notes, "problems": list(map(dataclasses.asdict, problems))}
            self._found.append({"error": data})
        else:
            write("\n".join([str(error), *notes]), "error", sys.stderr)

    @contextlib.contextmanager
    def catching(self) -> Generator[None, None, None]:
        try:
            yield
        except errors.DeclaxError as error:
            self.fail(error)

    @contextlib.contextmanager
    def running(self) -> Generator[None, None, None]:
        """Prints errors, and the JSON at the end; with JSON, other output goes to the standard error.

        Ends the program without a traceback if ``head`` or the like closes the pipe.
        """
        to_stderr = contextlib.redirect_stdout(sys.stderr) if self.is_json else contextlib.nullcontext()
        try:
            try:
                with to_stderr, self.catching(), _told_briefly():
                    yield
                if self.is_json:
                    found = self._found[0] if len(self._found) == 1 and not self._has_runs else self._found
                    write(format_json(found), "json")
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again when it ends
            raise SystemExit(_CLOSED_PIPE) from None


@contextlib.contextmanager
def _told_briefly() -> Generator[None, None, None]:
    """Prints warnings of configurations without a place in code."""
    outer = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *further: Any) -> None:
        if issubclass(category, errors.ConfigWarning):
            write(f"note: {message}", "", sys.stderr)
        else:
            outer(message, category, *further)

    with warnings.catch_warnings():
        warnings.simplefilter("always", errors.ConfigWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # a function for the method, as the module documents
        yield


def write(text: str, style: str = "", stream: IO[str] | None = None) -> None:
    """Prints text; the style is help, error, table, or a language such as ``toml``."""
    if stream is None:
        stream = cast("IO[str]", sys.stdout)
    rich = _rich(stream)
    if rich is None:
        stream.write(text.removesuffix("\n") + "\n")
        return
    console = rich.console.Console(file=stream)
    if style in _LANGUAGES:
        console.print(rich.syntax.Syntax(text.removesuffix("\n"), style, background_color="default"))
        return
    console.print(text.removesuffix("\n"), markup=False, highlight=bool(style), soft_wrap=style == "table")


def _rich(stream: IO[str]) -> Any:
    """The package rich, if the stream is a terminal and rich is installed. It respects NO_COLOR."""
    if not stream.isatty():
        return None
    try:
        for name in ("console", "syntax"):
            importlib.import_module(f"rich.{name}")
    except ImportError:
        return None
    return importlib.import_module("rich")
