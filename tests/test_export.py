"""Exported programs: results, weights, shapes and platforms, files that need no classes, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import _export
from declax.checkpoint.safetensors import open_tensors
from declax.errors import CheckpointError, MissingExtraError, TransformError

X = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)


@dx.dataclass
class Net(dx.Layer):
    up = dx.Linear(2, 4)
    norm = dx.BatchNorm(4)
    drop = dx.Dropout(0.5)
    down = dx.Linear(4, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.drop(self.norm(self.up(x))))

    def classify(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"class": self(batch["x"]).argmax(-1)}


@pytest.fixture
def net() -> Net:
    made = Net(rngs=dx.Rngs(0))
    made.eval()
    return made


def test_weights_are_inputs(net):
    program = dx.export(net, X)
    assert set(program.weights) == {
        *(f"{part}.{name}" for part in ("up", "down") for name in ("kernel", "bias")),
        *(f"norm.{name}" for name in ("scale", "bias", "mean", "var")),
    }
    np.testing.assert_allclose(program(X), net(X), rtol=1e-5, atol=1e-6)
    program.weights["down.bias"] = program.weights["down.bias"] + 1
    np.testing.assert_allclose(program(X), net(X) + 1, rtol=1e-5, atol=1e-6)
    assert repr(program) == "ExportedProgram(Net(float32[4,2]), weights=8)"


def test_weights_are_constants(net):
    program = dx.export(net, X, weights="constants")
    assert program.weights == {}
    before = net(X)
    net.down.bias.value = net.down.bias.value + 1
    np.testing.assert_allclose(program(X), before, rtol=1e-5, atol=1e-6)


def test_symbolic_sizes_and_platforms(net):
    program = dx.export(net, X, shapes="b, 2", platforms=("cpu", "cuda", "tpu"))
    assert program.exported.platforms == ("cpu", "cuda", "tpu")
    for size in (1, 7):
        np.testing.assert_allclose(program(jnp.ones((size, 2))), net(jnp.ones((size, 2))), rtol=1e-5, atol=1e-6)
    two = dx.export(lambda x, y: net(x) + y, X, jnp.ones((4, 1)), shapes=("b, ...", "b, 1"))
    assert two(X[:2], jnp.ones((2, 1))).shape == (2, 3)


def test_methods_trees_and_two_models(net):
    program = dx.export(net.classify, {"x": jax.ShapeDtypeStruct((4, 2), jnp.float32)})
    assert jnp.array_equal(program({"x": X})["class"], net(X).argmax(-1))
    other = dx.Linear(3, 1, rngs=dx.Rngs(1))
    both = dx.export(lambda x: other(net(x)), X)
    assert {name.split(".")[0] for name in both.weights} == {"0", "1"}
    np.testing.assert_allclose(both(X), other(net(X)), rtol=1e-5, atol=1e-6)
    assert dx.export(jnp.sin, X).weights == {}


def test_a_shared_part_is_one_weight():
    embed = dx.Embed(5, 3, rngs=dx.Rngs(0))
    pair = dx.List([embed, embed])
    program = dx.export(lambda x: pair[1].attend(pair[0](x)), jnp.arange(4))
    assert len(program.weights) == 1
    np.testing.assert_allclose(program(jnp.arange(4)), embed.attend(embed(jnp.arange(4))), rtol=1e-5)


def test_numbers_are_constants():
    model = dx.Module()
    model.rate, model.table = dx.Variable(2.0), dx.Variable(jnp.arange(3, dtype=jnp.bfloat16))
    program = dx.export(lambda x: x * model.rate + model.table.sum(), jnp.ones(2, jnp.bfloat16))
    assert list(program.weights) == ["table"]
    found = program(jnp.ones(2, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    assert (found == 5).all()


def test_a_copy_is_called_where_streams_change():
    rnn = dx.RNN(dx.LSTMCell(2, 3, rngs=dx.Rngs(0)))
    x = jnp.ones((4, 5, 2))
    with pytest.raises(TransformError, match=r"RNN\.rngs\.count(.|\n)*dx\.clone\(model\)"):
        dx.export(rnn, x)

    def run(x: jax.Array) -> Any:
        return dx.clone(rnn)(x)

    program = dx.export(run, x, shapes="b, 5, 2")
    assert rnn.rngs.count.value == 0
    assert {name.rpartition(".")[2] for name in program.weights} == {"kernel", "bias"}
    for _ in range(2):
        np.testing.assert_allclose(program(x), dx.clone(rnn)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", ["inputs", "constants"])
def test_files(net, weights, tmp_path):
    pytest.importorskip("flatbuffers")
    dx.export(net, X, shapes="b, 2", weights=weights).save(tmp_path / "net")
    files = {"export.json", "program.jax_export", "weights.safetensors"}
    if weights == "constants":
        files.remove("weights.safetensors")
    else:
        assert len(open_tensors(tmp_path / "net" / "weights.safetensors")) == 8
    assert {path.name for path in (tmp_path / "net").iterdir()} == files
    loaded = dx.load_exported(tmp_path / "net")
    np.testing.assert_allclose(loaded(X), net(X), rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]
    with pytest.raises(CheckpointError, match="net: the folder exists"):
        dx.export(net, X).save(tmp_path / "net")
    with pytest.raises(CheckpointError, match="the file cannot be created"):
        dx.export(net, X).save(tmp_path / "none" / "net")


@pytest.mark.slow
def test_files_need_no_classes(net, tmp_path):
    pytest.importorskip("flatbuffers")
    dx.export(net, X).save(tmp_path / "net")
    np.save(tmp_path / "x.npy", X)
    code = """
