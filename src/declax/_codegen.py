"""Turns lines of source into functions that look as if written by hand.

Vocabulary
----------
factory: the one function that a piece of generated source defines. Objects
         that the code needs are its parameters, never text in the source.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_numbers = itertools.count()


def compile_functions(
    subject: str, functions: Sequence[str], parameters: Mapping[str, object]
) -> tuple[Callable[..., Any], ...]:
    r"""Compiles the source of some functions that share parameters.

    Args:
      subject: what the code is for, shown as the file name in tracebacks.
      functions: the source of each function, starting with ``def name(``.
      parameters: the objects that the functions refer to, by name.

    Returns:
      The functions, in order. Their source is in `linecache`, so that
      tracebacks and `inspect.getsource` show it.

    >>> (double,) = compile_functions("demo", ["def double(x):\n    return two * x"], {"two": 2})
    >>> double(4)
    8
    """
    names = [source.removeprefix("def ").partition("(")[0] for source in functions]
    body = "\n\n".join(_indent(source) for source in functions)
    source = f"def factory({', '.join(parameters)}):\n{body}\n\n    return {', '.join(names)},\n"
    filename = f"<declax {subject} #{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "declax._generated"}
    exec(compile(source, filename, "exec"), namespace)
    result: tuple[Callable[..., Any], ...] = namespace["factory"](*parameters.values())
    return result


def _indent(source: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in source.splitlines())
