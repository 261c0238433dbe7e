"""What a shell offers while a command line is typed: paths and values, from a saved schema, without JAX."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from declax.command_line.overrides import PART
from declax.errors import ConfigError, suggest

Schema = dict[str, Any]

SHELLS: Final = {
    "bash": """\
_{name}_declax() {{
  local word="${{COMP_LINE:0:COMP_POINT}}"; word="${{word##* }}"
  local IFS=$'\\n' found; found=($(declax complete --schema {schema} -- "$word" 2>/dev/null))
  [[ $word == *=* ]] && found=("${{found[@]#"${{word%%=*}}="}}")
  COMPREPLY=("${{found[@]}}")
  [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o nospace -F _{name}_declax {command}
""",
    "zsh": """\
_{name}_declax() {{
  local -a found; found=(${{(f)"$(declax complete --schema {schema} -- "$PREFIX" 2>/dev/null)"}})
  (( $#found )) && compadd -S '' -- $found || _files
}}
compdef _{name}_declax {command}
""",
    "fish": "complete -c {command} -a {words}\n",
}


def script(shell: str, command: str, schema: str) -> str:
    """What a shell has to read so that it completes a command.

    Raises:
      ConfigError: for another shell.
    """
    if shell not in SHELLS:
        fix = suggest(shell, SHELLS)
        raise ConfigError("completion", f"there is no completion for {shell!r}", expected=", ".join(SHELLS), fix=fix)
    name = "".join(c if c.isalnum() else "_" for c in command)
    schema = shlex.quote(schema)
    words = shlex.quote(f"(declax complete --schema {schema} -- (commandline -ct) 2>/dev/null)")  # fish reads it twice
    return SHELLS[shell].format(name=name, schema=schema, command=shlex.quote(command), words=words)


def candidates(schema: Schema, word: str) -> list[str]:
    """What may stand in the place of a word that is being typed.

    >>> schema = {"properties": {"dim": {"type": "integer"}, "mode": {"enum": ["fast", "exact"]}}}
    >>> candidates(schema, "d"), candidates(schema, "mode=e")
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
