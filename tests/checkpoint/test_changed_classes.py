"""Checkpoints of classes that have changed since, loaded without a target: by their structure, with both engines."""

from __future__ import annotations

import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import CheckpointError


@pytest.fixture(params=["declax", "orbax"])
def engine(request):
    if request.param == "orbax":
        pytest.importorskip("orbax.checkpoint")
    return request.param


def named(name):
    """Gives a class the name of the one that it replaces."""

    def rename(cls):
        cls.__qualname__ = cls.__name__ = name
        return cls

    return rename


@dx.dataclass
class Attention(dx.Layer):
    percent: float = dx.field(default=10.0)
    sizes: list[tuple[int, int]] = dx.static(default_factory=lambda: [(1, 2)])
    q: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, sharding=("heads",))
    k: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, sharding=("heads",))
    gate: dx.BatchStat[jax.Array] = dx.variable((), initializer=dx.initializers.zeros, stream=None)


def refuse(*args, **options):
    raise AssertionError("a constructor runs")


@named("Attention")
@dx.dataclass
class Later(dx.Layer):
    config_version = 3
    config_upgrades = {1: lambda table: {"rate": table["percent"] / 100}}
    checkpoint_upgrades = {
        1: lambda arrays: {"qk": np.concatenate([arrays["q"], arrays["k"]]), "gate": arrays["gate"]},
        2: lambda arrays: {**arrays, "gate": arrays["gate"] + 1},
    }
    rate: float = dx.field(default=0.5)
    sizes: list[tuple[int, int]] = dx.static(default_factory=list)
    qk: dx.Param[jax.Array] = dx.variable((4,), initializer=dx.initializers.ones)
    gate: dx.BatchStat[jax.Array] = dx.variable((), initializer=dx.initializers.zeros, stream=None)
    bias: float = dx.field(default=0.25)


class Holder(dx.Module):
    """An open class, so that its objects have no Spec."""


def holder_of(layer):
    model = Holder()
    model.layers = dx.List([layer])
    model.tied = layer.q
    return model


def test_versions_of_classes_by_structure(engine, tmp_path, monkeypatch):
    layer = dx.merge(*dx.split(Attention(20.0, rngs=dx.Rngs(0))))  # without a record, and so without a Spec
    layer.k.value = layer.k + 1
    dx.save(tmp_path / "c", {"model": layer, "other": {"a": [dx.clone(layer)]}}, engine=engine)
    monkeypatch.setattr(Later, "__init__", refuse)
    found = dx.load(tmp_path / "c", extra=[Later], engine=engine)
    for model in (found["model"], found["other"]["a"][0]):
        assert type(model) is Later
        assert (model.rate, model.bias, model.sizes) == (0.2, 0.25, [(1, 2)])
        assert not hasattr(model, "percent")
        assert model.qk.value.tolist() == [1, 1, 2, 2]
        assert (type(model.qk), model.qk.get_metadata("out_sharding", None)) == (dx.Param, ("heads",))
        assert (type(model.gate), float(model.gate)) == (dx.BatchStat, 1)
    abstract = dx.load(tmp_path / "c", extra=[Later], engine=engine, abstract=True)["model"]
    assert abstract.qk.value.shape == (4,)
    monkeypatch.setitem(globals(), "Attention", Later)
    dx.save(tmp_path / "again", {"model": found["model"]}, engine=engine)
    assert dx.load(tmp_path / "again", extra=[Later], engine=engine)["model"].rate == 0.2


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")
def test_upgrades_into_a_target(engine, tmp_path):
    dx.save(tmp_path / "c", {"model": Attention(20.0, rngs=dx.Rngs(0))}, engine=engine)
    target = Later(rngs=dx.Rngs(1))
    dx.load(tmp_path / "c", into={"model": target}, engine=engine)
    assert target.qk.value.tolist() == [1, 1, 1, 1]
    assert float(target.gate) == 1


