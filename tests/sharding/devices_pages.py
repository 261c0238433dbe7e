"""The pages on several devices, on eight of them; some of their blocks run on one device elsewhere."""

from __future__ import annotations

import pytest

from fenced import ON_EIGHT_DEVICES, ROOT
from test_docs import run_page

ON_ANY = [ROOT / "docs" / f"{name}.md" for name in ("offload", "parallel", "processes", "recipes")]


@pytest.mark.parametrize("path", [*ON_ANY, *ON_EIGHT_DEVICES], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_on_eight_devices(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(path)
