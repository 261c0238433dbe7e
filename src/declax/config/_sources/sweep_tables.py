"""The table `$sweep` at the root of a file: the values of a sweep, by paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from declax.config._files.documents import Document
from declax.config._sources.series import FUNCTIONS, Draw, series
from declax.config._sources.sweeps import Plan
from declax.config._sources.words import SET, Word, is_word, parse_word
from declax.config.problems import Problem, shown
from declax.errors import ConfigError

SWEEP: Final = "$sweep"
_ZIP: Final = "$zip"
_SAMPLES: Final = "$samples"
_SEED: Final = "$seed"
SCHEMA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "type": "object",
        "description": "the values of a sweep, by the paths of fields; each combination is a run",
        "properties": {
            _ZIP: {"type": "array", "description": "paths whose values go together, or several groups of such paths"},
            _SAMPLES: {"type": "integer", "minimum": 1, "description": "how many random values there are"},
            _SEED: {"type": "integer", "description": "the seed of random values"},
        },
        "additionalProperties": {
            "oneOf": [
                {"type": "array", "minItems": 1},
                {"type": "object", "propertyNames": {"enum": [*FUNCTIONS]}, "minProperties": 1, "maxProperties": 1},
            ]
        },
    }
)
"""The schema of the table, for editors."""

_FORMS: Final = "a list of values, or a function such as { log = [1e-4, 1e-1, 4] }"


def without_sweep(document: Document) -> Document:
    """The document without its table `$sweep`."""
    if not isinstance(document.data, Mapping) or SWEEP not in document.data:
        return document
    rest = {key: value for key, value in document.data.items() if key != SWEEP}
    return dataclasses.replace(document, data=rest, problems=[*document.problems])


def take_sweeps(
    documents: Sequence[Document], words: Sequence[Word], plan: Plan
) -> tuple[list[Document], list[Word], Plan]:
    """Moves the tables `$sweep` of files into words and a plan. Later files win, and words of the command line last.

    What is wrong with a table is among the problems of its document.
    """
    found: list[Document] = []
    tabled: dict[Any, Word] = {}
    for document in documents:
        if not isinstance(document.data, Mapping) or SWEEP not in document.data:
            found.append(document)
            continue
        table = document.data[SWEEP]
        made = without_sweep(document)
        found.append(made)
        if not isinstance(table, Mapping):
            made.problems.append(_problem(made, (), "the sweep has to be a table", _FORMS, table))
            continue
        for word in _words(made, table):
            tabled.pop(word.path, None)
            tabled[word.path] = word
        plan = _planned(made, table, plan)
    said = {word.path for word in words}
    return found, [*(word for path, word in tabled.items() if path not in said), *words], plan


def _words(document: Document, table: Mapping[str, Any]) -> Iterator[Word]:
    for key, written in table.items():
        if key.startswith("$"):
            continue
        if not is_word(f"{key}=") or key.startswith("~"):
            document.problems.append(_problem(document, (key,), "not a path of a value", '"model.dim"', key))
            continue
        values = _values(document, key, written)
        if values:
            place = str(document.place_of((SWEEP, key)))
            yield Word(key, parse_word(f"{key}=").path, SET, tuple(values), tuple(values), place)


def _values(document: Document, key: str, written: Any) -> list[Any]:
    if isinstance(written, list) and written:
        return written
    if isinstance(written, Mapping) and len(written) == 1:
        (name, arguments), *_ = written.items()
        try:
            found = series(name, arguments if isinstance(arguments, list) else [arguments], key)
        except ConfigError as error:
            problem = _problem(document, (key,), error.problem, error.expected, written)
            document.problems.append(dataclasses.replace(problem, hint=error.fix))
            return []
        return [found] if isinstance(found, Draw) else found
    document.problems.append(_problem(document, (key,), "these are no values of a sweep", _FORMS, written))
    return []


def _planned(document: Document, table: Mapping[str, Any], plan: Plan) -> Plan:
    """The plan, with what a table says beside its values; what is said already wins."""
    samples, seed, groups = table.get(_SAMPLES), table.get(_SEED, 0), table.get(_ZIP, [])
    known = (_ZIP, _SAMPLES, _SEED)
    for key in table:
        if key.startswith("$") and key not in known:
            document.problems.append(_problem(document, (key,), "a sweep has no such key", ", ".join(known), key))
    for key, value in ((_SAMPLES, samples), (_SEED, seed)):
        if value is not None and type(value) is not int:
            document.problems.append(_problem(document, (key,), "not a number", "int", value))
            return plan
    groups = [groups] if isinstance(groups, list) and groups and all(isinstance(one, str) for one in groups) else groups
    is_right = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not is_right or not all(isinstance(name, str) for group in groups for name in group):
        document.problems.append(_problem(document, (_ZIP,), "not paths that go together", '["rate", "steps"]', groups))
        return plan
    return Plan(
        samples if plan.samples is None else plan.samples,
        seed if plan.seed is None else plan.seed,
        (*plan.zipped, *map(tuple, groups)),
    )


def _problem(document: Document, path: tuple[str, ...], message: str, expected: str | None, got: Any) -> Problem:
    path = (SWEEP, *path)
    return Problem("sweep", path, message, expected, shown(got), place=document.place_of(path))
