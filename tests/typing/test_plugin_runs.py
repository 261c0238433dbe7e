"""How the plugin runs: from the cache, in the daemon, in parallel, on code with errors, with a check that fails."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_origin

import pytest
from mypy.version import __version__ as mypy_version

import declax.mypy_plugin
from checkers import PLUGIN
from declax.mypy_plugin import hooks, names
from declax.mypy_plugin.reporting import CODES
from plugin_cases import Found, assert_as_marked, config, environment, marks, read, write
from small_declax import SMALL_DECLAX

PROGRAMS = {
    "models.py": """
        import declax as dx


        @dx.dataclass
        class Block(dx.Module):
            width: int = dx.field()
            name: str = dx.static(default="x")
            kind: object = dx.static(default=None)
            _: dx.KW_ONLY
            rngs: dx.InitVar[dx.Rngs] = dx.field()
            scale: dx.Param[int] = dx.variable((width,), initializer=1)
    """,
    "uses.py": """
        import dataclasses

        import declax as dx
        from models import Block


        @dataclasses.dataclass
        class Standard(Block):  # E: declax-undecorated | the standard decorator compares models by value
            c: int = 1


        @dx.dataclass(frozen=False)
        class Child(Block):
            a: int = dx.variable((2,), initializer=1)  # E: declax-part | declares a Variable, but the annotation is int
            b: dx.Module = dx.static(kw_only=True)  # E: declax-field | static(...) contradicts


        class Open(Block):  # E: declax-undecorated | Open declares c
            c: int = dx.static(default=1)


        def replaced(block: Block, child: Child) -> None:
            Block(1, kind=block, rngs=dx.Rngs(0))  # E: declax-field | Block(...): kind is static, but Block is data
            dx.replace(block, widht=1, rngs=dx.Rngs(0))  # E: call-arg | did you mean "width"?
            dx.replace(child, scale=dx.Param(), rngs=dx.Rngs(0))  # E: call-arg | Unexpected keyword argument "scale"
    """,
}
RENAMED = ("width: int = dx.field()\n", "width: int = dx.field()\n    widht: int = 2\n")
"""A change of the first module that mends the misspelt name in the second."""
MENDED = {("uses.py", 24, "call-arg")}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the standard library, which mypy would read for each test."""
    made = tmp_path_factory.mktemp("known") / "programs"
    write(made.parent / "small", SMALL_DECLAX)
    write(made, {"empty.py": "import declax\n"})
    configure(made, files=["empty.py"])
    assert findings(made) == []
    return made / "cache"


@pytest.fixture
def folder(tmp_path: Path, known: Path) -> Path:
    made = tmp_path / "programs"
    write(tmp_path / "small", SMALL_DECLAX)  # of another path than in the cache, so that it is read again
    write(made, PROGRAMS)
    configure(made)
    shutil.copytree(known, made / "cache")
    return made


def configure(folder: Path, extra: str = "", *, files: Iterable[str] = PROGRAMS, plugins: str = PLUGIN) -> None:
    config(folder, f"files = {','.join(files)}\n{extra}", plugins=plugins, first=folder.parent / "small")


