"""From a spec to what it describes.

Vocabulary
----------
walk:  goes through a spec in the order in which it is built: depth first, parameters in their order,
       a part that a Ref needs before it is met at the Ref.
kept:  of a spec: handed over as it is, since the parameter is annotated as `Spec`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, Ref, SpecData, is_spec_class, key_like
from declax.config._optimizers import remember
from declax.config._parameters import RNGS, Parameter, Parameters
from declax.config._unions import allowed_classes, element_annotation
from declax.config.problems import Path, did_you_mean, path_text, shown
from declax.errors import ConfigError, DepthError

MAX_OPEN: Final = MAX_DEPTH + 10
"""How many parts may be begun and not be done; more than the levels of a spec, since Refs lead forwards."""

MAX_AHEAD: Final = 20
"""How many Refs may lead to parts that are not made yet, one from the other."""

PATH_ATTRIBUTE: Final = "config_path"
"""The attribute of an error that says at which path of the configuration it arose."""

# --- annotations of parts -----------------------------------------------------


def keeps_spec(annotation: Any) -> bool:
    """Whether a parameter takes specs themselves.

    >>> keeps_spec(SpecData | None), keeps_spec(int)
    (True, False)
    """
    return any(is_spec_class(typing.get_origin(member) or member) for member in allowed_classes(annotation))


@functools.lru_cache(maxsize=65536)
def _annotation_of(parameter: Parameter) -> Any:
    """The annotation of a parameter where a spec may be kept somewhere in it, and Any elsewhere."""
    return parameter.annotation if _mentions_spec(parameter.annotation, 0) else Any


def _mentions_spec(annotation: Any, depth: int) -> bool:
    if keeps_spec(annotation):
        return True
    inner = (a for member in allowed_classes(annotation) for a in typing.get_args(member))
    return depth < MAX_DEPTH and any(_mentions_spec(a, depth + 1) for a in inner if not isinstance(a, (list, str)))


# --- places -------------------------------------------------------------------


class Place(typing.NamedTuple):
    """Where a Ref leads.

    Attributes:
      path: the path, without further Refs on it.
      value: what is there.
      annotation: of what is there, as far as it tells which specs are kept.
    """

    path: Path
    value: Any
    annotation: Any


def locate(root: SpecData, ref: Ref, at: Path) -> Place:
    """The place to which a Ref leads; Refs on the way are followed.

    Args:
      root: the spec whose paths the Ref means.
      ref: the Ref.
      at: where it stands.

    Raises:
      ConfigError: for a Ref to nothing, and for Refs that lead to each other.
    """
    keys, seen = ref.keys, [ref.path]
    place = Place((), root, Any)
    index = 0
    while index < len(keys) or isinstance(place.value, Ref):
        if isinstance(place.value, Ref):
            if place.value.path in seen:
                raise _circle(root, at, [*seen, place.value.path])
            if len(seen) > MAX_AHEAD:
                raise DepthError(
                    f"{root.parameters.name}.{path_text(at)}",
                    f"the reference leads on by way of more than {MAX_AHEAD} others",
                    got=ref.path,
                    fix="refer to the part itself",
                )
            seen.append(place.value.path)
            keys, index, place = (*place.value.keys, *keys[index:]), 0, Place((), root, Any)
            continue
        found = _step(place, keys[index])
        if found is None:
            _lead_to_nothing(root, ref, at, place, keys[index])
        place = found
        index += 1
    return place


def _step(place: Place, key: str) -> Place | None:
    value = place.value
    if isinstance(value, SpecData):
        if (keeps_spec(place.annotation) and place.path) or key not in value.arguments:
            return None
        return Place((*place.path, key), value.arguments[key], annotation_at(value.parameters, key))
    if type(value) in (tuple, FrozenList):
        if not key.isdecimal() or int(key) >= len(value):
            return None
        return Place((*place.path, int(key)), value[int(key)], element_annotation(place.annotation, value, int(key)))
    if isinstance(value, FrozenDict) and (known := key_like(value, key)) is not None:
        return Place((*place.path, known), value[known], element_annotation(place.annotation, value, known))
    return None


def annotation_at(parameters: Parameters, name: str) -> Any:
    """The annotation of the argument of a name, as far as it tells which specs are kept."""
    parameter = parameters.get(name)
    return Any if parameter is None else argument_annotation(parameters, parameter)


def argument_annotation(parameters: Parameters, parameter: Parameter) -> Any:
    """The annotation of an argument's value: that of ``*args: T`` is a tuple of T."""
    annotation = _annotation_of(parameter)
    return types.GenericAlias(tuple, (annotation, ...)) if parameter.name == parameters.variadic else annotation


def keys_of(value: Any) -> Iterable[str | int]:
    """The keys under which a value has others."""
    if isinstance(value, SpecData):
        return list(value.arguments)
    if isinstance(value, FrozenDict):
        return list(value)
    return range(len(value)) if type(value) in (tuple, FrozenList) else ()


def _lead_to_nothing(root: SpecData, ref: Ref, at: Path, place: Place, key: str) -> NoReturn:
    options = [str(option) for option in keys_of(place.value)]
    hint = did_you_mean(key, options)
    raise ConfigError(
        f"{root.parameters.name}.{path_text(at)}",
        f"the Ref to {shown(ref.path)} leads to nothing: there is no {shown(key)} at {path_text(place.path)}"
        + (f"; {hint}" if hint else ""),
        expected="one of " + ", ".join(options[:20]) if options else "the path of a part of this spec",
        got=shown(ref.path),
    )


def _circle(root: SpecData, at: Path, paths: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"{root.parameters.name}.{path_text(at)}",
        "Refs lead in a circle, so that no part can be made first",
        got=" -> ".join(paths),
        fix="give one of them the spec of the part",
    )


