"""From a model back to the spec that builds an equal one."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NoReturn, TypeVar

import jax
import numpy as np

from declax._construction import is_init_var
from declax._containers import Dict, List
from declax._pytree import Pytree
from declax._typing import MISSING
from declax._variables import Variable
from declax.config._data import MAX_DEPTH, Ref, SpecData
from declax.config._parameters import Parameter, Parameters, parameters_of
from declax.config.problems import Path, path_text
from declax.config.spec import Spec
from declax.errors import ConfigError, DepthError, describe, type_name

M = TypeVar("M")


def spec_of(model: M, /) -> Spec[M]:
    """The spec of a model: what its constructors would have to be given for an equal one.

    Each argument is read from the attribute of its name. Values of Variables
    are not looked at: a spec says what is built, not what was learnt. A part
    that is met twice is a `Ref` the second time.

    Args:
      model: a model, or an instance of any dataclass.

    Returns:
      The spec, for which ``dx.spec_of(spec.build(rngs=rngs)) == spec``.

    Raises:
      ConfigError: for an argument that no attribute has, and for arrays that a
        constructor takes.
      DepthError: for models nested more than 100 levels deep.

    >>> import declax as dx
    >>> layer = dx.Linear(3, 4, use_bias=False, rngs=dx.Rngs(0))
    >>> spec_of(layer)
    spec(Linear, in_features=3, out_features=4, use_bias=False)
    """
    if isinstance(model, type) or not (isinstance(model, Pytree) or dataclasses.is_dataclass(model)):
        raise ConfigError(
            "spec_of", "this is no model", expected="a Module, or an instance of a dataclass", got=describe(model)
        )
    found: Spec[M] = _Reader(model).value(model, ())
    return found


_VALUES: Final = (bool, int, float, complex, str, bytes, type(None))


class _Reader:
    def __init__(self, root: object) -> None:
        self.name = type_name(type(root))
        self._seen: dict[int, Path] = {}
        self._kept: list[object] = []

    def value(self, value: Any, path: Path) -> Any:
        """The spec of a part, the Ref to it, or a value as it is."""
        if isinstance(value, (*_VALUES, SpecData, Ref)):
            return value
        if len(path) > MAX_DEPTH:
            raise DepthError(
                f"{self.name}.{path_text(path)}", f"a model is nested more than {MAX_DEPTH} levels deep for a spec"
            )
        is_part = isinstance(value, Pytree) and not isinstance(value, Variable)
        is_container = type(value) in (list, dict)
        if is_part or is_container:
            if id(value) in self._seen:
                return self._again(value, path)
            self._seen[id(value)] = path
            self._kept.append(value)  # an id means something only while its object lives
        if is_part or (dataclasses.is_dataclass(value) and _is_constructed(value)):
            return self._spec(value, path)
        if type(value) in (list, tuple):
            return self._items(value, path)
        if isinstance(value, dict):
            return {key: self.value(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (Variable, jax.Array, np.ndarray)):
            self._refuse(value, path)
        return value

    def _items(self, value: Any, path: Path) -> Any:
        items = [self.value(item, (*path, i)) for i, item in enumerate(value)]
        return items if type(value) is list else tuple(items)

    def _again(self, value: Any, path: Path) -> Any:
        # what is around this place is open still: a circle of parts cannot be built
        first = self._seen[id(value)]
        if path[: len(first)] == first:
            raise ConfigError(
                f"{self.name}.{path_text(path)}",
                f"the part contains itself; it is also at {path_text(first)}",
                why="constructors make a part before what holds it",
                fix="set the link after the model is built",
            )
        return Ref.to(first)

    def _refuse(self, value: Any, path: Path) -> NoReturn:
        raise ConfigError(
            f"{self.name}.{path_text(path)}",
            "a constructor takes an array here, and an array is no part of a spec",
            got=describe(value),
            fix="declare it with dx.variable(...), or make it in __post_init__",
        )

    def _spec(self, model: Any, path: Path) -> Spec[Any]:
        parameters = parameters_of(type(model))
        if isinstance(model, List):
            given: dict[str, Any] = {"elements": list(model)}
        elif isinstance(model, Dict):
            given = {"entries": dict(model)}
        else:
            given = self._attributes(model, parameters, path)
        found = {}
        for name, value in given.items():
            found[name] = self.value(value, (*path, name))
        return Spec(type(model), found)

    def _attributes(self, model: Any, parameters: Parameters, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for parameter in parameters:
            value = getattr(model, parameter.name, MISSING)
            if parameter.name == parameters.variadic and value is not MISSING:
                value = tuple(value)
            field = getattr(type(model), "__dataclass_fields__", {}).get(parameter.name)
            if value is MISSING or (field is not None and is_init_var(field)):
                self._is_gone(model, parameter, path)
            if value is not parameter.default:
                found[parameter.name] = value
        return found

    def _is_gone(self, model: Any, parameter: Parameter, path: Path) -> NoReturn:
        name = type_name(type(model))
        raise ConfigError(
            f"{self.name}.{path_text((*path, parameter.name))}",
            f"{name} takes {parameter.name!r}, and no attribute of that name tells what it was given",
            fix=f"self.{parameter.name} = {parameter.name}      # in __init__; or a field in place of the InitVar",
        )


def _is_constructed(value: Any) -> bool:
    """Whether an instance of a dataclass is described by a spec, and not a value that a spec holds as it is."""
    is_value = type(value).__dataclass_params__.frozen and type(value).__hash__ is not None
    return not isinstance(value, type) and not is_value
