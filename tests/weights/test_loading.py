"""`load_weights` and `save_weights`: maps in both directions, reports, stacks, formats, and all or nothing."""

from __future__ import annotations

import json
import re
import resource
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import declax as dx
from declax import weights as w
from declax.checkpoint.safetensors import open_tensors, read_header, write_index, write_tensors
from declax.errors import CheckpointError, WeightsError


@dx.dataclass
class Block(dx.Layer):
    up = dx.Linear(3, 4)
    norm = dx.BatchNorm(4)
    drop = dx.Dropout(0.5)
    down = dx.Linear(4, 3, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(self.drop(self.norm(self.up(x))))


@dx.dataclass
class Listed(dx.Layer):
    blocks = dx.repeat(2, Block())
    head = dx.Linear(3, 2)


@dx.dataclass
class Stack(dx.Layer):
    blocks = dx.Stacked(Block(), 2)
    head = dx.Linear(3, 2)


MAP: w.WeightMap = {
    "layers.{i}.fc1.weight": w.transpose("blocks[{i}].up.kernel"),
    "layers.{i}.fc1.bias": "blocks[{i}].up.bias",
    "layers.{i}.bn.weight": "blocks[{i}].norm.scale",
    "layers.{i}.bn.bias": "blocks[{i}].norm.bias",
    "layers.{i}.bn.running_mean": "blocks[{i}].norm.mean",
    "layers.{i}.bn.running_var": "blocks[{i}].norm.var",
    "layers.{i}.fc2.weight": w.transpose("blocks[{i}].down.kernel"),
    "head.weight": w.transpose("head.kernel"),
    "head.bias": "head.bias",
}
IGNORED = "layers.{i}.bn.num_batches_tracked"


def tensors(layers: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """A file as torch would write it."""
    shapes = {"head.weight": (2, 3), "head.bias": (2,)}
    for i in range(layers):
        shapes |= {f"layers.{i}.fc1.weight": (4, 3), f"layers.{i}.fc2.weight": (3, 4), f"layers.{i}.fc1.bias": (4,)}
        shapes |= {f"layers.{i}.bn.{name}": (4,) for name in ("weight", "bias", "running_mean", "running_var")}
    made = {}
    for number, (name, shape) in enumerate(shapes.items()):
        made[name] = np.random.default_rng(number).normal(size=shape).astype(np.float32)
    return made | {f"layers.{i}.bn.num_batches_tracked": np.array(7) for i in range(layers)}


def written(folder: Path, content: dict[str, Any], name: str = "model.safetensors") -> Path:
    write_tensors(folder / name, content)
    return folder / name


def values(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    pure = dx.to_flat_state(dx.as_pure(dx.state(model, dx.Any(dx.Param, dx.BatchStat))))
    return {".".join(map(str, path)): np.asarray(leaf) for path, leaf in pure}


def layer(model: Any, number: int, *path: str) -> Any:
    """The value of a Variable in one block; random streams of an abstract model remain abstract."""
    in_list = isinstance(model, Listed)
    found = model.blocks[number] if in_list else model.blocks.layers
    for name in path:
        found = getattr(found, name)
    return found.value if in_list else found.value[number]


@pytest.mark.parametrize("cls", [Listed, Stack])
@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_map_in_both_directions(cls, is_abstract, tmp_path):
    given = tensors()
    make = lambda: cls(rngs=dx.Rngs(0))  # noqa: E731
    model = dx.eval_shape(make) if is_abstract else make()
    report = dx.load_weights(model, written(tmp_path, given), map=MAP, ignore=IGNORED)
    assert report
    assert len(report.taken) == 16
    assert sorted(report.ignored) == [f"layers.{i}.bn.num_batches_tracked" for i in range(2)]
    for i in range(2):
        kernel, var = ("up", "kernel"), ("norm", "var")
        np.testing.assert_array_equal(layer(model, i, *kernel), given[f"layers.{i}.fc1.weight"].T)
        np.testing.assert_array_equal(layer(model, i, *var), given[f"layers.{i}.bn.running_var"])
    np.testing.assert_array_equal(model.head.kernel.value, given["head.weight"].T)
    dx.save_weights(model, tmp_path / "again.safetensors", map=MAP)
    again = open_tensors(tmp_path / "again.safetensors")
    assert again.keys() == {name for name in given if "num_batches" not in name}
    assert all(np.array_equal(again[name], given[name]) for name in again)


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("cls", [Listed, Stack])
def test_without_a_map_the_names_are_the_paths(cls, suffix, tmp_path):
    model, other = cls(rngs=dx.Rngs(0)), cls(rngs=dx.Rngs(1))
    dx.save_weights(model, tmp_path / f"m.{suffix}")
    report = dx.load_weights(other, tmp_path / f"m.{suffix}")
    assert "blocks[1].up.kernel" in report.taken
    before = values(model)
    assert all(np.array_equal(value, before[name]) for name, value in values(other).items())


def test_lists_and_stacks_share_files(tmp_path):
    dx.save_weights(Listed(rngs=dx.Rngs(0)), tmp_path / "listed.npz")
    stack = dx.eval_shape(lambda: Stack(rngs=dx.Rngs(0)))
    dx.load_weights(stack, tmp_path / "listed.npz")
    np.testing.assert_array_equal(layer(stack, 1, "up", "kernel"), layer(Listed(rngs=dx.Rngs(0)), 1, "up", "kernel"))


def test_a_whole_leaf_of_a_stack_is_a_target_too(tmp_path):
    stack = Stack(rngs=dx.Rngs(0))
    whole: w.WeightMap = {"kernels": "blocks.layers.up.kernel"}
    chosen = dx.All(dx.PathContains("up"), dx.PathContains("kernel"))
    dx.save_weights(stack, tmp_path / "k.npz", map=whole, only=chosen)
    np.testing.assert_array_equal(np.load(tmp_path / "k.npz")["kernels"], stack.blocks.layers.up.kernel.value)
    other = Stack(rngs=dx.Rngs(1))
    assert dx.load_weights(other, tmp_path / "k.npz", map=whole, only=chosen).taken == ("blocks.layers.up.kernel",)
    np.testing.assert_array_equal(other.blocks.layers.up.kernel.value, stack.blocks.layers.up.kernel.value)


def test_stacks_in_stacks(tmp_path):
    make = lambda seed: dx.Stacked(  # noqa: E731
        lambda rngs: dx.Stacked(lambda rngs: dx.Linear(2, 2, rngs=rngs), 3, rngs=rngs), 2, rngs=dx.Rngs(seed)
    )
    model, other = make(0), make(1)
    names: w.WeightMap = {"l.{i}.{j}.k": "{i}.{j}.kernel", "l.{i}.{j}.b": "{i}.{j}.bias"}
    dx.save_weights(model, tmp_path / "m.npz", map=names)
    assert np.load(tmp_path / "m.npz")["l.1.2.k"].shape == (2, 2)
    dx.load_weights(other, tmp_path / "m.npz", map=names)
    np.testing.assert_array_equal(other.layers.layers.kernel.value, model.layers.layers.kernel.value)
    np.testing.assert_array_equal(np.load(tmp_path / "m.npz")["l.1.2.k"], model.layers.layers.kernel.value[1, 2])


def test_split_and_concatenate(tmp_path):
    layer = dx.MultiHeadAttention(2, 4, num_kv_heads=1, use_bias=False, decode=False, rngs=dx.Rngs(0))
    parts = [w.reshape(f"{name}.kernel", "(h d) i -> i h d") for name in ("query", "key", "value")]
    fused: w.WeightMap = {
        "qkv.weight": w.split(*parts, axis=0),
        "out.weight": w.reshape("out.kernel", "o (h d) -> h d o"),
    }
    dx.save_weights(layer, tmp_path / "m.npz", map=fused)
    found = np.load(tmp_path / "m.npz")
    assert found["qkv.weight"].shape == (4 + 2 + 2, 4)
    np.testing.assert_array_equal(found["qkv.weight"][4:6], layer.key.kernel.value[:, 0].T)
    other = dx.MultiHeadAttention(2, 4, num_kv_heads=1, use_bias=False, decode=False, rngs=dx.Rngs(1))
    dx.load_weights(other, tmp_path / "m.npz", map=fused)
    np.testing.assert_array_equal(other.value.kernel.value, layer.value.kernel.value)

    linear = dx.Linear(3, 4, use_bias=False, rngs=dx.Rngs(0))
    for sizes in ((), (2, 2), (1, 3)):
        joined: w.WeightMap = {("a.weight", "b.weight"): w.concatenate(w.transpose("kernel"), axis=0, sizes=sizes)}
        file = tmp_path / f"{len(sizes)}{sizes[:1]}.npz"
        dx.save_weights(linear, file, map=joined)
        found = np.load(file)
        assert found["a.weight"].shape == ((sizes or (2,))[0], 3)
        np.testing.assert_array_equal(np.concatenate([found["a.weight"], found["b.weight"]]), linear.kernel.value.T)
        empty = dx.eval_shape(lambda: dx.Linear(3, 4, use_bias=False, rngs=dx.Rngs(0)))
        dx.load_weights(empty, file, map=joined)
        np.testing.assert_array_equal(empty.kernel.value, linear.kernel.value)


def test_one_report_lists_everything_and_nothing_changes(tmp_path):
    given = tensors(3)
    del given["head.bias"]
    given["layers.0.fc1.weight"] = given["layers.0.fc1.weight"].T.copy()
    given["layers.1.fc1.bias"] = given["layers.1.fc1.bias"].astype(np.float16)
    given["extra"] = np.zeros(1, np.float32)
    model = Listed(rngs=dx.Rngs(0))
    before = values(model)
    file = written(tmp_path, given)
    with pytest.raises(WeightsError, match=r"load_weights: the tensors of .* do not fit Listed") as caught:
        dx.load_weights(model, file, map=MAP, ignore=IGNORED)
    text = str(caught.value)
    for line in (
        "do not fit Listed at 11 paths",
        "layers.0.fc1.weight: expected shape (4, 3) for blocks[0].up.kernel, got shape (3, 4)",
        "layers.1.fc1.bias: expected dtype float32 for blocks[1].up.bias, got dtype float16",
        "layers.2.fc1.bias: the model has no parameter 'blocks.2.up.bias'; did you mean",
        "extra: no entry of the map has this name",
        "head.bias: expected an array of shape (2,) and dtype float32, got nothing",
    ):
        assert line in text
    assert text.count("blocks[0].up.kernel") == 1  # not missing too
    assert all(np.array_equal(value, before[name]) for name, value in values(model).items())

    report = dx.load_weights(model, file, map=MAP, ignore=IGNORED, strict=False)
    assert not report
    assert {entry.path for entry in report.missing} == {"head.bias"}
    assert (len(report.mismatches), len(report.unexpected)) == (2, 7 + 1)
    assert str(report).startswith("taken: 13 of 16 leaves")
    np.testing.assert_array_equal(model.head.kernel.value, given["head.weight"].T)
    np.testing.assert_array_equal(model.head.bias.value, before["head.bias"])


def test_a_stacked_leaf_is_filled_whole_or_not_at_all(tmp_path):
    given = {name: tensor for name, tensor in tensors().items() if name != "layers.1.fc1.weight"}
    model = Stack(rngs=dx.Rngs(0))
    before = values(model)
    report = dx.load_weights(model, written(tmp_path, given), map=MAP, ignore=IGNORED, strict=False)
    assert [entry.path for entry in report.missing] == ["blocks[1].up.kernel"]
    np.testing.assert_array_equal(model.blocks.layers.up.kernel.value, before["blocks.layers.up.kernel"])
    np.testing.assert_array_equal(model.blocks[0].up.bias.value, given["layers.0.fc1.bias"])


def test_a_file_of_another_model_is_an_error(tmp_path):
    model = Listed(rngs=dx.Rngs(0))
    file = written(tmp_path, {"encoder.weight": np.zeros(2, np.float32)})
    for strict in (True, False):
        with pytest.raises(WeightsError, match=r"(?s)do not fit Listed.*encoder\.weight: no entry of the map"):
            dx.load_weights(model, file, map=MAP, strict=strict)
    assert not dx.load_weights(model, file, map=MAP, dry_run=True)
    assert dx.load_weights(model, file, map=MAP, ignore="encoder.weight", strict=False).ignored == ("encoder.weight",)


def test_a_dry_run_reads_headers_only(tmp_path, monkeypatch):
    file = written(tmp_path, tensors())
    model = dx.eval_shape(lambda: Stack(rngs=dx.Rngs(0)))
    monkeypatch.setattr("declax.weights.loading._Plan.values", lambda self: pytest.fail("it reads values"))
    report = dx.load_weights(model, file, map=MAP, ignore=IGNORED, dry_run=True)
    assert str(report) == "taken: 16 of 16 leaves"
    assert isinstance(model.head.bias.value, jax.ShapeDtypeStruct)
    np.savez(tmp_path / "m.npz", **tensors())
    content = (tmp_path / "m.npz").read_bytes().replace(b"PK\x01\x02", b"PK\x01\x02")
    (tmp_path / "m.npz").write_bytes(content)
    assert dx.load_weights(model, tmp_path / "m.npz", map=MAP, ignore=IGNORED, dry_run=True)


def test_cast_is_explicit_and_keeps_the_kind(tmp_path):
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    half = {"kernel": np.ones((3, 2), jnp.bfloat16), "bias": np.ones(2, np.float64)}
    file = written(tmp_path, half)
    report = dx.load_weights(model, file, dry_run=True)
    assert (len(report.mismatches), len(report.problems)) == (2, 2)
    dx.load_weights(model, file, cast=True)
    assert model.kernel.dtype == model.bias.dtype == jnp.float32
    integers = written(tmp_path, half | {"bias": np.ones(2, np.int32)}, "i.safetensors")
    assert len(dx.load_weights(model, integers, cast=True, dry_run=True).mismatches) == 1


def test_only_selects_parameters(tmp_path):
    given = tensors()
    model = Listed(rngs=dx.Rngs(0))
    before = values(model)
    report = dx.load_weights(model, written(tmp_path, given), map=MAP, ignore=IGNORED, only=dx.PathContains("head"))
    assert set(report.taken) == {"head.kernel", "head.bias"}
    assert len(report.ignored) == len(given) - 2
    np.testing.assert_array_equal(model.blocks[0].up.kernel.value, before["blocks.0.up.kernel"])


def test_two_tensors_for_one_parameter_do_not_fit(tmp_path):
    model = dx.Linear(3, 2, use_bias=False, rngs=dx.Rngs(0))
    file = written(tmp_path, {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32)})
    report = dx.load_weights(model, file, map={"a": "kernel", "b": "kernel"}, dry_run=True)
    assert [str(m) for m in report.mismatches] == ["b: kernel is filled by a already"]
    stack = dx.Stacked(lambda rngs: dx.Linear(2, 2, use_bias=False, rngs=rngs), 1, rngs=dx.Rngs(0))
    both = written(tmp_path, {"a": np.ones((1, 2, 2), np.float32), "b": np.ones((2, 2), np.float32)}, "s.safetensors")
    report = dx.load_weights(stack, both, map={"a": "layers.kernel", "b": "0.kernel"}, dry_run=True)
    assert [str(m) for m in report.mismatches] == ["b: layers.kernel is filled by a already"]


def test_an_operation_that_does_not_fit_is_reported(tmp_path):
    model = dx.Linear(3, 2, use_bias=False, rngs=dx.Rngs(0))
    file = written(tmp_path, {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32)})
    report = dx.load_weights(model, file, map={"a": w.transpose("kernel", 0, 1, 2)}, ignore="b", dry_run=True)
    (line,) = map(str, report.mismatches)
    assert line == "a: expected transpose: axes (0, 1, 2) are not those of the parameter, got shape (3, 2)"
    joined: w.WeightMap = {("a", "b", "c"): w.concatenate("kernel", axis=0)}
    report = dx.load_weights(model, file, map=joined, dry_run=True)
    assert "c: expected an array of shape (1, 2) and dtype float32 for kernel, got nothing" in str(report)
    report = dx.load_weights(model, file, map={("a", "b"): w.concatenate("kernel", axis=0)}, dry_run=True)
    assert "a: expected concatenate: the sizes (1, 1) along axis 0 do not fit the parameter" in str(report)
    report = dx.load_weights(model, file, map={("a", "b"): w.concatenate("kernel", axis=2)}, dry_run=True)
    assert "a: expected concatenate: the parameter has no axis 2" in str(report)


@pytest.mark.parametrize(
    ("key", "destination", "text"),
    [
        ("a.{i", "a", "pattern 'a.{i': a brace does not belong to a capture"),
        ("a.{}", "a", "a brace does not belong to a capture"),
        ("a.*", "a", "pattern 'a.*': a * has no meaning outside of a capture"),
        ("a.{i}", "b", "both sides must have the same captures"),
        ("a", w.split("b", "c[{i}]", axis=0), "both sides must have the same captures"),
        ("a", 3, "this is not an entry of a map"),
        (3, "a", "this is not an entry of a map"),
        (("a", "b"), "c", "several tensors go to one operation, `concatenate`, and only there"),
        ("a", w.concatenate("b", axis=0), "several tensors go to one operation"),
        (("a", "b"), w.concatenate(w.concatenate("c", axis=0), axis=0), "several tensors go to one operation"),
    ],
)
def test_maps_are_checked(key, destination, text, tmp_path):
    with pytest.raises(WeightsError, match=re.escape(text)):
        dx.load_weights(dx.Linear(2, 2, rngs=dx.Rngs(0)), tmp_path, map={key: destination})


def test_captures(tmp_path):
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    dx.save_weights({"encoder": model}, tmp_path / "m.npz", map={"net.{rest*}": "encoder.{rest*}"})
    assert sorted(np.load(tmp_path / "m.npz")) == ["net.bias", "net.kernel"]
    assert dx.load_weights(model, tmp_path / "m.npz", map={"net.{rest*}": "{rest*}"})
    assert not dx.load_weights(model, tmp_path / "m.npz", map={"{rest}": "{rest}"}, dry_run=True)
    twice: w.WeightMap = {"{n}_{n}": "{n}"}
    dx.save_weights(model, tmp_path / "t.npz", map=twice)
    assert sorted(np.load(tmp_path / "t.npz")) == ["bias_bias", "kernel_kernel"]
    assert dx.load_weights(model, tmp_path / "t.npz", map=twice)


def test_the_first_entry_counts(tmp_path):
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    names: w.WeightMap = {"weight": w.transpose("kernel"), "{name}": "{name}"}
    dx.save_weights(model, tmp_path / "m.npz", map=names)
    found = np.load(tmp_path / "m.npz")
    assert sorted(found) == ["bias", "weight"]
    np.testing.assert_array_equal(found["weight"], model.kernel.value.T)
    assert dx.load_weights(model, tmp_path / "m.npz", map=names)


def test_saving_is_strict(tmp_path):
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    file = tmp_path / "m.safetensors"
    with pytest.raises(WeightsError, match="the map has no entry for these parameters") as caught:
        dx.save_weights(model, file, map={"a": "kernel"})
    assert caught.value.got == "bias"
    with pytest.raises(WeightsError, match="two parameters would have the name 'a'"):
        dx.save_weights(model, file, map={"a": "kernel"} | {("a", "b"): w.concatenate("bias", axis=0)})
    with pytest.raises(WeightsError, match="save_weights: the model is abstract"):
        dx.save_weights(dx.as_abstract(model), file)
    with pytest.raises(WeightsError, match=r"m\.bin does not have a format that declax writes"):
        dx.save_weights(model, tmp_path / "m.bin")
    with pytest.raises(WeightsError, match=r"save_weights: \.npz files cannot hold 'kernel'"):
        dx.save_weights(dx.Linear(2, 2, param_dtype=jnp.bfloat16, rngs=dx.Rngs(0)), tmp_path / "m.npz", only=KERNEL)
    with pytest.raises(WeightsError, match=r"dtype: this is not a floating-point dtype"):
        dx.save_weights(model, file, dtype="int8")
    same = dx.Dict({"a.b": model, "a": dx.Dict({"b": dx.Linear(2, 2, rngs=dx.Rngs(1))})})
    for use in (dx.save_weights, dx.load_weights):
        with pytest.raises(WeightsError, match=r"two parameters have the name 'a\.b\.bias'"):
            use(same, tmp_path / "m.npz")
        with pytest.raises(WeightsError, match="only: the filter selects no parameter"):
            use(model, tmp_path / "m.npz", only=dx.PathContains("kernl"))
    assert list(tmp_path.iterdir()) == []
    dx.save_weights(model, file)
    with pytest.raises(WeightsError, match=r"save_weights: .*m\.safetensors exists"):
        dx.save_weights(model, file)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


KERNEL = dx.PathContains("kernel")


def test_the_dtype_of_a_file(tmp_path):
    model = Listed(rngs=dx.Rngs(0))
    dx.save_weights(model, tmp_path / "m.safetensors", dtype=jnp.bfloat16)
    header = read_header(tmp_path / "m.safetensors")
    assert {str(info.dtype) for info in header.tensors.values()} == {"bfloat16"}
    assert header.metadata == {"format": "pt"}


def test_files_in_several_parts(tmp_path):
    given = tensors()
    names = list(given)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        write_tensors(tmp_path / file, {name: given[name] for name in names if files[name] == file})
    write_index(tmp_path / "model.safetensors.index.json", files, 0)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        model = dx.eval_shape(lambda: Listed(rngs=dx.Rngs(0)))
        assert dx.load_weights(model, path, map=MAP, ignore=IGNORED)
        np.testing.assert_array_equal(model.blocks[1].down.kernel.value, given["layers.1.fc2.weight"].T)


def test_several_files_with_an_index(tmp_path):
    model, other = Stack(rngs=dx.Rngs(0)), Stack(rngs=dx.Rngs(1))
    dx.save_weights(model, tmp_path / "model.safetensors", map=MAP, max_file_size=100)
    names = sorted(path.name for path in tmp_path.iterdir())
    count = len(names) - 1
    assert count > 2
    assert names[-1] == "model.safetensors.index.json"
    assert names[:-1] == [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    sizes = [sum(a.nbytes for a in open_tensors(tmp_path / name).values()) for name in names[:-1]]
    assert max(sizes) <= 100
    index = json.loads((tmp_path / names[-1]).read_text())
    assert index["metadata"]["total_size"] == sum(sizes)
    assert dx.load_weights(other, tmp_path, map=MAP)
    assert all((values(other)[name] == array).all() for name, array in values(model).items())
    for name in ("model.safetensors", "model.npz"):
        with pytest.raises(WeightsError, match=r"exists|several files are"):
            dx.save_weights(model, tmp_path / name, max_file_size=50)
    with pytest.raises(WeightsError, match=r"model.safetensors.index.json exists"):
        dx.save_weights(model, tmp_path / "model.safetensors")  # a folder is read by its index
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    dx.save_weights(model, tmp_path / "one.safetensors", max_file_size=10_000)
    assert (tmp_path / "one.safetensors").exists()
    for size in (0, 1.5, "5GB", True):
        with pytest.raises(WeightsError, match=r"several files are \.safetensors files of some bytes"):
            dx.save_weights(model, tmp_path / "two.safetensors", max_file_size=size)


@pytest.mark.parametrize("failing", range(4))
def test_several_files_or_none(failing, tmp_path, monkeypatch):
    real, calls = Path.rename, []

    def rename(path, target):
        calls.append(target)
        if len(calls) == failing + 1:
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(CheckpointError, match="Input/output error"):
            dx.save_weights(Stack(rngs=dx.Rngs(0)), tmp_path / "model.safetensors", map=MAP, max_file_size=150)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz"])
def test_a_file_system_that_cannot_be_written_to(name, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    for call in ("open", "unlink"):
        monkeypatch.setattr(Path, call, refuse)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        dx.save_weights(Stack(rngs=dx.Rngs(0)), tmp_path / name)


def test_arguments_of_wrong_types(tmp_path):
    model = Listed(rngs=dx.Rngs(0))
    dx.save_weights(model, tmp_path / "m.safetensors")
    for call in (dx.load_weights, dx.save_weights):
        with pytest.raises(WeightsError, match="a map is a dict from names of tensors to paths"):
            call(model, tmp_path / "m.safetensors", map="{path*}")
    for ignore in (3, [3], None):
        with pytest.raises(WeightsError, match="load_weights, ignore: these are not patterns of names"):
            dx.load_weights(model, tmp_path / "m.safetensors", ignore=ignore)
    with pytest.raises(WeightsError, match="a \\* has no meaning outside of a capture"):
        dx.load_weights(model, tmp_path / "m.safetensors", ignore="blocks.*")
    with pytest.raises(WeightsError, match="this is not a floating-point dtype"):
        dx.save_weights(model, tmp_path / "n.safetensors", dtype="nope")

    @dx.jit
    def within(model: Any) -> None:
        dx.load_weights(model, tmp_path / "m.safetensors")

    before = values(model)
    with pytest.raises(WeightsError, match="the parameter is a tracer") as caught:
        within(model)
    assert caught.value.fix == "dx.load_weights(model, file)        # outside of jit, grad and vmap"
    assert all((values(model)[name] == before[name]).all() for name in before)


def test_files_that_are_not_read(tmp_path):
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    for name in ("pytorch_model.bin", "folder"):
        with pytest.raises(CheckpointError, match="the file cannot be opened"):
            dx.load_weights(model, tmp_path / name)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin does not have a format that declax reads"):
        dx.load_weights(model, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="the folder has no safetensors file"):
        dx.load_weights(model, tmp_path)
    with pytest.raises(CheckpointError, match="the file cannot be opened"):
        dx.load_weights(model, tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="the file cannot be opened"):
        dx.load_weights(model, tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(WeightsError, match=r"bad\.npz is not a valid \.npz file"):
        dx.load_weights(model, tmp_path / "bad.npz")
    np.savez(tmp_path / "objects.npz", kernel=np.array([{}]), bias=np.zeros(2, np.float32))
    report = dx.load_weights(model, tmp_path / "objects.npz", dry_run=True)
    assert "kernel: expected shape (2, 2), got shape (1,)" in str(report)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_in_an_npz_file_is_found_before_the_model_changes(save, tmp_path):
    model = dx.Linear(200, 200, rngs=dx.Rngs(0))
    kernel = model.kernel.value
    array = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
    save(tmp_path / "model.npz", bias=np.zeros(200, np.float32), kernel=array)
    content = bytearray((tmp_path / "model.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.npz is not a valid \.npz file"):
        dx.load_weights(model, tmp_path / "model.npz")
    assert model.kernel.value is kernel


def test_a_member_of_an_npz_file_that_is_larger_than_its_array(tmp_path):
    model = dx.Linear(2, 2, use_bias=False, rngs=dx.Rngs(0))
    kernel = model.kernel.value
    np.save(tmp_path / "kernel.npy", np.zeros((2, 2), np.float32))
    archive = zipfile.ZipFile(tmp_path / "model.npz", "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("kernel.npy", "w") as member:
        member.write((tmp_path / "kernel.npy").read_bytes())
        for _ in range(256):
            member.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError, match=r"model\.npz is not a valid \.npz file") as caught:
        dx.load_weights(model, tmp_path / "model.npz")
    assert caught.value.got == "kernel.npy has more bytes than its array"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert model.kernel.value is kernel


def test_shardings_are_kept(tmp_path):
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    dx.save_weights(model, tmp_path / "m.npz")
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x"))
    placed = dx.Linear(2, 2, rngs=dx.Rngs(1))
    placed.kernel.value = jax.device_put(placed.kernel.value, sharding)
    abstract = dx.as_abstract(placed)
    for target in (placed, abstract):
        dx.load_weights(target, tmp_path / "m.npz")
        assert target.kernel.value.sharding == sharding
        assert not target.bias.value.committed
        np.testing.assert_array_equal(target.kernel.value, model.kernel.value)


def test_loaded_arrays_do_not_depend_on_the_file(tmp_path):
    model = dx.Linear(64, 64, rngs=dx.Rngs(0))
    file = tmp_path / "m.safetensors"
    dx.save_weights(model, file)
    other = dx.eval_shape(lambda: dx.Linear(64, 64, rngs=dx.Rngs(0)))
    dx.load_weights(other, file)
    with file.open("r+b") as opened:
        opened.write(b"\0" * file.stat().st_size)
    np.testing.assert_array_equal(other.kernel.value, model.kernel.value)


def test_random_streams_and_caches_are_no_weights(tmp_path):
    model = dx.MultiHeadAttention(2, 4, dropout_rate=0.1, decode=True, rngs=dx.Rngs(0))
    model.init_cache((1, 3, 4))
    dx.save_weights(model, tmp_path / "m.safetensors")
    assert {name.split(".")[0] for name in read_header(tmp_path / "m.safetensors").tensors} == {
        "query",
        "key",
        "value",
        "out",
    }
    assert dx.load_weights(model, tmp_path / "m.safetensors")


def test_numbers_and_bare_arrays_are_weights(tmp_path):
    model = dx.Module()
    model.scale, model.table = dx.Param(2.0), jnp.arange(3.0)
    dx.save_weights(model, tmp_path / "m.npz")
    model.scale.value, model.table = 0.0, jnp.zeros(3)
    dx.load_weights(model, tmp_path / "m.npz")
    assert float(model.scale.value) == 2.0
    assert model.table.tolist() == [0.0, 1.0, 2.0]


def test_arrays_of_numpy_stay_as_they_are(tmp_path):
    model = dx.Module()
    model.table, model.scale = dx.Param(np.full(3, 0.1)), dx.Param(jnp.ones(2))
    dx.save_weights(model, tmp_path / "m.safetensors")
    model.table.value, model.scale.value = np.zeros(3), jnp.zeros(2)
    dx.load_weights(model, tmp_path / "m.safetensors")
    assert isinstance(model.table.value, np.ndarray)
    assert model.table.value.dtype == np.float64
    assert model.table.value.tolist() == [0.1] * 3
    half = written(tmp_path, {"table": np.zeros(3, np.float32), "scale": np.zeros(2, np.float32)}, "half.safetensors")
    with pytest.raises(WeightsError, match="table: expected dtype float64, got dtype float32"):
        dx.load_weights(model, half)


def test_the_index_is_not_trusted(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside of its folder"):
        dx.load_weights(dx.Linear(2, 2, rngs=dx.Rngs(0)), tmp_path)