def run(folder: Path, *given: str, debug: bool = True) -> str:
    """Runs mypy over the programs of a folder, with a cache of its own."""
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", *given]
    done = subprocess.run(words, cwd=folder, env=environment(debug=debug), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def findings(folder: Path, *given: str) -> list[Found]:
    return read(run(folder, "--output", "json", *given))


@pytest.mark.slow
def test_findings_are_the_same_from_the_cache(folder: Path) -> None:
    cold = findings(folder)
    assert_as_marked(PROGRAMS, cold)
    assert findings(folder) == cold
    # what crosses modules now comes from the cache
    (folder / "uses.py").write_text((folder / "uses.py").read_text() + "\n\ndx.replace(Block(1, rngs=dx.Rngs(0)))\n")
    warm = findings(folder)
    assert warm[:-1] == cold
    assert 'Missing named argument "rngs"' in warm[-1].text


@pytest.mark.slow
def test_findings_follow_a_change_of_another_module(folder: Path) -> None:
    findings(folder)
    models = folder / "models.py"
    models.write_text(models.read_text().replace(*RENAMED))
    wanted = {(file, line, code) for file, line, code, _ in marks(PROGRAMS)}
    assert {(found.file, found.line, found.code) for found in findings(folder)} == wanted - MENDED


@pytest.mark.slow
@pytest.mark.skipif(mypy_version.startswith("1."), reason="mypy 1 has no parallel mode")
def test_findings_are_the_same_in_parallel(folder: Path) -> None:
    help_text = run(folder, "--help")
    if "--num-workers" not in help_text:
        pytest.skip("this mypy has no parallel mode")
    assert_as_marked(PROGRAMS, findings(folder, "--num-workers", "2"))
    assert_as_marked(PROGRAMS, findings(folder, "--num-workers", "2"))


def codes_without(*codes: str) -> set[str]:
    return {code for _, _, code, _ in marks(PROGRAMS)} - set(codes)


@pytest.mark.slow
@pytest.mark.skipif(mypy_version.startswith("1."), reason="mypy 1 takes no codes of plugins in its options")
def test_each_code_can_be_switched_off(folder: Path) -> None:
    assert_as_marked(PROGRAMS, findings(folder))
    for code in sorted(codes_without()):
        configure(folder, f"[mypy-uses]\ndisable_error_code = {code}")
        assert {found.code for found in findings(folder)} == codes_without(code)
    configure(folder, "disable_error_code = declax-part")  # without a section, mypy reads all modules again
    assert {found.code for found in findings(folder)} == codes_without("declax-part")
    configure(folder, f"disable_error_code = {', '.join([*CODES, 'call-arg'])}")
    assert findings(folder) == []


@pytest.mark.slow
def test_a_comment_at_the_top_of_a_file_switches_off(folder: Path) -> None:
    uses = folder / "uses.py"
    uses.write_text('# mypy: disable-error-code="declax-part, declax-field"\n' + uses.read_text())
    assert {found.code for found in findings(folder)} == codes_without("declax-field", "declax-part")


def test_a_comment_silences_one_finding(folder: Path) -> None:
    uses = folder / "uses.py"
    lines = [line.partition("  # E:")[0] for line in uses.read_text().splitlines()]
    comment = "  # type: " + "ignore[call-arg]"
    silent = [line + comment if "replace(" in line else line for line in lines]
    uses.write_text("\n".join(silent) + "\n")
    assert {found.code for found in findings(folder)} == codes_without("call-arg")


BROKEN_PLUGIN = """
    from declax.mypy_plugin.checks.fields import FIELD
    from declax.mypy_plugin.hooks import DeclaxPlugin
    from declax.mypy_plugin.registry import Entry


    def fail(cls, report):
        raise LookupError("a mistake in " + cls.name)


    class Broken(DeclaxPlugin):
        def __init__(self, options):
            super().__init__(options)
            self._registry.classes.append(Entry(fail, FIELD))


    def plugin(version):
        return Broken
"""


def test_a_check_that_fails_is_told_once_and_ends_nothing_unless_asked_to(folder: Path) -> None:
    write(folder.parent, {"broken.py": BROKEN_PLUGIN})
    configure(folder, plugins="../broken.py")
    found = read(run(folder, "--output", "json", debug=False))
    failures = [one for one in found if one.code == "declax-plugin"]
    assert len(failures) == 1
    assert (
        "the check declax-field of declax.mypy_plugin failed here: LookupError: a mistake in Layer" in failures[0].text
    )
    assert "DECLAX_PLUGIN_DEBUG=1" in failures[0].text
    assert_as_marked(PROGRAMS, [one for one in found if one.code != "declax-plugin"])
    # it is raised for whoever corrects it
    uses = folder / "uses.py"
    uses.write_text(uses.read_text() + "\n")
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "--show-traceback"]
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.search("LookupError: a mistake in (Layer|Child)", done.stdout + done.stderr)


