"""From the command line of a script to its run: a new folder, one that is resumed, or a copy of an older one."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from declax.config._cli.arguments import Words
from declax.config._cli.output import Output, usage_error
from declax.config._cli.runs import ReadRun, documents_of, read_runs
from declax.config._files.formats import read_document
from declax.config._reading.parameters import target_name
from declax.config._runs.changed import warn_of_changed
from declax.config._runs.folders import ABOUT, COMPLETE, PREPARED, RunFolder, find_folder, json_text, make_folder, now
from declax.config._runs.locks import Lock
from declax.config._runs.provenance import git_state, script_folder, versions
from declax.config._runs.run import Run
from declax.config._sources.loading import Loading
from declax.config.loading import config_text, to_config
from declax.config.schema import json_schema
from declax.config.specs import Spec
from declax.errors import ConfigError

SCHEMA: Final = "schema.json"
PATCH: Final = "diff.patch"


class Request(NamedTuple):
    """What the command line of a script asks for.

    Attributes:
      target: the class.
      words: of the command line.
      options: of the command line.
      root: the folder of all runs.
      extra, env: as in `from_config`.
      build: makes the object of a spec, with a seed or None.
    """

    target: Any
    words: Words
    options: argparse.Namespace
    root: Path
    extra: tuple[Any, ...]
    env: Collection[str]
    build: Callable[[Spec[Any], int | None], Any]

    @property
    def older(self) -> str | None:
        """The run whose record comes first, if there is one."""
        if self.options.resume is not None and self.options.rerun is not None:
            raise usage_error("a run is either resumed or run anew", got="--resume and --rerun", fix="give one of them")
        found: str | None = self.options.rerun if self.options.resume is None else self.options.resume
        return found

    @property
    def older_folder(self) -> RunFolder | None:
        return None if self.older is None else find_folder(self.older, self.root)

    def read(self, *, has_words: bool = True) -> list[ReadRun]:
        """The runs that the words describe, on top of the record of an older one."""
        older = self.older_folder
        loading = Loading(self.target, extra=self.extra, env=self.env, migrate=older is not None)
        documents = [] if older is None else [read_document(older.record)]
        changes = self.words.changes if has_words else ()
        found, error = read_runs([*documents, *(documents_of(self.words) if has_words else ())], changes, loading)
        if error is not None:
            raise error
        return found

    @property
    def texts(self) -> list[str]:
        """The files and words that change values, as they are written."""
        return [*self.words.files, *(word.text for word in self.words.changes)]


def start(request: Request, output: Output) -> Run[Any] | None:
    """The run of this process, or None if it has nothing to do."""
    older = request.older_folder
    if request.options.resume is not None and older is not None:
        return _resumed(older, request, output)
    found = request.read()
    (folder,) = prepare(found, request, older)
    return _begun(folder, folder.lock(), found[0].spec, request)


def prepare(runs: Sequence[ReadRun], request: Request, older: RunFolder | None) -> list[RunFolder]:
    """Makes the folders of runs."""
    git = git_state(script_folder())
    shared: dict[str, str | bytes] = {SCHEMA: json_text(json_schema(request.target, extra=request.extra))}
    if git.patch is not None:
        shared[PATCH] = git.patch
    before: dict[str, Any] = {} if older is None else older.about
    about = {
        "class": target_name(request.target),
        "status": PREPARED,
        "time": now(),
        "seed": request.options.seed if request.options.seed is not None else before.get("seed"),
        "files": [*before.get("files", ()), *request.words.files],
        "versions": versions(),
        "git": git.about,
    }
    if older is not None:
        about["rerun_of"] = older.path.name
    made = []
    for run in runs:
        suffix, text = exact_record(run.spec, request.extra)
        own = {
            "fingerprint": run.spec.fingerprint(),
            "words": _merged(before.get("words", ()), run.words),
            "said": to_config(run.spec, extra=request.extra),
        }
        files = {**shared, f"config{suffix}": text, ABOUT: json_text({**about, **own, "attempts": []})}
        made.append(make_folder(request.root, own["fingerprint"], files))
    return made


def exact_record(spec: Spec[Any], extra: tuple[Any, ...]) -> tuple[str, str]:
    """The suffix and text of the exact record: TOML, or JSON if TOML cannot say it."""
    try:
        return ".toml", config_text(spec, ".toml", full=True, extra=extra)
    except ConfigError:
        return ".json", config_text(spec, ".json", full=True, extra=extra)


def _resumed(folder: RunFolder, request: Request, output: Output) -> Run[Any] | None:
    words = " ".join(request.texts)
    found = request.read()
    if len(found) > 1:
        raise usage_error("one run is resumed, and the values make several", got=words, fix=f"--rerun {folder.path}")
    spec, about = found[0].spec, folder.about
    alone = request.read(has_words=False)[0].spec if request.texts else spec
    is_changed = spec.fingerprint() != alone.fingerprint() or request.options.seed not in (None, about.get("seed"))
    if folder.status == COMPLETE:
        if is_changed:
            problem, fix = "the run is complete, and the words would change it", f"--rerun {folder.path} {words}"
            raise usage_error(problem, got=f"{folder.path} {words}".strip(), fix=fix.strip())
        output.add("", f"{folder.path} is complete: there is nothing to resume", about)
        return None
    lock = folder.lock()
    warn_of_changed(folder, alone, request.target, request.extra, request.env)
    if is_changed:
        folder.keep_record(*exact_record(spec, request.extra))
        folder.update(
            fingerprint=spec.fingerprint(),
            words=_merged(about["words"], found[0].words),
            files=[*about["files"], *request.words.files],
            said=to_config(spec, extra=request.extra),
            seed=about.get("seed") if request.options.seed is None else request.options.seed,
        )
    return _begun(folder, lock, spec, request)


def _merged(older: Sequence[str], newer: Sequence[str]) -> list[str]:
    """The words of two command lines; a newer one replaces what was said of the same path."""
    paths = {word.partition("=")[0] for word in newer}
    return [*(word for word in older if word.partition("=")[0] not in paths), *newer]


def _begun(folder: RunFolder, lock: Lock, spec: Spec[Any], request: Request) -> Run[Any]:
    about = folder.about
    made = {"versions": versions(), "git": git_state(script_folder()).about}
    differing = {key: value for key, value in made.items() if value != about.get(key)}
    attempt = {"time": now(), "host": socket.gethostname(), "process": os.getpid(), "words": request.texts}
    run: Run[Any] = Run(folder, lock, spec, {**attempt, **differing})
    run.build(lambda spec: request.build(spec, about.get("seed")))
    return run
