"""The memory that the values of a JSON text take, counted before it is parsed: a hostile text is made to fill it."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

MAX_RATIO: Final = 20
"""How many times the bytes of its text a value may take."""

TOO_MUCH: Final = f"its values may take more than {MAX_RATIO} times the memory of the text"

_SMALL: Final = 1 << 24
"""The bytes that any text may take, however short it is."""

# Of CPython, with the hook that receives the entries of an object as pairs; the tests measure them.
_COSTS: Final = {
    b"[": 90,  # an empty list, and the room for its first elements
    b"{": 80,  # an empty dict
    b":": 130,  # an entry in its dict, in the pairs, and in the parser, which remembers keys
    b",": 42,  # a place in a list, and a number
    b'"': 54,  # a text; one of its two quotes is counted
}
_WIDE: Final = re.compile(rb"[\xf0-\xff]|\\u[dD]")


def takes_too_much(text: bytes | bytearray) -> bool:
    """Whether the values of a JSON text may take more than `MAX_RATIO` times the memory of the text.

    >>> takes_too_much(b'{"a": [1, 2, 3]}'), takes_too_much(b"[" + b"{}," * 1_000_000 + b"{}]")
    (False, True)
    """
    limit = max(_SMALL, MAX_RATIO * len(text)) - 2 * _width(text) * len(text)
    return _cost(text) > limit and _cost(_without_texts(text)) > limit


def _width(text: bytes | bytearray) -> int:
    """How many bytes a character of the decoded text and its parts takes: one that is wide makes all wide."""
    if text.isascii() and rb"\u" not in text:
        return 1
    return 4 if _WIDE.search(text) else 2


def _cost(text: bytes | bytearray) -> int:
    return sum(cost * text.count(mark) for mark, cost in _COSTS.items())


def _without_texts(text: bytes | bytearray) -> bytes:
    """A JSON text without the content of its strings, and with one quote for each."""
    unescaped = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_inside = np.logical_xor.accumulate(unescaped == ord('"'))  # from the first quote to that before the second
    return unescaped[~is_inside].tobytes()
