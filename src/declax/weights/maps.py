"""Maps between the names of tensors in a file and the paths of a model: patterns, rules, and where they apply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from declax.errors import WeightsError, describe, dotted
from declax.weights.layouts import Concatenate, Destination, Layout, join, paths_of, take, tensor_shape
from declax.weights.parts import Array, Joined, Part, Shape

WeightMap: TypeAlias = Mapping[str | tuple[str, ...], Destination]
"""From the names of tensors to destinations. Names and paths may have captures: ``{i}``, ``{rest*}``."""

_CAPTURE = re.compile(r"\{([A-Za-z_]\w*\*?)\}")


class Pattern:
    """A name with captures: ``{i}`` matches one part between dots, and ``{rest*}`` one or several."""

    def __init__(self, text: str) -> None:
        self.text = text
        literals = _CAPTURE.split(text)
        if any("{" in part or "}" in part for part in literals[::2]):
            raise WeightsError(
                f"pattern {text!r}", "a brace does not belong to a capture", expected="{name} or {name*}"
            )
        if any("*" in part for part in literals[::2]):
            raise WeightsError(
                f"pattern {text!r}", "a * has no meaning outside of a capture", expected="{name} or {name*}"
            )
        self.captures: frozenset[str] = frozenset(name.removesuffix("*") for name in literals[1::2])
        self._regex = re.compile(self._source(literals))

    @staticmethod
    def of_path(text: str) -> Pattern:
        """The pattern of a path, in which an index may be written in brackets."""
        return Pattern(dotted(text))

    @staticmethod
    def _source(literals: list[str]) -> str:
        seen: set[str] = set()
        source = re.escape(literals[0])
        for capture, literal in zip(literals[1::2], literals[2::2], strict=True):
            name = capture.removesuffix("*")
            kind = ".+" if capture.endswith("*") else "[^.]+"
            source += f"(?P={name})" if name in seen else f"(?P<{name}>{kind})"
            source += re.escape(literal)
            seen.add(name)
        return source

    def match(self, name: str) -> dict[str, str] | None:
        """What each capture is in a name; None if the name does not match."""
        found = self._regex.fullmatch(name)
        return None if found is None else found.groupdict()

    def fill(self, captures: Mapping[str, str]) -> str:
        """The name with these captures."""
        return _CAPTURE.sub(lambda found: captures[found[1].removesuffix("*")], self.text)


class Rule(NamedTuple):
    """An entry of a map.

    Attributes:
      sources: the names of tensors; several are concatenated.
      destination: where they go.
      targets: the pattern of each path in the destination.
    """

    sources: tuple[Pattern, ...]
    destination: Destination
    targets: dict[str, Pattern]

    @staticmethod
    def of(key: Any, destination: Any) -> Rule:
        """Checks an entry of a map."""
        where = f"map[{key!r}]"
        names = key if isinstance(key, tuple) else (key,)
        if not isinstance(destination, (str, Layout)) or not all(isinstance(name, str) for name in names):
            raise WeightsError(
                where,
                "this is not an entry of a map",
                expected="a name or a tuple of names, and a path or an operation of dx.weights",
                got=describe(destination),
            )
        inner = destination.to if isinstance(destination, Concatenate) else (destination,)
        if (len(names) > 1) is not isinstance(destination, Concatenate) or any(map(_concatenates, inner)):
            raise WeightsError(
                where,
                "several tensors go to one operation, `concatenate`, and only there",
                fix="{('a', 'b'): dx.weights.concatenate('path', axis=0)}",
            )
        sources = tuple(map(Pattern, names))
        targets = {path: Pattern.of_path(path) for path in paths_of(destination)}
        _check_captures(where, [*sources, *targets.values()])
        return Rule(sources, destination, targets)

    def with_captures(self, captures: Mapping[str, str]) -> Transfer:
        """The rule for some captures."""
        return Transfer(
            self,
            tuple(pattern.fill(captures) for pattern in self.sources),
            {path: pattern.fill(captures) for path, pattern in self.targets.items()},
        )


def _concatenates(destination: Destination) -> bool:
    """Whether tensors are concatenated anywhere in a destination."""
    if isinstance(destination, str):
        return False
    return isinstance(destination, Concatenate) or any(map(_concatenates, destination.to))


def _check_captures(where: str, patterns: Sequence[Pattern]) -> None:
    first, *others = patterns
    for other in others:
        if other.captures != first.captures:
            raise WeightsError(
                where,
                "both sides must have the same captures, since a map works in both directions",
                expected=f"the captures of {first.text!r}",
                got=repr(other.text),
            )


IDENTITY: WeightMap = {"{path*}": "{path*}"}
"""Tensors have the names of the parameters, with dots: ``blocks.0.up.kernel``."""


def rules_of(given: WeightMap | None) -> list[Rule]:
    """The rules of a map, in its order."""
    if not (given is None or isinstance(given, Mapping)):
        fix = '{"fc.weight": dx.weights.transpose("fc.kernel")}'
        raise WeightsError("map", "a map is a dict from names of tensors to paths", got=describe(given), fix=fix)
    return [Rule.of(key, destination) for key, destination in (IDENTITY if given is None else given).items()]


class Transfer(NamedTuple):
    """A rule with its captures: which tensors go to which parameters.

    Attributes:
      rule: the rule.
      sources: the names of the tensors.
      targets: the names of the parameters, by their paths in the destination.
    """

    rule: Rule
    sources: tuple[str, ...]
    targets: dict[str, str]

    def shapes(self, shape_of: Callable[[str], Shape]) -> list[Shape]:
        """The shapes that the tensors must have, for parameters of these shapes."""
        shape = tensor_shape(self.rule.destination, lambda path: shape_of(self.targets[path]))
        if isinstance(self.rule.destination, Concatenate):
            return self.rule.destination.part_shapes(shape, len(self.sources))
        return [shape]

    def take(self, tensors: Sequence[Part], target: str, shape_of: Callable[[str], Shape]) -> Part:
        """The value for one of the parameters, which is not read yet."""
        destination = self.rule.destination
        given = tensors[0]
        if isinstance(destination, Concatenate):
            given = Joined(tensors, destination.axis % len(given.shape))
        path = next(path for path, name in self.targets.items() if name == target)
        return take(destination, given, path, lambda path: shape_of(self.targets[path]))

    def join(self, value_of: Callable[[str], Array], number: int) -> Array:
        """One of the tensors, from the values of the parameters."""
        whole = join(self.rule.destination, lambda path: value_of(self.targets[path]))
        destination = self.rule.destination
        if not isinstance(destination, Concatenate):
            return whole
        axis = destination.axis % whole.ndim
        sizes = [shape[axis] for shape in destination.part_shapes(whole.shape, len(self.sources))]
        start = sum(sizes[:number])
        return whole[(slice(None),) * axis + (slice(start, start + sizes[number]),)]
