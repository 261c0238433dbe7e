"""A language server offers what is declared: fields and parameters, with their docstrings."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import declax
from checkers import ROOT, search_paths
from language_server import LanguageServer, Message, Signature

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("basedpyright") is None,
        reason="basedpyright, which brings its server, is not installed",
    ),
]

START = "from basedpyright.langserver import main; main()"

OPENING = '''\
from collections.abc import Callable

import jax

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    """A block of a network.

    Args:
      dim: the width of what comes in.
      hidden: the width between the layers.
    """

    dim: int = dx.field(ge=1)
    """The width of the block."""
    hidden: int = dx.field(ge=1)
    """The width inside."""
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    """How much is dropped."""
    mixer: Callable[[jax.Array], jax.Array] = dx.Linear(dim, dim)
    """Mixes what comes in."""
    up = dx.Linear(dim, 4 * hidden)
    """The first layer."""
    drop = dx.Dropout(rate)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    """Scales what comes in."""

    def is_wide(self) -> bool:
        return self.dim > self.hidden


@dx.dataclass
class Deep(Block):
    down = dx.Linear(4 * Block.hidden, Block.dim)


@dx.dataclass
class Explicit(dx.Module):
    size: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    lift = dx.Linear(size, 4, rngs=rngs)


def loss_of(model: Block) -> jax.Array:
    return model.scale.sum()


model = Block(2, hidden=3, rngs=dx.Rngs(0))
print(model.dim, model.mixer)
grads = dx.grad(loss_of)(model)
print(grads.as_model.up.kernel)
'''


class Editor:
    """Types last lines into a program, and asks at their end, or at a name within the program."""

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

    def hover(self, text: str, name: str) -> str:
        """What is shown of a name, where it stands in a text of the program."""
        return self._server.hover(self._opened(), place_of(text, name))

    def definition(self, text: str, name: str) -> str:
        """The line that defines a name, from where the name stands."""
        (line, column), *others = self._server.definitions(self._opened(), place_of(text, name))
        assert not others
        return OPENING.splitlines()[line][column:]

    def rename(self, text: str, name: str) -> list[tuple[int, int]]:
        return self._server.rename(self._opened(), place_of(text, name), "renamed")

    def _opened(self) -> Path:
        return self._typed("")[0]

    def _typed(self, line: str) -> tuple[Path, tuple[int, int]]:
        self._count += 1
        path = self._folder / f"program_{self._count}.py"
        text = OPENING + line
        self._server.open(path, text)
        return path, cursor_of(len(text), text)


def place_of(text: str, name: str) -> tuple[int, int]:
    """Line and column of a name in a text that the program has once."""
    assert OPENING.count(text) == 1, text
    return cursor_of(OPENING.index(text) + text.index(name))


def cursor_of(start: int, text: str = OPENING) -> tuple[int, int]:
    """Line and column of a place in the program."""
    return text.count("\n", 0, start), start - text.rindex("\n", 0, start) - 1


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
    assert found.label.startswith(
        "(in_features: int, out_features: int, *, rngs: Rngs | None = None, use_bias: bool = "
    )
    assert found.label.endswith("-> Linear")
    assert "rngs: Rngs | None = None" in found.parameters
    assert not {"kernel", "bias"} & {name.partition(":")[0] for name in found.parameters}
    assert found.active == "in_features: int"
    assert found.parameters[found.active] == "in_features: size of the last axis of the input."
    assert "An affine map of the last axis." in found.documentation


def test_the_constructor_of_a_declared_class(editor: Editor) -> None:
    found = editor.signature("Block(2, ")
    assert found.label == (
        "(dim: int, hidden: int, *, rngs: Rngs | None = None, rate: float = 0.1,"
        " mixer: (Array) -> Array = dx.Linear(dim, dim)) -> Block"
    )
    assert found.active == "hidden: int"
    assert found.parameters[found.active] == "hidden: the width between the layers."
    assert found.documentation.startswith("A block of a network.")


def test_the_constructor_of_a_class_with_explicit_keys(editor: Editor) -> None:
    assert editor.signature("Explicit(2, ").label == "(size: int, *, rngs: InitVar[Rngs]) -> Explicit"


def test_the_parameters_are_offered_as_keywords(editor: Editor) -> None:
    """They are once a letter is typed; an internal part is no parameter, and no keyword."""
    assert "hidden=" in editor.completions("Block(2, h")
    assert {"rate=", "rngs="} <= editor.completions("Block(2, 3, r").keys()
    assert "mixer=" in editor.completions("Block(2, 3, m")
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


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [
        ("dx.field(", "(*, help: str | None", "-> Any"),
        ("dx.replace(", "(obj: ", "-> Unknown"),
        ("dx.replace(model, ", "(obj: ", "-> Block"),  # the one with the fields, from the second argument on
        ("dx.spec(Block, ", "(target: (dim: int, ", "-> Spec[Block]"),
    ],
)
def test_the_plain_signature_is_shown_first(editor: Editor, line: str, first: str, last: str) -> None:
    label = editor.signature(line).label
    assert label.startswith(first)
    assert label.endswith(last)


@pytest.mark.parametrize(
    ("line", "keyword"),
    [("dx.field(o", "options="), ("dx.replace(model, c", "changes="), ("dx.spec(Block, k", "kwargs=")],
)
def test_no_keyword_is_invented(editor: Editor, line: str, keyword: str) -> None:
    assert "compare=" in editor.completions("dx.field(c")
    assert keyword not in editor.completions(line)


@pytest.mark.parametrize(
    "state", ["grads", "dx.state(model, dx.Param)", "dx.split(model, dx.Param, ...)[1]", "dx.EMA(model, 0.9).params"]
)
def test_paths_of_states_that_are_read_as_their_model(editor: Editor, state: str) -> None:
    assert {"up", "scale"} <= editor.completions(f"{state}.as_model.").keys()
    assert "kernel: Param[Array]" in editor.documentation(f"{state}.as_model.up.", "kernel")
    assert "up" not in editor.completions(f"{state}.")  # why `as_model` is there


@pytest.mark.parametrize("text", ["up = dx.Linear", "as_model.up"])
def test_renaming_a_part_renames_it_in_paths_of_states(editor: Editor, text: str) -> None:
    uses = [match.start() for match in re.finditer(r"\bup\b", OPENING)]
    assert editor.rename(text, "up") == [cursor_of(use) for use in uses]
    assert editor.definition("as_model.up", "up") == "up = dx.Linear(dim, 4 * hidden)"


@pytest.mark.skipif(not hasattr(declax, "spec"), reason="declax.spec is not built yet")
def test_the_arguments_of_a_spec(editor: Editor) -> None:
    found = editor.signature("dx.spec(Block, ")
    assert {"dim: int", "hidden: int", "rate: float = 0.1"} <= found.parameters.keys()


IN_CLASS_BODIES = [
    ("Linear(dim, dim", "dim", "dim: int", "dim: int = dx.field(ge=1)"),
    ("4 * hidden", "hidden", "hidden: int", "hidden: int = dx.field(ge=1)"),
    ("Dropout(rate", "rate", "rate: float", "rate: float = dx.field(default=0.1)"),
    ("Linear(size, 4, rngs=rngs)", "rngs)", "rngs: InitVar[Rngs]", "rngs: dx.InitVar[dx.Rngs] = dx.field()"),
    ("variable((dim,)", "dim", "dim: int", "dim: int = dx.field(ge=1)"),
    ("Block.dim", "dim", "dim: int", "dim: int = dx.field(ge=1)"),
]


@pytest.mark.parametrize(("text", "name", "shown", "definition"), IN_CLASS_BODIES)
def test_names_in_a_class_body_lead_to_their_fields(
    editor: Editor, text: str, name: str, shown: str, definition: str
) -> None:
    assert shown in editor.hover(text, name)
    assert editor.definition(text, name) == definition


def test_hover_shows_the_layer_of_a_part_and_the_help_of_an_argument(editor: Editor) -> None:
    """The docstring below a part, or else what a call of the layer does; the docstring below a field."""
    assert editor.hover("up = dx.Linear", "up") == "(variable) up: Linear\n\nThe first layer."
    assert editor.hover("drop = dx.Dropout", "drop").startswith("(variable) drop: Dropout\n\nSets a random part of")
    assert editor.hover("lift = dx.Linear", "lift").startswith("(variable) lift: Linear\n\nApplies the affine map to")
    assert editor.hover("Block(2, hidden=3", "hidden") == "(variable) hidden: int\n\nThe width inside."


def test_only_initvars_of_the_standard_are_hidden_on_instances(editor: Editor) -> None:
    """Checkers know an InitVar by the name of its module, and declax has its own for them; see the page on editors."""
    start = "import dataclasses\n\n\n@dx.dataclass\nclass Both(dx.Module):\n"
    fields = "    hidden: dataclasses.InitVar[int] = dx.field()\n    shown: dx.InitVar[int] = dx.field()\n\n\n"
    offered = editor.completions(f"{start}{fields}Both(1, 2).")
    assert "shown" in offered
    assert "hidden" not in offered


@pytest.mark.parametrize("text", ["dim: int", "Linear(dim, dim", "(dim,)", "Block.dim", "self.dim", "model.dim"])
def test_renaming_a_field_renames_all_its_uses(editor: Editor, text: str) -> None:
    uses = [match.start() for match in re.finditer(r"\bdim\b(?!: the)", OPENING)]  # but for the docstring
    assert editor.rename(text, "dim") == [cursor_of(use) for use in uses]


def test_renaming_a_field_renames_keywords_of_the_constructor(editor: Editor) -> None:
    uses = [match.start() for match in re.finditer(r"\bhidden\b(?!: the)", OPENING)]
    assert "hidden=3" in OPENING
    assert editor.rename("4 * hidden", "hidden") == [cursor_of(use) for use in uses]


BODY = "\n\n@dx.dataclass\nclass Other(dx.Layer):\n    dim: int = dx.field()\n"


def test_arguments_are_offered_in_a_class_body(editor: Editor) -> None:
    found = editor.signature(BODY + "    up = dx.Linear(dim, ")
    assert found.active == "out_features: int"
    assert "use_bias=" in editor.completions(BODY + "    up = dx.Linear(dim, 4, u")
    assert "hidden=" in editor.completions(BODY + "    up: Block = Block(dim, h")
    assert "dim" in editor.completions(BODY + "    up = dx.Linear(d")
    assert "kernel" in editor.completions(BODY + "    up = dx.Linear(dim, 4)\n    kernel = up.")


def test_replace_offers_the_fields(editor: Editor) -> None:
    assert "hidden=" in editor.completions("dx.replace(model, h")
    assert {"rate=", "rngs="} <= editor.completions("dx.replace(model, r").keys()
    assert "mixer=" in editor.completions("dx.replace(model, dim=3, m")
    assert "up=" not in editor.completions("dx.replace(model, u")
