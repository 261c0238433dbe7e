"""`save` and `load` with Orbax: round trips, the layout of the peer, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import MissingExtraError

ocp = pytest.importorskip("orbax.checkpoint")
PROGRAM = Path(__file__).with_name("orbax_meshes.py")


@dx.dataclass
class Net(dx.Layer):
    inner = dx.Linear(2, 3)
    norm = dx.BatchNorm(3)
    dropout = dx.Dropout(0.5)


def save(path, items, **options):
    dx.save(path, items, engine="orbax", **options)


def load(path, into=None, **options):
    return dx.load(path, into=into, engine="orbax", **options)


def leaves_of(*nodes):
    leaves = [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(dx.state(nodes))
    ]
    assert leaves
    return leaves


def assert_equal(ours, others):
    assert len(ours) == len(others)
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def training(seed):
    net = Net(rngs=dx.Rngs(seed))
    optimizer = dx.Optimizer(net, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)
    return net, optimizer, dx.Rngs(params=seed, dropout=seed + 1)


@pytest.mark.filterwarnings("ignore::declax.errors.CheckpointWarning")  # items share objects
def test_models_optimizers_streams_arrays_and_plain_data_come_back(tmp_path):
    net, optimizer, rngs = training(0)
    optimizer.update(net, dx.grad(lambda net: (net.inner(jnp.ones((4, 2))) ** 2).sum())(net))
    rngs.dropout()
    table = {
        "list": [jnp.ones(2, jnp.bfloat16), np.arange(3)],
        "value": jnp.zeros(2),
        "count": 3,
        "rate": 0.5,
        "on": True,
    }
    items = {
        "net": net,
        "both": (net, optimizer),
        "rngs": rngs,
        "table": table,
        "step": 12,
        "names": ["a", {"b": None}],
    }
    save(tmp_path / "one" / "c", items, metrics={"loss": 0.25})
    other, other_optimizer, other_rngs = training(7)
    fresh = jax.tree.map(lambda leaf: type(leaf)(0) if isinstance(leaf, (int, float)) else leaf * 0, table)
    into = {"both": (other, other_optimizer), "rngs": other_rngs, "table": fresh, "step": 0, "names": []}
    found = load(tmp_path / "one" / "c", into)
    assert_equal(leaves_of(net, optimizer, rngs), leaves_of(other, other_optimizer, other_rngs))
    assert found["both"][0] is other
    assert (found["step"], found["names"], found.metrics) == (12, ["a", {"b": None}], {"loss": 0.25})
    assert jax.tree.map(type, found["table"]) == jax.tree.map(type, fresh)
    assert_equal(*[list(map(np.asarray, jax.tree.leaves(tree))) for tree in (found["table"], table)])
    assert found.report


def test_a_model_is_rebuilt_from_its_spec_and_other_items_are_states(tmp_path):
    net = Net(rngs=dx.Rngs(0))
    save(
        tmp_path / "c", {"model": net, "table": {"x": [jnp.ones(2), 7, np.zeros(2)], "k": jax.random.key(5)}, "step": 3}
    )
    found = load(tmp_path / "c", extra=[Net])
    assert type(found["model"]) is Net
    assert_equal(leaves_of(found["model"]), leaves_of(net))
    assert type(found["table"]) is dict
    assert (found["table"]["x"][0] == 1).all()
    assert found["table"]["x"][1] == 7
    assert found["table"]["x"][2].dtype == np.float64
    assert found["table"]["k"] == jax.random.key(5)
    assert found["step"] == 3


def test_what_does_not_fit_is_one_report_and_nothing_changes(tmp_path):
    save(tmp_path / "c", {"model": dx.MLP(2, 3, rngs=dx.Rngs(0)), "step": 3})
    other = dx.MLP(2, 4, rngs=dx.Rngs(1))
    other.up.bias = None
    before = leaves_of(other)
    with pytest.raises(dx.CheckpointError, match="does not fit at 3 paths") as caught:
        load(tmp_path / "c", {"model": other})
    for text in ("model.up.kernel: expected shape (2, 4), got shape (2, 3)", "model.down.kernel", "model.up.bias"):
        assert text in str(caught.value)
    assert_equal(leaves_of(other), before)
    with pytest.raises(dx.CheckpointError, match="the checkpoint has no item 'modle'"):
        load(tmp_path / "c", {"modle": other})
    report = load(tmp_path / "c", {"model": other}, strict=False).report
    assert report.taken == ("model.down.bias",)


def test_a_part_and_renamed_paths_are_restored(tmp_path):
    old, new = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.MLP(2, 3, rngs=dx.Rngs(1))
    old.bias.value = jnp.ones(3)
    kernel = new.up.kernel.value
    save(tmp_path / "c", {"model": old})
    load(tmp_path / "c", {"model": new}, rename={"model.*": "model.up.*"}, only=dx.PathContains("bias"), strict=False)
    assert (new.up.bias.value == 1).all()
    assert (new.up.kernel.value == kernel).all()


def test_random_keys_keep_their_implementation(tmp_path):
    save(tmp_path / "c", {"keys": {"k": jax.random.split(jax.random.key(3), 2)}})
    found = load(tmp_path / "c", {"keys": {"k": jax.random.split(jax.random.key(0), 2)}})["keys"]["k"]
    assert (found == jax.random.split(jax.random.key(3), 2)).all()
    for like in (jax.random.split(jax.random.key(0, impl="rbg"), 2), jnp.zeros((2, 2), jnp.float32)):
        with pytest.raises(dx.CheckpointError, match="does not fit at 1 path"):
            load(tmp_path / "c", {"keys": {"k": like}})
    save(tmp_path / "rbg", {"keys": {"k": jax.random.key(3, impl="rbg")}})
    with pytest.raises(dx.CheckpointError, match="the value has another type"):
        load(tmp_path / "rbg", {"keys": {"k": jax.random.key(3, impl="unsafe_rbg")}})


@pytest.mark.filterwarnings("ignore")  # of Orbax, which restores on the saved devices
def test_the_peer_restores_what_was_written_and_the_reverse(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    def model_of(library, seed):
        class Model(library.Module):
            def __init__(self, rngs):
                self.layers = library.List([library.Linear(2, 3, rngs=rngs)])
                self.norm = library.BatchNorm(3, rngs=rngs)
                self.dropout = library.Dropout(0.5, rngs=rngs)

        return Model(library.Rngs(params=seed, dropout=seed + 1))

    def optimizer_of(library, model):
        return library.Optimizer(model, optax.adam(0.1), wrt=library.Param)

    def read(path, target):
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path, target)

    ours, theirs = model_of(dx, 0), model_of(nnx, 5)
    save(tmp_path / "ours", {"model": ours, "optimizer": optimizer_of(dx, ours), "step": 12})
    nnx.update(theirs, read(tmp_path / "ours" / "model", nnx.state(theirs)))
    state = nnx.state(optimizer_of(nnx, theirs))
    assert jax.tree.structure(read(tmp_path / "ours" / "optimizer", state)) == jax.tree.structure(state)
    manager = ocp.CheckpointManager(tmp_path / "run")
    manager.save(
        12, args=ocp.args.Composite(model=ocp.args.StandardSave(nnx.state(theirs)), step=ocp.args.JsonSave(12))
    )
    manager.close()
    back = model_of(dx, 9)
    assert load(tmp_path / "run" / "12", {"model": back, "step": 0})["step"] == 12
    assert_equal(leaves_of(ours), leaves_of(back))
    numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(theirs, nnx.Not(nnx.RngState)))]
    assert_equal([np.asarray(leaf) for leaf in jax.tree.leaves(dx.state(ours, dx.Not(dx.RngState)))], numbers)


def start(devices, *arguments):
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


def restore_here(folder):
    model = dx.Module()
    model.w, model.half = dx.Param(jnp.zeros((8, 8))), dx.Param(jnp.zeros((8, 8), jnp.bfloat16))
    load(folder / "c", {"model": model})
    assert (model.w.value == np.arange(64.0, dtype=np.float32).reshape(8, 8)).all()


def test_eight_devices_on_other_meshes_and_on_one_device(tmp_path):
    finish(start(8, tmp_path))
    restore_here(tmp_path)


@pytest.mark.slow
def test_two_processes_write_and_read_their_parts(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [start(4, tmp_path, number, port) for number in (0, 1)]
    results = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    assert [code for _, code in results] == [0, 0], results
    restore_here(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    save(tmp_path / "c", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0))})
    other = {"model": dx.Linear(2, 3, rngs=dx.Rngs(1))}
    with pytest.raises(dx.CheckpointError, match="the path exists already"):
        save(tmp_path / "c", other)
    with pytest.raises(dx.CheckpointError, match='engine="orbax" has no overwrite='):
        save(tmp_path / "c", other, overwrite=True)
    load(tmp_path / "c", other)
    assert_equal(leaves_of(other["model"]), leaves_of(dx.Linear(2, 3, rngs=dx.Rngs(0))))
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_an_empty_array_of_another_shape(tmp_path):
    save(tmp_path / "c", {"tree": {"a": np.zeros((0, 2)), "b": jnp.ones(1)}})
    file = tmp_path / "c" / "_CHECKPOINT_METADATA"
    file.write_text(file.read_text().replace("[0, 2]", "[9, 2]"))
    with pytest.raises(dx.CheckpointError, match="this is not the shape of an empty array"):
        load(tmp_path / "c")


@pytest.mark.parametrize("name", ["a~", "__a", "a\\b", "a\0"])
def test_names_that_orbax_does_not_keep(name, tmp_path):
    """It writes a folder with a tilde at the end, and does not list it."""
    with pytest.raises(dx.CheckpointError, match="Orbax keeps no item of this name"):
        save(tmp_path / "c", {name: dx.Linear(2, 3, rngs=dx.Rngs(0)), "step": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_item_is_not_left_out(tmp_path):
    save(tmp_path / "c", {"model": dx.Linear(2, 3, rngs=dx.Rngs(0)), "other": {"a": jnp.ones(2)}})
    shutil.rmtree(tmp_path / "c" / "model")
    with pytest.raises(dx.CheckpointError, match=r"model: the folder of an item is missing"):
        dx.load(tmp_path / "c", engine="orbax")


def test_abstract_models_are_refused(tmp_path):
    with pytest.raises(dx.CheckpointError, match="an abstract model has no arrays to save"):
        save(tmp_path / "c", {"model": dx.eval_shape(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)))})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the loop that Orbax closes early
def test_damaged_checkpoints_are_refused_with_their_path(tmp_path):
    with pytest.raises(dx.CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "c")
    with pytest.raises(dx.CheckpointError, match="the folder has no items of Orbax"):
        load(tmp_path)
    model = dx.Linear(2, 3, use_bias=False, rngs=dx.Rngs(0))
    save(tmp_path / "c", {"model": model})
    with pytest.raises(dx.CheckpointError, match="the folder has no items of Orbax") as caught:
        load(tmp_path / "c" / "model")
    assert "into={'model': model}" in str(caught.value)
    for file in (tmp_path / "c" / "model" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    before = leaves_of(model)
    with pytest.raises(dx.CheckpointError, match="Orbax could not read the"):
        load(tmp_path / "c", {"model": model})
    assert_equal(leaves_of(model), before)
    (tmp_path / "c" / "model" / "_METADATA").write_text("{")
    with pytest.raises(dx.CheckpointError, match="Orbax could not read the metadata"):
        load(tmp_path / "c", {"model": model})


def test_the_rest_of_a_killed_process_is_no_checkpoint(tmp_path):
    save(tmp_path / "c", {"step": 1})
    rest = (tmp_path / "c").rename(tmp_path / "c.orbax-checkpoint-tmp")
    with pytest.raises(dx.CheckpointError, match="the checkpoint is not complete"):
        load(rest)
    save(tmp_path / "c", {"step": 2})
    assert load(tmp_path / "c") == {"step": 2}


def test_renamed_fields(tmp_path):
    @dx.dataclass
    class Renamed(dx.Module):
        array: dx.Param[jax.Array] = dx.field(renamed_from="kernel")
        streams: dx.Rngs = dx.field(renamed_from="rngs")

    old = dx.Module()
    old.kernel, old.rngs = dx.Param(jnp.ones(2)), dx.Rngs(3)
    save(tmp_path / "c", {"model": old, "optimizer": dx.Optimizer(old, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)})
    new = Renamed(dx.Param(jnp.zeros(2)), dx.Rngs(0))
    into = {"model": new, "optimizer": dx.Optimizer(new, dx.spec(optax.adam, 0.1).build(), wrt=dx.Param)}
    assert len(load(tmp_path / "c", into).report.renamed) == 5
    assert_equal(leaves_of(new), leaves_of(old))


def test_engines_have_names_and_an_extra(tmp_path, monkeypatch):
    for call in (lambda: dx.save(tmp_path / "c", {"step": 1}, engine="orbx"), lambda: dx.load(tmp_path, engine="orbx")):
        with pytest.raises(dx.CheckpointError, match="there is no such engine"):
            call()
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(MissingExtraError, match="orbax-checkpoint is not installed") as caught:
        save(tmp_path / "c", {"step": 1})
    assert "declax[orbax]" in str(caught.value)


def test_static_values_containers_and_tuples_in_paths_come_back(tmp_path):
    net = Net(rngs=dx.Rngs(0))
    net.norm.epsilon = 1e-3
    normed = dx.WeightNorm(dx.Linear(3, 2, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
    save(tmp_path / "c", {"model": net, "pair": (jnp.ones(2), [3, None]), "ids": {7: jnp.zeros(1)}, "normed": normed})
    found = load(tmp_path / "c", extra=[Net])
    assert found["model"].norm.epsilon == 1e-3
    assert (found["pair"][0] == 1).all()
    assert found["pair"][1] == [3, None]
    assert found["ids"].keys() == {7}
    other = dx.WeightNorm(dx.Linear(3, 2, rngs=dx.Rngs(1)), rngs=dx.Rngs(1))
    load(tmp_path / "c", {"normed": other})
    assert_equal(leaves_of(other), leaves_of(normed))


def test_each_engine_names_the_other(tmp_path):
    net = dx.Linear(2, 3, rngs=dx.Rngs(0))
    save(tmp_path / "orbax", {"model": net})
    dx.save(tmp_path / "declax", {"model": net})
    for folder in (tmp_path / "orbax", tmp_path / "orbax" / "model"):
        with pytest.raises(dx.CheckpointError, match="this is a checkpoint of Orbax") as caught:
            dx.load(folder, {"model": net})
        assert caught.value.fix == f'dx.load({str(folder)!r}, engine="orbax")'
    with pytest.raises(dx.CheckpointError, match="this is a checkpoint of declax") as caught:
        load(tmp_path / "declax", {"model": net})
    assert caught.value.fix == f"dx.load({str(tmp_path / 'declax')!r})"


class Seen(list[tuple[int, int]]):
    """What a function for progress was told."""

    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))


def large_items():
    model = dx.Module()
    model.parts = dx.List([dx.Param(jnp.full((1000, 10), float(number))) for number in range(20)])
    model.rngs = dx.Rngs(0)
    return {"model": model, "table": {"a": np.ones(5_000, np.float32), "b": np.ones(3), "n": 7}, "step": 1}


def test_progress_is_reported(tmp_path, monkeypatch):
    items, saved, loaded = large_items(), Seen(), Seen()
    arrays = 20 * 40_000 + 20_000 + 24 + 12  # with a key and its count
    save(tmp_path / "c", items, progress=saved)
    monkeypatch.setattr("declax.checkpoint.orbax_engine._GROUP", 100_000)
    load(tmp_path / "c", large_items(), progress=loaded)
    for seen, steps in ((saved, 20), (loaded, 5)):
        assert seen[-1] == (arrays, arrays)
        assert seen == sorted(seen)
        assert len(seen) > steps
    assert_equal(leaves_of(load(tmp_path / "c", large_items())["model"]), leaves_of(items["model"]))


def test_the_layout_does_not_depend_on_progress(tmp_path):
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "theirs", args=ocp.args.StandardSave(dx.state(large_items()["model"])))
    save(tmp_path / "ours", large_items(), progress=Seen())
    texts = [(folder / "_METADATA").read_text() for folder in (tmp_path / "theirs", tmp_path / "ours" / "model")]
    assert texts[0] == texts[1]
    described = json.loads((tmp_path / "ours" / "_CHECKPOINT_METADATA").read_text())
    assert described["item_handlers"]["model"] == ocp.StandardCheckpointHandler.typestr()


def test_an_error_of_progress_is_raised_when_the_checkpoint_is_complete(tmp_path):
    seen: list[int] = []

    def stop(done, total):
        seen.append(done)
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        save(tmp_path / "c", large_items(), progress=stop)
    assert len(seen) == 1
    checkpoints = steps_of(tmp_path / "run")
    for end in (checkpoints.wait, checkpoints.close):
        checkpoints.save(len(seen), large_items(), progress=stop)
        with pytest.raises(ValueError, match="enough"):
            end()
    checkpoints.close()
    assert len(seen) == 3
    assert checkpoints.steps() == [1, 2]
    assert load(tmp_path / "c", {"step": 0})["step"] == 1


# --- the steps of a run -----------------------------------------------------------------


def steps_of(folder, **options):
    return dx.Checkpoints(folder, engine="orbax", **options)


def test_steps_are_saved_in_the_background_and_the_latest_and_the_best_stay(tmp_path):
    net, other = (dx.Linear(2, 3, rngs=dx.Rngs(seed)) for seed in (0, 1))
    table = {"a": np.zeros(5)}
    with steps_of(tmp_path / "run", keep=2, best="loss", every=2) as checkpoints:
        for step, loss in zip(range(9), [0.5, 0.0, 0.1, 0.0, 0.3, 0.0, float("nan"), 0.0, 0.2], strict=True):
            net.bias.value = jnp.full(3, float(step))
            table["a"][:] = step
            items = {"model": net, "table": table, "step": step}
            assert checkpoints.save(step, items, metrics={"loss": loss}) is (step % 2 == 0)
            table["a"][:] = -1  # what is saved was copied
            net.bias.value = jnp.full(3, -1.0)
        assert checkpoints.load(into={"model": other, "step": 0})["step"] == 8  # waits
        assert (other.bias.value == 8).all()
    assert (checkpoints.steps(), checkpoints.latest, checkpoints.best) == ([2, 6, 8], 8, 2)
    again = steps_of(tmp_path / "run", best="loss")
    found = again.load("best", into={"model": other, "table": table})
    assert (found["table"]["a"] == 2).all()
    assert found.metrics == {"loss": 0.1}
    assert (again.best, again.latest) == (2, 8)


def test_progress_of_steps_in_the_background(tmp_path):
    first, second = Seen(), Seen()
    with steps_of(tmp_path) as checkpoints:
        checkpoints.save(1, large_items(), progress=first)
        checkpoints.save(2, large_items())
        checkpoints.save(3, {"table": {"a": jnp.ones(7)}}, progress=second)
        checkpoints.wait()
    assert first[-1][0] == first[-1][1] == 20 * 40_000 + 20_000 + 24 + 12
    assert len(first) > 20
    assert second == [(28, 28)]


def test_the_steps_are_those_of_the_manager_of_the_peer(tmp_path):
    net, other = (dx.Linear(2, 3, rngs=dx.Rngs(seed)) for seed in (0, 1))
    with steps_of(tmp_path, best="loss") as checkpoints:
        checkpoints.save(3, {"model": net, "step": 3}, metrics={"loss": 0.5})
        checkpoints.save(5, {"model": net, "step": 5}, metrics={"loss": 0.7})
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ([3, 5], 3)
        assert manager.restore(5, args=ocp.args.Composite(step=ocp.args.JsonRestore()))["step"] == 5
        composite = ocp.args.Composite(model=ocp.args.StandardSave(dx.state(other)))
        manager.save(7, args=composite, metrics={"loss": 0.1})
    mine = steps_of(tmp_path, best="loss")
    assert (mine.latest, mine.best) == (7, 7)
    mine.load(into={"model": net})
    assert_equal(leaves_of(net), leaves_of(other))


def test_writers_of_one_folder_and_rests_of_killed_ones(tmp_path):
    items = {"table": {"a": np.ones(2)}}
    first = steps_of(tmp_path)
    assert (first.steps(), first.latest, first.best) == ([], None, None)
    first.save(1, items)
    with pytest.raises(dx.CheckpointError, match="another writer uses this folder"):
        steps_of(tmp_path).save(2, items)
    with pytest.raises(dx.CheckpointError, match="step 1 is not above the last one"):
        first.save(1, items)
    with pytest.raises(dx.CheckpointError, match="'metrics' is the name of an item of Orbax"):
        first.save(2, {"metrics": 3})
    first.close()
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    first = steps_of(tmp_path)
    assert first.steps() == [1]
    first.save(2, items)
    first = steps_of(tmp_path)  # drops the writer, which waits
    first.save(3, items)
    first.close()
    assert first.steps() == [1, 2, 3]
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.endswith("-tmp")) == []


def test_steps_of_the_other_engine_are_refused(tmp_path):
    for engine, other in (("declax", "orbax"), ("orbax", "declax")):
        folder = tmp_path / engine
        with dx.Checkpoints(folder, engine=engine) as checkpoints:
            checkpoints.save(1, {"step": 1})
        with pytest.raises(dx.CheckpointError, match=f'the folder has steps of engine="{engine}"') as caught:
            dx.Checkpoints(folder, engine=other)
        assert caught.value.fix == f'dx.Checkpoints({str(folder)!r}, engine="{engine}")'


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "checkpoints.save(2, items)"])
def test_the_last_step_is_saved_when_the_program_ends(end, tmp_path):
    program = (
        "import sys, jax.numpy as jnp, declax as dx\n"
        "items = {'table': {str(n): jnp.full((500, 1000), float(n)) for n in range(10)}}\n"
        "checkpoints = dx.Checkpoints(sys.argv[1], engine='orbax')\n"
        f"checkpoints.save(1, items)\n{end}\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert "Error" not in done.stderr
    checkpoints = steps_of(tmp_path)
    assert checkpoints.steps() == ([1, 2] if "save" in end else [1])
    found = checkpoints.load()["table"]
    assert all((found[name] == float(name)).all() for name in found)


def test_errors_in_the_background_are_raised_later(tmp_path, monkeypatch):
    checkpoints = steps_of(tmp_path)
    checkpoints.save(1, {"table": {"a": np.ones(2)}})
    checkpoints.wait()

    def fail(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "wait_until_finished", fail)
        for call in (checkpoints.wait, lambda: checkpoints.save(2, {"step": 2}), checkpoints.load):
            with pytest.raises(dx.CheckpointError, match="No space left on device"):
                call()
    checkpoints.save(2, {"step": 2})
    checkpoints.close()
    assert checkpoints.steps() == [1, 2]
