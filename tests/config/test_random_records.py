"""Random specs: files in three formats, exact records, and fingerprints in another process and another Python."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import declax as dx
from config.spec_models import Model
from config.test_spec_properties import models
from declax.config._files.formats import FORMATS

_AGAIN = """
import json, sys
import declax as dx
from config.spec_models import Model
for record in json.load(sys.stdin):
    print(dx.spec_from_config(Model, record).fingerprint())
"""


def check(spec: dx.Spec[Any]) -> dict[str, Any]:
    """Checks what is written of a spec in each format; returns its exact record."""
    record = dx.to_config(spec, full=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (record, dx.to_config(spec)):
            for suffix in (".toml", ".json", ".yaml"):
                text = FORMATS[suffix].write(data)
                parsed = FORMATS[suffix].parse(text, None)
                assert not parsed.problems
                found = dx.spec_from_config(Model, parsed.data)
                assert found == spec, text
                assert found.fingerprint() == spec.fingerprint()
                assert dx.to_config(found, full=True) == record
    return record


@given(models())
def test_random_specs_are_written_in_each_format(spec):
    check(spec)


@functools.cache
def campaign(count: int) -> tuple[tuple[dx.Spec[Any], str], ...]:
    """Specs with their exact records as JSON; the same ones each time."""
    found: list[tuple[dx.Spec[Any], str]] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None)
    @given(models())
    def collect(spec: dx.Spec[Any]) -> None:
        found.append((spec, json.dumps(check(spec))))

    collect()
    return tuple(found)


def pythons() -> list[str]:
    """This Python, and another one with the newest JAX if the variable names it."""
    return [sys.executable, *filter(None, [os.environ.get("DECLAX_OTHER_PYTHON")])]


def agree(count: int) -> int:
    specs = campaign(count)
    root = Path(__file__).parents[2]
    text = f"[{','.join(record for _, record in specs)}]"
    for python in pythons():
        for seed in ("1", "2"):
            env = {
                **os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore",
                "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}",
            }  # fmt: skip
            done = subprocess.run(
                [python, "-c", _AGAIN], input=text, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]
            assert done.stdout.split() == [spec.fingerprint() for spec, _ in specs], python
    return len(specs)


def test_a_few_fingerprints_agree_in_other_processes():
    assert agree(10) >= 5


@pytest.mark.slow
def test_three_hundred_fingerprints_agree_in_other_processes_and_pythons():
    assert agree(300) >= 250
