"""From a model back to the spec that builds an equal one."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar

import jax
import numpy as np

from declax._construction import is_init_var
from declax._containers import Dict, List
from declax._pytree import Pytree
from declax._typing import MISSING
from declax._variables import Variable
from declax.abstract import eval_shape
from declax.config._building import model_of
from declax.config._data import MAX_DEPTH, Ref, SpecData
from declax.config._parameters import Parameters, allowed_classes, element_annotation, parameters_of, plain_target
from declax.config.problems import Path, path_text
from declax.config.spec import Spec
from declax.errors import ConfigError, DepthError, describe, type_name
from declax.graph.iteration import find_duplicates
from declax.rngs import Rngs
from declax.training._transformation import description_of
from declax.training.optimizer import Optimizer

M = TypeVar("M")


def spec_of(model: M, /) -> Spec[M]:
    """The spec of a model: what its constructors would have to be given for an equal one.

    Each argument is read from the attribute of its name. Values of Variables
    are not looked at: a spec says what is built, not what was learnt. A part
    that is met twice is a `Ref` the second time.

    Args:
      model: a model, or an instance of any dataclass.

    Returns:
      The spec, for which ``dx.spec_of(spec.build(rngs=rngs)) == spec``. It has arguments as the constructor keeps
      them, where that is another form of what it was given: ``kernel_size=(3,)`` of ``dx.Conv(4, 6, 3, rngs=rngs)``.

    Raises:
      ConfigError: for an argument that no attribute has, and for arrays that a
        constructor takes. For a Variable, or a part that no argument has, in
        two places, unless building the spec puts it in both.
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
    reader = _Reader(model)
    found: Spec[M] = reader.value(model, ())
    if isinstance(model, Pytree):
        _check_ties(model, found, reader)
    return found


def _check_ties(model: Pytree, spec: Spec[Any], reader: _Reader) -> None:
    """Asks that what the model holds in several places is in these places of what the spec builds."""
    ties = [(paths, value) for paths, value in _ties(model) if reader.count(value) < len(paths)]
    if not ties:
        return
    try:
        built = [set(paths) for paths, _ in _ties(eval_shape(lambda: spec.build(rngs=Rngs(0)), graph=True))]
    except Exception:  # noqa: BLE001  # a constructor may raise anything; nothing is tied then
        built = []
    for paths, value in ties:
        if not any(known.issuperset(paths) for known in built):
            first, second = (path_text(path) for path in paths[:2])
            raise ConfigError(
                f"{reader.name}.{second}",
                f"this is the same object as {first}, and a model built from the spec would have two",
                got=describe(value),
                why="a spec says which parts are one object (Ref), and not which of what is inside of parts is",
                fix=f"tie {first} and {second} in __init__ or __post_init__, so that building ties them",
            )


def _ties(model: Any) -> list[tuple[list[tuple[Any, ...]], Any]]:
    """The parts and Variables that a model holds in several places, with all of their paths."""
    values: list[Any] = []

    def is_shared(path: tuple[Any, ...], value: Any) -> bool:
        is_object = isinstance(value, (Pytree, Variable))
        values.extend([value] if is_object else [])
        return is_object

    return list(zip(find_duplicates(model, only=is_shared), values, strict=True))


_VALUES: Final = (bool, int, float, complex, str, bytes, type(None))


