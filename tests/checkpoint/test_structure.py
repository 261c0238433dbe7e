"""Models come back as themselves: made in each way that the library has, saved, and loaded without a target."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import pickle
import subprocess
import sys
import time
import types
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.config import registry
from declax.errors import CheckpointError, CheckpointWarning, ConfigError


def keys(seed=0):
    return dx.Rngs(seed)


def double(x):
    return 2 * x


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    activation: Any = dx.field(default=dx.gelu)
    up = dx.Linear(dim, 2 * dim)
    drop = dx.Dropout(0.5)
    down = dx.Linear(2 * dim, dim)

    def __call__(self, x):
        return x + self.down(self.drop(self.activation(self.up(x))))


@dx.dataclass
class Tower(dx.Layer):
    dim: int = dx.field()
    blocks = dx.repeat(2, Block(dim))
    norm = dx.BatchNorm(dim)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Size(NamedTuple):
    rows: int
    columns: int


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


class Open(dx.Module):
    """Attributes of every kind, sharing, and a cycle."""

    def __init__(self, rngs):
        self.first = dx.Linear(3, 3, rngs=rngs)
        self.tied = self.first
        self.items = dx.data([dx.Param(jnp.ones(2)), (self.first, {"q": jnp.ones(1)})])
        self.by_name = dx.Dict(p=dx.Param(jnp.zeros(1)))
        self.layers = dx.List([dx.Linear(3, 3, rngs=rngs), None])
        self.array, self.constant, self.number = jnp.ones(3), np.ones(2), dx.data(np.float32(2.5))
        self.tree = dx.Variable({"b": jnp.ones(2), "a": [jnp.zeros(1)]})
        self.none = dx.Variable(None)
        self.sizes = {"x": [1, 2], "y": (3, None), "z": {1, 2}}
        self.functions = (jax.nn.relu, jnp.tanh, double)
        self.partial = functools.partial(jax.nn.leaky_relu, negative_slope=0.2)
        self.dtypes = (jnp.bfloat16, np.dtype("int8"), np.float32)
        self.constants = (math.inf, -0.0, 1j, b"bytes", ..., slice(1, None), jax.lax.Precision.HIGHEST, frozenset({1}))
        self.times = (
            datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
            datetime.date(2026, 1, 2),
            datetime.time(3),
        )
        self.spelled = (datetime.timedelta(-1, 2, 3), uuid.UUID(int=7), decimal.Decimal("0.10"), pathlib.Path("a/b"))
        self.size = Size(2, 3)
        self.settings = Settings(0.5)
        self.spec = dx.spec(dx.Linear, 2, 3)
        self.axes = jax.P("data", None)
        self.mesh = jax.sharding.AbstractMesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
        self.policy = jax.checkpoint_policies.nothing_saveable
        self.me = self

    def __call__(self, x):
        return self.tied(self.layers[0](self.first(x)))


def trained(model):
    """A model and its optimizer after a step, with the optimizer named by a Spec."""
    optimizer = dx.Optimizer(model, dx.spec(optax.adamw, 1e-2).build())
    optimizer.update(model, jax.tree.map(jnp.ones_like, dx.state(model, dx.Param)))
    return {"model": model, "optimizer": optimizer}


def of_an_ema():
    model = Tower(4, rngs=keys())
    return dx.EMA(model, 0.5).apply_to(model)


def with_another_head():
    model = Tower(4, rngs=keys())
    model.norm = dx.Sequential(dx.Linear(4, 2, rngs=keys(1)), double)
    return model


def jitted():
    return dx.jit(lambda rngs: Tower(4, rngs=rngs))(keys())


def vmapped():
    make = dx.vmap(lambda rngs: Block(4, rngs=rngs))
    return dx.split_rngs(splits=3)(make)(keys())


def with_a_cache():
    layer = dx.MultiHeadAttention(2, 8, decode=True, rngs=keys())
    layer.init_cache((2, 4, 8))
    layer(jnp.ones((2, 1, 8)))
    return layer


def evaluated():
    model = Tower(4, rngs=keys())
    model.eval()
    return model


def chained():
    transformation = dx.spec(optax.chain, dx.spec(optax.clip, 1.0), dx.spec(optax.sgd, 0.1, momentum=0.9)).build()
    return dx.Optimizer(Tower(4, rngs=keys()), transformation)


def merged():
    return dx.merge(*dx.split(Tower(4, rngs=keys())))


def sharded():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    layer = dx.spec(dx.Linear, 4, 4, kernel_metadata={"out_sharding": (None, "data")})
    return dx.init_sharded(layer, rngs=keys(), mesh=mesh)


def frozen():
    model = Tower(4, rngs=keys())
    dx.set_metadata(model, trainable=False, tag="frozen", only=dx.PathContains("blocks"))
    return model


def linear():
    return dx.Linear(4, 4, rngs=keys())


def cell(kind):
    return lambda: kind(4, 4, rngs=keys())


def values_of_variables():
    """Numbers, texts, trees of them, and nothing."""
    model = dx.Module()
    model.number, model.text, model.flag = dx.Variable(3), dx.Variable("a text"), dx.Variable(True)
    model.tree = dx.Variable({"b": [1.5, jnp.ones(2), "c"], "a": (None, np.zeros(2))})
    model.none, model.array = dx.Variable(None), dx.Param(jnp.ones(2))
    model.value = dx.Variable({"value": jnp.ones(2), "other": {"value": jnp.zeros(1)}})
    return model


@dx.remat
def thrice(x):
    return 3 * x


class Recomputed(dx.Module):
    """A call whose gradients recompute, and functions that a transform has made."""

    def __init__(self, rngs):
        self.up = dx.Linear(4, 4, rngs=rngs)
        self.functions = [double, thrice]

    @dx.remat
    def __call__(self, x):
        return self.functions[1](self.up(x))


class Trained(dx.TrainState):
    statistics: Any = None
    streams: Any = None
    name: str = dataclasses.field(default="", metadata={"static": True})


def train_state():
    graphdef, params = dx.split(linear())
    state = dx.TrainState.create(graphdef, params=params, tx=dx.spec(optax.sgd, 0.1, momentum=0.9).build())
    return state.apply_gradients(jax.tree.map(jnp.ones_like, params))


def train_state_of_a_subclass():
    graphdef, params, rest = dx.split(Tower(4, rngs=keys()), dx.Param, ...)
    tx = dx.spec(optax.chain, dx.spec(optax.clip, 1.0), dx.spec(optax.sgd, 0.1, momentum=0.9)).build()
    return Trained.create(graphdef, params=params, tx=tx, statistics=rest, streams=keys(), name="run")


def of_raw_jax():
    trees = dx.to_tree([linear(), dx.BatchNorm(4, rngs=keys())])
    return dx.from_tree(jax.jit(lambda trees: jax.tree.map(lambda x: 2 * x, trees))(trees))


def adapted():
    return dx.lora(dx.MultiHeadAttention(2, 8, decode=False, rngs=keys()), rank=2, rngs=keys(1))


def general():
    adapter = dx.LoRA(4, 1, 8, rngs=keys())
    return dx.LoRALinearGeneral((2, 2), (2, 4), axis=(-2, -1), lora=adapter, rngs=keys(1))


def stacked():
    return dx.Stacked(lambda rngs: Block(4, rngs=rngs), 3, rngs=keys())


def scanned():
    def step(model, x):
        model.norm.mean += x
        return model, x

    return dx.scan(step, in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0))(Tower(4, rngs=keys()), jnp.ones(3))


def looped():
    model = dx.fori_loop(0, 2, lambda _, model: model, linear())
    return dx.while_loop(lambda carry: carry[1] < 2, lambda carry: (carry[0], carry[1] + 1), (model, 0))


def mapped_over_shards():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = dx.StateSharding({...: jax.P()})
    return dx.shard_map(lambda model: model, mesh=mesh, in_specs=(everywhere,), out_specs=everywhere)(linear())


def filled():
    model = dx.eval_shape(linear)
    dx.update(model, dx.state(linear()))
    return model


WAYS = {
    # layers
    "Linear": linear,
    "LinearGeneral": lambda: dx.LinearGeneral((2, 2), (4,), axis=(-2, -1), rngs=keys()),
    "Einsum": lambda: dx.Einsum("ab,bc->ac", (4, 4), (4,), rngs=keys()),
    "Conv": lambda: dx.Conv(4, 4, (3,), rngs=keys()),
    "ConvTranspose": lambda: dx.ConvTranspose(4, 4, (3,), rngs=keys()),
    "Embed": lambda: dx.Embed(5, 4, rngs=keys()),
    "BatchNorm": lambda: dx.BatchNorm(4, rngs=keys()),
    "LayerNorm": lambda: dx.LayerNorm(4, rngs=keys()),
    "RMSNorm": lambda: dx.RMSNorm(4, rngs=keys()),
    "GroupNorm": lambda: dx.GroupNorm(4, num_groups=2, rngs=keys()),
    "InstanceNorm": lambda: dx.InstanceNorm(4, rngs=keys()),
    "Dropout": lambda: dx.Dropout(0.5, rngs=keys()),
    "DropPath": lambda: dx.DropPath(0.5, rngs=keys()),
    "PReLU": dx.PReLU,
    "RoPE": dx.RoPE,
    "MLP": lambda: dx.MLP(4, 4, rngs=keys()),
    "GatedMLP": lambda: dx.GatedMLP(4, 8, rngs=keys()),
    "MultiHeadAttention": lambda: dx.MultiHeadAttention(2, 8, decode=False, rngs=keys()),
    "SimpleCell": cell(dx.SimpleCell),
    "GRUCell": cell(dx.GRUCell),
    "LSTMCell": cell(dx.LSTMCell),
    "OptimizedLSTMCell": cell(dx.OptimizedLSTMCell),
    "RNN": lambda: dx.RNN(dx.GRUCell(4, 4, rngs=keys())),
    "Bidirectional": lambda: dx.Bidirectional(dx.RNN(cell(dx.GRUCell)()), dx.RNN(cell(dx.GRUCell)())),
    "SpectralNorm": lambda: dx.SpectralNorm(linear(), rngs=keys()),
    "WeightNorm": lambda: dx.WeightNorm(linear(), rngs=keys()),
    "LoRA": lambda: dx.LoRA(4, 2, 4, rngs=keys()),
    "LoRALinear": lambda: dx.LoRALinear(4, 4, lora_rank=2, rngs=keys()),
    "LoRA of a base": lambda: dx.LoRA(4, 2, 4, base_module=linear(), rngs=keys()),
    "LoRALinearGeneral": general,
    "adapters of another kind": lambda: dx.LoRALinear(4, 4, lora_rank=2, lora_param_type=dx.Param, rngs=keys()),
    "Stacked": stacked,
    "Stacked with a policy": lambda: dx.Stacked(
        lambda rngs: Block(4, rngs=rngs), 2, remat=jax.checkpoint_policies.dots_saveable, rngs=keys()
    ),
    # containers and classes
    "Sequential": lambda: dx.Sequential(linear(), jax.nn.relu, dx.Linear(4, 2, rngs=keys())),
    "List": lambda: dx.List([linear(), dx.Param(jnp.ones(2))]),
    "Dict": lambda: dx.Dict(b=linear(), a=None),
    "dict": lambda: {"b": linear(), "a": [dx.Param(jnp.ones(2)), (linear(), None)]},
    "declared": lambda: Tower(4, rngs=keys()),
    "open": lambda: Open(keys()),
    "streams": lambda: dx.Rngs(0, dropout=1),
    "a stream": lambda: dx.Rngs(0, dropout=1).dropout,
    "forked streams": lambda: dx.Rngs(0, dropout=1).fork(split=3),
    "a Variable": lambda: dx.Param(jnp.ones(3), tag="head"),
    "metrics": lambda: dx.MultiMetric(loss=dx.metrics.Average("loss"), accuracy=dx.metrics.Accuracy()),
    # functions and transforms that return models
    "lora": lambda: dx.lora(Tower(4, rngs=keys()), rank=2, rngs=keys(1)),
    "merge_lora": lambda: dx.merge_lora(dx.lora(Tower(4, rngs=keys()), rank=2, rngs=keys(1))),
    "lora of attention": adapted,
    "merge_lora of attention": lambda: dx.merge_lora(adapted()),
    "lora of Stacked": lambda: dx.lora(stacked(), rank=2, rngs=keys(1)),
    "EMA": lambda: dx.EMA(Tower(4, rngs=keys()), 0.5),
    "EMA.apply_to": of_an_ema,
    "jit": jitted,
    "vmap": vmapped,
    "scan": scanned,
    "loops": looped,
    "cond": lambda: dx.cond(True, lambda model: model, lambda model: model, linear()),
    "switch": lambda: dx.switch(0, [lambda model: model], linear()),
    "shard_map": mapped_over_shards,
    "remat": lambda: dx.remat(lambda model: model)(Recomputed(keys())),
    "grad": lambda: dx.grad(lambda model: model(jnp.ones((2, 4))).sum())(linear()),
    "capture": lambda: dx.capture(linear(), dx.Intermediate)(jnp.ones((2, 4))),
    "merge": merged,
    "split": lambda: [*dx.split(Tower(4, rngs=keys()), dx.Param, ...)],
    "unflatten": lambda: dx.unflatten(*dx.flatten(Tower(4, rngs=keys()))[:2]),
    "pure": lambda: dx.pure(Tower(4, rngs=keys())),
    "eval_shape and update": filled,
    "to_tree": lambda: [dx.to_tree(Tower(4, rngs=keys()))],
    "from_tree": of_raw_jax,
    "deepcopy": lambda: copy.deepcopy(Tower(4, rngs=keys())),
    "pickle": lambda: pickle.loads(pickle.dumps(Tower(4, rngs=keys()))),
    "map": lambda: dx.map(lambda _, x: x, Tower(4, rngs=keys())),
    "with_attributes": lambda: dx.with_attributes(Tower(4, rngs=keys()), deterministic=True),
    "unstack": lambda: stacked().unstack(),
    "Stacked.of": lambda: dx.Stacked.of([Block(4, rngs=keys(seed)) for seed in range(3)]),
    "with_partitioning": lambda: dx.Linear(
        4, 4, kernel_init=dx.with_partitioning(jax.nn.initializers.ones, (None, "x")), rngs=keys()
    ),
    # refs
    "to_refs": lambda: dx.to_refs(Tower(4, rngs=keys())),
    "to_refs of all attributes": lambda: dx.to_refs(Open(keys())),
    "to_refs of an optimizer": lambda: dx.to_refs(trained(Tower(4, rngs=keys()))),
    "to_refs of a State": lambda: dx.to_refs(dx.state(Tower(4, rngs=keys()))),
    "to_refs of streams": lambda: dx.to_refs(dx.Rngs(0, dropout=1)),
    "to_arrays": lambda: dx.to_arrays(dx.to_refs(Tower(4, rngs=keys()))),
    "vars_as": lambda: dx.vars_as(linear(), ref=True),
    "array_ref": lambda: dx.array_ref(jnp.ones(3)),
    "array refs": lambda: {"a": dx.array_ref(jnp.ones(3)), "b": [dx.array_ref(jnp.zeros(2, jnp.bfloat16))]},
    "clone": lambda: dx.clone(Tower(4, rngs=keys())),
    "replace": lambda: dx.replace(Tower(4, rngs=keys()), dim=6, rngs=keys(1)),
    "jax.tree.map": lambda: jax.tree.map(lambda x: x * 2, linear()),
    "device_put": lambda: jax.device_put(Tower(4, rngs=keys()), jax.devices()[0]),
    "init_sharded": sharded,
    "recursive_map": lambda: dx.recursive_map(lambda _, x: x, Tower(4, rngs=keys())),
    "view": lambda: dx.view(Tower(4, rngs=keys()), deterministic=True),
    "eval": evaluated,
    "surgery": with_another_head,
    "set_metadata": frozen,
    "a cache": with_a_cache,
    "from_config": lambda: dx.from_config(Tower, {"dim": 4}, rngs=keys()),
    # optimizers
    "Optimizer": lambda: trained(Tower(4, rngs=keys())),
    "chain": chained,
    "ModelAndOptimizer": lambda: dx.ModelAndOptimizer(Tower(4, rngs=keys()), dx.spec(optax.adam, 1e-3).build()),
    "MultiSteps": lambda: dx.Optimizer(linear(), dx.spec(optax.MultiSteps, dx.spec(optax.sgd, 0.1), 2).build()),
    "TrainState": train_state,
    "TrainState of a subclass": train_state_of_a_subclass,
    "dynamic_loss_scale": lambda: dx.Optimizer(
        linear(), dx.spec(dx.dynamic_loss_scale, dx.spec(optax.sgd, 0.1)).build()
    ),
    "wrt": lambda: dx.Optimizer(linear(), dx.spec(optax.sgd, 0.1).build(), wrt=dx.All(dx.Param, dx.Not("frozen"))),
    # values without a class of declax
    "FlatState": lambda: dx.to_flat_state(dx.state(linear())),
    "State": lambda: dx.state(Tower(4, rngs=keys())),
    "optax state": lambda: optax.adam(1e-3).init({"w": jnp.ones(2)}),
    "arrays": lambda: OrderedDict(b=np.arange(3), a=[jnp.ones(2), (2.5, None, "text")]),
    "an array": lambda: jnp.arange(3.0),
    "an array of numpy": lambda: np.arange(3, dtype=np.int64),
    "numbers and texts": lambda: (1, 2.5, True, "text", None),
    "empty arrays": lambda: {
        "a": jnp.zeros((0, 2)),
        "b": [np.zeros((2, 0), np.int8)],
        "c": jnp.zeros((0,), jnp.bfloat16),
    },
    "an empty model": dx.Module,
    "values of Variables": values_of_variables,
    "defaultdict": lambda: defaultdict(list, b=jnp.ones(2), a=jnp.zeros(1)),
}


def of_shape(*shape):
    return lambda model: model(jnp.ones(shape))


def one_step(cell):
    x = jnp.ones((2, 4))
    return cell(cell.initialize_carry(x.shape, dx.Rngs(1)), x)


INPUTS: dict[str, Any] = {
    "Embed": lambda model: model(jnp.arange(4)),
    "LinearGeneral": of_shape(2, 2),
    "LoRALinearGeneral": of_shape(2, 2),
    "Einsum": of_shape(2, 4),
    **dict.fromkeys(["MultiHeadAttention", "lora of attention", "merge_lora of attention"], of_shape(2, 3, 8)),
    "a cache": of_shape(2, 1, 8),
    **dict.fromkeys(["SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"], one_step),
    **dict.fromkeys(["open", "to_refs of all attributes"], of_shape(2, 3)),
    "replace": of_shape(2, 6),
    "vmap": dx.vmap(of_shape(2, 4)),
    **dict.fromkeys(["streams", "a stream", "to_refs of streams"], lambda streams: streams()),
    "forked streams": dx.vmap(lambda streams: streams()),
    **dict.fromkeys(["pure", "a Variable"]),  # not called: they have no Variables, and no call
}

EXTRA = [Tower, Open, Settings, Size, double, thrice, Recomputed, Trained]


def host(leaf):
    leaf = leaf[...] if isinstance(leaf, jax.Ref) else leaf
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf)) if is_key else np.asarray(leaf)


def assert_same(found, value):
    """The same classes, statuses, static values, sharing and order; and arrays of the same type to the last bit."""
    assert type(found) is type(value)
    if isinstance(value, dx.TrainState):
        assert found.graphdef is value.graphdef
        found = found.replace(tx=value.tx)  # of the same Spec; optax compares functions
    assert dx.graphdef(found) == dx.graphdef(value)
    assert dx.structure(found) == dx.structure(value)
    ours, theirs = dx.state(found), dx.state(value)
    assert ours.paths == theirs.paths
    for one, other in zip(ours.leaves, theirs.leaves, strict=True):
        assert type(one) is type(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(host(a), host(b))), one, other))
    for (_, one), (_, other) in zip(dx.iter_graph(found), dx.iter_graph(value), strict=True):
        if isinstance(one, dx.Pytree):
            names = [[name for name in vars(node) if "_pytree__" not in str(name)] for node in (one, other)]
            assert names[0] == names[1]


@pytest.mark.parametrize("engine", ["declax", "orbax"])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_comes_back_as_itself(way, engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    value = WAYS[way]()
    dx.save(tmp_path / "c", {"item": value}, engine=engine)
    found = dx.load(tmp_path / "c", extra=EXTRA, engine=engine)["item"]
    assert_same(found, value)
    call = INPUTS.get(way, lambda model: model(jnp.ones((2, 3, 4))))
    if callable(value) and call is not None:
        expected = call(value)  # before the other one: both may draw and write
        same = jax.tree.map(lambda a, b: bool(np.array_equal(host(a), host(b))), call(found), expected)
        assert jax.tree.all(same)


def test_meshes_of_metadata_are_kept_by_their_axes(tmp_path):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    layer = dx.Linear(4, 4, rngs=keys(), kernel_metadata={"out_sharding": (None, "data"), "mesh": mesh})
    dx.save(tmp_path / "c", {"model": layer})
    found = dx.load(tmp_path / "c", mesh=mesh)["model"]
    assert found.kernel.get_metadata("mesh") == mesh
    other = dx.load(tmp_path / "c")["model"].kernel.get_metadata("mesh")
    assert (other.axis_names, other.axis_sizes) == (("data",), (1,))


ELSEWHERE = """
import json, sys
from pathlib import Path
import declax as dx