import declax as dx, numpy as np, sys
np.save("y.npy", dx.load_exported("net")(np.load("x.npy")))
assert "declax.nn" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=100)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), net(X), rtol=1e-5, atol=1e-6)


def test_changed_files_are_refused(net, tmp_path):
    pytest.importorskip("flatbuffers")
    program = dx.export(net, X)
    for number, name in enumerate(("program.jax_export", "weights.safetensors")):
        folder = tmp_path / str(number)
        program.save(folder)
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match="the file was changed after it was written") as caught:
            dx.load_exported(folder)
        assert caught.value.where.endswith(name)
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match="the file cannot be opened"):
            dx.load_exported(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "this is not a manifest that this version reads"),
        ({"sha256": {}}, "the manifest does not list the files"),
        ({"sha256": {"program.jax_export": 3}}, "the manifest does not list the files"),
        ({"sha256": {"program.jax_export": "", "../x": ""}}, "the manifest does not list the files"),
    ],
)
def test_manifests_are_checked(change, text, tmp_path):
    pytest.importorskip("flatbuffers")
    dx.export(jnp.sin, X).save(tmp_path / "sine")
    path: Path = tmp_path / "sine" / "export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=text):
        dx.load_exported(tmp_path / "sine")
    path.write_text("[]")
    with pytest.raises(CheckpointError, match="this is not a manifest"):
        dx.load_exported(tmp_path / "sine")


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(1000)])
def test_programs_that_jax_cannot_read(content, tmp_path):
    pytest.importorskip("flatbuffers")
    dx.export(jnp.sin, X).save(tmp_path / "sine")
    (tmp_path / "sine" / "program.jax_export").write_bytes(content)
    path = tmp_path / "sine" / "export.json"
    digest = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": {"program.jax_export": digest}}))
    with pytest.raises(CheckpointError, match=r"program\.jax_export: JAX cannot read the program"):
        dx.load_exported(tmp_path / "sine")


def test_weights_that_the_manifest_leaves_out(net, tmp_path):
    pytest.importorskip("flatbuffers")
    dx.export(net, X).save(tmp_path / "net")
    path = tmp_path / "net" / "export.json"
    table = json.loads(path.read_text())
    del table["sha256"]["weights.safetensors"]
    path.write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=r"the weights do not fit the program(.|\n)*no weight '"):
        dx.load_exported(tmp_path / "net")


