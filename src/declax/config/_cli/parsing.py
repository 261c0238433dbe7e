"""The commands and options of ``declax`` and of `cli`, and completion in shells. Does not load JAX."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

from declax._version import __version__
from declax.config._cli.output import usage_error, write
from declax.config._files.formats import SUFFIXES
from declax.config.problems import did_you_mean, steps_of

LANGUAGES: Final = ("toml", "json", "yaml")
SHELLS: Final = ("bash", "zsh")
_FILES: Final = ", ".join(SUFFIXES)
_WORDS: Final = (
    f"module:Class, files ({_FILES}; later ones win), and words such as blocks.0.hidden=128 or blocks[*].rate=0"
)
_PART: Final = f"{_WORDS}; a word such as model or blocks.0 selects a part"


class Parser(argparse.ArgumentParser):
    """A parser that knows its commands, colours its help, and raises errors of declax."""

    def __init__(self, **settings: Any) -> None:
        self.commands: dict[str, Parser] = {}
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self._made: Any = None

    def add_options(self, names: str) -> None:
        for name in names.split():
            self.add_argument(name, **_OPTIONS[name])

    def add_command(self, name: str, about: str, words: str | None, options: str, *examples: str) -> Parser:
        """Adds a command with some of the options; it takes words if their help is given."""
        if self._made is None:
            self._made = self.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
        made: Parser = self._made.add_parser(name, help=about, description=about, epilog=_examples(*examples))
        if words is not None:
            made.add_argument("words", nargs="*", metavar="WORD", help=words)
        made.add_options(options)
        self.commands[name] = made
        return made

    def print_help(self, file: Any = None) -> None:
        write(self.format_help(), "help", file)

    def error(self, message: str) -> NoReturn:
        problem, _, choices = message.partition(" (choose from ")
        wrong = problem.partition("invalid choice: ")[2].strip("'")
        fix = did_you_mean(wrong, choices.removesuffix(")").replace("'", "").split(", ")) if wrong else None
        raise usage_error(problem, expected=choices.removesuffix(")") or None, fix=fix or f"{self.prog} --help")

    def parse_words(self, argv: Sequence[str], fields: Collection[str] = ()) -> argparse.Namespace:
        """The options and words of a command line in any order; options may precede the command.

        Flags are understood as words: `--model.dim 4` and `--model.dim=4`, and `--steps 4` for a name in `fields`.
        """
        argv = self._without_flags(argv, fields)
        # `parse_intermixed_args` does not support commands
        at = next((index for index, word in enumerate(argv) if word in self.commands), 0)
        options, rest = self.parse_known_args([*argv[at : at + 1], *argv[:at], *argv[at + 1 :]])
        if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:
            options.words += rest
        return options

    def _without_flags(self, argv: Sequence[str], fields: Collection[str]) -> list[str]:
        """A command line with words in the place of flags that are no options."""
        options = {name for parser in (self, *self.commands.values()) for name in parser._option_string_actions}
        found: list[str] = []
        words = iter(argv)
        for word in words:
            flag, equals, _ = word.partition("=")
            path = flag.removeprefix("--")
            if not word.startswith("--") or flag in options or steps_of(path) is None:
                found.append(word)
            elif equals:
                found.append(word.removeprefix("--"))
            elif "." in path or path in fields:
                value = next(words, None)
                if value is None or value.startswith("--"):
                    raise usage_error(f"{word}: the value is missing", fix=f"{path}=...")
                found.append(f"{path}={value}")
            else:
                found.append(word)
        return found


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--show": {"action": "store_true", "help": "print the resolved configuration"},
    "--full": {"action": "store_true", "help": "the exact record: all defaults, computed values and versions"},
    "--origins": {"action": "store_true", "help": "where each value was said, what it replaced, and alternatives"},
    "--env": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "a variable of the environment that the configuration may read; repeat it for several",
    },
    "--migrate": {"action": "store_true", "help": "accept old names and versions"},
    "--input": {
        "action": "append",
        "default": [],
        "metavar": "TYPE",
        "help": "the type of an input, such as float32[8,28,28,1] or int32[b, n]; repeat it for several inputs",
    },
    "--mesh": {
        "metavar": "AXES",
        "help": "the sizes of mesh axes, such as data=4,model=2, for the bytes on each device",
    },
    "--rules": {"metavar": "RULES", "default": "", "help": "axes of logical names, such as embed=,mlp=model"},
    "--strategy": {
        "choices": ("names", "fsdp"),
        "default": "names",
        "help": "how arrays are split (default: by names)",
    },
    "--memory": {
        "metavar": "KINDS",
        "default": "",
        "help": "which memory holds Variables of a kind, such as OptVariable=pinned_host",
    },
    "--out": {"metavar": "FILE", "help": "write the plan to a file too, which dx.Plan.read reads"},
    "--optimizer": {"metavar": "NAME", "help": "an optimizer of optax, such as adam, whose state counts too"},
    "--strict": {"action": "store_true", "help": "warnings are errors, such as axes that are added by chance"},
    "--seed": {
        "type": int,
        "help": "the seed of the random streams that parts take, and of the field seed if there is one (default 0)",
    },
    "--zip": {
        "action": "append",
        "default": [],
        "metavar": "PATH,PATH",
        "help": "values of these paths go together, the first with the first; repeat it for several groups",
    },
    "--samples": {"type": int, "metavar": "N", "help": "how many values uniform(a,b) and other random ones give"},
    "--sweep-seed": {"type": int, "metavar": "N", "help": "the seed of the random values of a sweep (default 0)"},
    "--jobs": {"type": int, "default": 1, "metavar": "N", "help": "how many runs of a sweep run at once (default 1)"},
    "--launch": {
        "choices": ("slurm", "local"),
        "help": "run a sweep on a cluster, by submitit; local: on this machine",
    },
    "--launch-option": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "an option of submitit, such as timeout_min=60 or slurm_partition=gpu; repeat it for several",
    },
    "--resume": {"metavar": "RUN", "help": "continue a run, by its folder or the beginning of its name"},
    "--rerun": {"metavar": "RUN", "help": "start a run anew, in another folder; words change its values"},
    "--status": {
        "metavar": "FOLDER",
        "nargs": "?",
        "const": "",
        "help": "list the runs of a folder (by default that of the script), with what became of each",
    },
    "--diff": {"action": "store_true", "help": "only show the difference"},
    "--write": {"action": "store_true", "help": "change the files; without it, only show the difference"},
    "--format": {"choices": ("text", "json"), "default": "text", "help": "json: one JSON document, errors too"},
}


def declax_parser() -> Parser:
    parser = Parser(
        prog="declax",
        description="Show, check and build configured models.",
        epilog=_examples("check models:Net net.toml", "show models:Net", "COMMAND --help"),
    )
    parser.add_argument("--version", action="version", version=f"declax {__version__}")
    add = parser.add_command
    add(
        "check", "check configurations, and shapes for every size, and list all mistakes",
        f"{_WORDS}; or Python files, of which all declared classes with annotated calls are checked",
        "--migrate --env --input --strict --format",
        "check models:Net net.toml", "check models:Net net.toml rate=0.1,0.2", "check models.py",
        "check models:GPT run.toml --input 'int32[b, n]'",
    )  # fmt: skip
    show = add(
        "show", "show the parameters of a class, or a resolved configuration", _PART, "",
        "show models:Net", "show models:Net net.toml --full blocks.0.dim=4",
        "show settings:Run run.toml model --format yaml",
    )  # fmt: skip
    show.add_argument("--format", choices=LANGUAGES, default="toml", help="the output format (default toml)")
    show.add_options("--full --origins --env --migrate")
    add(
        "summary", "count parameters and bytes, without allocating arrays", _PART,
        "--env --input --mesh --rules --optimizer --format",
        "summary models:Net net.toml --input float32[8,28,28,1]", "summary settings:Run run.toml model",
        "summary models:Net net.toml --mesh data=4,model=2 --optimizer adam",
    )  # fmt: skip
    add(
        "plan", "show where each array is on a mesh, why, and its bytes on each device; no device is needed", _PART,
        "--env --mesh --strategy --rules --memory --optimizer --out --format",
        "plan models:GPT gpt.toml --mesh data=64,model=4 --strategy fsdp",
        "plan models:GPT gpt.toml --mesh data=8,model=4 --rules embed=,mlp=model --optimizer adam --out plan.json",
    )  # fmt: skip
    add(
        "build", "build the model and summarize it", _PART, "--env --seed --format",
        "build models:Net net.toml --seed 3", "build settings:Run run.toml model",
    )  # fmt: skip
    about = "write the JSON schema of a class, for editors"
    schema = add("schema", about, "module:Class", "", "schema models:Net -o net.schema.json")
    schema.add_argument("-o", "--out", metavar="FILE", help="write to a file instead of the standard output")
    add(
        "diff", "show how two configurations, run folders or checkpoints differ: by path, and by what they build",
        "module:Class, two files or folders, and words that change both", "--env --input --migrate --format",
        "diff models:Net base.toml large.toml", "diff train:Run runs/ab12 runs/cd34 --input int32[8,16]",
    )  # fmt: skip
    add(
        "set", "change values of files, and keep comments, order and all other bytes",
        "files, words such as blocks[*].hidden=128 or ~schedule, and module:Class to check them",
        "--diff --env --format",
        "set run.toml 'model.blocks[*].feed.hidden=128'", "set settings:Run run.toml steps=3 --diff",
    )  # fmt: skip
    add(
        "migrate", "bring files of older versions up to date: renamed fields, and versions of classes",
        "module:Class and files", "--diff --env --format", "migrate models:Net net.toml",
    )  # fmt: skip
    add(
        "rename", "give a field another name, in code and configurations below the current folder",
        "the field, as module:Class.field or models.py:Class.field, and its new name", "--write --format",
        "rename models.py:Block.hidden width", "rename models.py:Block.hidden width --write",
    )  # fmt: skip
    runs = add("runs", "list the runs of a folder, with what became of each", None, "--format", "runs", "runs results/")
    runs.add_argument(
        "folder", nargs="?", default="runs", metavar="FOLDER", help="the folder of all runs (default runs)"
    )
    completion = add(
        "completion", "print a script that completes commands and options in a shell", None, "",
        'eval "$(declax completion bash)"',
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS)
    return parser


def script_parser(about: str, *, has_runs: bool = False) -> Parser:
    parser = Parser(epilog=about)
    words = f"configuration files ({_FILES}; later ones win), and words that change values, such as a.b=3"
    parser.add_argument("words", nargs="*", metavar="FILE|PATH=VALUE", help=words)
    parser.add_options("--show --seed --zip --samples --sweep-seed")
    parser.add_argument("--format", choices=LANGUAGES, default="toml", help="the format of --show (default toml)")
    if has_runs:
        parser.add_options("--resume --rerun --status --jobs --launch --launch-option")
    return parser


def _examples(*lines: str) -> str:
    commands = (line if line.startswith("eval") else f"declax {line}" for line in lines)
    return "\n".join(["examples:", *(f"  {command}" for command in commands)])


# --- completion -----------------------------------------------------------------

COMPLETE: Final = "_complete"
"""The command that prints what a shell offers for the last word."""

# Bash splits words at "=" and ":", so that the line is split at spaces here.
_SCRIPT: Final = """\
_declax() {{
  local words="" word="${{COMP_WORDS[COMP_CWORD]}}" line
  case "$COMP_CWORD ${{COMP_WORDS[1]}} $word" in
{cases}
  *)
    if [ "$COMP_CWORD" -gt 2 ]; then
      line=(${{COMP_LINE:0:$COMP_POINT}})
      case "$COMP_LINE" in *" ") line+=("") ;; *) word="${{line[-1]}}" ;; esac
      words="$(declax {complete} "${{line[@]:2}}" 2>/dev/null)"
      case "$word" in *=*) ;; *) type compopt >/dev/null 2>&1 && compopt -o nospace ;; esac
    fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word")){behind}
}}
complete -o default -F _declax declax
"""
_BEHIND_EQUALS: Final = """
  case "$word" in *=*) COMPREPLY=("${{COMPREPLY[@]#*=}}") ;; esac"""
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


def completion_script(shell: str) -> str:
    """The script with which a shell completes the commands of ``declax`` and their options."""
    parser = declax_parser()
    words = {'"1 "*': [*parser.commands, *parser._option_string_actions]}
    words.update((f'*" {name} -"*', list(command._option_string_actions)) for name, command in parser.commands.items())
    cases = "\n".join(f'    {case}) words="{" ".join(found)}" ;;' for case, found in words.items())
    behind = _BEHIND_EQUALS.format() if shell == "bash" else ""
    text = _SCRIPT.format(complete=COMPLETE, cases=cases, behind=behind)
    return _ZSH + text if shell == "zsh" else text
