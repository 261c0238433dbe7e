"""Turns lines of source into functions that look as if written by hand.

The objects that generated code needs are the globals of its functions: never text in the source.
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
    r"""Compiles functions whose parameters are globals, which the interpreter reads faster than the cells of a closure.

    >>> (double,) = compile_functions("demo", ["def double(x):\n    return two * x"], {"two": 2})
    >>> double(4)
    8
    """
    source = "\n\n\n".join(functions) + "\n"
    filename = f"<declax {subject} #{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "declax._generated", **parameters}
    exec(compile(source, filename, "exec"), namespace)
    return tuple([namespace[text.removeprefix("def ").partition("(")[0]] for text in functions])
