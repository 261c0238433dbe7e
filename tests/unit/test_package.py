"""The package root: its version, and what importing it costs and needs."""

from __future__ import annotations

import os
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
        ("from declax import Linear, Optimizer, Rngs, dataclass, jit, value_and_grad", {"jax.extend", "mypy"}),
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


QUIET = '''
import abc, copyreg, dataclasses, enum, functools, importlib, sys, threading, types, typing, warnings
import jax, jax.export, jax.experimental.checkify, numpy
for name in ("optax", "orbax.checkpoint", "flax.nnx", "cloudpickle"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass

FOREIGN = [
    abc.ABCMeta, dataclasses.Field, dataclasses.InitVar, dataclasses._MISSING_TYPE, enum.EnumMeta,
    functools.partialmethod, jax.Array, jax.ShapeDtypeStruct, jax.core.Tracer, jax.tree_util.GetAttrKey,
    type(jax.nn.relu), threading.Thread,
    types.SimpleNamespace, typing.Generic, typing._ProtocolMeta,
]
MODULES = [copyreg, dataclasses, functools, jax, jax.nn, jax.numpy, jax.tree_util, sys, threading, typing, warnings]

def facts():
    """What a library could change for others, without what each import adds."""
    types_ = {str(cls): {n: id(v) for n, v in vars(cls).items() if not n.startswith("_abc_")} for cls in FOREIGN}
    modules = {m.__name__: {n: id(v) for n, v in vars(m).items() if callable(v)} for m in MODULES}
    return {
        "copyreg": dict(copyreg.dispatch_table), "finders": list(sys.meta_path), "path hooks": list(sys.path_hooks),
        "recursion": sys.getrecursionlimit(), "filters": list(warnings.filters), "types": types_, "modules": modules,
    }

def check(step):
    after = facts()
    for name, value in before.items():
        assert after[name] == value, (step, name)

for name in typing.__all__:
    getattr(typing, name)  # some are made when they are first read
before = facts()
import declax as dx
check("import declax")
for name in dx.__all__:
    getattr(dx, name)
check("the lazy names")

@dx.dataclass
class Declared(dx.Module):
    dim: int = dx.field(ge=1)
    activation: typing.Callable[[jax.Array], jax.Array] = dx.field(default=dx.silu)
    rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True)
    part: dx.Linear = dx.Linear(dim, dim, rngs=rngs)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

@dataclasses.dataclass
class Standard(dx.Pytree):
    x: jax.Array

class Open(dx.Module):
    def __init__(self):
        self.kind = Kind(1.0)

class Plain(dx.Object):
    pass

class Runs(typing.Protocol):
    def __call__(self, x: int) -> int: ...

class Both(dx.Module, Runs):
    def __call__(self, x):
        return x

class Kind(dx.Variable[typing.Any]):
    unit: str = "m"

@dx.register_variable_name("hooked")
class Hooked(dx.Param[typing.Any]):
    def on_get_value(self, value):
        return value

class Frozen(dx.BatchStat[typing.Any], metaclass=abc.ABCMeta):
    pass

check("classes")
for kind in (dx.Param, dx.BatchStat, dx.Cache, dx.Intermediate, dx.Perturbation, dx.RngKey, Kind, Hooked, Frozen):
    jax.tree.map(lambda x: x, dx.State({"a": kind(1.0)} if kind is not dx.RngKey else dx.state(dx.Rngs(0))))
models = Declared(2, rngs=dx.Rngs(0)), Standard(numpy.ones(2)), Open(), Plain(), Both(), dx.List([1]), dx.Dict(a=1)
for model in models:
    dx.clone(model)
    dx.jit(lambda model: dx.state(model))(model)
check("use")
'''


def test_what_others_have_is_left_alone():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    made = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False, env=environment)
    assert made.returncode == 0, made.stderr