def test_calls_that_do_not_fit_the_program(net):
    program = dx.export(net, X)
    calls: list[Any] = [(jnp.ones((4, 3)),), (), (X, X), (X.astype(jnp.bfloat16),), ({"x": X},), ("x",)]
    for arguments in calls:
        with pytest.raises(TransformError, match="the program cannot be called like this") as caught:
            program(*arguments)
        assert caught.value.expected == "(float32[4,2]) on cpu"
        assert caught.value.why
    elsewhere = dx.export(net, X, platforms=["tpu", "cuda"])
    with pytest.raises(TransformError, match="the program cannot be called like this") as caught:
        elsewhere(X)
    assert caught.value.expected == "(float32[4,2]) on tpu or cuda"
    assert str(caught.value.got).endswith(" on cpu")
    symbolic = dx.export(net, X, shapes="b, 2")
    with pytest.raises(TransformError, match="the program cannot be called like this"):
        symbolic(jnp.ones((2, 3)))
    program.weights["down.bias"] = jnp.ones(4)
    with pytest.raises(TransformError, match="the program cannot be called like this") as caught:
        program(X)
    assert str(caught.value.why).startswith("'down.bias' of shape (4,)")
    del program.weights["down.bias"]
    with pytest.raises(TransformError, match="the program cannot be called like this") as caught:
        program(X)
    assert caught.value.why == "no weight 'down.bias'"
    assert caught.value.expected == "(float32[4,2]) on cpu"


def test_weights_that_do_not_fit_are_not_saved(net, tmp_path):
    pytest.importorskip("flatbuffers")
    program = dx.export(net, X)
    whole = dict(program.weights)
    for weights, text in [
        ({**whole, "down.bias": jnp.ones(4)}, "'down.bias' of shape (4,) and dtype float32, not ("),
        ({**whole, "bias": jnp.ones(4)}, "weight 'bias', which the program does not have"),
        ({}, "no weight '"),
    ]:
        program.weights = weights
        with pytest.raises(TransformError, match="the weights do not fit the program") as caught:
            program.save(tmp_path / "net")
        assert text in str(caught.value.got)
    assert list(tmp_path.iterdir()) == []


def test_results_of_other_classes_stay_in_this_process(net, tmp_path):
    pytest.importorskip("flatbuffers")

    def pair(x: jax.Array) -> dx.State[None]:
        return dx.State({"y": net(x)})

    program = dx.export(pair, X)
    assert program(X)["y"].shape == (4, 3)
    with pytest.raises(TransformError, match="the arguments or results contain classes that a file cannot describe"):
        program.save(tmp_path / "pair")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported(net):
    with pytest.raises(TransformError, match="export: an example is a model"):
        dx.export(lambda net, x: net(x), net, X)
    with pytest.raises(TransformError, match="weights are inputs of the program, or constants in it"):
        dx.export(net, X, weights="files")  # type: ignore[arg-type]  # which is what is tested
    for platforms in ("cpu", ["gpu"]):
        with pytest.raises(TransformError, match="export, platforms: there is no such platform"):
            dx.export(net, X, platforms=platforms)
    with pytest.raises(TransformError, match=r"export: .* of the model is abstract"):
        dx.export(dx.as_abstract(net), X)
    net.train()
    with pytest.raises(TransformError, match="export: an exported program returns results only") as caught:
        dx.export(net, X)
    assert caught.value.got is not None
    assert "norm.mean" in caught.value.got
    assert "drop" in caught.value.got


def test_flatbuffers_is_missing(net, tmp_path, monkeypatch):
    monkeypatch.setattr(_export, "find_spec", lambda name: None)
    program = dx.export(net, X)
    with pytest.raises(MissingExtraError, match="export: flatbuffers is not installed"):
        program.save(tmp_path / "net")
    with pytest.raises(MissingExtraError, match="export: flatbuffers is not installed"):
        dx.load_exported(tmp_path / "net")
