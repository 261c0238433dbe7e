"""Models come back as themselves: made in each way that the library has, saved, and loaded without a target."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import subprocess
import sys
import types
from collections import OrderedDict, defaultdict
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.config import registry
from declax.errors import CheckpointError, CheckpointWarning


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
        self.size = Size(2, 3)
        self.settings = Settings(0.5)
        self.spec = dx.spec(dx.Linear, 2, 3)
        self.axes = jax.P("data", None)
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
    "Stacked": lambda: dx.Stacked(lambda rngs: Block(4, rngs=rngs), 3, rngs=keys()),
    # containers and classes
    "Sequential": lambda: dx.Sequential(linear(), jax.nn.relu, dx.Linear(4, 2, rngs=keys())),
    "List": lambda: dx.List([linear(), dx.Param(jnp.ones(2))]),
    "Dict": lambda: dx.Dict(b=linear(), a=None),
    "dict": lambda: {"b": linear(), "a": [dx.Param(jnp.ones(2)), (linear(), None)]},
    "declared": lambda: Tower(4, rngs=keys()),
    "open": lambda: Open(keys()),
    "streams": lambda: dx.Rngs(0, dropout=1),
    "metrics": lambda: dx.MultiMetric(loss=dx.metrics.Average("loss"), accuracy=dx.metrics.Accuracy()),
    # functions and transforms that return models
    "lora": lambda: dx.lora(Tower(4, rngs=keys()), rank=2, rngs=keys(1)),
    "merge_lora": lambda: dx.merge_lora(dx.lora(Tower(4, rngs=keys()), rank=2, rngs=keys(1))),
    "EMA": lambda: dx.EMA(Tower(4, rngs=keys()), 0.5),
    "EMA.apply_to": of_an_ema,
    "jit": jitted,
    "vmap": vmapped,
    "merge": merged,
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
    # values without a class of declax
    "State": lambda: dx.state(Tower(4, rngs=keys())),
    "optax state": lambda: optax.adam(1e-3).init({"w": jnp.ones(2)}),
    "arrays": lambda: OrderedDict(b=np.arange(3), a=[jnp.ones(2), (2.5, None, "text")]),
    "defaultdict": lambda: defaultdict(list, b=jnp.ones(2), a=jnp.zeros(1)),
}

EXTRA = [Tower, Open, Settings, Size, double]


def host(leaf):
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf)) if is_key else np.asarray(leaf)


def assert_same(found, value):
    """The same classes, statuses, static values, sharing and order; and arrays of the same type to the last bit."""
    assert type(found) is type(value)
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
        if way in ("arrays", "RoPE"):
            pytest.skip("Orbax stores no texts beside arrays, and no item without arrays")
    value = WAYS[way]()
    dx.save(tmp_path / "c", {"item": value}, engine=engine)
    found = dx.load(tmp_path / "c", extra=EXTRA, engine=engine)["item"]
    assert_same(found, value)
    if callable(value) and way not in ("streams", "metrics"):
        x = {"Embed": jnp.arange(4), "LinearGeneral": jnp.ones((2, 2)), "MultiHeadAttention": jnp.ones((2, 3, 8))}.get(
            way, jnp.ones((2, 3, 4))
        )
        call = {"Bidirectional": lambda m: m(x), "a cache": lambda m: m(jnp.ones((2, 1, 8)))}.get(way, lambda m: m(x))
        try:
            expected = call(value)
        except (TypeError, ValueError, dx.DeclaxError):  # needs other arguments
            return
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
    dx.save(tmp_path / "d", {"model": linear()})
    split = dx.load(tmp_path / "d", mesh=mesh, shardings=functools.partial(dx.fsdp, mesh=mesh, min_size=1))["model"]
    assert split.kernel.sharding.mesh == mesh
    assert_same(split, linear())


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


class Caller(dx.Module):
    def optimizer(self):
        return my_transformation(0.1)
