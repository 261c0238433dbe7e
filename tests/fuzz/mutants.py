"""Faults of the engine: a file, a text in it, and what to put in its place."""

MUTANTS: dict[str, tuple[str, str, str]] = {
    "a write drops one of several leaves": (
        "transforms/_engine/outcome.py",
        "                if not changed and labels is None:\n",
        "                changed = changed[:1] + changed[2:]\n                if not changed and labels is None:\n",
    ),
    "a new node stands for an inner one": (
        "_graph/unflattening.py",
        "zip(own, change.origins, strict=True) if origin >= 0}",
        "zip(own, change.origins, strict=True) if 0 <= origin and (slot < len(blueprint.classes) or origin < 6)}",
    ),
    "containers of captured models are not compared before a call": (
        "transforms/_engine/captures.py",
        "if not _holds_the_same(container, items) and",
        "if False and",
    ),
    "1, True and 1.0 share a program": (
        "_graph/flattening.py",
        "find_or_make((tokens, types, base, outer), make)",
        "find_or_make((tokens, base, outer), make)",
    ),
    "values are kept after a write to a Variable": (
        "_variables/variable.py",
        "    epoch.kept = None\n    _set_raw(variable, value)\n    epoch.kept = {}\n",
        "    _set_raw(variable, value)\n",
    ),
    "a change of structure that comes back does not end the epoch": (
        "_graph/unflattening.py",
        "    if is_structural:\n        epoch.advance()\n",
        "",
    ),
    "copies have another order": (
        "transforms/_engine/outcome.py",
        "self._values, orders=structure.orders)",
        "self._values)",
    ),
    "an order does not come back": (
        "transforms/_engine/outcome.py",
        "taken_out=taken_out, orders=orders)",
        "taken_out=taken_out)",
    ),
    "a write to what is taken out is lost": (
        "transforms/_engine/outcome.py",
        "tuple([i for i, value in enumerate(self._objects) if id(value) not in reached])",
        "()",
    ),
    "metadata does not come back": (
        "_graph/unflattening.py",
        "        set_metadata(variable, notes)\n",
        "",
    ),
    "a leaf that one branch sets is dropped": (
        "transforms/_carry.py",
        "sources[0] < 0 or len(set(sources)) > 1",
        "sources[0] < 0",
    ),
}
