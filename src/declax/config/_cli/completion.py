"""Scripts with which shells complete commands, options and their values, made from the parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from declax.config._cli.parsing import Parser, declax_parser, script_parser

_BASH: Final = """\
{name}() {{
  local words="" command="" word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  {command}
  case "$command $before $word" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F {name} {program}
"""
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


def script(shell: str, program: str) -> str:
    """What a shell has to read so that it completes ``declax``, or a script with `cli`."""
    parser = declax_parser() if Path(program).name == "declax" else script_parser("")
    if shell == "fish":
        return "".join(f"complete -c {shlex.quote(program)} {line}\n" for line in _fish_lines(parser))
    cases = "\n".join(f'    {pattern}) words="{" ".join(words)}" ;;' for pattern, words in _cases(parser))
    command = '(( COMP_CWORD > 1 )) && command="${COMP_WORDS[1]}"' if parser.commands else ""
    name = "_complete_" + "".join(c if c.isalnum() else "_" for c in program)
    text = _BASH.format(name=name, program=shlex.quote(program), command=command, cases=cases)
    return _ZSH + text if shell == "zsh" else text


def _cases(parser: Parser) -> Iterator[tuple[str, list[str]]]:
    """Patterns of the command, the word before and the word that is typed, with what this may be."""
    for name, command in {**parser.commands, "": parser}.items():
        for action in command.arguments:
            for before in action.option_strings if action.nargs != 0 else ():
                yield f'"{name} {before} "*', list(map(str, action.choices or ()))
        yield f'"{name} "*" -"*', list(map(_long, filter(_is_option, command.arguments)))
        words = [word for action in command.arguments if not _is_option(action) for word in action.choices or ()]
        yield f'"{name} "*', [*words, *command.commands]


def _fish_lines(parser: Parser) -> Iterator[str]:
    if parser.commands:
        yield f"-n __fish_use_subcommand -fa {shlex.quote(' '.join(parser.commands))}"
    for name, command in {**parser.commands, "": parser}.items():
        condition = f"-n '__fish_seen_subcommand_from {name}' " if name else ""
        for action in command.arguments:
            option = f"-l {_long(action).removeprefix('--')} " if _is_option(action) else ""
            if action.choices:
                yield f"{condition}{option}-xa {shlex.quote(' '.join(map(str, action.choices)))}"
            elif option:
                yield f"{condition}{option}{'-r' if action.nargs != 0 else ''}".rstrip()


def _is_option(action: argparse.Action) -> bool:
    return bool(action.option_strings)


def _long(action: argparse.Action) -> str:
    return action.option_strings[-1]
