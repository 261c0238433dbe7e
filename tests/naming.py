"""Names of parametrized tests that are the same in every process, as tests that run in parallel want them."""

from __future__ import annotations

import re


def name_of(value: object) -> str:
    """What a value looks like, without where it lies in memory."""
    if type(value) is int and value > 2**64:
        return "huge"
    if isinstance(value, frozenset):
        value = sorted(value)
    return re.sub(r" at 0x[0-9a-f]+", "", value if isinstance(value, str) else repr(value))[:60]
