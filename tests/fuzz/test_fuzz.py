"""Random programs under declax, eager and compiled, see what the oracle sees: values, order, and which object is which.

A failure shows the program.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import declax as dx
from fuzz import oracle
from fuzz.mutants import MUTANTS
from fuzz.programs import program, source_of
from fuzz.running import difference

TESTS = Path(__file__).parents[1]
PACKAGE = Path(dx.__file__).parent


@pytest.mark.parametrize("seed", range(20))
def test_a_program_shows_what_the_oracle_shows(seed):
    source = source_of(program(seed))
    assert difference(source) is None, source


@pytest.mark.slow
@pytest.mark.campaign
def test_no_program_differs():
    """For `DECLAX_FUZZ_MINUTES`, 20 by default, from `DECLAX_FUZZ_SEED`, which is drawn otherwise."""
    minutes = float(os.environ.get("DECLAX_FUZZ_MINUTES", "20"))
    seed = int(os.environ.get("DECLAX_FUZZ_SEED", random.SystemRandom().randrange(10**9)))
    done = search_in(None, seed, 10**6, 60 * minutes, 300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_fits_the_source(name):
    file, text, _ = MUTANTS[name]
    assert (PACKAGE / file).read_text().count(text) == 1, f"{file} has changed"


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_the_engine_is_found(name, tmp_path):
    file, text, instead = MUTANTS[name]
    package = Path(shutil.copytree(PACKAGE, tmp_path / "declax"))
    source = (package / file).read_text()
    (package / file).write_text(source.replace(text, instead))
    done = search_in(tmp_path, 0, 150, 600, 0, "compiled")
    print(name, done.stdout.partition("\n")[0])
    assert "difference" not in done.stdout.partition(";")[0], "the fault was not found"
    assert done.returncode == 1, done.stderr


def search_in(folder: Path | None, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Searches with the package in a folder, in a process of its own, which keeps no compiled programs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    paths = [TESTS] if folder is None else [folder, TESTS]
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fuzz.searching", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


# ================================================================= the fuzzer itself


def test_a_program_of_a_seed_is_always_the_same():
    assert source_of(program(3)) == source_of(program(3)) != source_of(program(4))


def test_identity_is_seen(monkeypatch):
    """A new object of equal content in the place of another is a difference."""
    source = "a = Node(1)\na.left = Node(2)\nlook(a=a)\na.left = dx.clone(a.left)\nlook(a=a)\n"
    assert difference(source_of([source])) is None
    monkeypatch.setattr(oracle, "clone", lambda node: node)
    found = difference(source_of([source]))
    assert found is not None
    assert "left.object: expected" in found
