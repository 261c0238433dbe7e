"""The table of runs in a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from declax._text.tables import aligned
from declax.config._cli.output import Output, usage_error
from declax.config._runs.folders import UNREADABLE, RunFolder, folders_in

_HEADER: Final = ["run", "status", "begun", "words"]


def list_runs(root: Path, output: Output) -> None:
    """Prints the runs of a folder: name, status, time and words.

    Raises:
      DeclaxError: there is no such folder.
    """
    if not root.is_dir():
        raise usage_error("there is no such folder of runs", got=str(root))
    found = [_described(folder) for folder in folders_in(root)]
    rows = [[one["run"], one["status"], one["time"], " ".join([*one["files"], *one["words"]])] for one in found]
    counts = Counter(one["status"] for one in found)
    total = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    text = aligned([_HEADER, *rows, [f"{len(rows)} runs", "", "", total]], texts=_HEADER)
    output.add("", text, found, "table")


def _described(folder: RunFolder) -> dict[str, Any]:
    status = folder.status
    about = {} if status == UNREADABLE else folder.about
    found: dict[str, Any] = {key: about.get(key) for key in ("fingerprint", "seed", "ended")}
    said = {"time": about.get("time", ""), "files": about.get("files", []), "words": about.get("words", [])}
    return {"run": folder.path.name, "status": status, **found, **said}
