"""Runs mypy with the words of its command line; prints what it found, and the statuses of fields by the plugin.

A line of JSON for each error, as of ``mypy --output json``, and a last one: by class of the module `program`, the
status of its field `value`.
"""

from __future__ import annotations

import json
import sys

from mypy.build import build
from mypy.main import process_options
from mypy.nodes import MypyFile, TypeInfo, Var

from declax.mypy_plugin.statuses import status_of


def statuses(program: MypyFile) -> dict[str, str | None]:
    found = {}
    for name, symbol in program.names.items():
        field = symbol.node.names.get("value") if isinstance(symbol.node, TypeInfo) else None
        if field is not None and isinstance(field.node, Var) and field.node.type is not None:
            found[name] = status_of(field.node.type)
    return found


if __name__ == "__main__":
    sources, options = process_options(sys.argv[1:])
    result = build(sources, options)
    tree = result.graph["program"].tree
    print("\n".join(result.errors))
    print(json.dumps({} if tree is None else statuses(tree)))