ERRORS = """
    from __future__ import annotations

    import declax as dx
    from nowhere import Nothing, decorate
    from models import Missing

    from typing import Generic, TypeVar

    T = TypeVar("T")

    @dx.dataclass
    class FromNothing(Nothing):
        a: Unknown = dx.static()
        b: dx.Param[Unknown] = dx.variable((a, undefined), initializer=undefined, when=undefined)
        c: dx.Module = undefined(a)
        d: dx.Module = dx.submodule()
        e: int = dx.variable(shape=*(1, 2))

    @dx.dataclass(frozen=undefined)
    class Module(dx.Module, Nothing):
        a: dx.Param[int] = dx.variable((zzz,), initializer=1)
        a: int = dx.static(undefined, default=undefined)
        b = dx.static()
        c: dx.Module = dx.submodule(lambda: self.b)
        d: dx.Module = dx.Module(b, rngs)
        f = undefined
        def __post_init__(self, x: Unknown = undefined) -> None: ...

    @dx.dataclass
    class Self(dx.Module):
        me: Self = dx.static()
        other: Other = dx.data()
        many: list["Self"] = dx.data(default=[])
        def me(self) -> int: ...

    @dx.dataclass
    class Other(Self, Missing, Generic[T]):
        __post_init__ = undefined
        x: T = dx.static(default=dx)
        y: list = dx.data(init=False)
        z = 3
        z: int

    @decorate
    @dx.dataclass()
    @undefined
    class Decorated(dx.Module):
        x: int = dx.static(default=[])
        if undefined:
            y: int
        else:
            y: str = dx.data()

    @dx.dataclass
    def function() -> None: ...

    class Loop(Loop, dx.Module):
        x: int = dx.static()

    dx.replace()
    dx.replace(undefined, x=1)
    dx.replace(Self, x=1)
    dx.replace(Self(), *undefined, **undefined)
    dx.replace(Other[int](), me=undefined)
    dx.dataclass(undefined)
    dx.static(default=1)
    Loop(1, x=2)
    Decorated(x=1, **undefined)
"""

NO_SYNTAX_ERRORS = ERRORS.replace("dx.variable(shape=*(1, 2))", "dx.variable(*(1, 2))")


@pytest.mark.slow
def test_code_with_errors_ends_no_check(folder: Path) -> None:
    write(folder, {"errors.py": NO_SYNTAX_ERRORS})
    configure(folder, files=("errors.py", "uses.py"))
    for _ in range(2):
        found = findings(folder)
        assert "declax-plugin" not in {one.code for one in found}
        assert {one.code for one in found if one.file == "errors.py"} >= {"name-defined", "declax-field"}
        assert_as_marked({"uses.py": PROGRAMS["uses.py"]}, [one for one in found if one.file == "uses.py"])


def test_the_fingerprint_sees_every_file(tmp_path: Path) -> None:
    package = Path(hooks.__file__).parent
    copy = tmp_path / "plugin"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert hooks.fingerprint(copy) == hooks.FINGERPRINT == declax.mypy_plugin.__version__
    for path in sorted(copy.rglob("*.py")):
        text = path.read_text()
        path.write_text(text + "\n")
        assert hooks.fingerprint(copy) != hooks.FINGERPRINT, path
        path.write_text(text)
    (copy / "checks" / "reads.py").rename(copy / "checks" / "read.py")
    assert hooks.fingerprint(copy) != hooks.FINGERPRINT


def test_a_changed_plugin_makes_the_cache_stale() -> None:
    plugin = declax.mypy_plugin.plugin("2.0")
    options = importlib.import_module("mypy.options").Options()
    unused: Any = None
    assert plugin(options).report_config_data(unused) == hooks.FINGERPRINT


def _declax_names() -> list[str]:
    found: list[str] = []
    for value in vars(names).values():
        given = [value] if isinstance(value, str) else list(value) if isinstance(value, (dict, frozenset)) else []
        found += [
            name for name in given if isinstance(name, str) and name.startswith("declax.") and name != names.__name__
        ]
    return sorted({name for name in found if not name.startswith("declax.mypy_plugin")})


@pytest.mark.parametrize("name", _declax_names())
def test_what_the_plugin_looks_for_exists(name: str) -> None:
    module, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(module), last)
    if get_origin(found) is not Annotated:  # an alias's module is that of a type variable, or of typing
        assert getattr(found, "__module__", module) == module, "mypy names it by the module that defines it"


def test_the_plugin_imports_mypy_and_what_needs_no_jax_only() -> None:
    package = Path(hooks.__file__).parent
    allowed = {"mypy", *sys.stdlib_module_names}
    for path in package.rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and not line.startswith(" "):
                top = words[1].partition(".")[0]
                is_light = words[1].startswith(PLUGIN) or words[1] == "declax.errors"
                assert top in allowed or is_light, f"{path.name}: {line}"