def test_upgrades_that_say_too_little(engine, tmp_path, monkeypatch):
    dx.save(tmp_path / "c", {"model": Attention(rngs=dx.Rngs(0)), "step": 3}, engine=engine)
    cases = [
        ({1: lambda arrays: {**arrays, "new": np.ones(2)}}, {}, r"model\.new: an upgrade makes this, and nothing says"),
        ({1: lambda arrays: {"part.q": arrays["q"]}}, {}, r"model\.part\.q: nothing is there that could hold it"),
        (
            {},
            {1: lambda table: table["none"]},
            r"(?s)an upgrade of the class has failed.*config_upgrades\[1\] of Attention: it raised KeyError: 'none'",
        ),
        (
            {},
            {1: lambda table: None},
            r"config_upgrades\[1\] of Attention: it must return the new table, .* returned None",
        ),
        (
            {},
            {1: lambda table: {3: 4}},
            r"config_upgrades\[1\] of Attention: it must return the new table, .* of type dict",
        ),
    ]
    for upgrades, config, problem in cases:
        monkeypatch.setattr(Later, "checkpoint_upgrades", upgrades)
        monkeypatch.setattr(Later, "config_upgrades", config)
        found = dx.load(tmp_path / "c", extra=[Later], engine=engine)
        assert found["step"] == 3
        with pytest.raises(CheckpointError, match=problem):
            found["model"]


def test_a_newer_version_is_refused(engine, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "Attention", Later)
    dx.save(tmp_path / "c", {"model": Later(rngs=dx.Rngs(0)), "step": 3}, engine=engine)
    monkeypatch.undo()
    found = dx.load(tmp_path / "c", extra=[Attention], engine=engine)
    assert found["step"] == 3
    with pytest.raises(CheckpointError, match="a newer version of Attention wrote this part"):
        found["model"]


# --- renamed parts ------------------------------------------------------------------------


def test_parts_are_renamed_without_a_target(engine, tmp_path):
    model = Holder()
    model.old, model.b = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Dropout(0.5)
    model.ls = dx.List([dx.Linear(1, number + 1, rngs=dx.Rngs(0)) for number in range(3)])
    model.table = dx.data({"x": jnp.ones(2), "y": [jnp.zeros(1)]})
    model.tied = model.old.kernel
    state = dx.State({"a": {"w": dx.Param(jnp.ones(2))}, "b": {"w": dx.Param(jnp.zeros(2))}})
    dx.save(tmp_path / "c", {"model": model, "state": state}, engine=engine)
    rename = {
        "model.old.*": "model.new.*",
        "model.ls[0].*": "model.ls[2].*",
        "model.ls[2].*": "model.ls[0].*",
        "model.table.y.*": "model.table.z.*",
        "state.a.*": "state.b.*",
        "state.b.*": "state.c.*",
    }
    found = dx.load(tmp_path / "c", rename=rename, extra=[sys.modules[__name__]], engine=engine)
    new = found["model"]
    assert type(new) is Holder
    assert not hasattr(new, "old")
    assert (new.new.in_features, new.new.out_features, new.b.rate) == (2, 3, 0.5)
    assert new.tied is new.new.kernel
    assert (new.new.kernel.value == model.old.kernel.value).all()
    assert [layer.out_features for layer in new.ls] == [3, 2, 1]
    assert list(new.table) == ["x", "z"]
    assert found["state"].paths == (("b", "w"), ("c", "w"))
    assert [float(leaf[0]) for leaf in found["state"].leaves] == [1, 0]
    assert ("model.old.kernel", "model.new.kernel") in found.report.renamed


def test_a_part_becomes_an_item_and_an_item_gets_a_name(engine, tmp_path):
    model = Holder()
    model.encoder, model.head = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Linear(3, 1, rngs=dx.Rngs(1))
    dx.save(tmp_path / "c", {"model": model, "old": {"n": jnp.ones(1), "t": "text"}, "step": 2}, engine=engine)
    rename = {"model.encoder.*": "encoder.*", "old.*": "new.*"}
    found = dx.load(tmp_path / "c", rename=rename, extra=[Holder], engine=engine)
    assert sorted(found) == ["encoder", "model", "new", "step"]
    assert type(found["encoder"]) is dx.Linear
    assert (found["encoder"].kernel.value == model.encoder.kernel.value).all()
    assert not hasattr(found["model"], "encoder")
    assert (found["new"]["t"], found["step"]) == ("text", 2)


