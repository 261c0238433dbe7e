"""What editors make of the schema: completion, and a mark at each mistake, by real language servers.

The server of TOML files is tombi, which comes with the extra `dev`; that of YAML files is yaml-language-server, which
npm installs into the cache of pytest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import declax as dx
from config_models import Transformer
from language_server import LanguageServer

YAML_SERVER = "yaml-language-server@1.25.0"

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"

TOML = """\
#:schema transformer.schema.json
dim = 8
param_dtype = "bfloat16"

[embed]
num_embeddings = 16
features = 4

[[blocks]]
norm = "RMS"
[blocks.mixer]
kind = "Attention"
dim = 8
heads = 2

[[blocks]]
scales = [1.0, 2.5]
[blocks.mixer]
kind = "Mlp"
dim = 8
hidden = 32
activation = "relu"
[blocks.mixer.kernel_init]
kind = "normal"
stddev = 0.02
"""

YAML = """\
# yaml-language-server: $schema=transformer.schema.json
dim: 8
param_dtype: "bfloat16"

embed:
  num_embeddings: 16
  features: 4

blocks:
  - norm: "RMS"
    mixer:
      kind: "Attention"
      dim: 8
      heads: 2

  - scales: [1.0, 2.5]
    mixer:
      kind: "Mlp"
      dim: 8
      hidden: 32
      activation: "relu"
      kernel_init:
        kind: "normal"
        stddev: 0.02
"""

# What is written, what stands there instead, the line where the mistake is marked, and a word of what is said.
MISTAKES = {
    "a misspelt key": ("heads = 2", "haeds = 2", "haeds = 2", "haeds"),
    "a wrong type": ("hidden = 32", 'hidden = "32"', 'hidden = "32"', "nteger"),
    "a missing field": ("features = 4", "", "[embed]", "features"),
    "an unknown tag": ('kind = "Attention"', 'kind = "Attenton"', 'kind = "Attenton"', "Attention"),
    "a key of the other kind": ("heads = 2", "hidden = 2", "hidden = 2", "hidden"),
    "a wrong element": ("scales = [1.0, 2.5]", 'scales = [1.0, "x"]', 'scales = [1.0, "x"]', ""),
    "out of range": ("heads = 2", "heads = 128", "heads = 128", "64"),
    "a bad dtype": ('"bfloat16"', '"float31"', 'param_dtype = "float31"', "float32"),
    "a bad activation": ('"relu"', '"rellu"', 'activation = "rellu"', "gelu"),
    "a bad initializer": ("stddev = 0.02", 'stddev = "a"', 'stddev = "a"', ""),
}


class Found(NamedTuple):
    """A mistake: the line that is marked, and what is said."""

    line: str
    message: str


class Editor:
    """Types files that name the schema, in TOML or YAML."""

    def __init__(self, server: LanguageServer, folder: Path, suffix: str) -> None:
        self._server = server
        self._folder = folder
        self._suffix = suffix
        self._count = 0

    def written(self, toml: str) -> str:
        """A line of TOML in the language that is typed."""
        if self._suffix == ".toml":
            return toml
        return toml.strip("[]") + ":" if toml.startswith("[") else toml.replace(" = ", ": ")

    @property
    def good(self) -> str:
        return TOML if self._suffix == ".toml" else YAML

    def mistakes(self, text: str, path: Path | None = None) -> list[Found]:
        lines = text.splitlines()
        if path is not None:
            self._server.open(path, text)
        found = self._server.diagnostics(path or self._opened(text))
        return [Found(lines[item["range"]["start"]["line"]].strip(), item["message"]) for item in found]

    def offers(self, text: str) -> set[str]:
        """What is offered at the place of the bar."""
        line, column = next((i, line.index("|")) for i, line in enumerate(text.split("\n")) if "|" in line)
        path = self._opened(text.replace("|", ""))
        self._server.diagnostics(path)  # the schema has been read then
        return {label.partition(" = ")[0].strip('"') for label in self._server.completions(path, (line, column))}

    def hover(self, text: str, name: str) -> str:
        """What is shown of a key, at its first place in the text."""
        path = self._opened(text)
        self._server.diagnostics(path)
        before = text.partition(name)[0]
        return self._server.hover(path, (before.count("\n"), len(before) - before.rindex("\n") - 1))

    def _opened(self, text: str) -> Path:
        self._count += 1
        path = self._folder / f"file_{self._count}{self._suffix}"
        path.write_text(text, encoding="utf-8")
        self._server.open(path, text)
        return path


def toml_server() -> list[str]:
    """The command of the server; skips where it is not installed."""
    command = shutil.which("tombi", path=sysconfig.get_path("scripts")) or shutil.which("tombi")
    return [command, "lsp", "--offline"] if command else pytest.skip("tombi is not installed")


def yaml_server(cache: Path) -> list[str]:
    """The command of the server, which is installed where it was not yet; skips where that cannot be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm, which yaml-language-server needs, are not installed")
    folder = cache / YAML_SERVER
    script = folder / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
    if not (folder / "node_modules" / ".package-lock.json").exists():  # npm writes it last
        folder.mkdir(parents=True, exist_ok=True)
        words = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", "--prefix", "."]
        try:
            subprocess.run([*words, YAML_SERVER], cwd=folder, capture_output=True, check=True, timeout=45)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"npm cannot install {YAML_SERVER}: {error}")
    return [node, str(script), "--stdio"]


