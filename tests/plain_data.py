"""Any plain data, as configurations have it."""

from __future__ import annotations

import json
import re

from hypothesis import strategies as st

KEYS = st.text(min_size=1, max_size=6) | st.sampled_from(["kind", "a", "b c", "1", "no", '"', "é", "a.b", "-"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
TABLES = st.dictionaries(KEYS.filter(lambda key: key.encode("utf-8", "ignore").decode() == key), VALUES, max_size=5)


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_of(item, (*path, index))


def is_writable(data) -> bool:
    return "\\ud" not in json.dumps(data).lower() or not re.search(r"\\ud[89a-f]", json.dumps(data))