# --- the walk -----------------------------------------------------------------


class Walk:
    """Goes through a spec in the order of building. What is made of a spec, list and so on is up to subclasses."""

    def __init__(self, root: SpecData) -> None:
        self.root = root
        self.made: dict[Path, Any] = {}
        self._open: dict[Path, None] = {}
        self._ahead = 0

    def run(self) -> Any:
        """What is made of the whole."""
        return self.value(self.root, (), Any)

    def value(self, value: Any, path: Path, annotation: Any) -> Any:
        """What is made of one value at its place."""
        if isinstance(value, SpecData):
            if path and annotation is not Any and keeps_spec(annotation):
                return self.kept(value, path)
            return self._once(value, path, annotation)
        if isinstance(value, Ref):
            return self.shared(value, path, annotation)
        if type(value) in (tuple, FrozenList, FrozenDict):
            return self._once(value, path, annotation)
        return self.leaf(value, path)

    def shared(self, ref: Ref, path: Path, annotation: Any) -> Any:
        """What is made of the part that a Ref means."""
        place = locate(self.root, ref, path)
        if place.path in self.made:
            return self.value(*_swapped(place))
        if place.path in self._open:
            self._is_open(place.path, path)
        self._ahead += 1
        if self._ahead > MAX_AHEAD or len(self._open) >= MAX_OPEN:
            self._ahead -= 1
            raise DepthError(
                f"{self.root.parameters.name}.{path_text(path)}",
                f"more than {MAX_AHEAD} Refs lead to parts that are not made yet, one from the other",
                fix="let Refs lead to parts that come before",
            )
        made = self.value(*_swapped(place))
        self._ahead -= 1
        return made

    def _is_open(self, target: Path, path: Path) -> NoReturn:
        within = [p for p in self._open if p and (p[: len(target)] == target or target[: len(p)] == p)]
        raise _circle(self.root, path, ["/" + "/".join(map(str, p)) for p in [*within, target]])

    def _once(self, value: Any, path: Path, annotation: Any) -> Any:
        if path in self.made:
            return self.made[path]
        self._open[path] = None
        if isinstance(value, SpecData):
            made = self.call(value, path)
        else:
            items = value.items() if isinstance(value, FrozenDict) else enumerate(value)
            parts = [
                (key, self.value(item, (*path, key), element_annotation(annotation, value, key))) for key, item in items
            ]
            made = self.container(value, parts)
        del self._open[path]
        self.made[path] = made
        return made

    def arguments(self, spec: SpecData, path: Path) -> dict[str, Any]:
        """What is made of the arguments of a spec, by name, in order."""
        parameters = spec.parameters
        found = {}
        for name, value in spec.arguments.items():
            found[name] = self.value(value, (*path, name), annotation_at(parameters, name))
        return found

    def kept(self, spec: SpecData, path: Path) -> Any:
        """What is made of a spec that is kept."""
        return spec

    def leaf(self, value: Any, path: Path) -> Any:
        """What is made of a value without parts."""
        return value

    def container(self, value: Any, parts: list[tuple[Any, Any]]) -> Any:
        """What is made of a list, tuple or dict."""
        if isinstance(value, FrozenDict):
            return dict(parts)
        items = [item for _, item in parts]
        return items if isinstance(value, FrozenList) else tuple(items)

    def call(self, spec: SpecData, path: Path) -> Any:
        """What is made of a spec."""
        return self.arguments(spec, path)


def _swapped(place: Place) -> tuple[Any, Path, Any]:
    return place.value, place.path, place.annotation


class Builder(Walk):
    """Makes what a spec describes; `made` has all its parts by path then."""

    def __init__(self, root: SpecData, rngs: object = None) -> None:
        super().__init__(root)
        self.rngs = rngs

    def call(self, spec: SpecData, path: Path) -> Any:
        """Calls the target."""
        parameters = spec.parameters
        args, named = positions(parameters, self.arguments(spec, path))
        if parameters.takes_rngs and (self.rngs is not None or parameters.needs_rngs):
            if self.rngs is None:
                raise ConfigError(
                    f"{self.root.parameters.name}.{path_text(path)}" if path else self.root.parameters.name,
                    f"{parameters.name} takes rngs, and build was given none",
                    fix="spec.build(rngs=dx.Rngs(0))",
                )
            named[RNGS] = self.rngs
        try:
            made = spec.target(*args, **named)
        except Exception as error:
            note_config_path(error, path, parameters.name)
            raise
        remember(made, spec, named.get("model"))
        return made


def positions(parameters: Parameters, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name as those of a call: by position where there is no other way."""
    left = dict(arguments)
    args: list[Any] = []
    rest = left.pop(parameters.variadic, ()) if parameters.variadic is not None else ()
    for parameter in parameters:
        if not parameter.is_positional or not (rest or parameter.kind is inspect.Parameter.POSITIONAL_ONLY):
            continue
        if not rest and not any(p.name in left for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY):
            break
        args.append(left.pop(parameter.name) if parameter.name in left else parameter.make_default())
    return [*args, *rest], left


def note_config_path(error: BaseException, path: Path, name: str) -> None:
    """Adds to an error at which path of the configuration it arose; its type and text stay."""
    error.add_note(f"in the configuration at {path_text(path)} ({name})")
    try:
        setattr(error, PATH_ATTRIBUTE, path)
    except AttributeError:  # an exception with slots; the note says it
        return


def build(spec: SpecData, rngs: object = None) -> Any:
    """Makes what a spec describes; see `Spec.build`."""
    return Builder(spec, rngs).run()
