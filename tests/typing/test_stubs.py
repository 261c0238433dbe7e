"""The stubs agree with the packages that they are of; they have only what declax and its examples use."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkers import ROOT, version_of

STUBS = ROOT / "stubs"
PACKAGES = sorted(path.name for path in STUBS.iterdir() if path.is_dir())


@pytest.mark.slow  # stubtest imports every module of a package
@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_stubbed_is_there_at_run_time(package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None or not version_of("mypy"):
        pytest.skip(f"{package} or mypy is not installed")
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {STUBS}\n", encoding="utf-8")
    words = [sys.executable, "-m", "mypy.stubtest", package, "--mypy-config-file", str(config)]
    words += ["--ignore-missing-stub", "--allowlist", str(STUBS / "allowlist.txt"), "--ignore-unused-allowlist"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "MYPYPATH": str(STUBS)}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_with_types_of_its_own_needs_no_stubs(package: str) -> None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    assert not Path(found.origin).with_name("py.typed").exists()
