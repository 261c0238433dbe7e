"""The modules that programs import from: each has the peer's names, as the objects that the root has."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import jax
import numpy as np
import pytest

import declax
import declax as dx
from declax._absent import ROWS, instead_of
from declax.errors import GraphError, LayerError, MissingAttributeError, MissingNameError

MODULES = [
    "extract",
    "filterlib",
    "graphlib",
    "helpers",
    "ids",
    "module",
    "nn.activations",
    "nn.attention",
    "nn.dtypes",
    "nn.initializers",
    "nn.linear",
    "nn.lora",
    "nn.normalization",
    "nn.recurrent",
    "nn.stochastic",
    "pytreelib",
    "rnglib",
    "spmd",
    "statelib",
    "training.ema",
    "training.metrics",
    "training.optimizer",
    "transforms.autodiff",
    "transforms.compilation",
    "transforms.general",
    "transforms.iteration",
    "transforms.transforms",
    "traversals",
    "variablelib",
    "visualization",
]


OLDER_NAMES = {"graph": "graphlib", "object": "pytreelib"}


def own_names(module: types.ModuleType) -> list[str]:
    """The names that a module of the peer defines."""
    return [
        name
        for name, value in vars(module).items()
        if not isinstance(value, types.ModuleType | typing.TypeVar)
        if getattr(value, "__module__", module.__name__) == module.__name__
    ]


@pytest.mark.parametrize("path", MODULES)
def test_a_module_has_the_public_names_of_the_peers_module(path):
    peer = pytest.importorskip("flax.nnx")
    theirs = importlib.import_module(f"flax.nnx.{path}")
    ours = importlib.import_module(f"declax.{path}")
    root = vars(peer)
    for name in [name for name in own_names(theirs) if root.get(name) is vars(theirs)[name]]:
        if not name.startswith("_"):
            assert getattr(ours, name) is getattr(dx, name), name


def written_names(module: types.ModuleType) -> set[str]:
    """The public names that the statements of a module make or export, type variables excepted."""
    names = set()
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.ImportFrom):
            names |= {alias.asname for alias in statement.names if alias.asname == alias.name}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {n for n in names if not n.startswith("_") and not isinstance(getattr(module, n, None), typing.TypeVar)}


def modules_of_the_peer() -> list[str]:
    """The modules of the peer that have names, except those that declax lacks altogether."""
    pytest.importorskip("flax.nnx.ids")  # the only module that flax.nnx does not load
    paths = [name.removeprefix("flax.nnx.") for name in sys.modules if name.startswith("flax.nnx.")]
    there = [path for path in paths if instead_of(*_parts(path)) is None]
    return sorted(path for path in there if not re.search(r"(^|\.)_", path))


def _parts(path: str) -> tuple[str, str]:
    module, _, name = path.rpartition(".")
    return module, name


def test_each_name_of_the_peers_modules_is_there_or_among_the_absent_ones():
    """Modules, and names that their modules define, by attribute from the root."""
    lacking, needless = [], []
    for path in modules_of_the_peer():
        theirs = sys.modules[f"flax.nnx.{path}"]
        for name in ["", *written_names(theirs)]:
            try:
                operator.attrgetter(f"{path}.{name}".rstrip("."))(dx)
            except AttributeError as error:
                instead = instead_of(path, name)
                if instead is None or (isinstance(error, MissingAttributeError) and error.fix != instead):
                    lacking.append((path, name))
            else:
                needless += [(path, name)] * (instead_of(path, name) is not None)
    assert not lacking, lacking
    assert not needless, f"these are there: {needless}"


def test_the_peer_has_the_names_that_are_absent():
    known = {path: written_names(sys.modules[f"flax.nnx.{path}"]) for path in modules_of_the_peer()}
    known |= {module: set(dir(sys.modules[f"flax.nnx.{module}".rstrip(".")])) for module in ("", "bridge")}
    assert not [(module, name) for module, names, _ in ROWS for name in names.split() if name not in known[module]]


def test_the_page_has_the_absent_names_of_modules():
    page = (Path(__file__).resolve().parents[2] / "docs" / "coming_from_nnx.md").read_text(encoding="utf-8")
    section = page.partition("### Absent names of modules")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    assert [(module, names, instead) for module, names, instead in rows] == [
        (module, ", ".join(f"`{name}`" for name in names.split()), instead) for module, names, instead in ROWS if module
    ]


@pytest.mark.parametrize(("older", "newer"), OLDER_NAMES.items())
def test_a_module_with_an_older_name(older, newer):
    older, newer = getattr(dx, older), getattr(dx, newer)
    assert {name for name in vars(newer) if not name.startswith("_")} <= vars(older).keys()


@pytest.mark.parametrize("path", MODULES)
def test_a_module_of_the_peers_root_is_at_the_root(path):
    peer = pytest.importorskip("flax.nnx")
    first = path.partition(".")[0]
    assert hasattr(peer, first) is (first in dx.__all__)
    assert importlib.import_module(f"declax.{first}") is getattr(dx, first)


@pytest.mark.parametrize("name", ["default_kernel_init", "default_bias_init", "default_embed_init"])
def test_the_default_initializers_draw_the_peers_numbers(name):
    theirs = getattr(pytest.importorskip("flax.nnx.nn.linear"), name)
    ours = getattr(dx.nn.linear, name)
    key = jax.random.key(0)
    np.testing.assert_array_equal(ours(key, (3, 4), "float32"), theirs(key, (3, 4), "float32"))


@pytest.mark.parametrize("name", ["default_a_initializer", "default_b_initializer"])
def test_the_default_initializers_of_adapters_draw_the_peers_numbers(name):
    theirs = getattr(pytest.importorskip("flax.nnx.nn.lora"), name)
    key = jax.random.key(0)
    np.testing.assert_array_equal(getattr(dx.nn.lora, name)(key, (3, 4), "float32"), theirs(key, (3, 4), "float32"))


def test_an_import_of_a_missing_name_gives_the_reason():
    with pytest.raises(MissingNameError, match="module declax: it has no attribute 'deprecations'") as caught:
        from declax import deprecations  # noqa: F401
    assert caught.value.fix == instead_of("", "deprecations")
    assert not hasattr(dx, "deprecations")


@pytest.mark.parametrize("name", ["deprecations", "proxy_caller", "reprlib", "tracers"])
def test_an_import_of_a_module_that_only_the_peer_has(name):
    pytest.importorskip(f"flax.nnx.{name}")
    with pytest.raises(MissingNameError, match=f"module declax: it has no attribute '{name}'") as caught:
        exec(f"from declax import {name}")
    assert caught.value.fix == instead_of("", name)
    with pytest.raises(MissingAttributeError, match=f"module declax: it has no attribute '{name}'"):
        getattr(dx, name)
    # A better text would take a finder on `sys.meta_path`, which is of all programs.
    with pytest.raises(ModuleNotFoundError, match=f"No module named 'declax.{name}'"):
        importlib.import_module(f"declax.{name}")


def test_an_import_of_a_name_that_nobody_has():
    with pytest.raises(ImportError, match="cannot import name 'Lineer' from 'declax'"):
        from declax import Lineer  # noqa: F401
    with pytest.raises(MissingAttributeError, match="did you mean 'default_kernel_init'"):
        dx.nn.linear.default_kernal_init  # the access is what is tested


@pytest.mark.parametrize("name", ["graphlib.kind_of", "variablelib.variable", "filterlib.create", "statelib.paths"])
def test_a_name_that_only_a_module_of_the_peer_has(name):
    module, _, name = name.partition(".")
    with pytest.raises(AttributeError, match=rf"{module}: it has no attribute '{name}'(?s:.)*public names"):
        getattr(importlib.import_module(f"declax.{module}"), name)


def test_the_modules_load_when_they_are_used():
    names = "graphlib variablelib training transforms compat"
    lines = [f"assert 'declax.{name}' not in sys.modules, {name!r}" for name in names.split()]
    program = "\n".join(["import sys", "import declax", *lines, "assert declax.graph.split is declax.split"])
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_first_value_that_is_not_none():
    theirs = pytest.importorskip("flax.nnx.module").first_from
    for first_from in (declax.module.first_from, theirs):
        assert first_from(None, False, True, error_msg="no flag") is False
        with pytest.raises(ValueError, match="no flag"):
            first_from(None, None, error_msg="no flag")
    with pytest.raises(GraphError, match="first_from: all values are None: no flag"):
        declax.module.first_from(None, error_msg="no flag")


@pytest.mark.parametrize("padding", ["SAME", 2, (1, 2), [(0, 1), 3]])
def test_paddings(padding):
    theirs = pytest.importorskip("flax.nnx.nn.linear").canonicalize_padding
    assert dx.nn.linear.canonicalize_padding(padding, 2) == theirs(padding, 2)


def test_what_is_no_padding():
    with pytest.raises(LayerError, match="canonicalize_padding: this is not a padding of 2 spatial axes"):
        dx.nn.linear.canonicalize_padding((1, 2, 3), 2)


def test_types_of_paths():
    assert declax.filterlib.PathParts is not None
    assert issubclass(declax.graph.VariableState, dx.Variable)


CHAINS = ["nn.linear.default_kernel_init", "transforms.iteration.scan", "transforms.general", "training.ema.EMA"]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_attributes_needs_no_import(chain):
    """As the modules of the peer load with it."""
    assert operator.attrgetter(chain)(pytest.importorskip("flax.nnx"))
    subprocess.run([sys.executable, "-c", f"import declax as nnx; assert nnx.{chain}"], check=True)
