"""The models of the examples and of the tutorials, at every size."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import declax as dx

ROOT = Path(__file__).parents[2]

# folder, module: the classes whose code needs a depth as a number
CASES = {
    ("examples/digits", "model"): {"MLP", "Mixer"},
    ("examples/gpt", "gpt"): {"GPT"},
    ("examples/lstm", "lstm"): set(),
    ("examples/pretrained", "gpt2"): {"GPT2"},
    ("examples/pretrained", "llama"): {"Llama"},
    ("examples/parallel", "transformer"): {"Transformer"},
    ("examples/resnet", "resnet"): set(),
    ("examples/gan", "gan"): set(),
    ("examples/ensemble", "ensemble"): set(),
    ("examples/vae", "vae"): set(),
}

COUNTED = {("transformer", "Block")}
"""Classes with experts, whose capacity is computed of a length in numbers: checked as parts of a model below."""


def classes_of(module):
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [cls for cls in own if issubclass(cls, dx.Module)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_examples_are_proven(case, monkeypatch):
    """All classes are proven, but those with a depth at three depths; their models are proven too."""
    folder, name = case
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / folder))
    for loaded in [key for key in sys.modules if key in ("model", "data", "settings", "plots")]:
        monkeypatch.delitem(sys.modules, loaded)
    module = importlib.import_module(name)
    with_depth = set()
    for cls in classes_of(module):
        if (name, cls.__name__) in COUNTED:
            continue
        report = dx.check_shapes(cls)
        first = report.checked[0]
        assert not report.findings, report
        if first.verdict != "proven":
            assert "at depth = 1, 2, 3" in first.text, report
            with_depth.add(cls.__name__)
            model = dx.eval_shape(lambda cls=cls: cls(rngs=dx.Rngs(0)))
            assert dx.check_shapes(model).proven, report
    assert with_depth == CASES[case]


TUTORIALS = [path for path in sorted((ROOT / "docs/learn").glob("*.py")) if "\n@dx.dataclass" in path.read_text()]


def classes_in(path):
    """The declared classes of a tutorial, without a run of the rest of it."""
    body = ast.parse(path.read_text()).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    classes = [node for node in body if isinstance(node, ast.ClassDef) and "dx.Layer" in map(ast.unparse, node.bases)]
    names = {"__name__": "tutorial"}
    exec(compile(ast.Module([*imports, *classes], []), str(path), "exec"), names)
    return [names[node.name] for node in classes]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_proven(path):
    for package in ("sklearn", "matplotlib", "safetensors"):
        pytest.importorskip(package)
    classes = classes_in(path)
    assert classes or path.stem == "save_and_resume"  # which writes its script
    for cls in classes:
        report = dx.check_shapes(cls)
        assert report.proven, report
        assert not report.findings, report
