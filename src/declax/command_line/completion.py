"""How a command line may go on: commands, options, and paths and values from a saved schema; without JAX."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from declax.command_line.overrides import PART
from declax.command_line.parsing import Parser, declax_parser, script_parser
from declax.command_line.schemas import load_schema, schema_of_file
from declax.config.files.reading import FORMATS, read_document

Schema = dict[str, Any]

_SCRIPTS: Final = {
    "bash": """\
_{name}_declax() {{
  local line="${{COMP_LINE:0:COMP_POINT}}"; local word="${{line##* }}"
  local IFS=$'\\n' found; found=($(declax complete {schema}-- "$line" 2>/dev/null))
  [[ $word == *=* ]] && found=("${{found[@]#"${{word%%=*}}="}}")
  [[ ${{#found[@]}} -eq 1 && ${{found[0]}} != *[]=.] ]] && found[0]+=" "
  COMPREPLY=("${{found[@]}}")
  [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o nospace -F _{name}_declax {command}
""",
    "zsh": """\
_{name}_declax() {{
  local line="${{(j: :)words[1,CURRENT-1]}} $PREFIX"
  local -a found; found=(${{(f)"$(declax complete {schema}-- "$line" 2>/dev/null)"}})
  (( $#found )) && compadd -S '' -- $found || _files
}}
compdef _{name}_declax {command}
""",
    "fish": "complete -c {command} -a {words}\n",
}


def script(shell: str, command: str, schema: str | None) -> str:
    """What a shell has to read so that it completes a command."""
    name = "".join(c if c.isalnum() else "_" for c in command)
    option = "" if schema is None else f"--schema {shlex.quote(schema)} "
    words = shlex.quote(f"(declax complete {option}-- (commandline -cp) 2>/dev/null)")  # fish reads it twice
    return _SCRIPTS[shell].format(name=name, schema=option, command=shlex.quote(command), words=words)


def candidates(line: str, schema: str | None) -> list[str]:
    """What may stand in the place of the last word of a command line: of ``declax``, or of a script with `cli`.

    Args:
      line: the command line up to the cursor.
      schema: the file of the schema; else the one that a file on the command line names.

    >>> candidates("declax su", None), candidates("declax show --format j", None)
    (['summary'], ['json'])
    """
    before, _, word = line.rpartition(" ")
    program, *given = _words(before) or [""]
    parser = declax_parser() if Path(program).name == "declax" else script_parser("")
    command = next((name for name in given if name in parser.commands), None)
    parser = parser if command is None else parser.commands[command]
    found = _choices(parser, given[-1:], word)
    if found is None:
        path = schema or _named_schema(given)
        return [] if path is None else override_candidates(load_schema(path), word)
    return [choice for choice in found if choice.startswith(word)]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is not closed yet
        return line.split()


def _choices(parser: Parser, last: list[str], word: str) -> list[str] | None:
    """The commands, options or values of an option that may stand in the place of a word; None where others may."""
    for option in parser.options:
        if last and last[0] in option.option_strings and option.nargs != 0:
            return list(option.choices or ())
    if word.startswith("-"):
        return [name for option in parser.options for name in option.option_strings if name.startswith("--")]
    return list(parser.commands or parser.choices) or None


def _named_schema(words: list[str]) -> Path | None:
    """The schema that a file among words names."""
    files = (word for word in words if word.endswith(FORMATS))
    return next(filter(None, (schema_of_file(file, read_document(file)) for file in files)), None)


def override_candidates(schema: Schema, word: str) -> list[str]:
    """What may stand in the place of a word that is an override.

    >>> schema = {"properties": {"dim": {"type": "integer"}, "mode": {"enum": ["fast", "exact"]}}}
    >>> override_candidates(schema, "d"), override_candidates(schema, "mode=e")
    (['dim='], ['mode=exact'])
    """
    path, equals, value = word.partition("=")
    if equals:
        done, comma, last = value.rpartition(",")
        here = _at(schema, PART.findall(path))
        values = dict.fromkeys(v for node in here for v in _values(schema, node))
        return [f"{path}={done}{comma}{v}" for v in values if v.startswith(last)]
    head, dot, last = path.rpartition(".")
    found: dict[str, None] = {}
    for node in _at(schema, PART.findall(head)):
        for name, child in node.get("properties", {}).items():
            if name.startswith(last) and not name.startswith("$"):
                found.update(dict.fromkeys(f"{head}{dot}{name}{end}" for end in _ends(schema, child)))
    return list(found)


def _ends(schema: Schema, child: Schema) -> list[str]:
    """What may follow a name: a value, a part of it, an item of it."""
    nodes = list(_opened(schema, child))
    ends = ["."] if any("properties" in node for node in nodes) else []
    ends += ["[*]", "[0]"] if any(node.get("type") == "array" for node in nodes) else []
    return ends or ["="]


def _at(schema: Schema, keys: list[str]) -> list[Schema]:
    """The schemas of what may stand at a path."""
    nodes = list(_opened(schema, schema))
    for key in keys:
        found: list[Schema] = []
        for node in nodes:
            if key == "*" or key.isdecimal():
                items = node.get("items", {})
                found += items if isinstance(items, list) else [items]
            elif key in node.get("properties", {}):
                found.append(node["properties"][key])
        nodes = [inner for node in found for inner in _opened(schema, node)]
    return nodes


def _opened(schema: Schema, node: Schema) -> Iterator[Schema]:
    """A schema, or those that it refers to and chooses from."""
    waiting, seen = [node], set()
    while waiting:
        here = waiting.pop(0)
        if id(here) in seen:
            continue
        seen.add(id(here))
        name = str(here.get("$ref", "")).rpartition("/")[2]
        options = [schema.get("definitions", {}).get(name, {})] if name else []
        options += [option for key in ("oneOf", "anyOf", "allOf") for option in here.get(key, ())]
        if options and "properties" not in here:
            waiting += options
        else:
            yield here


def _values(schema: Schema, node: Schema) -> Iterator[str]:
    values = node.get("enum", [node["const"]] if "const" in node else [])
    yield from (v if isinstance(v, str) else json.dumps(v) for v in values)
    if node.get("type") == "boolean":
        yield from ("true", "false")
    elif not values and "default" in node and not isinstance(node["default"], (dict, list)):
        yield json.dumps(node["default"]).strip('"')
