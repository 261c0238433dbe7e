"""`save` and `load`: what comes back, what is refused, and that nothing changes then."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.checkpoint import renaming
from declax.errors import CheckpointError, CheckpointWarning, dotted


@dx.dataclass
class Net(dx.Layer):
    inputs: int = dx.field()
    hidden = dx.Linear(inputs, 16)
    norm = dx.BatchNorm(16)
    drop = dx.Dropout(0.1)
    out = dx.Linear(16, 1)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(dx.relu(self.norm(self.hidden(x)))))


def parts(seed, inputs=4):
    net = Net(inputs, rngs=dx.Rngs(seed))
    return net, dx.Optimizer(net, dx.spec(optax.adam, 0.01).build(), wrt=dx.Param)


def values(*nodes):
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(dx.as_pure(dx.state(nodes)))
    ]


def assert_equal(a, b):
    assert len(a) == len(b)
    assert all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@dx.jit
def train_step(net: Any, optimizer: Any, ema: Any, rngs: Any, x: Any) -> Any:
    noise = jax.random.normal(rngs.noise(), x.shape)
    loss, grads = dx.value_and_grad(lambda net: jnp.mean((net(x + noise) - 1.0) ** 2))(net)
    optimizer.update(net, grads)
    ema.update(net)
    return loss


def run(steps, state, data, stop=None):
    """Losses of a run; `state` is changed in place, its position in the data included."""
    losses = []
    for _ in range(steps):
        batch = jnp.asarray(data[state["position"] : state["position"] + 8])
        losses.append(float(train_step(state["model"], state["optimizer"], state["ema"], state["rngs"], batch)))
        state["position"] += 8
    return losses


def fresh(seed):
    net, optimizer = parts(seed)
    ema = dx.EMA(net, 0.9)
    return {"model": net, "optimizer": optimizer, "ema": ema, "rngs": dx.Rngs(noise=seed), "position": 0}


def test_a_resumed_run_equals_the_uninterrupted_one_to_the_last_bit(tmp_path):
    data = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    whole = fresh(0)
    expected = run(10, whole, data)
    first = fresh(0)
    losses = run(4, first, data)
    dx.save(tmp_path / "step_4", first)
    resumed = fresh(1)
    resumed |= dx.load(tmp_path / "step_4", into=resumed)
    losses += run(6, resumed, data)
    assert losses == expected
    nodes = ("model", "optimizer", "ema", "rngs")
    assert_equal(values(*(resumed[n] for n in nodes)), values(*(whole[n] for n in nodes)))


@pytest.mark.parametrize("into", [True, False])
def test_loaded_arrays_and_keys_go_where_a_call_wants_them(into, tmp_path):
    """None is committed to a device: else a step compiles again, and other arguments on a mesh are refused."""
    model = dx.Dropout(0.5, rngs=dx.Rngs(0))
    dx.save(tmp_path / "c", {"model": model})
    step = dx.jit(lambda model, x: model(x))
    other = dx.Dropout(0.5, rngs=dx.Rngs(1))
    found = dx.load(tmp_path / "c", into={"model": other} if into else None)["model"]
    assert [leaf.committed for leaf in jax.tree.leaves(dx.state(found).leaves)] == [False, False]
    compiled: list[str] = []

    def count(event: str, _: float, **options: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        step(found, jnp.ones(3))
        before = len(compiled)
        step(found, jnp.ones(3))
        assert (before > 0, len(compiled) - before) == (True, 0)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")  # items share objects
def test_models_are_written_in_place_and_other_items_are_returned(tmp_path):
    net, optimizer = parts(0)
    tree = {"a": jnp.arange(3), "pair": (np.ones(2), 2.5), "text": "x"}
    opt_state = optax.adam(1.0).init({"w": jnp.ones(3)})
    dx.save(tmp_path / "c", {"model": net, "both": [net, optimizer], "tree": tree, "state": opt_state, "step": 3})
    other, others = parts(1)[0], parts(2)
    empty = jax.tree.map(lambda x: x if isinstance(x, str) else x * 0, tree)
    found = dx.load(
        tmp_path / "c",
        into={"model": other, "both": list(others), "tree": empty, "state": jax.tree.map(jnp.zeros_like, opt_state)},
    )
    assert found["model"] is other
    assert_equal(values(other), values(net))
    assert_equal(values(*others), values(net, optimizer))
    assert found["tree"]["pair"][1] == 2.5
    assert found["tree"]["text"] == "x"
    assert isinstance(found["tree"]["pair"][0], np.ndarray)
    assert type(found["state"][0]) is type(opt_state[0])
    assert found.keys() == {"model", "both", "tree", "state"}
    assert found.report


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", [1, {"a": None}], {"a": [1.5]}, {}, float("inf")])
def test_plain_data_comes_back_as_it_was(value, tmp_path):
    dx.save(tmp_path / "c", {"value": value})
    assert dx.load(tmp_path / "c")["value"] == value


def test_a_model_is_rebuilt_from_its_record(tmp_path):
    net, _ = parts(0)
    dx.save(tmp_path / "c", {"model": net, "more": {"a": jnp.ones(2), "n": 3}})
    found = dx.load(tmp_path / "c", extra=[Net])
    assert_equal(values(found["model"]), values(net))
    assert dx.spec_of(found["model"]) == dx.spec_of(net)  # so that the next checkpoint has it too
    assert found["more"]["n"] == 3
    found = dx.load(tmp_path / "c")
    assert found["more"]["n"] == 3  # what can be made is there
    with pytest.raises(CheckpointError, match="the item 'model' cannot be made of its structure") as caught:
        found["model"]
    assert caught.value.expected.endswith(f"name: {__name__}.Net")
    assert caught.value.fix == "dx.load(path, extra=[Net])"


def test_no_constructor_runs(tmp_path, monkeypatch):
    net, _ = parts(0)
    dx.save(tmp_path / "c", {"model": net})

    def fail(self: Any, *args: Any, **options: Any) -> None:
        raise ValueError("no such size")

    for name in ("__init__", "__setattr__", "__post_init__"):
        monkeypatch.setattr(Net, name, fail, raising=False)
    found = dx.load(tmp_path / "c", extra=[Net])["model"]
    monkeypatch.undo()
    assert_equal(values(found), values(net))


def test_a_class_with_the_name_of_a_layer_is_not_taken_for_it(tmp_path):
    @dx.dataclass
    class Dropout(dx.Module):
        rate: float = dx.field(default=0.5)
        scale: dx.Param[jax.Array] = dx.variable((), initializer=dx.initializers.ones, stream=None)

    with pytest.warns(CheckpointWarning, match="Dropout is defined in a function"):
        dx.save(tmp_path / "c", {"model": Dropout(0.25)})
    with pytest.raises(CheckpointError, match="the item 'model' cannot be made of its structure") as caught:
        dx.load(tmp_path / "c")["model"]
    assert "<locals>.Dropout" in caught.value.expected
    assert isinstance(dx.load(tmp_path / "c", extra=[Dropout])["model"], Dropout)


def test_a_model_is_rebuilt_from_the_given_spec(tmp_path):
    net, _ = parts(0)
    lost = dx.merge(*dx.split(net))
    dx.save(tmp_path / "c", {"model": lost}, spec=dx.spec(Net, 4))
    assert isinstance(dx.load(tmp_path / "c", extra=[Net])["model"], Net)
    with pytest.raises(CheckpointError, match="spec: there is no model of the name 'net'"):
        dx.save(tmp_path / "d", {"model": lost}, spec={"net": dx.spec(Net, 4)})


def test_an_optimizer_of_closures_is_reported_and_the_other_items_come_back(tmp_path):
    net, _ = parts(0)
    optimizer = dx.Optimizer(net, optax.adam(1e-3))
    with pytest.warns(CheckpointWarning, match=r"optimizer._tx: a transformation of closures has no name in files"):
        dx.save(tmp_path / "c", {"optimizer": optimizer, "array": jnp.ones(3), "big": np.arange(3)})
    found = dx.load(tmp_path / "c")
    for read in (lambda: found["optimizer"], lambda: found.get("optimizer"), lambda: list(found.items())):
        with pytest.raises(CheckpointError, match="the item 'optimizer' cannot be made of its structure") as caught:
            read()
    assert "into=" in caught.value.fix
    assert list(dx.load(tmp_path / "c", items=("array",)).items()) != []
    assert (found["array"] == 1).all()
    assert found["big"].dtype == np.int64  # JAX without 64-bit numbers would change it
    again = dx.Optimizer(parts(1)[0], optax.adam(1e-3))
    dx.load(tmp_path / "c", into={"optimizer": again})
    assert_equal(values(again), values(optimizer))


def test_containers_come_back_as_they_were(tmp_path):
    pair = (np.ones(2), 2.5, None, [jnp.zeros(3)])
    items = {
        "pair": pair,
        "numbers": (1, 2),
        "table": {3: jnp.ones(2), 1: {"b": [], "a": ()}},
        "by_path": {("up", 0): np.arange(2), ("up", 1): np.arange(3)},
        "int_keys": {1: "one"},
        "state": optax.adam(0.1).init({"w": jnp.ones(2)}),
    }
    dx.save(tmp_path / "c", items)
    found = dx.load(tmp_path / "c")
    for name in items:
        assert jax.tree.structure(found[name]) == jax.tree.structure(items[name])
        same = jax.tree.map(lambda a, b: bool(np.all(a == b)) and type(a) is type(b), found[name], items[name])
        assert all(jax.tree.leaves(same))
    assert list(found["table"]) == [3, 1]
    renamed = dx.load(tmp_path / "c", rename={"numbers.0": "numbers.1", "numbers.1": "numbers.0", "pair.*": "other.*"})
    assert renamed["numbers"] == (2, 1)
    assert "pair" not in renamed
    assert (renamed["other"][1:3], renamed["other"][3][0].shape) == ((2.5, None), (3,))


def test_static_values_that_were_changed_later_are_restored(tmp_path):
    net, _ = parts(0)
    net.norm.epsilon = 1e-3
    net.eval()
    dx.save(tmp_path / "c", {"model": net})
    found = dx.load(tmp_path / "c", extra=[Net])["model"]
    assert (found.norm.epsilon, found.norm.use_running_average, found.drop.deterministic) == (1e-3, True, True)
    assert (found(jnp.ones((2, 4))) == net(jnp.ones((2, 4)))).all()
    other = parts(1)[0]
    dx.load(tmp_path / "c", into={"model": other})
    assert other.norm.epsilon == 1e-5  # the target decides


def test_metadata_that_was_changed_later_is_restored(tmp_path):
    net, _ = parts(0)
    dx.set_metadata(net, trainable=False, tag="frozen", size=(1, 2), only=dx.PathContains("hidden"))
    dx.save(tmp_path / "c", {"model": net})
    found = dx.load(tmp_path / "c", extra=[Net])["model"]
    assert found.hidden.kernel.get_metadata(exclude_required=True) == {
        "trainable": False,
        "tag": "frozen",
        "size": (1, 2),
    }
    assert dx.state(found, dx.is_trainable).paths == dx.state(net, dx.is_trainable).paths
    other = parts(1)[0]
    dx.load(tmp_path / "c", into={"model": other})
    assert not other.hidden.kernel.get_metadata(exclude_required=True)  # the target decides


class Holder(dx.Module):
    """Parts that change after construction, in a class whose Spec does not know them."""


@dx.dataclass
class Changeable(dx.Layer):
    size: int = dx.field()
    part: dx.Linear = dx.Linear(size, 2)


def test_what_was_changed_after_construction_comes_back(tmp_path):
    def add(net):
        net.part.note = "warm"

    for change in (
        add,
        lambda net: setattr(net.part, "param_dtype", jnp.bfloat16),
        lambda net: setattr(net.part, "sizes", (1, 2)),
        lambda net: setattr(net, "part", Holder()),
        lambda net: setattr(net, "more", Holder()),
    ):
        net = Changeable(3, rngs=dx.Rngs(0))
        change(net)
        dx.save(tmp_path / "c", {"model": net}, spec=dx.spec(Changeable, 3), overwrite=True)
        found = dx.load(tmp_path / "c", extra=[Changeable, Holder])["model"]
        assert dx.graphdef(found) == dx.graphdef(net)
        assert_equal(values(found), values(net))


def as_first_format(folder, nodes=None):
    """Makes a checkpoint one of the first version of the format, which had Specs in place of structures."""
    table = json.loads((folder / "manifest.json").read_bytes())
    del table["sha256"]
    table["version"] = 1
    for name, item in table["items"].items():
        item.pop("structure", None)
        item |= {"nodes": (nodes or {}).get(name, {})} if item.get("spec") else {}
    rest = json.dumps(table).encode()[1:]
    first = b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n'
    (folder / "manifest.json").write_bytes(first + rest)


def test_checkpoints_of_the_first_format(tmp_path, monkeypatch):
    net, _ = parts(0)
    net.note = 3
    plain = dx.List([dx.Param(jnp.ones(2))])
    dx.save(tmp_path / "c", {"model": net, "other": plain, "step": 3}, spec=dx.spec(Net, 4))
    as_first_format(tmp_path / "c", {"model": {"model": ["Net", {"note": 3}]}})
    with pytest.warns(CheckpointWarning, match="the item 'other' has no structure"):
        found = dx.load(tmp_path / "c", extra=[Net])
    assert_equal(values(found["model"]), values(net))
    assert found["model"].note == 3
    assert isinstance(found["other"], dx.State)
    assert (found["other"][0] == 1).all()
    assert found["step"] == 3
    with pytest.warns(CheckpointWarning):
        missing = dx.load(tmp_path / "c")
    with pytest.raises(CheckpointError, match="the item 'model' cannot be rebuilt from its spec") as caught:
        missing["model"]
    assert caught.value.expected == f"the class {__name__}.Net"
    assert caught.value.fix.startswith("dx.load(path, extra=[Net])")
    dx.load(tmp_path / "c", into={"model": net, "other": plain})
    as_first_format(tmp_path / "c", {"model": {"model": ["Net", {"note": {"text": "tuple(1)"}}]}})
    with pytest.warns(CheckpointWarning):
        changed = dx.load(tmp_path / "c", extra=[Net])
    with pytest.raises(CheckpointError, match="was changed after it was constructed, and its Spec does not say how"):
        changed["model"]


def test_a_class_of_the_same_name_is_not_the_one_of_a_spec(tmp_path):
    class Dropout(dx.Module):
        rate = 0.5

    model = dx.Dropout(0.5, rngs=dx.Rngs(0))
    dx.save(tmp_path / "c", {"model": model}, spec=dx.spec(dx.Dropout, 0.5))
    as_first_format(tmp_path / "c")
    table = json.loads((tmp_path / "c" / "manifest.json").read_bytes())
    table["items"]["model"]["class"] = "models.Dropout"
    del table["sha256"]
    rest = json.dumps(table).encode()[1:]
    first = b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n'
    (tmp_path / "c" / "manifest.json").write_bytes(first + rest)
    with pytest.raises(CheckpointError, match="the item 'model' cannot be rebuilt from its spec") as caught:
        dx.load(tmp_path / "c")["model"]
    assert caught.value.got == "declax.nn.stochastic.Dropout"


def test_arguments_that_need_another(tmp_path):
    net, _ = parts(0)
    dx.save(tmp_path / "c", {"model": net, "plain": [dx.Param(jnp.ones(2))]})
    with pytest.raises(CheckpointError, match="are for a load without a target"):
        dx.load(tmp_path / "c", into={"model": net}, abstract=True)
    with pytest.raises(CheckpointError, match="items are names"):
        dx.load(tmp_path / "c", items="model")
    with pytest.raises(CheckpointError, match="the checkpoint has no item 'modle'"):
        dx.load(tmp_path / "c", items=["modle"])
    with pytest.raises(CheckpointError, match=r"plain\.0: rename= leaves a hole here"):
        dx.load(tmp_path / "c", rename={"plain.0": "plain.1"})


@pytest.mark.parametrize("make", [dx.WeightNorm, dx.SpectralNorm])
def test_normalized_layers_whose_paths_have_tuples(make, tmp_path):
    layers = [make(dx.Linear(3, 2, rngs=dx.Rngs(seed)), rngs=dx.Rngs(seed)) for seed in (0, 1)]
    layers[0](jnp.ones((4, 3)))
    dx.save(tmp_path / "c", {"model": layers[0]})
    dx.load(tmp_path / "c", into={"model": layers[1]})
    assert_equal(values(layers[1]), values(layers[0]))
    assert_equal(values(dx.load(tmp_path / "c")["model"]), values(layers[0]))


TIED = (None, "layer", "kernel")


def pair(tied, seed):
    model = dx.Module()
    model.a = dx.Linear(2, 2, rngs=dx.Rngs(seed))
    model.b = model.a if tied == "layer" else dx.Linear(2, 2, rngs=dx.Rngs(seed + 1))
    if tied == "kernel":
        model.b.kernel = model.a.kernel
    return model


@pytest.mark.parametrize(("saved", "given"), [(one, other) for one in TIED for other in TIED if one != other])
def test_what_is_tied_otherwise_than_in_the_target_is_said(saved, given, tmp_path):
    """No leaf of the target keeps its value, and no value of the file is lost, without a word."""
    model, target = pair(saved, 0), pair(given, 5)
    before = target.b.kernel.value
    dx.save(tmp_path / "c", {"model": model})
    with pytest.raises(CheckpointError, match=r"model\.b\.(kernel|bias): (expected a Param, got nothing|the target)"):
        dx.load(tmp_path / "c", into={"model": target})
    assert target.b.kernel.value is before
    report = dx.load(tmp_path / "c", into={"model": target}, strict=False).report
    assert not report
    named = {difference.path for difference in (*report.missing, *report.unexpected)}
    for name in ("kernel", "bias"):
        is_right = bool((getattr(target.b, name).value == getattr(model.b, name).value).all())
        assert is_right or f"model.b.{name}" in named


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")  # items share objects
def test_one_object_in_two_items_of_a_target(tmp_path):
    a, b = mlp({"w": 2}), mlp({"w": 2})
    a.w.value, b.w.value = jnp.ones(2), jnp.full(2, jnp.nan)
    dx.save(tmp_path / "c", {"a": a, "b": b, "both": [a, b], "same": [b]})
    target = mlp({"w": 2})
    for names in [("a", "b"), ("b", "a")]:
        with pytest.raises(CheckpointError, match="two items of the target hold one object") as caught:
            dx.load(tmp_path / "c", into=dict.fromkeys(names, target))
        assert caught.value.got == f"{names[0]}.w and {names[1]}.w"
        assert (target.w.value == 0).all()
    other = mlp({"w": 2})
    dx.load(tmp_path / "c", into={"a": target, "both": [target, other], "same": [other]})
    assert (target.w.value == 1).all()
    with pytest.raises(CheckpointError, match="two items of the target hold one object"):
        dx.load(tmp_path / "c", into={"a": target, "both": [other, target]})


def test_options_of_wrong_types(tmp_path):
    net, _ = parts(0)
    dx.save(tmp_path / "c", {"model": net})
    calls: list[tuple[Any, str]] = [
        (lambda: dx.load(tmp_path / "c", into={"model": net}, rename="m"), "rename maps paths of the checkpoint"),
        (lambda: dx.load(tmp_path / "c", into={"model": net}, rename={"m": 1}), "rename maps paths of the checkpoint"),
        (lambda: dx.load(tmp_path / "c", extra=Net), "extra is a list of classes"),
        (lambda: dx.load(tmp_path / "c", extra="Net"), "extra is a list of classes"),
        (lambda: dx.load(tmp_path / "c", items=3), "items are names"),
        (lambda: dx.load(tmp_path / "c", into={"model": Net}), "a checkpoint holds arrays, numbers and texts"),
        (lambda: dx.load(tmp_path / "c", mesh=3), "there is no mesh of devices"),
        (lambda: dx.load(tmp_path / "c", rules={"mlp": "data"}), "there is no mesh of devices"),
        (lambda: dx.load(tmp_path / "c", shardings=dx.fsdp), "there is no mesh of devices"),
        (lambda: dx.load(tmp_path / "c", into=net), "a checkpoint consists of items by name"),
        (lambda: dx.load(tmp_path / "c", into={1: net}), "the name of an item must be a text"),
        (lambda: dx.save(tmp_path / "d", {"model": net}, spec="Net"), "spec is a Spec, or Specs by name"),
        (lambda: dx.save(tmp_path / "d", {"model": net}, spec={"model": Net}), "spec is a Spec, or Specs by name"),
        (lambda: dx.save(tmp_path / "d", {"model": net}, metrics=0.5), "metrics must be numbers by name"),
        (lambda: dx.save(tmp_path / "d", {"model": net}, progress=3), "progress is a function of two numbers"),
        (lambda: dx.save(tmp_path / "d", {"a": 1}, progress=3, engine="orbax"), "progress is a function"),
        (lambda: dx.load(tmp_path / "none", progress=True), "progress is a function of two numbers"),
    ]
    for call, problem in calls:
        with pytest.raises(CheckpointError, match=problem):
            call()
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_a_state_is_saved_and_restored(tmp_path):
    net, _ = parts(0)
    other = dx.state(parts(1)[0])
    dx.save(tmp_path / "c", {"state": dx.state(net)})
    found = dx.load(tmp_path / "c", into={"state": other})
    assert_equal(values(found["state"]), values(dx.state(net)))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int4", "uint4", "int8", "uint16", "float16", "bfloat16", "float8_e4m3fn", "float8_e3m4", "complex64"],
)
def test_arrays_of_each_dtype(dtype, tmp_path):
    array = jnp.asarray([[0, 1, 1], [1, 0, 0]], dtype)
    dx.save(tmp_path / "c", {"a": dx.Param(array), "scalar": {"x": array[0, 1]}})
    into = {"a": dx.Param(jnp.zeros_like(array)), "scalar": {"x": array[0, 0]}}
    found = dx.load(tmp_path / "c", into=into)
    for new, old in ((found["a"].value, array), (found["scalar"]["x"], array[0, 1])):
        assert new.dtype == old.dtype
        assert np.asarray(new).tobytes() == np.asarray(old).tobytes()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys_keep_their_implementation(impl, tmp_path):
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    dx.save(tmp_path / "c", {"keys": keys})
    target = jax.random.split(jax.random.key(0, impl=impl), 4)
    for found in (dx.load(tmp_path / "c")["keys"], dx.load(tmp_path / "c", into={"keys": target})["keys"]):
        assert found.dtype == keys.dtype
        assert (jax.random.key_data(found) == jax.random.key_data(keys)).all()
    other = "rbg" if impl == "threefry2x32" else "threefry2x32"
    with pytest.raises(CheckpointError, match=f"got dtype {keys.dtype}"):
        dx.load(tmp_path / "c", into={"keys": jax.random.split(jax.random.key(0, impl=other), 4)})


def test_variables_that_hold_trees_numbers_and_refs(tmp_path):
    def make(x):
        model = dx.Module()
        model.tree = dx.Variable({"a": jnp.full(2, x), "b": [jnp.full((), x)]})
        model.number = dx.Variable(x)
        model.ref = dx.Param(dx.array_ref(jnp.full(2, x)))
        return model

    model, other = make(1.0), make(2.0)
    dx.save(tmp_path / "c", {"model": model})
    ref = other.ref.raw_value
    dx.load(tmp_path / "c", into={"model": other})
    assert other.tree.value["b"][0] == 1.0
    assert other.number.value == 1.0
    assert other.ref.raw_value is ref
    assert (ref[...] == 1.0).all()
    other.number.value = jnp.asarray(3.0)  # as `jit` does
    dx.save(tmp_path / "d", {"model": other})
    dx.load(tmp_path / "d", into={"model": model})
    assert model.number.value == 3.0


def test_shared_variables_stay_shared(tmp_path):
    def make(x):
        model = dx.Module()
        model.a = dx.Param(jnp.full(2, x))
        model.b = model.a
        return model

    dx.save(tmp_path / "c", {"model": make(1.0)})
    other = make(2.0)
    dx.load(tmp_path / "c", into={"model": other})
    assert other.a is other.b
    assert (other.b.value == 1.0).all()


def test_arrays_are_copies_of_the_file(tmp_path):
    dx.save(tmp_path / "c", {"a": jnp.arange(100_000.0)})
    found = dx.load(tmp_path / "c")["a"]
    (file,) = (tmp_path / "c").glob("*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(-40_000, 2)
        opened.write(b"\xff" * 4000)
    assert (found == jnp.arange(100_000.0)).all()


# --- a target that differs ----------------------------------------------------------


def mlp(sizes, kind=dx.Param, dtype=jnp.float32):
    model = dx.Module()
    for name, size in sizes.items():
        setattr(model, name, kind(jnp.zeros(size, dtype)))
    return model


def test_one_report_of_all_that_differs(tmp_path):
    dx.save(tmp_path / "c", {"model": mlp({"kernel": 2, "bias": 3, "scale": 4})})
    target = mlp({"kernel": 3, "bais": 3, "extra": 1})
    target.scale = dx.Param(jnp.zeros(4, jnp.bfloat16))
    before = values(target)
    with pytest.raises(CheckpointError, match="the checkpoint does not fit at 5 paths") as caught:
        dx.load(tmp_path / "c", into={"model": target})
    text = str(caught.value)
    assert str(tmp_path / "c") in text
    assert "model.kernel: expected shape (3,), got shape (2,)" in text
    assert "model.scale: expected dtype bfloat16, got dtype float32" in text
    assert "model.bais: expected a Param, got nothing" in text
    assert "model.bias: the target has no such path; did you mean 'model.bais'?" in text
    assert_equal(values(target), before)
    report = dx.load(tmp_path / "c", into={"model": target}, strict=False).report
    assert not report
    assert len(report.problems) == 5
    assert str(report).startswith("taken: 0 of 4 leaves")


def test_kinds_must_agree(tmp_path):
    dx.save(tmp_path / "c", {"model": mlp({"a": 2})})
    with pytest.raises(CheckpointError, match="expected a BatchStat, got a Param"):
        dx.load(tmp_path / "c", into={"model": mlp({"a": 2}, dx.BatchStat)})


def test_numbers_texts_and_arrays_must_agree(tmp_path):
    dx.save(tmp_path / "c", {"t": {"a": jnp.ones(2), "n": 3, "s": "x"}})
    with pytest.raises(CheckpointError, match="the checkpoint does not fit at 3 paths"):
        dx.load(tmp_path / "c", into={"t": {"a": 1.0, "n": "3", "s": jnp.ones(())}})


def test_an_abstract_target_of_64_bits(tmp_path):
    dx.save(tmp_path / "c", {"a": np.full(2, 0.1), "keys": jax.random.key(3)})
    abstract = {"a": jax.ShapeDtypeStruct((2,), np.float64), "keys": jax.eval_shape(lambda: jax.random.key(0))}
    with pytest.raises(CheckpointError, match="expected a dtype that JAX has without jax_enable_x64"):
        dx.load(tmp_path / "c", into=abstract)
    assert dx.load(tmp_path / "c", into={"keys": abstract["keys"]})["keys"] == jax.random.key(3)
    assert dx.load(tmp_path / "c", into={"a": np.zeros(2)})["a"].dtype == np.float64


def test_nothing_is_written_if_one_item_cannot_be(tmp_path):
    @dx.dataclass(frozen=True)
    class Frozen(dx.Module):
        array: jax.Array

    dx.save(tmp_path / "c", {"a": mlp({"w": 2}), "b": Frozen(jnp.ones(2))}, extra=[Frozen])
    first, second = mlp({"w": 2}), Frozen(jnp.zeros(2))
    first.w.value = jnp.full(2, 7.0)
    with pytest.raises(dx.DeclaxError, match="cannot be changed in place"):
        dx.load(tmp_path / "c", into={"a": first, "b": second})
    assert (first.w.value == 7.0).all()


def test_items_that_the_checkpoint_lacks_and_items_of_other_kinds(tmp_path):
    dx.save(tmp_path / "c", {"model": mlp({"a": 2}), "step": 1})
    with pytest.raises(CheckpointError, match="the checkpoint has no item 'modle'") as caught:
        dx.load(tmp_path / "c", into={"modle": mlp({"a": 2})})
    assert "did you mean 'model'?" in str(caught.value)
    with pytest.raises(CheckpointError, match="the item 'step' is plain data in the checkpoint, and arrays"):
        dx.load(tmp_path / "c", into={"step": jnp.ones(2)})
    with pytest.raises(CheckpointError, match="the item 'model' is arrays in the checkpoint, and plain data"):
        dx.load(tmp_path / "c", into={"model": 3})
    with pytest.raises(CheckpointError, match="choose among the leaves of a target"):
        dx.load(tmp_path / "c", strict=False)


def test_only_some_leaves(tmp_path):
    saved, target = parts(0)[0], parts(1)[0]
    dx.save(tmp_path / "c", {"model": saved})
    before = values(target.norm, target.drop)
    report = dx.load(tmp_path / "c", into={"model": target}, only=dx.PathContains("hidden")).report
    assert report.taken == ("model.hidden.bias", "model.hidden.kernel")
    assert_equal(values(target.hidden), values(saved.hidden))
    assert_equal(values(target.norm, target.drop), before)
    with pytest.raises(CheckpointError, match="only: the filter selects no leaf of the target"):
        dx.load(tmp_path / "c", into={"model": target}, only=dx.PathContains("hiden"))
    with pytest.raises(CheckpointError) as caught:
        dx.load(tmp_path / "c", into={"model": target}, only="hidden")
    assert str(caught.value.fix).startswith("only=dx.PathContains('hidden')")


# --- names that have changed --------------------------------------------------------


def test_paths_are_renamed_by_patterns(tmp_path):
    dx.save(tmp_path / "c", {"model": {"old": mlp({"a": 2, "b": 3}), "same": mlp({"c": 1})}})
    target = {"new": mlp({"a": 2, "b": 3}), "same": mlp({"d": 1})}
    rename = {"model.old.*": "model.new.*", "model.same.c": "model.same.d"}
    found = dx.load(tmp_path / "c", into={"model": target}, rename=rename)
    assert len(found.report.taken) == 3
    for rename, problem in [
        ({"model.odl.*": "model.new.*"}, "rename: 'model.odl.*' matches no path of the checkpoint"),
        ({"model.old": "model.new"}, 'fix:      rename={"model.old.*": "model.new.*"}'),
        ({"model.*": "model.new"}, "rename: 'model.*' and 'model.new' have different numbers of *"),
        ({"model.old.a": "model.old.b"}, "rename: two leaves would have the path model.old.b"),
    ]:
        with pytest.raises(CheckpointError) as caught:
            dx.load(tmp_path / "c", into={"model": target}, rename=rename)
        assert problem in str(caught.value)


class Twins(dx.Module):
    """Two blocks of the same shapes, in a list or not, and a third whose paths end alike."""

    def __init__(self, seed, names=("a", "b")):
        rngs = dx.Rngs(seed)
        for name in names:
            setattr(self, name, dx.Linear(2, 2, rngs=rngs))
        self.ls = dx.List([dx.Linear(2, 2, rngs=rngs), dx.Linear(2, 2, rngs=rngs)])
        self.x = dx.Module()
        self.x.a, self.x.b = dx.Linear(2, 2, rngs=rngs), dx.Linear(2, 2, rngs=rngs)


def trained_twins(seed, names=("a", "b")):
    model = Twins(seed, names)
    optimizer = dx.Optimizer(model, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)
    grads = jax.tree.map(lambda x: x + 1.0, dx.state(model, dx.Param))
    optimizer.update(model, grads)
    return {"m": model, "o": optimizer, "ema": dx.EMA(model, 0.9)}


def parts_of(items, name):
    """The parameters, moments and averages of a part, by the end of their path."""
    found = {}
    for key, item in items.items():
        for path, leaf in dx.to_flat_state(dx.as_pure(dx.state(item))):
            text = ".".join(map(str, path))
            if f".{name}." in f".{text}" and (name.startswith("x.") or ".x." not in f".{text}"):
                found[key, text.replace(f"{name}.", "*.")] = np.asarray(leaf)
    return found


@pytest.mark.parametrize(
    "rename",
    [
        {"m.a.*": "m.b.*", "m.b.*": "m.a.*"},
        {"m.ls.0.*": "m.ls.1.*", "m.ls[1].*": "m.ls[0].*"},
        {"m.x.a.*": "m.x.b.*", "m.x.b.*": "m.x.a.*"},
    ],
)
def test_a_swap_renames_all_at_once_with_moments_and_averages(tmp_path, rename):
    saved, target = trained_twins(0), trained_twins(1)
    dx.save(tmp_path / "c", saved)
    report = dx.load(tmp_path / "c", into=target, rename=rename).report
    old, new = [dotted(text)[2:].removesuffix(".*") for text in next(iter(rename.items()))]
    names = {"a", "b", "ls.0", "ls.1", "x.a", "x.b"}
    for before, after in {**{name: name for name in names}, old: new, new: old}.items():
        expected, found = parts_of(saved, before), parts_of(target, after)
        assert len(expected) == 2 * 4  # kernel and bias: parameter, two moments, average
        assert expected.keys() == found.keys()
        assert all(np.array_equal(found[key], value) for key, value in expected.items()), (before, after)
    assert len(report.renamed) == 2 * 2 * 4
    assert (f"o.opt_state[0].mu.{next(iter(rename))[2:-1]}kernel".replace("ls.0", "ls[0]")) in dict(report.renamed)
    # also without the model
    rest = {name: value for name, value in trained_twins(2).items() if name != "m"}
    dx.load(tmp_path / "c", into=rest, rename=rename)
    assert_equal(values(*rest.values()), values(*(target[name] for name in rest)))
    # what the report prints is what `rename` takes
    again = trained_twins(2)
    dx.load(tmp_path / "c", into=again, rename=dict(report.renamed))
    assert_equal(values(*again.values()), values(*target.values()))


def test_a_moved_part_takes_its_moments_and_averages_along(tmp_path):
    saved, target = trained_twins(0), trained_twins(1, ("a", "c"))
    dx.save(tmp_path / "c", saved)
    dx.load(tmp_path / "c", into=target, rename={"m.b.*": "m.c.*"})
    for before, after in {"a": "a", "b": "c", "ls.0": "ls.0", "x.b": "x.b"}.items():
        expected, found = parts_of(saved, before), parts_of(target, after)
        assert all(np.array_equal(found[key], value) for key, value in expected.items())


def test_a_model_in_another_one_takes_its_moments_along(tmp_path):
    def run(name, seed):
        made = dx.Module()  # as a user may write a state of training
        made.net = mlp({name: 2, "other": 3})
        getattr(made.net, name).value = jnp.full(2, float(seed))
        made.optimizer = dx.Optimizer(made.net, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)
        made.optimizer.update(made.net, jax.tree.map(lambda x: x + seed, dx.state(made.net, dx.Param)))
        return made

    saved, target = run("old", 3), run("new", 0)
    dx.save(tmp_path / "c", {"run": saved})
    dx.load(tmp_path / "c", into={"run": target}, rename={"run.net.old": "run.net.new"})
    assert_equal(values(target), values(saved))


def test_states_of_parameters_and_moments_follow_too(tmp_path):
    def state(names):
        params = {name: jnp.full(2, float(number)) for number, name in enumerate(names)}
        return {"params": params, "mu": {"m": {name: x + 10 for name, x in params.items()}}}

    dx.save(tmp_path / "c", state("ab"))
    found = dx.load(tmp_path / "c", into=state("ab"), rename={"params.a": "params.b", "params.b": "params.a"})
    assert found["params"]["a"].tolist() == [1, 1]
    assert found["mu"]["m"]["a"].tolist() == [11, 11]


def test_a_leaf_that_may_follow_two_models_asks(tmp_path):
    def items(seed):
        made, sgd = {"one": Twins(seed), "two": Twins(seed + 10)}, dx.spec(optax.sgd, 0.1, momentum=0.9).build()
        return made | {f"o{name}": dx.Optimizer(made[name], sgd, wrt=dx.Param) for name in made}

    saved, target = items(0), items(1)
    before = values(*target.values())
    dx.save(tmp_path / "c", saved)
    swap = {"one.a.*": "one.b.*", "one.b.*": "one.a.*"}
    with pytest.raises(CheckpointError, match="two models tell what the new path of this leaf is") as caught:
        dx.load(tmp_path / "c", into=target, rename=swap)
    assert 'rename={..., "oone.opt_state' in str(caught.value)
    assert_equal(values(*target.values()), before)
    explicit = {"oone.*.trace.a.*": "oone.*.trace.b.*", "oone.*.trace.b.*": "oone.*.trace.a.*", "otwo.*": "otwo.*"}
    dx.load(tmp_path / "c", into=target, rename=swap | explicit)
    assert_equal(values(target["two"], target["otwo"]), values(saved["two"], saved["otwo"]))
    assert_equal(values(target["one"].a), values(saved["one"].b))


def test_the_first_entry_that_matches_counts(tmp_path):
    dx.save(tmp_path / "c", {"m": mlp({"a": 2, "b": 2})})
    target = mlp({"a": 2, "c": 2})
    report = dx.load(tmp_path / "c", into={"m": target}, rename={"m.b": "m.c", "m.*": "m.*"}).report
    assert report.renamed == (("m.b", "m.c"),)


# --- items that are not there -------------------------------------------------------


def test_a_missing_item_is_reported(tmp_path):
    dx.save(tmp_path / "c", {"m": mlp({"a": 2}), "step": 4})
    model, other = mlp({"a": 2}), trained_twins(0)["o"]
    model.a.value = jnp.full(2, 5.0)
    before = values(other)
    into = {"m": model, "o": other, "step": 0}
    with pytest.raises(CheckpointError, match="the checkpoint has no item 'o'"):
        dx.load(tmp_path / "c", into=into)
    found = dx.load(tmp_path / "c", into=into, strict=False)
    assert [str(entry) for entry in found.report.missing] == ["o: expected a value of type Optimizer, got nothing"]
    assert not found.report
    assert (found["step"], found["o"] is other, model.a.value.sum()) == (4, True, 0)
    assert_equal(values(other), before)
    with pytest.raises(CheckpointError, match="the checkpoint has no item 'o'"):
        dx.load(tmp_path / "c", into={"o": other}, strict=False)


def test_an_item_of_which_no_path_is_known_is_an_error(tmp_path):
    dx.save(tmp_path / "c", {"m": mlp({"a": 2, "b": 3}), "empty": dx.Module()})
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"(?s)does not fit at.*m\.a: the target has no such path"):
            dx.load(tmp_path / "c", into={"m": mlp({"c": 2})}, strict=strict)
    assert dx.load(tmp_path / "c", into={"empty": dx.Module()}, strict=False).report
    found = dx.load(tmp_path / "c", into={"empty": mlp({"c": 2})}, strict=False)
    assert [entry.path for entry in found.report.missing] == ["empty.c"]


def test_fields_that_were_renamed(tmp_path):
    @dx.dataclass
    class Inner(dx.Module):
        weight: dx.Param[jax.Array] = dx.field(renamed_from="kernel")

    @dx.dataclass
    class Outer(dx.Module):
        second: Inner = dx.field(renamed_from="first")

    old = dx.Module()
    old.first = mlp({"kernel": 2})
    old.first.kernel.value = jnp.ones(2)
    target = Outer(Inner(dx.Param(jnp.zeros(2))))
    dx.save(tmp_path / "c", {"model": old})
    found = dx.load(tmp_path / "c", into={"model": target})
    assert (target.second.weight.value == 1).all()
    assert found.report.renamed == (("model.first.kernel", "model.second.weight"),)
    assert "renamed:\n  model.first.kernel to model.second.weight" in str(found.report)


def old_and_new_class():
    @dx.dataclass
    class Part(dx.Module):
        rate: float = dx.field(default=0.5)
        kernel: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, stream=None)

    @dx.dataclass
    class Net(dx.Layer):
        old: Part = dx.defer(Part)(0.25)
        out = dx.Linear(2, 1)

    before = Net

    @dx.dataclass
    class Part(dx.Module):
        share: float = dx.field(default=0.5, renamed_from="rate")
        weight: dx.Param[jax.Array] = dx.variable(
            (2,), initializer=dx.initializers.zeros, stream=None, renamed_from="kernel"
        )

    @dx.dataclass
    class Net(dx.Layer):
        new: Part = dx.field(default=dx.defer(Part)(0.75), renamed_from="old")
        out = dx.Linear(2, 1)

    return before, Net, Part


def with_mirrors(cls, seed):
    net = cls(rngs=dx.Rngs(seed))
    optimizer = dx.Optimizer(net, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)
    optimizer.update(net, jax.tree.map(lambda x: x + 1.0, dx.state(net, dx.Param)))
    return {"model": [net], "optimizer": optimizer, "ema": dx.EMA(net, 0.9)}


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")  # items share objects
def test_renamed_fields_in_optimizers_averages_and_rebuilt_models(tmp_path):
    before, after, part = old_and_new_class()
    old = with_mirrors(before, 0)
    dx.save(tmp_path / "c", {**old, "net": old["model"][0]}, extra=[before, type(old["model"][0].old)])
    new = with_mirrors(after, 1)
    report = dx.load(tmp_path / "c", into=new).report
    assert_equal(values(*new.values()), values(*old.values()))
    assert ("optimizer.opt_state[0].mu.old.kernel", "optimizer.opt_state[0].mu.new.weight") in report.renamed
    assert len(report.renamed) == 4
    rebuilt = dx.load(tmp_path / "c", extra=[after, part])["net"]
    assert (rebuilt.new.share, vars(rebuilt.new).keys() & {"rate", "kernel"}) == (0.25, set())
    assert_equal(values(rebuilt), values(old["model"]))
    with pytest.raises(CheckpointError, match="does not fit at 4 paths"):  # only the model knows the names
        dx.load(tmp_path / "c", into={"optimizer": with_mirrors(after, 1)["optimizer"]})


def test_a_field_with_the_former_name_of_another_is_another(tmp_path):
    @dx.dataclass
    class Now(dx.Module):
        weight: dx.Param[jax.Array] = dx.field(renamed_from="kernel")
        kernel: dx.Param[jax.Array] = dx.field()

    dx.save(tmp_path / "c", {"model": mlp({"kernel": 2})})
    with pytest.raises(CheckpointError, match=r"model\.weight: expected a Param, got nothing"):
        dx.load(tmp_path / "c", into={"model": Now(dx.Param(jnp.zeros(2)), dx.Param(jnp.zeros(2)))})


class Versioned(dx.Module):
    def __init__(self):
        self.wide = dx.Param(jnp.zeros((2, 3)))


def test_upgrades_of_classes(tmp_path, monkeypatch):
    old = Versioned()
    del old.wide
    old.left, old.right = dx.Param(jnp.ones((2, 1))), dx.Param(jnp.full((2, 2), 2.0))
    dx.save(tmp_path / "c", {"model": {"part": old, "n": mlp({"a": 1})}})

    def join(arrays):
        return {"wide": np.concatenate([arrays["left"], arrays["right"]], 1)}

    monkeypatch.setattr(Versioned, "config_version", 2, raising=False)
    monkeypatch.setattr(Versioned, "checkpoint_upgrades", {1: join}, raising=False)
    target = {"part": Versioned(), "n": mlp({"a": 1})}
    dx.load(tmp_path / "c", into={"model": target})
    assert target["part"].wide.value.tolist() == [[1, 2, 2], [1, 2, 2]]
    dx.save(tmp_path / "d", {"model": target})
    dx.load(tmp_path / "d", into={"model": target})  # is of version 2
    monkeypatch.setattr(Versioned, "checkpoint_upgrades", {1: lambda arrays: None})
    with pytest.raises(CheckpointError, match=r"checkpoint_upgrades\[1\] must return a dict of arrays"):
        dx.load(tmp_path / "c", into={"model": target})
    monkeypatch.setattr(Versioned, "checkpoint_upgrades", {1: lambda arrays: arrays["none"]})
    with pytest.raises(KeyError) as caught:
        dx.load(tmp_path / "c", into={"model": target})
    assert "raised by checkpoint_upgrades[1]" in caught.value.__notes__[0]
    for wrong in ({"1": join}, [join], {1: None}):
        monkeypatch.setattr(Versioned, "checkpoint_upgrades", wrong)
        with pytest.raises(CheckpointError, match="upgrades are functions by the version that they start from"):
            dx.load(tmp_path / "c", into={"model": target})
    monkeypatch.setattr(Versioned, "config_version", 1)
    with pytest.raises(CheckpointError, match="a newer version of Versioned wrote this part of the checkpoint"):
        dx.load(tmp_path / "d", into={"model": target})


def test_versions_follow_renamed_paths(tmp_path):
    @dx.dataclass
    class Part(dx.Module):
        config_version = 2
        checkpoint_upgrades = {1: lambda arrays: {"w": arrays["w"] * 2}}
        w: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, stream=None)

    @dx.dataclass
    class Renamed(dx.Module):
        new: Part = dx.field(renamed_from="old")

    dx.save(tmp_path / "c", {"model": {"old": Part()}}, extra=[Part])
    target = {"new": Part()}
    dx.load(tmp_path / "c", into={"model": target}, rename={"model.old.*": "model.new.*"})
    assert (target["new"].w.value == 1).all()
    holder = Renamed(Part())
    dx.load(tmp_path / "c", into={"model": holder})
    assert (holder.new.w.value == 1).all()


# --- what cannot be saved -----------------------------------------------------------


def test_names_of_many_objects_take_linear_time():
    count = 10_000
    moves = {f"m.{n}.old": f"m.{n}.new" for n in range(count)}
    texts = {f"m.{n}.{name}.kernel": f"m.{n}.{name}.kernel" for n in range(count) for name in ("new", "other")}
    versions = {f"m.{n}": 2 for n in range(count)}
    begun = time.process_time()
    assert renaming.moved("m.7.old.kernel", moves) == "m.7.new.kernel"
    assert all(renaming.moved(text, moves) == text for text in texts)
    assert renaming.renamed_versions(versions, texts) == versions
    assert time.process_time() - begun < 3  # minutes where each object looks at each leaf


def test_items_that_cannot_be_saved(tmp_path):
    cases: list[tuple[Any, str]] = [
        ({}, "a checkpoint consists of items by name"),
        (dx.Module(), "a checkpoint consists of items by name"),
        ({"a.b": 1}, "the name of an item must be a text without dots"),
        ({3: 1}, "the name of an item must be a text without dots"),
        ({"a": {"f": len}}, "a checkpoint holds arrays, numbers and texts"),
        ({"a": dx.Linear}, "a checkpoint holds arrays, numbers and texts"),
        ({"a": {"f": np.ma.array([1.0], mask=[True])}}, "a file has no mask"),
        ({"a": {"f": 1j}}, "a checkpoint holds arrays, numbers and texts"),
        ({"a": {"f": np.array(["x"])}}, "a checkpoint holds arrays of numbers"),
        ({"a": {"0": jnp.ones(1), 0: jnp.ones(1)}}, "JAX cannot flatten the item"),
        ({"a": {1.5: jnp.ones(1)}}, "a path must consist of texts, integers, and tuples of them"),
        ({"a": {(1, (2,)): jnp.ones(1)}}, "a path must consist of texts, integers, and tuples of them"),
        ({"a": {"m": mlp({"w": 1}), "lr": 0.1}}, "a number or text beside models would not be saved"),
        ({"a": dx.eval_shape(lambda: mlp({"w": 1}))}, "an abstract model has no arrays to save"),
    ]
    deleted = dx.Linear(2, 3, rngs=dx.Rngs(0))
    deleted.kernel.value.delete()
    cases.append(({"a": deleted}, r"a\.kernel: this array was deleted"))
    for items, problem in cases:
        with pytest.raises(CheckpointError, match=problem):
            dx.save(tmp_path / "c", items)
        assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="metrics must be numbers by name"):
        dx.save(tmp_path / "c", {"a": 1}, metrics={"loss": "low"})
    with pytest.raises(CheckpointError, match="the leaf is a tracer"):
        jax.jit(lambda x: dx.save(tmp_path / "c", {"a": {"x": x}}))(1.0)
    assert not list(tmp_path.iterdir())


def test_texts_of_paths_must_differ(tmp_path):
    state = dx.State({"a": {"b.c": jnp.ones(1), "b": {"c": jnp.ones(1)}}})
    with pytest.raises(CheckpointError, match="another path has the same text"):
        dx.save(tmp_path / "c", {"state": state})


def test_paths_without_a_checkpoint_name_what_is_there(tmp_path):
    dx.Checkpoints(tmp_path / "run").save(1, {"a": 1})
    (tmp_path / "weights").mkdir()
    dx.save_weights(mlp({"w": 1}), tmp_path / "weights" / "model.safetensors")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "program.jax_export").touch()
    (tmp_path / "file").touch()
    for name, got, fix in [
        ("none", "no such folder", None),
        ("file", "a file", None),
        ("run", "a folder without a manifest", f"dx.Checkpoints({str(tmp_path / 'run')!r}).load(into=...)"),
        ("weights", "a folder without a manifest", f"dx.load_weights(model, {str(tmp_path / 'weights')!r}, map=...)"),
        ("program", "a folder without a manifest", f"dx.load_exported({str(tmp_path / 'program')!r})"),
    ]:
        with pytest.raises(CheckpointError, match="there is no checkpoint") as caught:
            dx.load(tmp_path / name)
        assert (caught.value.got, caught.value.fix) == (got, fix)


def test_a_name_that_the_system_refuses(tmp_path):
    for call in (dx.load, lambda path: dx.save(path, {"step": 1})):
        with pytest.raises(CheckpointError, match="File name too long"):
            call(tmp_path / ("n" * 300))


def test_an_existing_path_is_not_overwritten_unless_asked(tmp_path):
    dx.save(tmp_path / "c", {"step": 1, "a": jnp.ones(3)})
    with pytest.raises(CheckpointError, match="the path exists already"):
        dx.save(tmp_path / "c", {"step": 2})
    assert dx.load(tmp_path / "c")["step"] == 1
    dx.save(tmp_path / "c", {"step": 3, "a": jnp.zeros(3)}, overwrite=True)
    assert dx.load(tmp_path / "c")["step"] == 3
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("42")
    (tmp_path / "file").write_text("42")
    (tmp_path / "link").symlink_to("nowhere")
    for name, got in [("mine", "a folder with other files"), ("file", "a file or link"), ("link", "a file or link")]:
        with pytest.raises(CheckpointError, match="this is not a checkpoint, so nothing is overwritten") as caught:
            dx.save(tmp_path / name, {"step": 3}, overwrite=True)
        assert caught.value.got == got
    assert (tmp_path / "mine" / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "42"
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="the path exists already"):
        dx.save(tmp_path / "empty", {"step": 1})
    dx.save(tmp_path / "empty", {"step": 4}, overwrite=True)
    assert dx.load(tmp_path / "empty")["step"] == 4
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "empty", "file", "link", "mine"]


def test_the_library_of_the_format_reads_a_checkpoint(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    net, _ = parts(0)
    dx.save(tmp_path / "c", {"model": net})
    (file,) = (tmp_path / "c").glob("*.safetensors")
    assert (library.load_file(file)["model.hidden.kernel"] == net.hidden.kernel.value).all()


def test_the_manifest_says_what_the_arrays_are(tmp_path):
    model = dx.Module()
    model.w = dx.Param(jnp.ones((2, 2)), sharding=("a", None), tag="x")
    dx.save(tmp_path / "c", {"model": model, "keys": jax.random.key(0)}, metrics={"loss": 0.5})
    table = json.loads((tmp_path / "c" / "manifest.json").read_text())
    leaf = table["items"]["model"]["leaves"]["model.w"]
    assert leaf == {"path": ["w"], "dtype": "float32", "kind": "Param"}
    assert table["items"]["model"]["structure"]["objects"][1]["metadata"]["tag"] == "x"
    assert table["items"]["keys"]["leaves"]["keys"]["dtype"] == "key<threefry2x32>"
    assert table["metrics"] == {"loss": 0.5}
    assert dx.load(tmp_path / "c", into={"keys": jax.random.key(1)}).metrics == {"loss": 0.5}
    assert (table["format"], table["version"]) == ("declax-checkpoint", 2)
    ((name, record),) = table["files"].items()
    content = (tmp_path / "c" / name).read_bytes()
    assert record == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    model.w = dx.Param(jnp.ones((2, 2), jnp.bfloat16))
    dx.save(
        tmp_path / "e",
        {"model": model, "layer": dx.Linear(2, 3, rngs=dx.Rngs(0))},
        spec={"layer": dx.spec(dx.Linear, 2, 3)},
    )
    other = json.loads((tmp_path / "e" / "manifest.json").read_text())
    spec = other["items"]["layer"]["spec"]
    assert (spec["kind"], spec["in_features"], spec["out_features"]) == ("Linear", 2, 3)


def test_large_arrays_go_to_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("declax.checkpoint.saving.FILE_SIZE", 1000)
    tree = {f"a{i}": jnp.full(100, float(i)) for i in range(7)}
    dx.save(tmp_path / "c", {"tree": tree})
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == 4
    found = dx.load(tmp_path / "c", into={"tree": jax.tree.map(jnp.zeros_like, tree)})["tree"]
    assert all((found[name] == tree[name]).all() for name in tree)


def test_progress_is_reported(tmp_path):
    seen: list[tuple[int, int]] = []
    tree = {"a": jnp.ones(5_000_000), "b": jnp.ones(3)}
    dx.save(tmp_path / "c", {"tree": tree}, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20_000_012, 20_000_012)
    assert len(seen) > 2
    seen.clear()
    dx.load(tmp_path / "c", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20_000_012, 20_000_012)
