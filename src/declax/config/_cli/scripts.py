"""`cli`: the command line of a user's own script, and the table of its parameters."""

from __future__ import annotations

import contextlib
import functools
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, overload

from declax._fields.annotations import annotation_text
from declax._fields.specifiers import multiple_of
from declax._graph.api import clone
from declax._random.streams import Rngs
from declax._text.objects import is_notebook
from declax._typing import MISSING
from declax.config._building import takes_rngs
from declax.config._cli.arguments import Words, read_words
from declax.config._cli.output import Output, usage_error
from declax.config._cli.parsing import script_parser
from declax.config._cli.runs import ReadRun, read_all
from declax.config._reading.docstrings import first_paragraph
from declax.config._reading.parameters import Parameter, parameters_of, target_name
from declax.config._runs.listing import list_runs
from declax.config._runs.run import Run
from declax.config._runs.starting import Request, start
from declax.config._sources.loading import Loading
from declax.config._sources.sweeps import Plan
from declax.config._sources.words import parse_word
from declax.config.loading import config_text, to_config
from declax.config.specs import Spec
from declax.errors import ConstructionError

_WIDTH: Final = 100
_INDENT: Final = "  "


def parameter_table(target: Any) -> str:
    """The parameters of a class: name, type, default, range and help.

    >>> import declax as dx
    >>> print(parameter_table(dx.Dropout).splitlines()[2])
      rate: float, at least 0.0, at most 1.0
    """
    lines = [target_name(target), *textwrap.wrap(first_paragraph(target), _WIDTH, initial_indent=_INDENT)[:1]]
    further = 3 * _INDENT
    for parameter in parameters_of(target):
        lines.append(f"{_INDENT}{parameter.name}: {', '.join(_facts(parameter))}")
        text = parameter.help or ""
        lines += textwrap.wrap(text, _WIDTH, initial_indent=further, subsequent_indent=further)
    return "\n".join(lines)


def _facts(parameter: Parameter) -> list[str]:
    notes = parameter.notes
    facts = [parameter.written or annotation_text(parameter.annotation) or "any"]
    if (choices := notes.get("choices")) is not None:
        facts.append("one of " + ", ".join(map(repr, choices)))
    bounds = ("at least", notes.get("ge")), ("at most", notes.get("le")), ("a multiple of", multiple_of(notes))
    facts += [f"{word} {bound}" for word, bound in bounds if bound is not None]
    name = getattr(notes.get("check"), "__name__", "<lambda>")
    facts += [f"checked by {name}"] if name != "<lambda>" else []
    if parameter.default is not MISSING or parameter.default_factory is not None:
        default = parameter.make_default()
        name = getattr(default, "__name__", None)
        text = name if isinstance(name, str) else repr(default)
        facts.append(f"default {text if len(text) <= 60 else f'{text[:57]}...'}")
    return facts


T = TypeVar("T")

SEED: Final = "seed"


class CliRun(NamedTuple, Generic[T]):
    """One run of a sweep.

    Attributes:
      name: the values that the sweep varies, such as ``hidden=64,rate=0.1``; empty for a single run.
      config: the object of the class.
      spec: the spec from which it was built.
    """

    name: str
    config: T
    spec: Spec[T]


class Sweep(Sequence[CliRun[T]]):
    """The runs of a sweep. Each access to a run builds it, with keys of its own; none is kept.

    >>> import dataclasses, declax as dx
    >>> @dataclasses.dataclass
    ... class Train:
    ...     rate: float = 0.1
    >>> sweep = dx.cli(Train, ["rate=0.5,0.25"], sweep=True)
    >>> len(sweep), sweep[1].config
    (2, Train(rate=0.25))
    """

    def __init__(self, runs: Sequence[ReadRun], build: Callable[[Spec[Any]], Any]) -> None:
        self._runs = tuple(runs)
        self._build = build

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int, /) -> CliRun[T]: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sweep[T]: ...
    def __getitem__(self, index: int | slice, /) -> CliRun[T] | Sweep[T]:
        if isinstance(index, slice):
            return Sweep(self._runs[index], self._build)
        run = self._runs[index]
        return CliRun(run.name, self._build(run.spec), run.spec)

    @property
    def names(self) -> list[str]:
        """The names of the runs, of which none is built."""
        return [run.name for run in self._runs]

    @property
    def specs(self) -> list[Spec[T]]:
        """The specs of the runs, of which none is built."""
        return [run.spec for run in self._runs]

    def __repr__(self) -> str:
        return f"Sweep({', '.join(self.names)})"


