"""Every Python block of the pages runs, and so does every example in a docstring.

The blocks of a page share one namespace and run in order. What may stand after ``python`` in braces:

- nothing: the block must run;
- ``{raises=StatusError}``: the block must raise that error, at its end or before;
- ``{warns=LostWriteWarning}``: the block must give that warning;
- ``{mypy=declax-field}``: the block is for mypy, which must give that error; tests/typing/test_plugin_page.py runs it;
- ``{needs=optuna}``: the block must run if that module is installed. It sees the names of the page and those of blocks
  that need the same module. The rest of the page does not see its names.

A block of any language marked ``{file=train.py}`` is written to that file, in the folder where the page runs. A block
``sh {run}`` has lines ``declax ...`` or ``python file.py ...``, which run here, as a shell would run them. A line that
sets variables first runs in a process of its own.

A block of any language marked ``{output}`` holds what the block before it printed, or the
message of what it raised; ``...`` stands for anything. Blocks with ``>>>`` run as doctests.
No other marker makes a block not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import importlib
import importlib.util
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import types
import warnings
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax
from declax._lazy import exports
from declax.config._cli.main import main
from fenced import FILE, ON_EIGHT_DEVICES, ROOT, Block, blocks_of, pages

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RAISES = re.compile(r"\{raises=(\w+)\}")
WARNS = re.compile(r"\{warns=(\w+)\}")
FOR_MYPY = re.compile(r"\{mypy=[\w-]+\}")
NEEDS = re.compile(r"\{needs=(\w+)\}")
VARIABLE = re.compile(r"([A-Z_]+)=(.*)")
NOT_RUN = "\0"  # the outcome of a block that needs a package that is not installed


def run_page(path: Path) -> None:
    """Runs the blocks of a page in a module of their own, so that classes in them can be found by name."""
    names_beside: dict[str, dict[str, object]] = {}
    module = types.ModuleType("page_of_" + re.sub(r"\W", "_", path.stem))
    sys.modules[module.__name__] = module
    outcome: str | None = None
    known, path_before = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # as a prompt of Python does
    try:
        for block in blocks_of(path.read_text(encoding="utf-8")):
            if block.language == "python" and FOR_MYPY.fullmatch(block.info):
                outcome = None
            elif file := FILE.fullmatch(block.info):
                Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
                Path(file[1]).write_text(block.text, encoding="utf-8")
                importlib.invalidate_caches()
                outcome = None
            elif needed := NEEDS.fullmatch(block.info):
                outcome = run_beside(path, block, module, names_beside.setdefault(needed[1], {}))
            elif block.language == "python":
                outcome = run_block(path, block, module)
            elif block.language == "sh" and block.info == "{run}":
                outcome = run_shell(path, block)
            elif block.info == "{output}":
                if outcome != NOT_RUN:
                    check_output(path, block, outcome)
            else:
                is_python = block.language in ("py", "python3", "pycon") or block.info.startswith("{")
                assert not is_python, f"{path.name}:{block.line}: write ```python or ```text {{output}}"
    finally:
        del sys.modules[module.__name__]
        sys.path[:] = path_before
        for name in set(sys.modules) - known:
            if Path.cwd() in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
                del sys.modules[name]  # what the page has written


def run_shell(path: Path, block: Block) -> str:
    """Runs the lines of a block and returns what they print, with what they complain of."""
    printed = io.StringIO()
    for line in block.text.splitlines():
        command, *words = shlex.split(line)
        if variable := VARIABLE.fullmatch(command):
            printed.write(run_apart(path, block, dict([variable.groups()]), words))
            continue
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if command == "declax":
                main(words)
            else:
                assert command == "python", f"{path.name}:{block.line}: {command} is not run here"
                run_script(words)
    return printed.getvalue()


def run_apart(path: Path, block: Block, variables: dict[str, str], words: list[str]) -> str:
    """Runs a script in a process of its own, with variables of the environment, and returns what it prints."""
    assert words[0] == "python", f"{path.name}:{block.line}: {words[0]} is not run here"
    command = [sys.executable, *words[1:]]
    ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{path.name}:{block.line}: {ended.stderr}"
    return ended.stdout


def run_script(words: list[str]) -> None:
    """Runs a script of the current folder with words of its command line."""
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = words, [str(Path.cwd())]
    try:
        with contextlib.suppress(SystemExit):
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def run_block(path: Path, block: Block, module: types.ModuleType) -> str:
    """Runs a block and returns what it printed, or the message of the error that it had to raise."""
    where = f"{path.name}:{block.line}"
    if warning := WARNS.fullmatch(block.info):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = run_block(path, dataclasses.replace(block, info=""), module)
        given = [found.category.__name__ for found in caught]
        assert given == [warning[1]], f"{where}: gave {', '.join(given) or 'no'} {warning[1]}"
        return outcome
    expected = RAISES.fullmatch(block.info)
    assert expected or not block.info, f"{where}: {block.info!r} is not a marker that test_docs.py knows"
    if block.text.lstrip().startswith(">>>"):
        run_doctest(block, module, path)
        return ""
    # As many empty lines as stand above the block, so that tracebacks and `inspect` find the lines of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec", dont_inherit=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, module.__dict__)
    except Exception as error:
        if expected is None:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        if expected[1] not in [cls.__name__ for cls in type(error).__mro__]:
            raise AssertionError(f"{where}: raised {type(error).__name__} ({error}), not {expected[1]}") from error
        return str(error)
    assert expected is None, f"{where}: ran to its end and raised no {expected and expected[1]}"
    return printed.getvalue()


def run_beside(path: Path, block: Block, module: types.ModuleType, own: dict[str, object]) -> str:
    """Runs a block that needs another package, if it is installed, and keeps the names that it defines."""
    if missing_from([block]):
        return NOT_RUN
    beside = types.ModuleType(module.__name__)
    vars(beside).update(vars(module), **own)
    if importlib.util.find_spec("cloudpickle"):
        importlib.import_module("cloudpickle").register_pickle_by_value(module)  # as `__main__`, for other processes
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):  # of other packages
        warnings.simplefilter("ignore")
        outcome = run_block(path, dataclasses.replace(block, info=""), beside)
    own.update({name: value for name, value in vars(beside).items() if vars(module).get(name) is not value})
    return outcome


def missing_from(blocks: Iterable[Block]) -> set[str]:
    """The modules that blocks need and that are not installed."""
    needed = {found[1] for block in blocks if (found := NEEDS.fullmatch(block.info))}
    return {name for name in needed if importlib.util.find_spec(name) is None}


def check_output(path: Path, block: Block, outcome: str | None) -> None:
    assert outcome is not None, f"{path.name}:{block.line}: output without a Python block before it"
    got = outcome.rstrip("\n") + "\n"
    if not doctest.OutputChecker().check_output(block.text, got, doctest.ELLIPSIS):
        pytest.fail(f"{path.name}:{block.line}: the page says\n{block.text}\nand the block before it says\n{got}")


def run_doctest(block: Block, module: types.ModuleType, path: Path) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, module.__dict__, path.name, str(path), block.line - 1)
    report = io.StringIO()
    results = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.write, clear_globs=False)
    module.__dict__.update(test.globs)
    assert not results.failed, report.getvalue()


@pytest.mark.sampled(24)
@pytest.mark.parametrize(
    "path", [path for path in pages() if path not in ON_EIGHT_DEVICES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_blocks_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with mock.patch.dict(os.environ):  # pages may set variables
        run_page(path)
    if missing := missing_from(blocks_of(path.read_text(encoding="utf-8"))):
        pytest.skip(f"all blocks ran but those that need {', '.join(sorted(missing))}")


def package_modules() -> list[str]:
    return ["declax", *(found.name for found in pkgutil.walk_packages(declax.__path__, "declax."))]


@pytest.mark.parametrize("name", package_modules())
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except declax.errors.MissingExtraError as error:
        pytest.skip(str(error))
    given = {"dx": declax, "declax": declax, "jax": jax, "jnp": jnp, "np": np}
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={**given, **vars(module)}):
        assert ">>> from declax" not in (test.docstring or ""), f"{test.name}: import declax as dx, and nothing else"
        if not set(test.name.removeprefix(name).split(".")).isdisjoint(exports("declax")):
            test.globs = dict(given)  # readers of public examples have no other names
        runner.run(test, out=report.write)
    assert not runner.summarize(verbose=False).failed, report.getvalue()


# ================================================================= the runner itself


SCRIPT = "```python {file=a.py}\nimport os\nprint(os.environ['A'])\n```\n"


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n", None),
        ("```python\nprint('a', 1)\n```\n```text {output}\na 1\n```\n", None),
        ("```python\nprint('a', 1)\n```\n```text {output}\na ...\n```\n", None),
        ("```python\nprint('a')\n```\n```text {output}\nb\n```\n", "the page says"),
        ("```python {raises=ValueError}\nint('x')\n```\n", None),
        ("```python {mypy=declax-field}\n1 / 0\n```\n", None),
        ("```python {mypy}\n1 / 0\n```\n", "is not a marker"),
        ("```python {raises=ValueError}\nint('x')\n```\n```text {output}\ninvalid literal ... 'x'\n```\n", None),
        ("```python {raises=LookupError}\n{}['x']\n```\n", None),
        ("```python {raises=TypeError}\nint('x')\n```\n", "raised ValueError"),
        ("```python {raises=TypeError}\n1\n```\n", "raised no TypeError"),
        ("```python {warns=UserWarning}\nimport warnings\nwarnings.warn('a')\n```\n", None),
        ("```python {warns=UserWarning}\nimport warnings\n```\n", "gave no UserWarning"),
        ("```python {needs=json}\nprint(1)\n```\n```text {output}\n2\n```\n", "the page says"),
        ("```python {needs=nothing_like_it}\nprint(1)\n```\n```text {output}\n1\n```\n", None),
        ("```sh {run}\ndeclax show declax:Dropout\n```\n```text {output}\nDropout\n...rate: float...\n```\n", None),
        ("```sh {run}\ndeclax show\n```\n```text {output}\nnothing\n```\n", "the class is missing"),
        ("```sh {run}\nrm page.md\n```\n", "page.md:2: rm is not run here"),
        ("```sh\nrm page.md\n```\n", None),
        ("```python {notest: slow}\n1\n```\n", "is not a marker"),
        ("```python {needs=nothing_like_it}\n1 / 0\n```\n", None),
        ("```python {needs=json}\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nx = 1\n```\n```python {needs=json}\nx += 1\n```\n```python\nassert x == 1\n```\n", None),
        ("```python {needs=json}\ny = 1\n```\n```python {needs=json}\nassert y == 1\n```\n", None),
        ("```python {needs=json}\ny = 1\n```\n```python\ny\n```\n", "NameError"),
        (
            "```text {file=a.txt}\nb\n```\n```python\nfrom pathlib import Path\nassert Path('a.txt').exists()\n```\n",
            None,
        ),
        ("```python {file=a.py}\n1 / 0\n```\n", None),
        ("```python {file=a/b.py}\nc = 1\n```\n```python\nfrom a import b\n```\n", None),
        (f"{SCRIPT}```sh {{run}}\nA=1 python a.py\n```\n```text {{output}}\n1\n```\n", None),
        ("```sh {run}\nA=1 rm page.md\n```\n", "page.md:2: rm is not run here"),
        ("```py\n1\n```\n", "write ```python"),
        ("text\n\n```python\n1 / 0\n```\n", "page.md:4: ZeroDivisionError"),
        ("```python\n>>> y = 2\n>>> y\n2\n```\n```python\nassert y == 2\n```\n", None),
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected:"),
        ("```python\n1\n", "is not closed"),
        ("1. item\n   ```python\n   z = 3\n   ```\n", None),
        ("````text\n```python\n1 / 0\n```\n````\n", None),
        ("```python\nimport pickle\nclass C: pass\nassert type(pickle.loads(pickle.dumps(C()))) is C\n```\n", None),
        ("```python\nimport inspect\ndef f():\n    return 1\nassert 'return 1' in inspect.getsource(f)\n```\n", None),
    ],
)
def test_the_runner_itself(page, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    if complaint is None:
        run_page(path)
        return
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(complaint)):
        run_page(path)
