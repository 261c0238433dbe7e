"""The modules that programs import from: each has the peer's names, as the objects that the root has."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import types
import typing

import jax
import numpy as np
import pytest

import declax
import declax as dx
from declax._absent import ABSENT
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
        if name in ABSENT:
            with pytest.raises(MissingAttributeError, match="which Flax NNX has") as caught:
                getattr(ours, name)
            assert caught.value.why == ABSENT[name]
        elif not name.startswith("_"):
            assert getattr(ours, name) is getattr(dx, name), name


def written_names(module: types.ModuleType) -> set[str]:
    """The public names that stand on the left of the statements of a module, type variables excepted."""
    names = set()
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {n for n in names if not n.startswith("_") and not isinstance(getattr(module, n, None), typing.TypeVar)}


@pytest.mark.parametrize("path", MODULES)
def test_another_name_of_the_peers_module_is_there_or_gives_the_reason(path):
    pytest.importorskip("flax.nnx")
    ours = importlib.import_module(f"declax.{path}")
    for name in written_names(importlib.import_module(f"flax.nnx.{path}")):
        if not hasattr(ours, name):
            with pytest.raises(MissingAttributeError, match=r"public names of the one in NNX|which Flax NNX has"):
                getattr(ours, name)


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


def test_the_bridge_to_linen_is_refused_with_the_reason():
    with pytest.raises(MissingNameError, match="'ToNNX', which Flax NNX has") as caught:
        from declax.bridge import ToNNX  # noqa: F401
    assert "Linen" in str(caught.value)
    with pytest.raises(MissingAttributeError, match="'to_linen', which Flax NNX has"):
        declax.bridge.to_linen  # the access is what is tested


def test_an_import_of_a_missing_name_gives_the_reason():
    with pytest.raises(MissingNameError, match="module declax: it has no attribute 'deprecations'") as caught:
        from declax import deprecations  # noqa: F401
    assert caught.value.why == ABSENT["deprecations"]
    assert not hasattr(dx, "deprecations")


@pytest.mark.parametrize("name", ["deprecations", "proxy_caller", "reprlib", "tracers"])
def test_an_import_of_a_module_that_only_the_peer_has(name):
    pytest.importorskip(f"flax.nnx.{name}")
    with pytest.raises(MissingNameError, match=f"module declax: it has no attribute '{name}'") as caught:
        exec(f"from declax import {name}")
    assert caught.value.why == ABSENT[name]
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


@pytest.mark.parametrize("name", ["graphlib.NodeDef", "variablelib.VariableMeta", "filterlib.create", "statelib.paths"])
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