class Sizes(NamedTuple):
    rows: jax.Array


def test_renames_that_have_no_place(engine, tmp_path):
    model = Holder()
    model.a, model.ls = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.List([dx.Param(jnp.ones(1)), dx.Param(jnp.ones(1))])
    model.pair, model.size = dx.data((jnp.ones(1), jnp.ones(1))), 3
    model.sizes = dx.data(Sizes(jnp.ones(1)))
    dx.save(tmp_path / "c", {"model": model, "other": dx.Linear(1, 1, rngs=dx.Rngs(0))}, engine=engine)
    cases = [
        ({"model.a.kernel": "model.none.kernel"}, r"model\.none\.kernel: nothing is there that could hold it"),
        (
            {"model.a.kernel": "model.a.bias", "model.a.bias": "model.a.b.c"},
            r"model\.a\.b\.c: nothing is there that could hold it",
        ),
        ({"model.ls[0]": "model.first"}, r"model\.ls\.0: rename= leaves a hole here"),
        ({"model.pair[1]": "model.pair[5]"}, r"model\.pair\.5: there is no place for it"),
        ({"model.a.kernel": "model.a.bias", "model.a.bias": "model.size"}, r"model\.size: something is there already"),
        ({"model.sizes.rows": "model.first"}, r"model\.sizes\.rows: the container that holds this cannot lose it"),
        ({"model.a.*": "other.part.*"}, r"model\.a: this cannot become other\.part, a part of another item"),
    ]
    for rename, problem in cases:
        with pytest.raises(CheckpointError, match=problem) as caught:
            dx.load(tmp_path / "c", rename=rename, extra=[Holder], engine=engine)
        assert "into=" in caught.value.fix


def old_and_new_class():
    @dx.dataclass
    class Part(dx.Module):
        kernel: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, stream=None)
        zeta: dx.Param[jax.Array] = dx.variable((3,), initializer=dx.initializers.ones, stream=None)

    @dx.dataclass
    class Net(dx.Module):
        old: Part = dx.defer(Part)()

    before = [Net, Part]

    @dx.dataclass
    class Part(dx.Module):
        zz: dx.Param[jax.Array] = dx.variable(
            (2,), initializer=dx.initializers.ones, stream=None, renamed_from="kernel"
        )
        zeta: dx.Param[jax.Array] = dx.variable((3,), initializer=dx.initializers.ones, stream=None)

    @dx.dataclass
    class Net(dx.Module):
        new: Part = dx.field(default=dx.defer(Part)(), renamed_from="old")

    return before, [Net, Part]


def with_mirrors(net):
    optimizer = dx.Optimizer(net, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)
    items = {"model": net, "optimizer": optimizer, "ema": dx.EMA(net, 0.9)}
    step(items)
    return items


def step(items):
    grads = jax.tree.map(lambda x: x + jnp.arange(x.size, dtype=float), dx.state(items["model"], dx.Param))
    items["optimizer"].update(items["model"], grads)
    items["ema"].update(items["model"])


def test_moments_and_averages_follow_without_a_target(engine, tmp_path):
    before, after = old_and_new_class()
    old = with_mirrors(before[0]())
    dx.save(tmp_path / "c", old, extra=before, engine=engine)
    found = dict(dx.load(tmp_path / "c", extra=after, engine=engine))
    fresh = with_mirrors(after[0]())
    for name in found:
        assert dx.structure(found[name]) == dx.structure(fresh[name]), name
    step(old)
    step(found)
    was, now = old["model"].old, found["model"].new
    assert (was.kernel.value == now.zz.value).all()
    assert (was.zeta.value == now.zeta.value).all()
    moved = dx.load(tmp_path / "c", extra=before, rename={"model.old.kernel": "model.old.more"}, engine=engine)
    with pytest.raises(CheckpointError, match=r"has no such field any more|has this field by now"):
        moved["model"]
    assert hasattr(moved["optimizer"].opt_state[0].mu.old, "more")


