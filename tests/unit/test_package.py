"""The package root: its version, and what importing it costs and needs."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import declax as dx


def test_the_version_is_that_of_the_distribution():
    assert dx.__version__ == metadata.version("declax")
    assert "__version__" not in dir(dx), "dir lists the public names"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("import declax, declax.mypy_plugin", {"jax"}),
        ("import declax", {"jax", "mypy", "importlib.metadata"}),
        ("from declax import *", {"mypy", "optax"}),
    ],
)
def test_what_an_import_leaves_alone(program, unwanted):
    code = f"import sys\n{program}\nassert not {unwanted} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_without_mypy_names_the_extra():
    code = "import sys; sys.modules['mypy'] = None; import declax.mypy_plugin"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "declax.mypy_plugin: the plugin needs mypy, which is not installed." in ended.stderr
    assert 'pip install "declax[mypy]"' in ended.stderr


def test_the_readme_installs_the_extra_for_development():
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert 'pip install ".[mypy]"' in page


def test_a_name_that_the_package_lacks():
    with pytest.raises(dx.errors.MissingAttributeError, match="it has no attribute 'Lineer'"):
        _ = dx.Lineer


def test_help_begins_with_the_topics_and_ends_soon():
    lines = pydoc.plain(pydoc.render_doc(dx)).splitlines()
    assert [line.split()[0] for line in lines[8:22]][:3] == ["classes", "modules", "Variables"]
    sections = [line for line in lines if line.isupper() and not line.startswith(" ")]
    assert sections == ["NAME", "DESCRIPTION", "PACKAGE CONTENTS", "SUBMODULES", "VERSION", "FILE"]
    assert len(lines) < 90, "after the topics, pydoc lists the modules of the package"
    named = {word for line in lines[8:22] for word in line.split()[1:] if word.isidentifier() and word != "as"}
    assert named <= set(dx.__all__)


def test_help_of_a_kind_of_variable_begins_with_its_own_members():
    headings = [
        line for line in pydoc.plain(pydoc.render_doc(dx.Param)).splitlines() if " here:" in line or " from " in line
    ]
    assert "defined here" in headings[0]


def test_a_star_import_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from declax import *", names)
    assert set(dx.__all__) <= set(names)
