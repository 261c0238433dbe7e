"""What a run was made from, besides its configuration: versions, and the state of git."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from declax._version import __version__

_PACKAGES: Final = ("jax", "jaxlib", "optax", "numpy")
_MAX_PATCH: Final = 1024 * 1024
_MAX_UNTRACKED: Final = 100
_SECONDS: Final = 30


class GitState(NamedTuple):
    """What git says of the code.

    Attributes:
      about: the commit, whether tracked files differ from it, and files of Python that git does not know.
      patch: the difference, or None if there is none or it is too large.
    """

    about: dict[str, Any]
    patch: bytes | None


def versions() -> dict[str, str]:
    """The versions of Python, declax and what it stands on."""
    found = {"python": platform.python_version(), "declax": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def script_folder() -> Path:
    """The folder of the script that runs, or the current one for a notebook and for programs that are installed."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    # Not resolved at once: an environment may lie behind a link.
    is_installed = any(found.is_relative_to(sys.prefix) for found in (path.absolute(), path.resolve()))
    return path.resolve().parent if path.is_file() and not is_installed else Path.cwd()


def git_state(folder: Path) -> GitState:
    """The commit of the repository around a folder, and what was changed since."""
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        if top is None:
            return GitState({"missing": "the script is in no repository of git"}, None)
        commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
        if commit is None:
            return GitState({"missing": "the repository has no commit"}, None)
        root = Path(top.decode().strip())
        patch = _git(root, "diff", "--binary", "--no-color", "--no-ext-diff", "HEAD") or b""
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py") or b""
    except FileNotFoundError:
        return GitState({"missing": "git is not installed"}, None)
    except (OSError, subprocess.TimeoutExpired) as error:
        return GitState({"missing": f"git did not answer: {type(error).__name__}"}, None)
    about: dict[str, Any] = {"commit": commit.decode().strip(), "is_dirty": bool(patch)}
    names = [name.decode(errors="replace") for name in untracked.split(b"\0") if name]
    if names:
        about["untracked"] = names[:_MAX_UNTRACKED]
    if len(patch) > _MAX_PATCH:
        about["patch"] = f"left out: it has {len(patch)} bytes, and at most {_MAX_PATCH} are kept"
        patch = b""
    return GitState(about, patch or None)


def _git(folder: Path, *words: str) -> bytes | None:
    """What a command of git prints; None if it fails."""
    command: Sequence[str] = ("git", "-C", str(folder), *words)
    without = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    ended = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS, env=without)
    return ended.stdout if ended.returncode == 0 else None