def test_a_module_of_classes_is_understood(tmp_path, monkeypatch):
    module = types.ModuleType("models_of_another_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = """import declax as dx
@dx.dataclass
class Head(dx.Layer):
    size: int = dx.field()
    out = dx.Linear(size, 2)
"""
    exec(compile(source, __file__, "exec"), vars(module))
    dx.save(tmp_path / "c", {"model": module.Head(2, rngs=dx.Rngs(0))})
    later = source.replace("    size: int = dx.field()", "    width: int = dx.field(renamed_from='size')").replace(
        "Linear(size", "Linear(width"
    )
    later = later.replace("(dx.Layer):", "(dx.Layer):\n    config_version = 2")
    exec(compile(later, __file__, "exec"), vars(module))
    assert dx.load(tmp_path / "c", extra=[module])["model"].width == 2


# --- fields that a class has gained ---------------------------------------------------------


class Open(dx.Module):
    size: int
    lazy: jax.Array

    def __init__(self):
        self.size = 3


@named("Open")
class OpenLater(dx.Module):
    size: int
    lazy: jax.Array
    rate: float = 0.5
    more: int

    def __init__(self):
        self.size, self.more = 3, 1


@dx.dataclass
class Base(dx.Layer):
    size: int = dx.field()


class Derived(Base):
    def __init__(self):
        super().__init__(3)


@named("Derived")
class DerivedLater(Base):
    more: int

    def __init__(self):
        super().__init__(3)
        self.more = 2


@named("Base")
@dx.dataclass
class BaseWithPart(dx.Layer):
    size: int = dx.field()
    drop = dx.Dropout(0.5)


def test_fields_without_a_value_are_named_when_they_are_loaded(engine, tmp_path):
    for old, new, name in [
        (Open(), OpenLater, "more"),
        (Derived(), DerivedLater, "more"),
        (Base(3), BaseWithPart, "drop"),
    ]:
        folder = tmp_path / type(old).__name__
        dx.save(folder, {"model": old}, engine=engine)
        same = dx.load(folder, extra=[type(old)], engine=engine)["model"]
        assert same.size == 3
        assert "lazy" not in vars(same)
        with pytest.raises(CheckpointError, match="has this field by now, without a default") as caught:
            dx.load(folder, extra=[new], engine=engine)["model"]
        assert f"model.{name}:" in caught.value.got
        assert "lazy" not in caught.value.got


# --- declarations that have changed -------------------------------------------------


def declaring(annotation):
    """An open class with one field."""
    return type("Declaring", (dx.Module,), {"__module__": __name__, "__annotations__": {"field": annotation}})


def saved_field(path, annotation, value, monkeypatch, engine="declax"):
    """Saves an object with one field."""
    monkeypatch.setitem(globals(), "Declaring", declaring(annotation))
    model = globals()["Declaring"]()
    model.field = value
    dx.save(path, {"model": model, "step": 3}, engine=engine)
    return model


CHANGED = {
    "data to static": (dx.Data[jax.Array], dx.data(jnp.ones(2)), dx.Static[int]),
    "static to data": (int, 3, jax.Array),
    "kind": (dx.Param, dx.Param(jnp.ones(2)), dx.BatchStat),
    "kind of arrays": (dx.Param[jax.Array], dx.Param(jnp.ones(2)), dx.BatchStat[jax.Array]),
    "array to Variable": (jax.Array, jnp.ones(2), dx.Param),
    "Variable to array": (dx.Param, dx.Param(jnp.ones(2)), jax.Array),
    "Variable to optional array": (dx.Param, dx.Param(jnp.ones(2)), jax.Array | None),
    "list of kinds": (list[dx.Param], [dx.Param(jnp.ones(2))], list[dx.BatchStat]),
    "List of kinds": (dx.List[dx.Param], dx.List([dx.Param(jnp.ones(2))]), dx.List[dx.BatchStat]),
    "dict of arrays": (dict[str, jax.Array], {"a": jnp.ones(2)}, dict[str, dx.Param]),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_class_declares_otherwise_by_now_is_an_error(name, engine, tmp_path, monkeypatch):
    before, value, after = CHANGED[name]
    saved_field(tmp_path / "c", before, value, monkeypatch, engine)
    found = dx.load(tmp_path / "c", extra=[declaring(after)], engine=engine)
    assert found["step"] == 3
    with pytest.raises(CheckpointError, match=r"model\.field: Declaring\.field is declared as .* by now"):
        found["model"]


KEPT = {
    "explicit data": (int, dx.data(jnp.ones(2)), int),
    "explicit static": (jax.Array, dx.static(3), jax.Array),
    "another kind": (dx.Param, dx.BatchStat(jnp.ones(2)), dx.Param),
    "an array": (dx.Param, dx.data(jnp.ones(2)), dx.Param),
    "a Variable": (jax.Array, dx.Param(jnp.ones(2)), jax.Array),
    "kinds in a list": (list[dx.Param], dx.data([dx.BatchStat(jnp.ones(2))]), list[dx.Param]),
    "a wider kind": (dx.Param, dx.Param(jnp.ones(2)), dx.Variable),
    "an optional kind": (dx.Param, dx.Param(jnp.ones(2)), dx.Param[jax.Array] | None),
    "none": (dx.Param | None, dx.data(None), dx.Param),
    "anything": (dx.Data[jax.Array], jnp.ones(2), object),
    "a deviation that is declared by now": (dx.Param, dx.BatchStat(jnp.ones(2)), dx.BatchStat),
    "a deviation from both": (dx.Static[int], dx.data(jnp.ones(2)), dx.Param),
    "another part": (dx.Linear, dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Conv),
}


@pytest.mark.parametrize("name", KEPT)
def test_surgery_and_wider_declarations_come_back(name, engine, tmp_path, monkeypatch):
    before, value, after = KEPT[name]
    model = saved_field(tmp_path / "c", before, value, monkeypatch, engine)
    for cls in (globals()["Declaring"], declaring(after)):
        found = dx.load(tmp_path / "c", extra=[cls], engine=engine)["model"]
        assert type(found.field) is type(model.field)
        assert len(jax.tree.leaves(found)) == len(jax.tree.leaves(model))
        assert dx.load(tmp_path / "c", extra=[cls], engine=engine, abstract=True)["model"] is not None


def test_files_that_do_not_say_where_objects_deviate_are_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr("declax.checkpoint.structure_writer.FORMATS", (1, 2))
    saved_field(tmp_path / "c", dx.Param, dx.Param(jnp.ones(2)), monkeypatch)
    assert type(dx.load(tmp_path / "c", extra=[declaring(dx.BatchStat)])["model"].field) is dx.Param


@dx.dataclass
class Renamed(dx.Module):
    old: dx.Param[jax.Array]


@named("Renamed")
@dx.dataclass
class RenamedLater(dx.Module):
    new: dx.Param[jax.Array] = dx.field(renamed_from="old")


@named("Renamed")
@dx.dataclass
class RenamedByUser(dx.Module):
    new: dx.Param[jax.Array]


def test_a_deviation_follows_a_former_name_and_a_rename(tmp_path):
    model = Renamed(dx.Param(jnp.ones(2)))
    model.old = dx.BatchStat(jnp.ones(2))
    dx.save(tmp_path / "c", {"model": model})
    for cls, rename in ((RenamedLater, None), (RenamedByUser, {"model.old": "model.new"})):
        found = dx.load(tmp_path / "c", extra=[cls], rename=rename)["model"]
        assert type(found.new) is dx.BatchStat
