"""Turns lines of source into functions that look as if written by hand.

The objects that generated code needs are the globals of its functions: never text in the source.
"""

from __future__ import annotations

import itertools
import linecache
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

_numbers = itertools.count()


def compile_functions(
    subject: str,
    functions: Sequence[str],
    parameters: Mapping[str, object],
    namespace: dict[str, Any] | None = None,
) -> tuple[FunctionType, ...]:
    r"""Compiles functions whose parameters are globals, which the interpreter reads faster than the cells of a closure.

    The globals are in `namespace`, or else in a new dict.

    >>> (double,) = compile_functions("demo", ["def double(x):\n    return two * x"], {"two": 2})
    >>> double(4)
    8
    """
    source = "\n\n\n".join(functions) + "\n"
    filename = f"<declax {subject} #{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {} if namespace is None else namespace
    namespace.update(parameters, __name__="declax._generated")
    exec(compile(source, filename, "exec"), namespace)
    return tuple([namespace[text.removeprefix("def ").partition("(")[0]] for text in functions])


_writing = threading.RLock()  # again by a finaliser that runs while it is held


class LateFunction:
    """A function that is written at its first call, since compiling takes longer than all else.

    It begins as a stub, whose last parameter is the method `written`. Then it has the code that was written, so that
    later calls pass nothing in between, and JAX may hold it from the beginning.

    Attributes:
      function: this function.
    """

    def __init__(self, stub: Callable[..., Any], write: Callable[[dict[str, Any]], FunctionType]) -> None:
        self.function = FunctionType(stub.__code__, {}, stub.__name__, (self.written,))
        self._write = write
        self._is_written = False

    def written(self) -> FunctionType:
        """The function with the code that is written for it."""
        function = self.function
        with _writing:
            if not self._is_written:
                made = self._write(function.__globals__)
                function.__code__, function.__defaults__ = made.__code__, None
                function.__name__ = function.__qualname__ = made.__name__
                self._is_written = True
        return function
