"""`cli`: the command line of a user's own script.

    cfg = dx.cli(Train)

makes ``python train.py run.toml model.hidden=128`` work, with help made of the fields.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, overload

from declax.command_line.describing import parameter_table
from declax.command_line.main import Words, read_words, tell
from declax.command_line.overrides import expand
from declax.config._parameters import target_name
from declax.config.files.documents import Document
from declax.config.files.reading import FORMATS, read_document
from declax.config.loading import config_text, spec_from_config
from declax.config.schema import json_schema
from declax.config.spec import Spec
from declax.errors import ConfigError
from declax.rngs import Rngs

T = TypeVar("T")


class CliRun(NamedTuple, Generic[T]):
    """One run of a sweep.

    Attributes:
      name: the values that the sweep varies, as ``hidden=64,rate=0.1``; empty for the only run.
      config: what the script asked for.
      spec: what it was made of.
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

    The command line has at most one file and any number of overrides: ``run.toml model.hidden=128 ~model.head``.
    Several values (``model.hidden=64,128``) make as many runs where `sweep` allows it. ``--help`` shows the fields of
    the class, ``--show`` the configuration as it is resolved, ``--check`` only checks it, ``--schema`` prints the JSON
    schema.

    Args:
      target: the class that the configuration describes: a dataclass of the script's settings.
      argv: the words; those of the process by default.
      default: the file that is read where none is named.
      rngs: given to every part that takes them. A part that is built by the script itself is a field ``Spec[Model]``.
      extra: as in `from_config`.
      sweep: whether there may be several runs; they are returned as a list then.

    Returns:
      An object of the class, or with `sweep` a list of `CliRun`.

    Raises:
      SystemExit: after help and the like, with 1 for a wrong configuration, and 2 for a wrong command line.

    >>> import dataclasses, declax as dx
    >>> @dataclasses.dataclass
    ... class Train:
    ...     steps: int = 100
    ...     rate: float = 0.1
    >>> cli(Train, ["rate=0.5"])
    Train(steps=100, rate=0.5)
    >>> [run.name for run in cli(Train, ["rate=0.5,0.25", "steps=1"], sweep=True)]
    ['rate=0.5', 'rate=0.25']
    """
    parser = _parser(target, default, tuple(extra))
    options = parser.parse_intermixed_args(argv)
    if options.schema:
        print(json.dumps(json_schema(target, extra=extra), indent=2))
        sys.exit(0)
    try:
        words = read_words(options.words)
        found = list(_specs(target, words, default, tuple(extra), is_migrating=options.migrate))
    except ConfigError as error:
        _end(error)
    if len(found) > 1 and not sweep:
        parser.error(f"this script makes one run, and the values make {len(found)}: {found[0][0]}, {found[1][0]}, ...")
    if options.show or options.check:
        _show(found, options)
    try:
        runs = [CliRun(name, spec.build(rngs=rngs), spec) for name, spec in found]
    except ConfigError as error:
        _end(error)
    return runs if sweep else runs[0].config


def _end(error: ConfigError) -> NoReturn:
    sys.exit(tell(error))


def _show(found: list[tuple[str, Spec[Any]]], options: argparse.Namespace) -> NoReturn:
    for name, spec in found:
        if options.check:
            print(f"{name or target_name(spec.target)}: fingerprint {spec.fingerprint()[:12]}")
        else:
            print(*([f"# {name}"] if name else []), config_text(spec, ".json", full=options.full), sep="\n", end="")
    sys.exit(0)


def _specs(
    target: Any, words: Words, default: str | Path | None, extra: tuple[Any, ...], *, is_migrating: bool
) -> Iterable[tuple[str, Spec[Any]]]:
    if words.target is not None or len(words.files) > 1:
        got = ", ".join(filter(None, (words.target, *words.files)))
        raise ConfigError("the command line", "there is more than one file", got=got, fix="name one file")
    file = words.files[0] if words.files else default
    document = Document(None, {}) if file is None else read_document(file)
    for run in expand(document, words.overrides):
        spec = spec_from_config(target, run.document, extra=extra, migrate=is_migrating)
        spec.check()
        yield run.name, spec


def _parser(target: Any, default: str | Path | None, extra: tuple[Any, ...]) -> argparse.ArgumentParser:
    file = f"a configuration ({', '.join(FORMATS)}), and values in the place of those of it, such as a.b=3"
    about = f"fields of {parameter_table(target, has_parts=True, extra=extra)}"
    about += f"\n\nwithout a file: {default}" if default else ""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, epilog=about)
    parser.add_argument("words", nargs="*", metavar="FILE|PATH=VALUE", help=file)
    parser.add_argument("--check", action="store_true", help="only check the configuration")
    parser.add_argument("--show", action="store_true", help="print the configuration as it is resolved, as JSON")
    parser.add_argument("--full", action="store_true", help="with all defaults")
    parser.add_argument("--migrate", action="store_true", help="take old names and versions too")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")
    return parser
