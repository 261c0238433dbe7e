"""From the command line of a script to its run: a new folder, one that is resumed, or a copy of an older one."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from declax.config._cli.arguments import Words
from declax.config._cli.output import Output, usage_error, write
from declax.config._cli.runs import ReadRun, read_runs
from declax.config._cli.sources import documents_of
from declax.config._files.formats import FORMATS, read_document
from declax.config._reading.parameters import parameters_of, target_name
from declax.config._runs.changed import warn_of_changed
from declax.config._runs.commands import check_launched
from declax.config._runs.folders import (
    ABOUT,
    COMPLETE,
    PREPARED,
    RUNNING,
    RunFolder,
    find_folder,
    json_text,
    make_folder,
    now,
)
from declax.config._runs.locks import Lock
from declax.config._runs.provenance import git_state, script_folder, versions
from declax.config._runs.run import Run
from declax.config._runs.sweeping import Launch, known_runs
from declax.config._runs.teams import agreed, team_of_process
from declax.config._sources.loading import Loading
from declax.config._sources.sweeps import GRID, Plan
from declax.config._writing import plain_data, with_expressions
from declax.config.loading import to_config
from declax.config.schema import json_schema
from declax.config.specs import Spec
from declax.errors import ConfigError

SCHEMA: Final = "schema.json"
PATCH: Final = "diff.patch"
_NOTHING: Final = "-"  # what the first process tells the others when there is nothing to do


class Request(NamedTuple):
    """What the command line of a script asks for.

    Attributes:
      target: the class.
      words: of the command line.
      options: of the command line.
      plan: of a sweep.
      root: the folder of all runs.
      extra, env: as in `from_config`.
      build: makes the object of a spec, with a seed or None.
    """

    target: Any
    words: Words
    options: argparse.Namespace
    plan: Plan
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
        documents += documents_of(self.words) if has_words else []
        found, error = read_runs(documents, changes, loading, self.plan if has_words else GRID)
        if error is not None:
            raise error
        return found

    @property
    def texts(self) -> list[str]:
        """The files and words that change values, as they are written."""
        return [*self.words.files, *(word.text for word in self.words.changes)]


def start(request: Request, output: Output) -> Run[Any] | None:
    """The run of this process, or None if it has nothing to do."""
    team = team_of_process()
    if team.size == 1:
        run = _chosen(request, output)
    elif team.number == 0:
        run = _first_of_many(request, output)
    else:
        run = _other_of_many(request)
    if run is not None:
        run.build(lambda spec: request.build(spec, run.about.get("seed")))
    return run


def _first_of_many(request: Request, output: Output) -> Run[Any] | None:
    """The run of the process that keeps the folder."""
    told = ""
    try:
        run = _chosen(request, output, may_sweep=False)
        told = _NOTHING if run is None else str(run.path.resolve())
    finally:
        agreed(told)  # or the others would wait
    return run


def _other_of_many(request: Request) -> Run[Any] | None:
    """The same run in another process, which writes nothing about it."""
    path = agreed("")
    if not path:
        raise usage_error("the first process could not begin the run, and says why")
    if path == _NOTHING:
        return None
    folder = RunFolder(Path(path))
    loading = Loading(request.target, extra=request.extra, env=request.env, migrate=True)
    found, error = read_runs([read_document(folder.record)], (), loading)
    if error is not None:
        raise error
    return Run(folder, None, found[0].spec, is_resumed=len(folder.about["attempts"]) > 1)


def _chosen(request: Request, output: Output, *, may_sweep: bool = True) -> Run[Any] | None:
    options, older = request.options, request.older_folder
    if options.jobs < 1:
        raise usage_error("--jobs: not a number of runs", expected="at least 1", got=str(options.jobs), fix="--jobs 4")
    check_launched(options.resume, request.texts)
    if options.resume is not None and older is not None:
        return _resumed(older, request, output)
    found = request.read()
    if len(found) == 1 and options.launch is None:
        if options.jobs > 1 and "jobs" in parameters_of(request.target).by_name:
            problem, fix = "--jobs: there is one run, and the class has a field of this name", f"jobs={options.jobs}"
            raise usage_error(problem, got=f"--jobs {options.jobs}", fix=fix)
        (folder,) = prepare(found, request, older)
        return _begun(folder, folder.lock(), found[0].spec, request)
    if not may_sweep:
        got = f"{len(found)} runs"
        raise usage_error("several processes make one run, and no sweep", got=got, fix="one value for each field")
    _sweep(found, request, older, output)
    return None


def _sweep(runs: Sequence[ReadRun], request: Request, older: RunFolder | None, output: Output) -> None:
    """Runs what is not complete. Runs that were killed or failed go on in their folders."""
    launch = Launch(request.options, request.root, output)  # raises before there are folders
    seed = _seed(request, older)
    keys = {(run.spec.fingerprint(), seed): run for run in runs}  # equal ones run once
    known = {} if older is not None else known_runs(request.root)
    held = {key: known[key] for key in keys if key in known}
    done = {key: status for key, folder in held.items() if (status := folder.status) in (COMPLETE, RUNNING)}
    fresh = [key for key in keys if key not in held]
    held |= dict(zip(fresh, prepare([keys[key] for key in fresh], request, older), strict=True))
    pending = [held[key] for key in keys if key not in done]
    counts = [
        (list(done.values()).count(COMPLETE), "complete"),
        (list(done.values()).count(RUNNING), "running already"),
    ]
    parts = [f"{count} {text}" for count, text in (*counts, (len(pending), "to run")) if count]
    write(f"{len(keys)} runs: {', '.join(parts)}")
    launch.run(pending)


def _seed(request: Request, older: RunFolder | None) -> int | None:
    """The seed of the random streams: of the command line, or else of the older run."""
    found: int | None = request.options.seed
    return found if found is not None or older is None else older.about.get("seed")


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
        "seed": _seed(request, older),
        "files": [*before.get("files", ()), *request.words.files],
        "versions": versions(),
        "git": git.about,
    }
    if older is not None:
        about["rerun_of"] = older.path.name
    made: list[RunFolder] = []
    for run in runs:
        suffix, text = exact_record(run, request.extra)
        fingerprint = run.spec.fingerprint()
        own = {
            "fingerprint": fingerprint,
            "words": _merged(before.get("words", ()), run.words),
            "said": to_config(run.spec, extra=request.extra),
        }
        files = {**shared, f"config{suffix}": text, ABOUT: json_text({**about, **own, "attempts": []})}
        made.append(make_folder(request.root, fingerprint, files))
    return made


def exact_record(run: ReadRun, extra: tuple[Any, ...]) -> tuple[str, str]:
    """The suffix and text of the exact record: TOML, or JSON if TOML cannot say it.

    Values that follow others keep their expressions, so that they follow what a later word changes.
    """
    data = with_expressions(plain_data(run.spec, full=True, extra=extra), run.configuration.followed)
    try:
        return ".toml", FORMATS[".toml"].write(data)
    except ConfigError:
        return ".json", FORMATS[".json"].write(data)


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
        folder.keep_record(*exact_record(found[0], request.extra))
        folder.update(
            fingerprint=spec.fingerprint(),
            words=_merged(about["words"], found[0].words),
            files=[*about["files"], *request.words.files],
            said=to_config(spec, extra=request.extra),
            seed=_seed(request, folder),
        )
    if request.options.launch is not None:
        lock.release()
        Launch(request.options, request.root, output).run([folder])
        return None
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
    attempts = about.get("attempts", [])
    folder.begin({**attempt, **differing})
    return Run(folder, lock, spec, is_resumed=bool(attempts))
