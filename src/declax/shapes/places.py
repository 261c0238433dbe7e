"""Where in the user's code something happens: the innermost frame outside of JAX, declax and installed packages."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

import jax


class Place(NamedTuple):
    """A place in a file.

    Attributes:
      file: the name of the file.
      line: counted from 1.
      column: counted from 1; None if it is not known.
      function: the name of the function.
    """

    file: str
    line: int
    column: int | None
    function: str

    def __str__(self) -> str:
        column = "" if self.column is None else f":{self.column}"
        return f"{self.shown_file}:{self.line}{column}"

    @property
    def shown_file(self) -> str:
        """The file, below the current folder if it is there."""
        path = Path(self.file)
        folder = Path.cwd()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else self.file

    @property
    def source(self) -> str:
        """The line of the file, without spaces around it; ``""`` if there is none."""
        return linecache.getline(self.file, self.line).strip()


PlaceOf: TypeAlias = Callable[[], Place | None]
"""A place that is looked for when it is needed, which takes longer than all else that is said of an equation."""
_Raw = tuple[CodeType, int]
_PARTS: Final = "<declax "
"""The files of functions that are made of class bodies."""

_OWN: Final = str(Path(__file__).resolve().parents[1]) + os.sep
_JAX: Final = str(Path(jax.__file__).resolve().parent) + os.sep
_TRACING: Final = tuple(os.path.join(_JAX, "_src", name) for name in ("interpreters", "linear_util.py", "api_util.py"))
"""The files of JAX that call the functions it traces."""
_PACKAGES: Final = tuple(
    path + os.sep for path in {sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")}
)


@functools.lru_cache(maxsize=4096)
def _rank(file: str) -> int:
    """How far a file is from the user: 0 for theirs, 1 for an installed package, 2 for JAX and declax."""
    if file.startswith(("<frozen", "<declax", "<annotation", "<string>", _OWN, _JAX)):
        return 2
    return 1 if file.startswith(_PACKAGES) or "site-packages" in file else 0


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame runs code of the user, or expressions of a class body."""
    return frame.f_code.co_filename.startswith(_PARTS) or _rank(frame.f_code.co_filename) == 0


def place_of_frame(frame: FrameType) -> Place | None:
    """The place that a frame is at; None in an expression of a class body."""
    is_part = frame.f_code.co_filename.startswith(_PARTS)
    return None if is_part else _place((frame.f_code, frame.f_lasti))


def place_of_error(error: BaseException) -> Place | None:
    """The place of the user's code that raised an error."""
    frames = list(_traceback(error.__traceback__))
    for cause in (error.__cause__, error.__context__):
        if cause is not None and not any(_rank(code.co_filename) == 0 for code, _ in frames):
            frames += _traceback(cause.__traceback__)
    return _innermost(reversed(frames))


def place_here(frame: FrameType | None) -> Place | None:
    """The innermost place of the user's code, from a frame outwards."""
    return _innermost(_outwards(frame))


def place_of_equation(equation: Any, around: PlaceOf) -> Place | None:
    """The place of an equation of a jaxpr; `around` is that of the equation whose program it is in.

    JAX keeps the programs of its own functions, so that their equations have places of other calls.
    """
    frames = _frames_of(equation.source_info)
    own = itertools.takewhile(lambda raw: not raw[0].co_filename.startswith(_TRACING), frames)
    return _innermost(own, most=0) or around() or _innermost(frames)


def place_of_trace(value: Any) -> Place | None:
    """The place of the operation that made an array, while it is traced; None if that is not known."""
    return _innermost(_frames_of(getattr(value, "_line_info", None)), most=0)


def _frames_of(source_info: Any) -> list[_Raw]:
    trace = getattr(source_info, "traceback", None)
    return [] if trace is None else list(zip(*trace.raw_frames(), strict=True))


def _traceback(trace: TracebackType | None) -> Iterator[_Raw]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next


def _outwards(frame: FrameType | None) -> Iterator[_Raw]:
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _innermost(frames: Iterable[_Raw], most: int = 1) -> Place | None:
    """The first frame of the user, or, without one, of an installed package."""
    known = list(frames)
    for rank in range(most + 1):
        for raw in known:
            if _rank(raw[0].co_filename) == rank:
                return _place(raw)
    return None


def _place(raw: _Raw) -> Place:
    code, instruction = raw
    positions = next(itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), (None, None, None, None))
    line, _, column, _ = positions
    return Place(
        code.co_filename, line or code.co_firstlineno, None if column is None else column + 1, code.co_qualname
    )


# --- annotations and conditions -----------------------------------------------------


def place_of_annotation(function: Callable[..., Any], name: str) -> Place | None:
    """The place of the annotation of a parameter, or, as `return`, of the result."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    first = Place(code.co_filename, code.co_firstlineno, None, code.co_qualname)
    try:
        lines, start = inspect.getsourcelines(code)
        tree: Any = ast.parse(textwrap.dedent("".join(lines))).body[0]
        indent = len(lines[0]) - len(lines[0].lstrip())
        arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
        nodes = {argument.arg: argument.annotation for argument in arguments} | {"return": tree.returns}
        node = nodes[name]
        return first._replace(line=start + node.lineno - 1, column=node.col_offset + indent + 1)
    except (OSError, SyntaxError, KeyError, AttributeError, IndexError, TypeError):
        return first


def place_of_text(cls: type, text: str) -> Place | None:
    """The place in the source of a class, or of its decorators, where a text stands."""
    try:
        lines, start = inspect.getsourcelines(cls)
        file = inspect.getsourcefile(cls) or "?"
    except (OSError, TypeError):
        return None
    for number, line in enumerate(lines):
        if text in line:
            return Place(file, start + number, line.index(text) + 1, cls.__qualname__)
    return Place(file, start, None, cls.__qualname__)
