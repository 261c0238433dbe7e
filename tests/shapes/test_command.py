"""`declax check` of shapes, and the line for a test suite."""

import importlib
import json
import sys

import pytest

import declax as dx
from declax.config._cli.main import main

MODELS = """
from jaxtyping import Array, Float, Int
import jax.numpy as jnp
import declax as dx

@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(ge=1)
    heads: int = dx.field(ge=1)

    def __call__(self, x: Float[Array, "b n {self.dim}"]) -> Float[Array, "b n {self.dim}"]:
        heads = x.reshape(*x.shape[:2], self.heads, self.dim // self.heads)  # split
        return heads.reshape(x.shape)

class Open(dx.Module):
    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b"]:
        return x

@dx.dataclass
class Loss(dx.Layer):
    def __call__(self, x: Float[Array, "b 1"], y: Float[Array, " b"]) -> Float[Array, ""]:
        return ((x - y) ** 2).mean()
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "shape_models", raising=False)
    (tmp_path / "shape_models.py").write_text(MODELS)
    (tmp_path / "empty_models.py").write_text("x = 1\n")
    head, loss = MODELS.partition("@dx.dataclass")[0], MODELS.rpartition("@dx.dataclass")[2]
    (tmp_path / "loss_models.py").write_text(f"{head}@dx.dataclass{loss}")
    (tmp_path / "run.toml").write_text("dim = 10\nheads = 4\n")
    (tmp_path / "fine.toml").write_text("dim = 8\nheads = 4\n")
    yield tmp_path
    sys.modules.pop("shape_models", None)
    while str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def test_a_file(models, capsys):
    assert main(["check", "shape_models.py"]) == 1
    out, err = capsys.readouterr()
    assert "Block.__call__: needs a condition" in out
    assert "Open" not in out
    assert "shape_models.py:12:17: error: Block.__call__" in err
    assert '@dx.dataclass(where=("{self.dim} % {self.heads} == 0",))' in err  # heads are declared later
    assert "warning: Loss.__call__: an axis is added by chance" in out
    assert main(["check", "empty_models.py"]) == 0
    assert main(["check", "missing.py"]) == 1
    assert "the file does not exist" in capsys.readouterr().err


WITHOUT_A_FIELD = """
@dx.dataclass
class Wrong(dx.Layer):
    def __call__(self, x: Float[Array, "b {self.width}"]) -> Float[Array, " b"]:
        return x[:, 0]

@dx.dataclass
class Right(dx.Layer):
    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, " b"]:
        return x[:, 0]
"""


def test_a_class_that_cannot_be_checked_is_an_error_of_its_own(models, capsys):
    (models / "some_models.py").write_text(MODELS.partition("@dx.dataclass")[0] + WITHOUT_A_FIELD)
    importlib.invalidate_caches()
    assert main(["check", "some_models.py"]) == 1
    out, err = capsys.readouterr()
    assert "Wrong: tested only in no size" in out
    assert "Right.__call__: proven for all b, n" in out
    assert "some_models.py:8:1: error: Wrong: Wrong.width: an annotation or condition uses this as a size" in err
    sys.modules.pop("some_models", None)


def test_strict(models, capsys):
    assert main(["check", "loss_models.py"]) == 0
    assert main(["check", "loss_models.py", "--strict"]) == 1
    sys.modules.pop("loss_models", None)


def test_a_configured_model(models, capsys):
    assert main(["check", "shape_models:Block", "fine.toml"]) == 0
    assert "Block.__call__: proven for all b, n" in capsys.readouterr().out
    assert main(["check", "shape_models:Block", "run.toml", "--input", "float32[b, n, 10]"]) == 1
    out, err = capsys.readouterr()
    assert "Block.__call__: wrong" in out
    assert "shape_models.py:12:17" in err
    assert "run.toml:1" in err
    assert "Block.dim = 10" in err
    assert main(["check", "shape_models:Block", "run.toml", "heads=5"]) == 0


def test_json(models, capsys):
    assert main(["check", "shape_models:Block", "run.toml", "--format", "json"]) == 1
    first, line, found = json.loads(capsys.readouterr().out)
    assert first["kind"] == "Block"
    assert (line["target"], line["verdict"]) == ("Block.__call__", "wrong")
    assert (found["finding"]["line"], found["finding"]["column"]) == (12, 17)
    assert found["finding"]["sizes"].keys() == {"b", "n"}


def test_the_line_of_a_test_suite(models):
    sys.path.insert(0, str(models))
    with pytest.raises(dx.ShapeError, match="one call is not right for all sizes"):
        dx.testing.check_shapes_of("shape_models")
    with pytest.raises(dx.ShapeError, match="2 calls"):
        dx.testing.check_shapes_of(sys.modules["shape_models"], strict=True)
    assert dx.testing.check_shapes_of("empty_models").checked == ()