folder = Path(sys.argv[1])
found = dx.load(folder / "c")
for name, expected in json.loads((folder / "structures.json").read_text()).items():
    print(name, dx.structure(found[name]) == expected)
"""


def test_models_come_back_in_another_process(tmp_path):
    """There, no class has been used yet, and nothing has been imported but declax."""
    items = {way.replace(".", " "): make() for way, make in WAYS.items()}
    structures = {name: dx.structure(item) for name, item in items.items()}
    structures = {name: found for name, found in structures.items() if __name__ not in json.dumps(found)}
    assert len(structures) >= 40
    dx.save(tmp_path / "c", {name: items[name] for name in structures})
    (tmp_path / "structures.json").write_text(json.dumps(structures))
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.stdout.splitlines() == [f"{name} True" for name in structures], ended.stderr


def test_there_are_enough_ways():
    assert len(WAYS) >= 40


@pytest.mark.parametrize("way", ["declared", "open", "Optimizer", "streams", "State", "lora", "arrays"])
def test_an_abstract_load_reads_no_array(way, tmp_path, monkeypatch):
    value = WAYS[way]()
    dx.save(tmp_path / "c", {"item": value})
    monkeypatch.setattr("declax.checkpoint.file_arrays.FileArray._read", lambda *_: pytest.fail("it reads"))
    found = dx.load(tmp_path / "c", extra=EXTRA, abstract=True)["item"]
    shapes = [leaf for leaf in jax.tree.leaves(dx.state(found).leaves) if hasattr(leaf, "shape")]
    expected = [leaf for leaf in jax.tree.leaves(dx.state(value).leaves) if hasattr(leaf, "shape")]
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in shapes)
    assert [(leaf.shape, leaf.dtype) for leaf in shapes] == [(leaf.shape, leaf.dtype) for leaf in expected]
    assert dx.graphdef(found) == dx.graphdef(value)


def test_arrays_are_read_into_the_shards_of_a_mesh(tmp_path):
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    layer = dx.Linear(4, 8, rngs=keys(), kernel_metadata={"out_sharding": (None, "mlp")})
    dx.save(tmp_path / "c", {"model": layer, "step": 3})
    found = dx.load(tmp_path / "c", mesh=mesh, rules={"mlp": "model"})["model"]
    assert found.kernel.sharding == jax.NamedSharding(mesh, jax.P(None, "model"))
    assert_same(found, layer)
    abstract = dx.load(tmp_path / "c", mesh=mesh, rules={"mlp": "model"}, abstract=True)["model"]
    assert abstract.kernel.value.sharding == jax.NamedSharding(mesh, jax.P(None, "model"))
    with pytest.raises(dx.errors.ShardingError, match="'mlp' has no rule"):
        dx.load(tmp_path / "c", mesh=mesh)
    dx.save(tmp_path / "d", {"model": linear()})
    split = dx.load(tmp_path / "d", mesh=mesh, shardings=functools.partial(dx.fsdp, mesh=mesh, min_size=1))["model"]
    assert split.kernel.sharding.mesh == mesh
    assert_same(split, linear())


@pytest.mark.parametrize("shardings", [None, functools.partial(dx.fsdp, min_size=1)])
@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_states_and_trees_are_read_into_the_shards_of_a_mesh(engine, shardings, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    layer = dx.Linear(4, 8, rngs=keys(), kernel_metadata={"out_sharding": (None, "model")})
    items = {
        "state": dx.state(layer),
        "tree": {"a": [jnp.ones(4)], "host": np.ones(4)},
        "array": jnp.ones(2),
        "key": jax.random.key(0),
        "mixed": {"model": layer, "a": jnp.ones(2)},
        "number": 3,
    }
    dx.save(tmp_path / "c", items, engine=engine)
    for abstract in (False, True):
        found = dx.load(tmp_path / "c", mesh=mesh, engine=engine, shardings=shardings, abstract=abstract)
        spec = jax.P(None, "model") if shardings is None else jax.P("data", "model")
        assert found["state"]["kernel"].value.sharding == jax.NamedSharding(mesh, spec)
        arrays = [found["tree"]["a"][0], found["array"], found["key"], found["mixed"]["a"]]
        assert [array.sharding.mesh for array in arrays] == [mesh] * 4
        assert found["number"] == 3
    assert isinstance(dx.load(tmp_path / "c", mesh=mesh, engine=engine)["tree"]["host"], np.ndarray)


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")
def test_trees_of_others_are_placed_on_a_mesh(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        tree = {"a": {"b": jnp.ones(2)}, "wide": np.full(2, 1 / 3)}
        checkpointer.save(tmp_path / "c", ocp.args.Composite(tree=ocp.args.PyTreeSave(tree)))
    for abstract in (False, True):
        found = dx.load(tmp_path / "c", mesh=mesh, engine="orbax", abstract=abstract)["tree"]
        assert found["a"]["b"].sharding == jax.NamedSharding(mesh, jax.P())
        assert found["wide"].dtype == np.float64  # JAX would shorten it
        assert abstract or (found["wide"] == 1 / 3).all()


# --- names ----------------------------------------------------------------------------------


def test_all_missing_classes_are_named_at_once(tmp_path):
    model = Tower(4, rngs=keys())
    model.extra = Open(keys())
    dx.save(tmp_path / "c", {"model": model, "layer": linear(), "step": 1})
    found = dx.load(tmp_path / "c")
    assert found["step"] == 1
    assert isinstance(found["layer"], dx.Linear)
    assert list(found) == ["model", "layer", "step"]
    with pytest.raises(CheckpointError) as caught:
        found["model"]
    for name in ("Tower", "Block", "Open", "Settings", "Size", "double"):
        assert f"{__name__}.{name}" in caught.value.expected
        assert name in caught.value.fix
    for read in (found.items, lambda: dict(found), lambda: {**found}, found.values):
        with pytest.raises(CheckpointError):
            read()
    assert isinstance(dx.load(tmp_path / "c", items=("layer",)).pop("layer"), dx.Linear)


def test_a_class_brings_those_that_its_code_names(tmp_path):
    dx.save(tmp_path / "c", {"tower": Tower(4, rngs=keys()), "open": Open(keys())})
    found = dx.load(tmp_path / "c", extra=[Tower, Open])
    assert type(found["tower"].blocks[0]) is Block  # a declared part
    assert type(found["open"].settings) is Settings  # made in `__init__`
    with pytest.raises(CheckpointError, match="cannot be made of its structure"):
        dx.load(tmp_path / "c", extra=[Block])["tower"]


def test_a_module_brings_its_classes(tmp_path, monkeypatch):
    module = types.ModuleType("models_of_a_user")
    source = "import declax as dx\n@dx.dataclass\nclass Head(dx.Layer):\n    out = dx.Linear(2, 2)\n"
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    exec(compile(source, __file__, "exec"), vars(module))
    dx.save(tmp_path / "c", {"model": module.Head(rngs=keys())})
    with pytest.raises(CheckpointError):
        dx.load(tmp_path / "c")["model"]
    assert type(dx.load(tmp_path / "c", extra=[module])["model"]) is module.Head


@dx.dataclass
class Following(dx.Layer):
    dim: int = dx.field()
    rate: float = dx.field(default=0.5)
    padding: str = dx.field(default="SAME")
    act: Callable[[jax.Array], jax.Array] = dx.field(default=jax.nn.relu)
    drop = dx.Dropout(rate)
    conv = dx.Conv(dim, dim, (3,), padding=padding)
    mlp = dx.Sequential(dx.Linear(dim, dim), act)


def test_a_field_that_was_assigned_after_its_part(tmp_path):
    model = Following(3, rngs=dx.Rngs(0))
    model.rate, model.padding, model.act = 0.1, "VALID", jax.nn.gelu
    dx.save(tmp_path / "c", {"model": model})
    found = dx.load(tmp_path / "c", extra=[Following])["model"]
    assert (found.rate, found.padding, found.act) == (0.1, "VALID", jax.nn.gelu)
    assert (found.drop.rate, found.conv.padding, found.mlp.layers[1]) == (0.5, "SAME", jax.nn.relu)
    with pytest.raises(ConfigError, match=r"the structure of this object differs"):
        dx.spec_of(model)
    changes = {"rate": 0.1, "padding": "VALID", "act": jax.nn.gelu}
    new = dx.replace(Following(3, rngs=dx.Rngs(0)), **changes, rngs=dx.Rngs(0))
    assert (new.drop.rate, new.conv.padding, new.mlp.layers[1]) == (0.1, "VALID", jax.nn.gelu)


@pytest.fixture
def own_kinds(monkeypatch):
    """Kinds that are registered in a test are not known after it."""
    monkeypatch.setattr(registry, "_KINDS", {})
    yield
    monkeypatch.undo()
    for notify in registry._on_change:
        notify()


@pytest.mark.usefixtures("own_kinds")
def test_registered_classes_are_known(tmp_path):
    dx.register_kind(dx.Module, Tower)
    dx.save(tmp_path / "c", {"model": Tower(4, rngs=keys())})
    assert type(dx.load(tmp_path / "c")["model"]) is Tower


UNNAMED = {
    "a lambda": lambda model: setattr(model, "activation", lambda x: x),
    "a closure": lambda model: setattr(model, "activation", functools.partial(lambda y: lambda x: x + y)(1)),
    "an object": lambda model: setattr(model, "note", dx.static(types.SimpleNamespace(a=1))),
    "an optimizer": lambda model: setattr(model, "optimizer", dx.Optimizer(linear(), optax.sgd(0.1))),
    "a hook": lambda model: model.up.kernel.set_metadata(on_get_value=lambda variable, value: value),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_what_has_no_name_is_said_when_it_is_saved(case, tmp_path):
    model = Block(4, rngs=keys())
    UNNAMED[case](model)
    with pytest.warns(CheckpointWarning, match=r"has no (name|form) in files") as caught:
        dx.save(tmp_path / "c", {"model": model, "step": 3})
    assert len(caught) == 1
    found = dx.load(tmp_path / "c", extra=EXTRA)
    assert found["step"] == 3
    with pytest.raises(CheckpointError, match=r"has no (name|form) in files, so that the file does not have it"):
        found["model"]
    again = dx.load(tmp_path / "c", into={"model": model, "step": 0})
    assert again["model"] is model


def test_what_a_transform_has_made_is_named_where_it_decorates(tmp_path):
    model = dx.Sequential(linear(), thrice, dx.jit(double))
    with pytest.warns(CheckpointWarning) as caught:
        dx.save(tmp_path / "c", {"model": model})
    text = str(caught[0].message)
    assert "layers[1]" not in text
    assert "model.layers[2]: what a transform has made of double has no name in files" in text
    assert "fix: the transform as a decorator" in text


READS = {
    "[]": lambda found: found["model"],
    "get": lambda found: found.get("model"),
    "setdefault": lambda found: found.setdefault("model", 1),
    "pop": lambda found: found.pop("model"),
    "pop with a default": lambda found: found.pop("model", 1),
    "popitem": lambda found: found.popitem(),
    "dict": dict,
    "**": lambda found: {**found},
    "copy": lambda found: found.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "|": lambda found: found | {},
    "| of a dict": lambda found: {} | found,
    "|=": {}.__ior__,
    "update": {}.update,
    "values": lambda found: found.values(),
    "items": lambda found: found.items(),
    "match": lambda found: [model for case in [found] if (model := case.get("model"))],
    "pickle": pickle.dumps,
    "json": json.dumps,
    "tree": lambda found: jax.tree.leaves(dict(found)),
}


@pytest.mark.parametrize("read", READS)
def test_an_item_that_cannot_be_made_is_handed_out_by_nothing(read, tmp_path):
    with pytest.warns(CheckpointWarning):
        dx.save(tmp_path / "c", {"step": 3, "model": dx.Sequential(linear(), lambda x: x)})
    found = dx.load(tmp_path / "c")
    with pytest.raises(CheckpointError, match="a lambda has no name in files"):
        READS[read](found)
    assert list(found) == ["step", "model"]
    assert found.get("step") == found.setdefault("step", 4) == 3
    found["model"] = None
    assert dict(found) == found.copy() == {"step": 3, "model": None}
    assert (found.popitem(), found.pop("step"), found.pop("step", 5)) == (("model", None), 3, 5)


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_types_of_leaves_come_back(engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    model = dx.Module()
    model.weak, model.full = dx.Param(jnp.array(2.0)), dx.Param(jnp.full((3,), 2))
    model.array, model.strong = jnp.asarray(0.5), dx.Param(jnp.ones(()))
    model.big, model.tree = dx.data(np.arange(3, dtype=">f4")), dx.Variable({"b": np.arange(2, dtype=">i8")})
    model.held, model.ref = dx.Variable(jax.new_ref(jnp.arange(3.0))), jax.new_ref(jnp.ones(2))
    dx.save(tmp_path / "c", {"model": model}, engine=engine)
    target = dx.clone(model)
    target.weak.value, target.full.value = jnp.array(0.0), jnp.full((3,), 0)
    dx.load(tmp_path / "c", into={"model": target}, engine=engine)
    for found in (dx.load(tmp_path / "c", engine=engine)["model"], target):
        assert [found.weak.value.weak_type, found.full.value.weak_type, found.array.weak_type] == [True] * 3
        assert (found.full.value.tolist(), found.strong.value.weak_type) == ([2, 2, 2], False)
        assert (found.big.dtype.str, found.big.tolist()) == (">f4", [0, 1, 2])
        assert (found.tree.value["b"].dtype.str, found.tree.value["b"].tolist()) == (">i8", [0, 1])
    found = dx.load(tmp_path / "c", engine=engine)["model"]
    assert isinstance(found.held.raw_value, jax.Ref)
    assert found.held.raw_value[...].tolist() == [0, 1, 2]
    assert found.ref[...].tolist() == [1, 1]
    assert dx.load(tmp_path / "c", engine=engine, abstract=True)["model"].weak.value.weak_type


def test_deep_models_take_linear_time(tmp_path):
    model = None
    for number in range(12_000):
        holder = dx.Module()
        holder.child, holder.number, model = model, number, holder
    begun = time.process_time()
    assert len(dx.structure(model)["objects"]) == 12_000
    dx.save(tmp_path / "c", {"model": model})
    assert dx.load(tmp_path / "c")["model"].child.number == 11_998
    assert time.process_time() - begun < 6  # 30 s where each object has its path


@pytest.mark.usefixtures("own_kinds")
def test_a_registered_function_has_a_name(tmp_path):
    dx.register_kind(Any, double)
    model = Block(4, double, rngs=keys())
    dx.save(tmp_path / "c", {"model": model})
    assert dx.load(tmp_path / "c", extra=[Block])["model"].activation is double


def test_a_local_class_is_reported_unless_it_is_given(tmp_path):
    class Local(dx.Module):
        pass

    with pytest.warns(CheckpointWarning, match="Local is defined in a function"):
        dx.save(tmp_path / "c", {"model": Local()})
    dx.save(tmp_path / "d", {"model": Local()}, extra=[Local])  # without a warning
    assert type(dx.load(tmp_path / "d", extra=[Local])["model"]) is Local


# --- classes that changed ---------------------------------------------------------------------


def test_a_class_that_gained_a_field(tmp_path, monkeypatch):
    model = Settled(3)
    dx.save(tmp_path / "c", {"model": model})
    monkeypatch.setitem(globals(), "Settled", SettledLater)
    found = dx.load(tmp_path / "c", extra=[SettledLater])["model"]
    assert (found.size, found.scale, found.names) == (3, 0.5, ["a"])
    with pytest.raises(CheckpointError, match="has this field by now, without a default") as caught:
        dx.load(tmp_path / "c", extra=[SettledWithout])["model"]
    assert "model.more" in str(caught.value)


@dx.dataclass
class Settled(dx.Module):
    size: int = dx.field()


def _later(name):
    def rename(cls):
        cls.__qualname__ = cls.__name__ = name
        return cls

    return rename


@_later("Settled")
@dx.dataclass
class SettledLater(dx.Module):
    size: int = dx.field()
    scale: float = 0.5
    names: list[str] = dx.field(default_factory=lambda: ["a"])


@_later("Settled")
@dx.dataclass
class SettledWithout(dx.Module):
    size: int = dx.field()
    more: int = dx.field(kw_only=True)


def test_values_of_cached_properties_are_computed_again(tmp_path):
    model = Cached()
    assert model.doubled == 2
    dx.save(tmp_path / "c", {"model": model})
    text = (tmp_path / "c" / "manifest.json").read_text()
    assert "doubled" not in text
    found = dx.load(tmp_path / "c", extra=[Cached])["model"]
    assert "doubled" not in vars(found)
    assert found.doubled == 2


class Cached(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.ones(()))

    @functools.cached_property
    def doubled(self):
        return jnp.asarray(2 * self.w)


def test_a_loaded_model_has_the_record_of_its_construction(tmp_path):
    model = Tower(4, rngs=keys())
    layer = dx.Linear(2, 3, kernel_init=dx.initializers.zeros, rngs=keys())
    dx.save(tmp_path / "c", {"model": model, "layer": layer})
    found = dx.load(tmp_path / "c", extra=[Tower])
    assert dx.spec_of(found["model"]) == dx.spec_of(model)
    assert dx.spec_of(found["layer"]) == dx.spec_of(layer)
    assert dx.replace(found["model"], dim=6, rngs=keys()).blocks[0].dim == 6


# --- what a structure is ---------------------------------------------------------------------


def test_a_structure_names_no_field_that_no_object_keeps():
    (layer, *_) = dx.structure(linear())["objects"]
    assert "absent" not in layer  # `kernel_init` and `rngs` are arguments, `_pytree__implies_rngs` a mark of the class
    model = Settled(3)
    del vars(model)["size"]
    assert dx.structure(model)["objects"][0]["absent"] == ["size"]


def test_structures_are_json_and_equal_for_equal_models():
    for way in ("declared", "open", "Optimizer", "a cache"):
        first, second = WAYS[way](), WAYS[way]()
        assert dx.structure(first) == dx.structure(second)
        assert json.loads(json.dumps(dx.structure(first))) == dx.structure(first)
    assert dx.structure(Tower(4, rngs=keys())) != dx.structure(Tower(6, rngs=keys()))
    assert dx.structure(merged()) == dx.structure(Tower(4, rngs=keys()))
    assert dx.structure(evaluated()) != dx.structure(Tower(4, rngs=keys()))


# --- what a review has found ------------------------------------------------------------------


@dx.dataclass
class TwoParams(dx.Module):
    a: dx.Param
    b: dx.Param


def deviating(keys):
    model = TwoParams(dx.Param(jnp.ones(1)), dx.Param(jnp.ones(1)))
    for key in keys:
        setattr(model, f"{key}_new", 1)
        setattr(model, key, dx.BatchStat(jnp.ones(1)))
    return model


ORDERED = {
    "dict": lambda keys: dx.data({key: jnp.ones(1) for key in keys}),
    "nested": lambda keys: dx.data([{key: {(key,): jnp.ones(1) for key in keys} for key in keys}]),
    "Variables": lambda keys: dx.data({key: dx.Param(jnp.ones(1)) for key in keys}),
    "value": lambda keys: dx.Param({key: jnp.ones(1) for key in keys}),
    "defaultdict": lambda keys: dx.data(defaultdict(list, {key: jnp.ones(1) for key in keys})),
    "Dict": lambda keys: dx.Dict({key: jnp.ones(1) for key in keys}),
    "OrderedDict": lambda keys: dx.data(OrderedDict((key, jnp.ones(1)) for key in keys)),
    "static": lambda keys: dict.fromkeys(keys, 1),
    "unsortable": lambda keys: dx.static({1 if key == "a" else key: 1 for key in keys}),
    "attributes": deviating,
}


@pytest.mark.parametrize("way", ORDERED)
def test_the_order_of_keys_counts_in_a_structure_as_in_a_diff(way, tmp_path):
    models = [dx.Module(), dx.Module()]
    for model, keys in zip(models, ("ab", "ba"), strict=True):
        model.held = ORDERED[way](keys)
    is_equal = dx.structure(models[0]) == dx.structure(models[1])
    assert is_equal is (not dx.diff(*models)) is (way not in ("Dict", "OrderedDict", "static", "unsortable"))
    dx.save(tmp_path / "c", {"model": models[1]})
    found = dx.load(tmp_path / "c", extra=[TwoParams])["model"]
    if type(found.held) in (dict, OrderedDict, dx.Dict):
        assert list(found.held) == list(models[1].held)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_structure_of_shapes_is_that_of_the_arrays(impl):
    def make():
        return dx.Sequential(dx.Dropout(0.5, rngs=dx.Rngs(jax.random.key(0, impl=impl))), linear())

    assert dx.structure(dx.eval_shape(make)) == dx.structure(make())


def test_a_wrapped_function_is_not_the_one_that_it_wraps(tmp_path):
    for function in (jax.vmap(double), jax.jit(double), dx.vmap(double), functools.partial(jax.vmap(double))):
        with pytest.warns(CheckpointWarning, match="has no name in files"):
            dx.save(tmp_path / "c", {"model": dx.Sequential(linear(), function)}, overwrite=True)
    with pytest.warns(CheckpointWarning, match="has no name in files"):
        dx.save(tmp_path / "c", {"model": dx.Sequential(linear(), linear().__call__)}, overwrite=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def test_arrays_in_containers_that_cannot_change(tmp_path):
    model = dx.Module()
    model.pair = dx.data((jnp.ones(2), Size(jnp.zeros(1), jnp.ones(1))))
    model.registered = dx.data(Pair(jnp.ones(2), jnp.zeros(2)))
    dx.save(tmp_path / "c", {"model": model, "both": (linear(), jnp.ones(2)), "step": 1})
    found = dx.load(tmp_path / "c", extra=[Size, Pair])
    assert_same(found["model"], model)
    assert (found["both"][1] == 1).all()
    assert found["step"] == 1


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_values_of_a_target_that_cannot_change_are_in_a_copy(engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    state, model = train_state_of_a_subclass(), linear()
    saved = {"state": state, "both": (model, jnp.ones(2), {"a": np.ones(1)}), "states": (dx.state(model), jnp.ones(1))}
    dx.save(tmp_path / "c", saved, engine=engine)
    streams = keys(3)
    zeros = jax.tree.map(jnp.zeros_like, state.replace(streams=None)).replace(streams=streams)
    other = dx.Linear(4, 4, rngs=keys(2))
    both = (other, jnp.zeros(2), {"a": np.zeros(1)})
    target = {"state": zeros, "both": both, "states": (jax.tree.map(jnp.zeros_like, dx.state(other)), jnp.zeros(1))}
    found = dx.load(tmp_path / "c", into=target, engine=engine)
    for name, value in saved.items():
        assert_same(found[name], value)
    assert found["state"].streams is streams
    assert found["both"][0] is other
    assert (both[1] == 0).all()
    assert (both[2]["a"] == 0).all()
    assert int(zeros.step) == 0
    assert found.report


def test_a_graphdef_that_refers_to_another_graph_is_reported(tmp_path):
    model = linear()
    with pytest.warns(CheckpointWarning, match=r"item\[1\].*: a GraphDef that refers to objects of another graph"):
        dx.save(tmp_path / "c", {"item": dx.to_tree([model, {"same": model}])})


def test_problems_in_a_graphdef_have_their_path(tmp_path):
    dx.save(tmp_path / "c", {"state": train_state_of_a_subclass()})
    with pytest.raises(CheckpointError, match=r"extra= or dx.register_kind name: .*Tower") as caught:
        dx.load(tmp_path / "c", extra=[Trained])["state"]
    assert "fix:      dx.load(path, extra=[Trained, Tower" in str(caught.value)
    params = dx.state(linear())
    state = dx.TrainState.create(dx.graphdef(linear()), params=params, tx=optax.sgd(0.1))
    with pytest.warns(CheckpointWarning, match=r"a transformation of closures has no name in files"):
        dx.save(tmp_path / "d", {"state": state})


def test_an_array_ref_comes_back(tmp_path):
    model = dx.Module()
    model.ref = jax.new_ref(jnp.arange(3.0))
    dx.save(tmp_path / "c", {"model": model})
    found = dx.load(tmp_path / "c")["model"]
    assert isinstance(found.ref, jax.Ref)
    assert (found.ref[...] == model.ref[...]).all()


def test_one_item_that_does_not_fit_leaves_the_others(tmp_path):
    dx.save(tmp_path / "c", {"model": Settled(3), "step": 1})
    found = dx.load(tmp_path / "c", extra=[SettledWithout])
    assert found["step"] == 1
    with pytest.raises(CheckpointError, match="without a default"):
        found["model"]


@dx.dataclass
class Lost(dx.Module):
    size: int = dx.field()
    old: int = 3


@_later("Lost")
@dx.dataclass
class LostLater(dx.Module):
    size: int = dx.field()


def test_a_field_that_the_class_has_lost_is_an_error(tmp_path):
    model = Lost(2)
    model.note = "mine"
    dx.save(tmp_path / "c", {"model": model})
    assert dx.load(tmp_path / "c", extra=[Lost])["model"].note == "mine"
    with pytest.raises(CheckpointError, match="has no such field any more") as caught:
        dx.load(tmp_path / "c", extra=[LostLater])["model"]
    assert "model.old" in str(caught.value)
    assert "model.note" not in str(caught.value)


def test_transformations_of_many_kinds(tmp_path):
    specs = {
        "schedule": dx.spec(optax.adamw, dx.spec(optax.cosine_decay_schedule, 1e-2, 100)),
        "hyperparams": dx.spec(optax.lion, 1e-3),
        "accumulated": dx.spec(optax.MultiSteps, dx.spec(optax.adam, 1e-3), 2),
    }
    items = {name: dx.Optimizer(linear(), spec.build()) for name, spec in specs.items()}
    dx.save(tmp_path / "c", items)
    found = dx.load(tmp_path / "c")
    for name, optimizer in items.items():
        assert_same(found[name], optimizer)


def test_items_that_share_objects_are_reported(tmp_path):
    model = linear()
    with pytest.warns(CheckpointWarning, match="copy: it shares a value of type Linear with 'model'"):
        dx.save(tmp_path / "c", {"model": model, "copy": model})


T = TypeVar("T")


class Boxed(dx.Module, Generic[T]):
    """A generic class."""

    def __init__(self, size: T) -> None:
        self.size = size


def test_an_instance_of_a_generic_class(tmp_path):
    model = Boxed[int](3)
    dx.save(tmp_path / "c", {"model": model})
    assert dx.load(tmp_path / "c", extra=[Boxed])["model"].size == 3


class WithDefault(dx.Module):
    activation = staticmethod(jax.nn.relu)


def test_an_object_may_replace_a_function_of_its_class(tmp_path):
    model = WithDefault()
    model.activation = jax.nn.gelu
    dx.save(tmp_path / "c", {"model": model})
    assert dx.load(tmp_path / "c", extra=[WithDefault])["model"].activation is jax.nn.gelu


class Colour(enum.Flag):
    RED = enum.auto()
    BLUE = enum.auto()


def test_values_that_only_look_named(tmp_path):
    model = dx.Module()
    for value in (Colour.RED | Colour.BLUE, np.dtype([("a", "i4")]), math.sqrt, len):
        model.value = dx.static(value)
        with pytest.warns(CheckpointWarning, match=r"has no (name|form) in files"):
            dx.save(tmp_path / "c", {"model": model}, overwrite=True)


FILTERS = [
    ...,
    dx.Everything(),
    dx.Nothing(),
    dx.OfType(dx.Param),
    dx.WithTag("head"),
    dx.PathContains("a", exact=False),
    dx.PathIn(("a", 0)),
    dx.PathMatches("a.*"),
    dx.Not(dx.PathContains("a")),
    dx.All(dx.Param, dx.Not("head")),
    dx.Any(dx.Param, dx.BatchStat),
    dx.is_trainable,
    dx.is_decayed,
]


@pytest.mark.parametrize("given", FILTERS, ids=repr)
def test_filters_come_back(given, tmp_path):
    """In the attributes of a model, as `wrt` of an optimizer is."""
    model = dx.Module()
    model.filter = dx.static(given)
    dx.save(tmp_path / "c", {"model": model})
    found = dx.load(tmp_path / "c")["model"]
    assert_same(found, model)
    assert found.filter == given


@dx.dataclass
class Submodules(dx.Layer):
    widths: tuple[int, ...] = dx.field(default=(2, 3))

    @dx.submodule
    def parts(self, rngs: dx.Rngs) -> list[Block]:
        return [Block(width, rngs=rngs) for width in self.widths]


def test_a_class_brings_those_that_its_submodules_name(tmp_path):
    model = Submodules(rngs=keys())
    dx.save(tmp_path / "c", {"model": model})
    assert_same(dx.load(tmp_path / "c", extra=[Submodules])["model"], model)


CALLS = []


def my_transformation(rate):
    CALLS.append(rate)
    return optax.sgd(rate)


def test_functions_that_make_transformations(tmp_path):
    specs = {"mine": dx.spec(my_transformation, 0.1), "filtered": dx.spec(dx.by_filter, {"*": dx.spec(optax.sgd, 0.1)})}
    items = {name: dx.Optimizer(linear(), spec.build()) for name, spec in specs.items()}
    dx.save(tmp_path / "c", {**items, "model": Caller()})
    CALLS.clear()
    found = dx.load(tmp_path / "c", extra=[Caller])  # whose code names the function, which does not allow to call it
    assert_same(found["filtered"], items["filtered"])
    with pytest.raises(CheckpointError, match="this calls a function that is not of optax, given as extra="):
        found["mine"]
    assert not CALLS
    assert_same(dx.load(tmp_path / "c", extra=[Caller, my_transformation])["mine"], items["mine"])


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def labels(params):
    return jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params)


def injected(rate):
    return optax.inject_hyperparams(optax.adam)(learning_rate=rate)


@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_transformations_that_call_functions(engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    parts = {"a": dx.spec(optax.adam, 0.1), "b": dx.spec(optax.set_to_zero)}
    specs = {
        "masked": dx.spec(optax.masked, dx.spec(optax.adam, 0.1), is_matrix),
        "multi": dx.spec(optax.multi_transform, parts, labels),
        "partition": dx.spec(optax.partition, parts, labels),
        "injected": dx.spec(injected, 0.1),
    }
    items = {}
    for name, spec in specs.items():
        model = linear()
        items[name] = dx.Optimizer(model, spec.build())
        items[name].update(model, dx.state(model))
    dx.save(tmp_path / "c", {**items, "model": Caller()}, engine=engine)
    found = dx.load(tmp_path / "c", extra=[is_matrix, labels, injected, Caller], engine=engine)
    for name, optimizer in items.items():
        assert_same(found[name], optimizer)
        found[name].update(linear(), dx.state(linear()))
    found = dx.load(tmp_path / "c", extra=[Caller], engine=engine)  # whose code names a function, which is not enough
    for name in specs:
        with pytest.raises(CheckpointError, match=r"this calls a function that is not|cannot be made"):
            found[name]


def test_the_note_of_a_transformation_shows_the_line_that_works(tmp_path):
    cases = [optax.masked(optax.adam(0.1), is_matrix), dx.spec(optax.inject_hyperparams(optax.adam), 0.1).build()]
    for transformation in cases:
        with pytest.warns(CheckpointWarning, match=r"tx = dx.spec\(make_tx, 1e-3\)"):
            dx.save(tmp_path / "c", {"optimizer": dx.Optimizer(linear(), transformation)}, overwrite=True)


def make_mask(only):
    def mask(params):
        return dx.mask_by(only)(params)

    return mask


@pytest.mark.parametrize("make", [dx.mask_by, make_mask])
def test_a_mask_that_a_function_has_made_is_named_by_its_spec(make, tmp_path):
    def optimizer(mask):
        return dx.Optimizer(linear(), dx.spec(optax.masked, dx.spec(optax.sgd, 0.1), mask).build())

    name = f"{'dx.' if make is dx.mask_by else ''}{make.__name__}"
    text = rf"optimizer\._tx\.description\.mask: the function {make.__name__}.*dx\.spec\({name}, \.\.\.\) for {name}\("
    with pytest.warns(CheckpointWarning, match=f"(?s){text}"):
        dx.save(tmp_path / "c", {"optimizer": optimizer(make(dx.PathContains("kernel")))})
    value = optimizer(dx.spec(make, dx.PathContains("kernel")))
    dx.save(tmp_path / "d", {"optimizer": value})
    assert_same(dx.load(tmp_path / "d", extra=[make])["optimizer"], value)
    with pytest.warns(CheckpointWarning, match=r"optimizer\._tx\.description\.mask\.only: a lambda has no name"):
        dx.save(tmp_path / "e", {"optimizer": optimizer(dx.spec(make, lambda path, value: "kernel" in path))})


@pytest.mark.parametrize("engine", ["declax", "orbax"])
@pytest.mark.parametrize("name", ["", "__x", "__x__", "_pytree__x", "train"])
def test_names_that_no_file_has(name, engine, tmp_path):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    model = dx.Module()
    setattr(model, name, jnp.ones(2))
    reason = (
        "Module has a method or property of this name" if name == "train" else "name is empty, or begins with __ or"
    )
    with pytest.warns(CheckpointWarning, match=f"(?s){reason}.*fix: another name for the attribute, or into="):
        dx.save(tmp_path / "c", {"model": model}, engine=engine)
    with pytest.raises(CheckpointError, match=reason):
        dx.load(tmp_path / "c", engine=engine)["model"]
    setattr(model, name, jnp.zeros(2))
    dx.load(tmp_path / "c", into={"model": model}, engine=engine)
    assert (getattr(model, name) == 1).all()


class Caller(dx.Module):
    def mask(self):
        return is_matrix

    def optimizer(self):
        return my_transformation(0.1)


# --- other descriptions -------------------------------------------------------------


def test_a_pickled_optimizer_is_made_of_what_its_structure_says(tmp_path):
    optimizer = trained(Tower(4, rngs=keys()))["optimizer"]
    structure = dx.structure(optimizer)
    attributes = structure["objects"][0]["attributes"]
    described = [form["static"]["attributes"] for form in attributes.values() if "object" in str(form.get("static"))]
    assert {"description"} in [set(one) for one in described]  # the Spec of the transformation
    assert {"tree", "targets"} in [set(one) for one in described]  # the layout of its state
    dx.save(tmp_path / "saved", {"optimizer": optimizer})
    for again in (pickle.loads(pickle.dumps(optimizer)), dx.load(tmp_path / "saved")["optimizer"]):
        assert dx.structure(again) == structure
        assert dx.graphdef(again) == dx.graphdef(optimizer)
