"""The readers of parameters are made when a table or a spec has them; errors of annotations stay what they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import declax as dx
from declax.config._reading.catalog import Catalog
from declax.config._reading.readers import Context

FIRST = """
import sys
import declax as dx

@dx.dataclass
class Small(dx.Layer):
    dim: int = dx.field(ge=1)
    notes: dict[str, object] = dx.static(default_factory=dict)
    inner: dx.Module | None = None
    up = dx.Linear(dim, 4 * dim)

dx.from_config(Small, {"dim": 2, "notes": {"a": [1, {"b": 2}]}}, rngs=dx.Rngs(0))
print(sorted(name for name in sys.modules if name in ("declax.nn.recurrent", "declax.nn.experts", "optax")))
"""


@dx.dataclass
class Net(dx.Module):
    dim: int = dx.field(default=1, ge=1)
    rate: float = 0.1
    missing: "Nowhere | None" = None  # noqa: F821, UP037  # of type checkers only
    anything: Any = None


def test_only_those_that_a_table_has_are_made():
    catalog = Catalog()
    assert catalog.root_reader(Net).read({"dim": 2}, (), Context(catalog=catalog)).arguments["dim"] == 2
    assert set(catalog.call(Net).readers) == {"dim"}


def test_a_small_class_loads_no_other_layers():
    found = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("way", [lambda: dx.from_config(Net, {"missing": 1}), lambda: dx.json_schema(Net)])
def test_an_unresolved_annotation_is_refused_where_it_is_needed(way):
    for _ in range(2):
        with pytest.raises(dx.ConfigError, match=r"Net\.missing: the annotation names 'Nowhere', which does not exist"):
            way()
    assert dx.from_config(Net, {"dim": 2, "rate": 0.5}).dim == 2


def test_unknown_and_missing_keys_name_all_parameters():
    with pytest.raises(dx.ConfigError, match="dim, rate, missing, anything"):
        dx.from_config(Net, {"depth": 2})


def unread(dim: int, **options: "Nowhere") -> None:  # noqa: F821, UP037
    """Of keywords whose annotation does not exist."""


def test_keywords_of_an_unresolved_annotation():
    with pytest.raises(dx.ConfigError, match="Nowhere"):
        dx.spec_from_config(unread, {"dim": 2})
