"""The pages on several devices, on eight of them; elsewhere, their blocks run on one."""

from __future__ import annotations

import pytest

from fenced import ROOT
from test_docs import run_page


@pytest.mark.parametrize("name", ["offload", "parallel", "processes", "recipes"])
def test_the_blocks_of_a_page_run_on_eight_devices(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / f"{name}.md")
