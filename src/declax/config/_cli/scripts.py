"""`cli`: the command line of a user's own script, and the table of its parameters."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, overload

from declax._fields.annotations import annotation_text
from declax._fields.specifiers import multiple_of
from declax._random.streams import Rngs
from declax._typing import MISSING
from declax.config._building import takes_rngs
from declax.config._cli.output import Output, usage_error
from declax.config._cli.overrides import read_all, read_words
from declax.config._cli.parsing import script_parser
from declax.config._reading.docstrings import first_paragraph
from declax.config._reading.parameters import Parameter, parameters_of, target_name
from declax.config.loading import spec_from_config, to_config
from declax.config.specs import Spec

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


@overload
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    sweep: Literal[False] = False,
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
    sweep: Literal[True],
) -> list[CliRun[T]]: ...
def cli(
    target: type[T],
    /,
    argv: Sequence[str] | None = None,
    *,
    default: str | Path | None = None,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    sweep: bool = False,
) -> Any:
    """Reads the configuration of a script from its command line.

    The command line has at most one file and any number of overrides: ``run.toml model.hidden=128``.
    With `sweep`, several values (``model.hidden=64,128``) make several runs. ``--help`` shows the fields of the class,
    ``--show`` prints the resolved configuration, ``--seed`` sets the seed of the random streams.

    Args:
      target: the class that the configuration describes: a dataclass of the script's settings.
      argv: the words; by default the arguments of the process.
      default: the file to read if the command line names none.
      rngs: passed to every part that takes `rngs`, in place of ``dx.Rngs(seed)`` with the seed of the command line. To
        build a part in the script, annotate its field ``Spec[Model]``.
      extra: as in `from_config`.
      sweep: whether several runs are allowed; the result is then a list.

    Returns:
      An object of the class, or with `sweep` a list of `CliRun`.

    Raises:
      SystemExit: after ``--help`` and similar options; with 1 for a wrong configuration, 2 for a wrong command line.

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
    given = sys.argv[1:] if argv is None else argv
    output, extra = Output(is_json="--show" in given), tuple(extra)
    with output.running():
        about = f"fields of {parameter_table(target)}"
        options = script_parser(about + (f"\n\nwithout a file: {default}" if default else "")).parse_words(given)
        words = read_words(options.words, takes_part=False)
        if words.target is not None:
            raise usage_error("a script takes no class", got=words.target, fix="remove it")
        if default is not None and not words.files:
            words = words._replace(files=(str(default),))
        found = read_all(words, functools.partial(spec_from_config, target, extra=extra))
        if len(found) > 1 and not sweep:
            got = f"{found[0][0].name}, {found[1][0].name}, ..."
            problem = f"this script allows one run, but the values make {len(found)}"
            raise usage_error(problem, got=got, fix="give each field one value, or call dx.cli with sweep=True")
        if not options.show:
            runs = []
            for run, spec in found:
                # A script may call jax.distributed.initialize later, which has to come before the first array.
                own = Rngs(options.seed) if rngs is None and takes_rngs(spec) else rngs
                runs.append(CliRun(run.name, spec.build(rngs=own), spec))
            return runs if sweep else runs[0].config
        for run, spec in found:
            output.add(run.name, "", to_config(spec, extra=extra))
    sys.exit(output.status)
