"""The table of docs/shapes.md of what other tools find of the planted mistakes."""

import re
from pathlib import Path

import jax
import pytest

from shapes.planted import PAIRS

ROOT = Path(__file__).parents[2]


def rows():
    """The number in each row of the table."""
    found = re.findall(r"^\| ([^|]+?) \| [^|]+ \| (\d+) \|$", (ROOT / "docs/shapes.md").read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def test_the_table_has_all_pairs():
    assert rows()["`dx.check_shapes`"] == len(PAIRS)  # which test_planted.py finds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mypy", "pyright", "Flax NNX", "Equinox", "jaxtyping with beartype"])
def test_the_table_of_others(name):
    pytest.importorskip("beartype")
    from shapes import others

    finders = {
        "mypy": lambda: others.found_by_checker("mypy", "--check-untyped-defs"),
        "pyright": lambda: others.found_by_checker("pyright"),
        "Flax NNX": lambda: others.found_by(others.flax()),
        "Equinox": lambda: others.found_by(others.equinox()),
        "jaxtyping with beartype": others.found_by_jaxtyping,
    }
    with jax.numpy_dtype_promotion("standard"):  # which Flax needs
        found = finders[name]()
    assert rows()[name] == len(found), found