@overload
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    sweep: Literal[False] = False,
    runs: None = None,
) -> T: ...
@overload
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    sweep: Literal[True],
    runs: None = None,
) -> Sweep[T]: ...
@overload
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    sweep: Literal[False] = False,
    runs: str | Path,
) -> Run[T]: ...
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    sweep: bool = False,
    runs: str | Path | None = None,
) -> Any:
    """Reads the configuration of a script from its command line.

    The command line has files, of which later ones win, and words: ``base.toml cluster.toml model.hidden=128``.
    With `sweep`, several values (``model.hidden=64,128``) make several runs. ``--help`` shows the fields of the class,
    ``--show`` prints the resolved configuration, ``--seed`` sets the seed of the random streams. If the class has a
    field `seed`, ``--seed 3`` is the word ``seed=3``, and the streams have the seed of that field.

    Args:
      target: the class that the configuration describes: a dataclass of the script's settings.
      argv: the words; by default the arguments of the process.
      default: the file to read if the command line names none.
      rngs: each run passes a copy to every part that takes `rngs`, in place of ``dx.Rngs(seed)``. To build a part in
        the script, annotate its field ``Spec[Model]``.
      extra, env: as in `from_config`.
      sweep: whether several runs are allowed; the result is then a `Sweep`.
      runs: a folder, in which each run gets a folder of its own, with its exact record; the result is then a `Run`.
        ``--resume`` continues one, and ``--rerun`` starts it anew. Several values make several runs, each in a process
        of its own, which executes the script again.

    Returns:
      An object of the class; with `runs` a `Run`; with `sweep` a sequence of `CliRun`, each of which is built when it
      is read.

    Raises:
      SystemExit: after ``--help`` and similar options; with 1 for a wrong configuration, 2 for a wrong command line.
        In a notebook nothing exits: what is wrong is raised as it is, and the words are those of `argv` only.

    >>> import dataclasses, declax as dx
    >>> @dataclasses.dataclass
    ... class Train:
    ...     steps: int = 100
    ...     rate: float = 0.1
    >>> dx.cli(Train, ["rate=0.5"])
    Train(steps=100, rate=0.5)
    >>> [run.name for run in dx.cli(Train, ["rate=0.5,0.25", "steps=1"], sweep=True)]
    ['rate=0.5', 'rate=0.25']
    """
    if sweep and runs is not None:
        problem = "with `runs`, each run of a sweep is a process of its own, so that none is left for `sweep`"
        raise ConstructionError("dx.cli", problem, fix="dx.cli(..., runs=...)")
    in_notebook = is_notebook()
    given = argv if argv is not None else [] if in_notebook else sys.argv[1:]  # a kernel has words of its own
    output = Output(is_json="--format=json" in given or ("--format", "json") in pairwise(given))
    arguments = _Arguments(target, default, rngs, tuple(extra), env, sweep, None if runs is None else Path(runs))
    if in_notebook:
        with contextlib.suppress(SystemExit):  # of --help
            found = _result(arguments, given, output)
            return None if found is _PRINTED else found
        return None
    with output.running():
        found = _result(arguments, given, output)
        if found is not _PRINTED:
            return found
    sys.exit(output.status)


class _Arguments(NamedTuple):
    """The arguments of `cli`."""

    target: Any
    default: str | Path | None
    rngs: Rngs | None
    extra: tuple[Any, ...]
    env: Collection[str]
    sweep: bool
    runs: Path | None


_PRINTED: Final = object()
"""The result of words that only print."""


def _result(arguments: _Arguments, given: Sequence[str], output: Output) -> Any:
    """The object of the words, or the runs; raises what is wrong with them."""
    target, default, rngs, extra, env, sweep, runs = arguments
    about = f"fields of {parameter_table(target)}"
    about += f"\n\nwithout a file: {default}" if default else ""
    options = script_parser(about, has_runs=runs is not None).parse_words(given, parameters_of(target).by_name)
    words = with_seed(read_words(options.words, takes_part=False), target, options.seed)
    if words.target is not None:
        raise usage_error("a script takes no class", got=words.target, fix="remove it")
    kept = None if rngs is None else clone(rngs)  # as it is now: the caller may draw from it
    plan = Plan(options.samples, options.sweep_seed, tuple(tuple(group.split(",")) for group in options.zip))
    request = None
    if runs is not None:
        request = Request(target, words, options, plan, runs, extra, env, functools.partial(_built, rngs=kept))
    if default is not None and not words.files and (request is None or request.older is None):
        words = words._replace(files=(str(default),))
    if request is not None:
        request = request._replace(words=words)  # with the default file
    if request is not None and options.status is not None:
        list_runs(Path(options.status or request.root), output)
        return _PRINTED
    if request is not None and not options.show:
        begun = start(request, output)
        if begun is None:
            return _PRINTED
        return begun
    found = read_all(words, Loading(target, extra=extra, env=env), plan) if request is None else request.read()
    if len(found) > 1 and not sweep and request is None:
        got = f"{found[0].name}, {found[1].name}, ..."
        problem = f"this script allows one run, but the values make {len(found)}"
        raise usage_error(problem, got=got, fix="give each field one value, or call dx.cli with sweep=True or runs=")
    if not options.show:
        made: Sweep[Any] = Sweep(found, functools.partial(_built, rngs=kept, seed=options.seed))
        return made if sweep else made[0].config
    for run in found:
        if output.is_json:
            output.add(run.name, "", to_config(run.spec, extra=extra))
        else:
            output.add(run.name, config_text(run.spec, f".{options.format}", extra=extra), None, options.format)
    return _PRINTED


def _built(spec: Spec[T], seed: int | None, *, rngs: Rngs | None) -> T:
    if not takes_rngs(spec):
        return spec.build()
    # Not before: a script may call jax.distributed.initialize, which has to come before the first array.
    return spec.build(rngs=rngs_of(spec, seed) if rngs is None else clone(rngs))


def rngs_of(spec: Spec[Any], seed: int | None) -> Rngs:
    """The random streams of a run: with the seed in its configuration, or else that of the command line."""
    held = spec[SEED] if SEED in spec.parameters.by_name else seed
    return Rngs(held if isinstance(held, int) else 0)


def with_seed(words: Words, target: Any, seed: int | None) -> Words:
    """The words, with the seed of the option `--seed` as a word if the class has a field of that name."""
    if seed is None or SEED not in parameters_of(target).by_name:
        return words
    said = next((word.text for word in words.changes if word.path == (SEED,)), None)
    if said is not None:
        raise usage_error("the seed is given twice", got=f"--seed {seed}, and {said}", fix=said)
    return words._replace(changes=(*words.changes, parse_word(f"{SEED}={seed}")))
