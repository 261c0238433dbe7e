"""A language server offers what is declared: fields and parameters, with their docstrings."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import declax
from checkers import ROOT, search_paths
from language_server import LanguageServer, Message, Signature

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None, reason="basedpyright, which brings its server, is not installed"
)

START = "from basedpyright.langserver import main; main()"

OPENING = '''\
import jax

import declax as dx


@dx.dataclass
class Block(dx.Module):
    """A block of a network.

    Args:
      dim: the width of what comes in.
      hidden: the width between the layers.
    """

    dim: int
    """The width of the block."""
    hidden: int
    """The width inside."""
    _: dx.KW_ONLY
    rate: float = dx.static(default=0.1)
    """How much is dropped."""
    rngs: dx.InitVar[dx.Rngs]
    up: dx.Linear = dx.submodule(lambda self, rngs: dx.Linear(self.dim, self.hidden, rngs=rngs))
    """The first layer."""
    scale: dx.Param[jax.Array] = dx.variable(("dim",), initializer=dx.initializers.ones)
    """Scales what comes in."""


model = Block(2, 3, rngs=dx.Rngs(0))
'''


class Editor:
    """Types a last line into a program, and asks at its end."""

    def __init__(self, server: LanguageServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0

    def completions(self, line: str) -> dict[str, Message]:
        return self._server.completions(*self._typed(line))

    def documentation(self, line: str, name: str) -> str:
        offered = self.completions(line)
        assert name in offered, sorted(offered)
        return self._server.documentation(offered[name])

    def signature(self, line: str) -> Signature:
        found = self._server.signature(*self._typed(line))
        assert found is not None, line
        return found

    def _typed(self, line: str) -> tuple[Path, tuple[int, int]]:
        self._count += 1
        path = self._folder / f"program_{self._count}.py"
        self._server.open(path, OPENING + line)
        return path, (OPENING.count("\n"), len(line))


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("workspace")
    config = {"extraPaths": [str(path) for path in search_paths()], "stubPath": str(ROOT / "stubs")}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    settings = {"python": {"pythonPath": sys.executable}}
    with LanguageServer([sys.executable, "-c", START, "--stdio"], folder, settings) as server:
        yield Editor(server, folder)


def test_the_constructor_of_a_layer(editor: Editor) -> None:
    found = editor.signature("dx.Linear(")
    assert found.label.startswith("(in_features: int, out_features: int, *, use_bias: bool = True, dtype: ")
    assert found.label.endswith("-> Linear")
    assert "rngs: Rngs" in found.parameters
    assert not {"kernel", "bias"} & {name.partition(":")[0] for name in found.parameters}
    assert found.active == "in_features: int"
    assert found.parameters[found.active] == "in_features: size of the last axis of the input."
    assert "An affine map of the last axis." in found.documentation


def test_the_constructor_of_a_declared_class(editor: Editor) -> None:
    found = editor.signature("Block(2, ")
    assert found.label == "(dim: int, hidden: int, *, rate: float = 0.1, rngs: Rngs) -> Block"
    assert found.active == "hidden: int"
    assert found.parameters[found.active] == "hidden: the width between the layers."
    assert found.documentation.startswith("A block of a network.")


def test_the_parameters_are_offered_as_keywords(editor: Editor) -> None:
    """They are once a letter is typed; what is made by a recipe is no parameter, and no keyword."""
    assert "hidden=" in editor.completions("Block(2, h")
    assert {"rate=", "rngs="} <= editor.completions("Block(2, 3, r").keys()
    assert "up=" not in editor.completions("Block(2, 3, u")
    assert "use_bias=" in editor.completions("dx.Linear(2, 3, u")


@pytest.mark.parametrize(
    ("line", "name", "declaration", "docstring"),
    [
        ("model.", "dim", "dim: int", "The width of the block."),
        ("model.", "rate", "rate: float", "How much is dropped."),
        ("model.", "up", "up: Linear", "The first layer."),
        ("model.", "scale", "scale: Param[Array]", "Scales what comes in."),
        ("model.up.", "kernel", "kernel: Param[Array]", ""),
        ("model.up.", "bias", "bias: Param[Array] | None", ""),
        ("model.up.", "in_features", "in_features: int", ""),
        ("model.scale.", "value", "value: ", ""),
        ("model.scale.", "shape", "shape: ", ""),
        ("model.scale.value.", "dtype", "dtype: ", ""),
    ],
)
def test_fields_are_offered(editor: Editor, line: str, name: str, declaration: str, docstring: str) -> None:
    said = editor.documentation(line, name)
    assert declaration in said
    assert docstring in said


def test_methods_are_offered_with_their_docstrings(editor: Editor) -> None:
    assert "train" in editor.documentation("model.", "train")
    assert "The first layer" not in editor.documentation("model.up.", "__call__")
    public = [name for name in editor.completions("model.") if not name.startswith("_")]
    assert [name for name in public if "pytree" in name] == []


def test_fields_of_what_transforms_give(editor: Editor) -> None:
    assert {"up", "scale"} <= editor.completions("dx.clone(model).").keys()
    assert {"up", "scale"} <= editor.completions("dx.merge(*dx.split(model)).").keys()
    assert {"up", "scale"} <= editor.completions("dx.replace(model, dim=3).").keys()
    found = editor.signature("dx.jit(lambda x: x)(")
    assert found.label.startswith("(")


@pytest.mark.skipif(not hasattr(declax, "spec"), reason="declax.spec is not built yet")
def test_the_arguments_of_a_spec(editor: Editor) -> None:
    found = editor.signature("dx.spec(Block, ")
    assert {"dim: int", "hidden: int", "rate: float = 0.1"} <= found.parameters.keys()