@pytest.fixture(scope="module", params=[".toml", ".yaml"])
def editor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Callable[[], Path]
) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("configurations")
    (folder / "transformer.schema.json").write_text(json.dumps(dx.json_schema(Transformer)), encoding="utf-8")
    is_toml = request.param == ".toml"
    command = toml_server() if is_toml else yaml_server(cache())
    settings = {"yaml": {"validate": True, "completion": True, "schemaStore": {"enable": False}}}
    with LanguageServer(command, folder, settings, "toml" if is_toml else "yaml") as server:
        yield Editor(server, folder, request.param)


@pytest.fixture(scope="module")
def cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Gives the folder that stays from run to run, where pytest has one."""
    kept = getattr(pytestconfig, "cache", None)
    return lambda: kept.mkdir("npm") if kept is not None else tmp_path_factory.mktemp("npm")


def test_a_good_file_has_no_marks(editor: Editor) -> None:
    assert editor.mistakes(editor.good) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_marked(editor: Editor, name: str) -> None:
    right, wrong, marked, said = MISTAKES[name]
    text = editor.good.replace(editor.written(right), editor.written(wrong))
    found = [mistake for mistake in editor.mistakes(text) if mistake.line.endswith(editor.written(marked))]
    assert any(said in mistake.message for mistake in found), editor.mistakes(text)


def test_all_mistakes_of_a_file_are_marked_at_once(editor: Editor) -> None:
    text = editor.good
    marks = []
    for name, (right, wrong, marked, _) in MISTAKES.items():
        if name not in ("a key of the other kind", "a misspelt key"):  # these are where another one is
            text = text.replace(editor.written(right), editor.written(wrong))
            marks.append(editor.written(marked))
    found = {mistake.line for mistake in editor.mistakes(text)}
    assert [mark for mark in marks if not any(line.endswith(mark) for line in found)] == []


@pytest.mark.parametrize("name", ["cnn.toml", "mlp.toml", "mixer.toml"])
@pytest.mark.parametrize("editor", [".toml"], indirect=True)
def test_files_of_the_example_name_their_schema(editor: Editor, name: str) -> None:
    text = (EXAMPLE / name).read_text(encoding="utf-8")
    assert editor.mistakes(text, EXAMPLE / name) == []
    for right, wrong in (("epochs", "epoch"), ("cosine_decay_schedule", "cosine_schedule"), ("required_", "required")):
        typed = text.replace(right, wrong)
        assert any(wrong in mistake.line for mistake in editor.mistakes(typed, EXAMPLE / f"typed_{wrong}_{name}"))


def test_the_help_of_a_field_is_shown(editor: Editor) -> None:
    assert "size of each row." in editor.hover(editor.good, "features")
    assert "the standard deviation." in editor.hover(editor.good, "stddev")


def test_tags_are_offered(editor: Editor) -> None:
    head, tag, _ = editor.good.partition(editor.written('kind = "Attention"'))
    assert editor.offers(head + tag.partition('"')[0] + "|\n") == {"Attention", "Mlp"}


def test_fields_are_offered(editor: Editor) -> None:
    head, _, _ = editor.good.partition(editor.written("[embed]"))
    offered = editor.offers(head + "|\n")
    assert {"embed", "blocks", "note", "sizes"} <= offered
    assert not {"dim", "param_dtype", "rngs"} & offered, "these are there already, or are no configuration"


def test_fields_of_a_kind_are_offered(editor: Editor) -> None:
    head, _, _ = editor.good.partition(editor.written("heads = 2"))
    offered = editor.offers(head + "|\n")
    assert offered >= {"heads", "dropout", "kernel_init", "dtype"}
    assert not {"hidden", "activation"} & offered, "these are of the other kind"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('param_dtype = "bfloat16"', {"float32", "bfloat16", "int8"}),
        ('activation = "relu"', {"relu", "gelu", "silu"}),
        ('norm = "RMS"', {"LAYER", "RMS"}),
        ('kind = "normal"', {"normal", "truncated_normal"}),  # those that have the stddev that is there
    ],
)
def test_names_are_offered(editor: Editor, line: str, names: set[str]) -> None:
    written = editor.written(line)
    value = written.partition('"')[2]
    text = editor.good.replace(written, written.replace(f'"{value}', "|"))
    assert names <= editor.offers(text)
