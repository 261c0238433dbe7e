"""The recipes of examples/parallel: eight devices, and two processes of two devices, train as one device does."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declax as dx
from exchanges import EXCHANGES

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
EXAMPLE = EXAMPLES / "parallel"
BATCH = 8 * 33 * 4
"""Bytes of the characters of a batch."""

ONE, EIGHT, FOUR = (1, 1), (1, 8), (2, 2)
"""Processes, and devices of each."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """What training gives, by processes and devices, and by recipe. One start of JAX serves all recipes."""
    found = {}
    for where, names in ((ONE, ["data", "experts"]), (EIGHT, EXCHANGES), (FOUR, EXCHANGES)):
        out = tmp_path_factory.mktemp("trained") / "found.pickle"
        processes, devices = where
        options = [f"--processes={processes}", f"--devices={devices}", "--timeout=900"]
        program = [str(HERE / "train_recipes.py"), str(out), *names]
        done = subprocess.run(
            [sys.executable, "-m", "declax.launch", *options, *program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
        found[where] = pickle.loads(out.read_bytes())
    return found


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("where", [EIGHT, FOUR], ids=["8 devices", "2 processes"])
def test_a_recipe_trains_as_one_device(trained: Any, where: tuple[int, int], name: str) -> None:
    alone, found = trained[ONE]["experts" if name == "experts" else "data"], trained[where][name]
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-4)
    assert found["losses"][-1] < found["losses"][0] - 1
    assert found["parameters"].keys() == alone["parameters"].keys()
    for path, array in alone["parameters"].items():
        np.testing.assert_allclose(found["parameters"][path], array, rtol=1e-3, atol=1e-3, err_msg=path)


@pytest.mark.parametrize("name", EXCHANGES)
def test_devices_exchange_what_the_recipe_needs_and_nothing_else(trained: Any, name: str) -> None:
    assert trained[EIGHT][name]["collectives"] == EXCHANGES[name]


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("where", [EIGHT, FOUR], ids=["8 devices", "2 processes"])
def test_a_device_holds_its_shards_only(trained: Any, where: tuple[int, int], name: str) -> None:
    """Of the model, the optimizer and the batch, by the program of a step and by the arrays after training."""
    count = where[0] * where[1]
    found, whole = trained[where][name], trained[ONE]["experts" if name == "experts" else "data"]["bytes"]
    ways = {"tensor": 1, "both": count // 2, "sequence": count // 2, "pipeline": count // 2}.get(name, count)
    assert found["arguments"] == found["bytes"] + BATCH // ways
    kernels = {"data": 1, "zero1": 1, "sequence": 1, "pipeline": 2, "slices": count // 2}.get(name, count)
    if name == "experts":
        assert np.prod(found["shards"]["blocks.layers.mlp.up"]) * kernels == 2 * 8 * 64 * 64
    else:
        assert np.prod(found["shards"]["blocks.layers.mlp.up.kernel"]) * kernels == 2 * 64 * 256
    assert (found["bytes"] == whole) == (name in {"data", "sequence"})
    assert found["bytes"] >= whole // count


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("where", [EIGHT, FOUR], ids=["8 devices", "2 processes"])
def test_a_device_holds_what_the_summary_tells(trained: Any, where: tuple[int, int], name: str) -> None:
    found = trained[where][name]
    assert found["held"] == {part: found["told"][part] for part in found["held"]}


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_page_shows_where_the_parts_are(trained: Any, name: str) -> None:
    page = (HERE.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert trained[EIGHT][name]["picture"] in page


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("train_parallel")


def test_the_file_is_as_its_schema_has_it(example: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = (EXAMPLE / "parallel.toml").read_text(encoding="utf-8")
    assert text.startswith("#:schema parallel.schema.json\n")
    schema = json.loads((EXAMPLE / "parallel.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert validator.is_valid(tomllib.loads(text))
    assert not validator.is_valid({**tomllib.loads(text), "recipe": "x"})
    file = "examples/parallel/"
    assert dx.json_schema(example.Run) == schema, (
        f"declax schema {file}train_parallel.py:Run -o {file}parallel.schema.json"
    )