class _Reader:
    def __init__(self, root: object) -> None:
        self.name = type_name(type(root))
        self._seen: dict[int, Path] = {}
        self._counts: dict[int, int] = {}
        self._kept: list[object] = []

    def count(self, value: object) -> int:
        """In how many places of the spec a part is, as a spec or a Ref."""
        return self._counts.get(id(value), 0)

    def value(self, value: Any, path: Path, annotation: Any = Any) -> Any:
        """The spec of a part, the Ref to it, or a value as it is."""
        if isinstance(value, (*_VALUES, SpecData, Ref)):
            return value
        where = f"{self.name}.{path_text(path)}"
        if len(path) > MAX_DEPTH:
            raise DepthError(where, f"a model is nested more than {MAX_DEPTH} levels deep for a spec")
        is_part = isinstance(value, Pytree) and not isinstance(value, Variable)
        if is_part or type(value) in (list, dict):
            self._counts[id(value)] = self._counts.get(id(value), 0) + 1
            first = self._seen.setdefault(id(value), path)
            if first is not path:
                if path[: len(first)] != first:
                    return Ref.to(first)
                raise ConfigError(  # what is around this place is open still
                    where,
                    f"the part contains itself; it is also at {path_text(first)}",
                    why="constructors make a part before what holds it",
                    fix="set the link after the model is built",
                )
            self._kept.append(value)  # an id means something only while its object lives
        if is_part or (dataclasses.is_dataclass(value) and _is_constructed(value, annotation)):
            return self._spec(value, path)
        if isinstance(value, dict) or type(value) in (list, tuple):
            held: Any = value
            items = held.items() if isinstance(held, dict) else enumerate(held)
            found = {k: self.value(v, (*path, k), element_annotation(annotation, value, k)) for k, v in items}
            return found if isinstance(value, dict) else type(held)(found.values())
        if isinstance(value, (Variable, jax.Array, np.ndarray)):
            raise ConfigError(
                where,
                "a constructor takes an array here, and an array is no part of a spec",
                got=describe(value),
                fix="declare it with dx.variable(...), or make it in __post_init__",
            )
        return value

    def _spec(self, model: Any, path: Path) -> Spec[Any]:
        parameters = parameters_of(type(model))
        if isinstance(model, List):
            given: dict[str, Any] = {"elements": list(model)}
        elif isinstance(model, Dict):
            given = {"entries": dict(model)}
        elif isinstance(model, Optimizer):
            given = self._optimizer(model, path)
        else:
            given = self._attributes(model, parameters, path)
        found = {}
        for name, value in given.items():
            parameter = parameters.get(name)
            annotation = Any if parameter is None or name == parameters.variadic else parameter.annotation
            found[name] = self.value(value, (*path, name), annotation)
        return Spec(type(model), found)

    def _optimizer(self, optimizer: Optimizer[Any], path: Path) -> dict[str, Any]:
        """The arguments of an optimizer that was built from a spec."""
        model, tx = model_of(optimizer), description_of(optimizer.tx)
        if model is None or tx is None:
            raise ConfigError(
                f"{self.name}.{path_text(path)}" if path else self.name,
                "how this optimizer was made cannot be told",
                why="it keeps neither its model nor the arguments of its transformation; of one that is built from a\n"
                "spec these are remembered, of copies they are not",
                fix='dx.spec(dx.Optimizer, dx.Ref("/model"), dx.spec(optax.adamw, 1e-3), wrt=dx.Param).build()',
            )
        return {"model": model, "tx": tx, "wrt": optimizer.wrt}

    def _attributes(self, model: Any, parameters: Parameters, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for parameter in parameters:
            value = getattr(model, parameter.name, MISSING)
            if parameter.name == parameters.variadic and value is not MISSING:
                value = tuple(value)
            field = getattr(type(model), "__dataclass_fields__", {}).get(parameter.name)
            if value is MISSING or (field is not None and is_init_var(field)):
                name = type_name(type(model))
                raise ConfigError(
                    f"{self.name}.{path_text((*path, parameter.name))}",
                    f"{name} takes {parameter.name!r}, and no attribute of that name tells what it was given",
                    fix=f"self.{parameter.name} = {parameter.name}      # in __init__; or a field, not an InitVar",
                )
            if value is not parameter.default:
                found[parameter.name] = value
        return found


def _is_constructed(value: Any, annotation: Any) -> bool:
    """Whether an instance of a dataclass is described by a spec, and not a value that a spec holds as it is.

    A frozen one is a value where the annotation does not name its class.
    """
    if isinstance(value, type):
        return False
    is_value = type(value).__dataclass_params__.frozen and type(value).__hash__ is not None
    classes = [plain_target(member) for member in allowed_classes(annotation)]
    return not is_value or any(
        isinstance(cls, type) and dataclasses.is_dataclass(cls) and isinstance(value, cls) for cls in classes
    )
