"""Readers of what no annotation narrows: plain data, and the parts that may stand anywhere.

Vocabulary
----------
anything: the layers of declax, what is registered for Any, and what is let in as extra.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from declax import nn
from declax._containers import Dict, List, Sequential
from declax._pytree import Pytree
from declax.config import _plain
from declax.config._data import FrozenList, Ref, SpecData
from declax.config._parameters import target_name
from declax.config._parts import KIND, ChoiceReader, Readers
from declax.config._plain import INVALID, Context
from declax.config.problems import Path, did_you_mean, shown
from declax.config.registry import kinds_of


@functools.cache
def layers() -> Mapping[str, Any]:
    """The layers and containers of declax, by name."""
    found = {name: cls for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, Pytree)}
    return MappingProxyType({**found, "Sequential": Sequential, "List": List, "Dict": Dict})


def anywhere(extra: Iterable[Any]) -> dict[str, Any]:
    """What may stand where an annotation says nothing, by tag; what code lets in goes before the layers of declax."""
    let_in = {target_name(target).rpartition(".")[2]: target for target in extra}
    return {**layers(), **kinds_of(Any), **kinds_of(object), **let_in}


class AnythingReader(_plain.AnyReader):
    """Any plain data; a table with the tag is a part."""

    def __init__(self, catalog: Readers, choices: Mapping[str, Any]) -> None:
        super().__init__()
        self.parts = ChoiceReader(catalog, choices, "a part")

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The data itself, or the spec of a part."""
        if isinstance(value, Mapping) and KIND in value:
            tag = value[KIND]
            if type(tag) is str and tag in self.parts.choices:
                return self.parts.read(value, path, context)
            known = did_you_mean(tag, self.parts.choices) if isinstance(tag, str) else None
            context.report.add(
                "unknown-kind", (*path, KIND), "no class of this name may stand here",
                expected="a layer of declax, or what extra=[...] lets in", got=shown(tag),
                hint=known or "extra=[...] lets a class in, as does dx.register_kind(typing.Any, cls)",
            )  # fmt: skip
            return INVALID
        if isinstance(value, SpecData):
            context.parts[tuple(map(str, path))] = value.target
        return super().read(value, path, context)


class LayerReader(AnythingReader):
    """What `Sequential` calls: a part, or a function by its name; or one list of these."""

    expected = "a table of a layer, or the name of a function"

    def __init__(self, catalog: Readers, choices: Mapping[str, Any], functions: _plain.Reader) -> None:
        super().__init__(catalog, choices)
        self.functions = functions

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The part or the function."""
        if type(value) is str:
            return self.functions.read(value, path, context)
        if isinstance(value, Mapping) and not value.keys() & {KIND, _plain.REF, _plain.TUPLE}:
            return self.parts.read(value, path, context)  # which says that the tag is missing
        if isinstance(value, (Mapping, list, tuple, FrozenList, SpecData, Ref)):
            return super().read(value, path, context)
        return context.wrong(path, self.expected, value)
