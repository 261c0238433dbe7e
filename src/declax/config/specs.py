"""Specs: immutable descriptions of constructor calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from declax._displays.summarizing import Row, Summary
from declax._displays.summarizing import summary as summary_of
from declax._random.streams import Rngs, RngStream
from declax._sharding.memory import DeviceBytes, Shardings, bytes_per_device
from declax._text.arrays import bytes_text, shapes_text
from declax._typing import Replacing
from declax._variables.placement import AnyMesh
from declax.config._building import Builder, check
from declax.config._changing import Selection, with_word
from declax.config._checkers import Explicit, Function, Unchecked
from declax.config._conforming import models_in
from declax.config._data import Ref as Ref
from declax.config._data import SpecData, bind
from declax.config._notebook import html_tree
from declax.config._printing import canonical_text, tree_text, value_text
from declax.config._reading.catalog import catalog_for
from declax.config._reading.parameters import Target, parameters_of, plain_target
from declax.config._reading.part_readers import CallReader
from declax.config._refs import get, moved_in, replace
from declax.errors import ConfigError, describe
from declax.transforms.abstract import eval_shape

M = TypeVar("M")
K = TypeVar("K", bound=Explicit)
M_co = TypeVar("M_co", covariant=True)
P = ParamSpec("P")


class Spec(SpecData, Replacing, Generic[M_co]):
    """A description of a constructor call: immutable, hashable, compared by value.

    Arguments are values, lists, dicts and other specs, which are built first. Two equal specs build two objects. To
    have one object in two places, use a `Ref` in the second.

    Args:
      target: a class or function.
      arguments: its arguments by name.

    Raises:
      ConstructionError: an argument is unknown or missing.
      ConfigError: a spec cannot hold a value, such as an array.

    >>> import declax as dx
    >>> layer = dx.Spec(dx.Linear, {"in_features": 3, "out_features": 4, "use_bias": True})
    >>> layer == dx.spec(dx.Linear, 3, 4), layer
    (True, spec(Linear, in_features=3, out_features=4))
    """

    __slots__ = ()

    @classmethod
    def _reader(cls, target: Target) -> CallReader:
        return catalog_for(()).call(target)

    @property
    def target(self) -> Callable[..., M_co]:
        """The class or function."""
        made: Callable[..., M_co] = self._call.target
        return made

    def __getitem__(self, path: str) -> Any:
        """The value or default at a path; lists and dicts are frozen.

        Raises:
          ConfigError: the path does not exist.

        >>> import declax as dx
        >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
        >>> model["layers.0.out_features"], model["layers[0].use_bias"]
        (4, True)
        """
        return get(self, path)

    def build(self, *, rngs: Rngs | RngStream | None = None) -> M_co:
        """Builds the object: its parts first, in the order of the parameters, then the whole.

        Each part that has a parameter `rngs` receives the same object, so the draws equal those of nested constructor
        calls. Errors of constructors keep their types, and get a note with the place in the spec.

        Args:
          rngs: the random streams.

        Raises:
          ConfigError: lists all values that do not fit their parameters and all Refs without a target; or rngs are
            missing.
          DepthError: a long chain of Refs points at later parts.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).build(rngs=dx.Rngs(0)).kernel.shape
        (3, 4)
        """
        check(self)
        made: M_co = Builder(self, rngs).run()
        return made

    def check(self) -> None:
        """Checks types, ranges, choices and Refs, without building.

        Raises:
          ConfigError: all mistakes are in `problems`.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).check()
        """
        check(self)

    def replace(self, /, *changes: Mapping[str, object] | str | None, **named: object) -> Spec[M_co]:
        """A copy of the spec with other values at some paths.

        Args:
          *changes: values by path, such as ``{"blocks.0.hidden": 3}``, where ``*`` selects each element; or words as on
            a command line: ``blocks.0.hidden=3``, ``blocks.2+={kind="Mlp"}``, ``~blocks.1``, ``**.Mlp.hidden=3``.
          **named: values of arguments of the spec itself.

        Raises:
          ConfigError, ConstructionError: a path does not exist, or a spec cannot hold a value.

        >>> import declax as dx
        >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.spec(dx.Linear, 4, 5))
        >>> model.replace({"layers.*.use_bias": False})["layers.1"]
        spec(Linear, in_features=4, out_features=5, use_bias=False)
        >>> len(model.replace("layers+={kind='Dropout', rate=0.1}")["layers"])
        3
        """
        found = self
        for change in changes:
            found = with_word(found, change) if isinstance(change, str) else replace(found, change or {})
        return replace(found, named)

    def select(self, cls: type) -> Selection[Self]:
        """The parts that are of a class or of its subclasses, to read them or to change all.

        >>> import declax as dx
        >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.spec(dx.Linear, 4, 5))
        >>> model.select(dx.Linear).replace(use_bias=False)["layers.1"]
        spec(Linear, in_features=4, out_features=5, use_bias=False)
        """
        return Selection(self, cls)

    def fingerprint(self) -> str:
        """A hash of what the spec builds: all arguments, defaults and values that class bodies compute.

        It is equal in every process, on every machine and Python, and for each way of importing a module. It changes
        if a default of the code or the version of a class does, so that equal fingerprints mean equal models.

        Returns:
          64 hexadecimal digits.

        Raises:
          ConfigError: a value has no name, such as a lambda.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).fingerprint()[:8]
        'bd93dbf8'
        """
        return hashlib.sha256(canonical_text(self).encode()).hexdigest()

    def summary(
        self,
        *inputs: Any,
        mesh: AnyMesh | Mapping[str, int] | None = None,
        tx: Any = None,
        shardings: Shardings = None,
        **named_inputs: Any,
    ) -> SpecSummary:
        """The arrays of the model and the shapes of its output, without allocating or computing them.

        Args:
          *inputs, **named_inputs: arguments of the model, arrays or `jax.ShapeDtypeStruct`. Without them, the model
            is not called.
          mesh: devices, or sizes of mesh axes by name, for the bytes on each device; no device is needed.
          tx: an optax transformation, whose state is added to these.
          shardings: as in `bytes_per_device`.

        Returns:
          The table of `dx.summary`, bytes by kind and dtype, the bytes on each device, and the shapes of the output.

        Raises:
          ShardingError: declared shardings do not fit the mesh.
          ConfigError: as for `build`.

        >>> import declax as dx, jax
        >>> found = dx.spec(dx.Linear, 4096, 4096).summary(jax.ShapeDtypeStruct((2, 4096), "float32"))
        >>> found.count("Param"), found.output.shape
        (16781312, (2, 4096))
        """
        built = shapes_of(self)
        rows = summary_of(built).rows
        devices = None if mesh is None else bytes_per_device(built, mesh, tx=tx, shardings=shardings)
        if not (inputs or named_inputs):
            return SpecSummary(rows, None, devices)
        if not callable(built):
            raise ConfigError(
                self.parameters.name,
                "inputs were given, but the object that the spec builds is not callable",
                got=describe(built),
                fix="spec.summary()",
            )
        output = eval_shape(lambda model, args, named: model(*args, **named), built, inputs, named_inputs, graph=True)
        return SpecSummary(rows, output, devices)

    def __repr__(self) -> str:
        return value_text(self)

    def __str__(self) -> str:
        return tree_text(self)

    def _repr_html_(self) -> str:
        return html_tree(self)


SpecData.public = Spec


def shapes_of(spec: Spec[Any]) -> Any:
    """The model that a spec builds, or those in a dataclass, with shapes in place of arrays."""
    check(spec)
    return eval_shape(lambda: models_in(Builder(spec, Rngs(0)).run()), graph=True)


# What requires `rngs`, which `build` takes, comes last: its arguments are not checked.
# Editors do not offer a keyword for what begins with an underscore.
@overload
def spec(target: Callable[P, M], /, *args: P.args, **kwargs: P.kwargs) -> Spec[M]: ...
@overload
def spec(  # type: ignore[overload-cannot-match]  # it matches if parts are specs or rngs are missing
    target: Unchecked[..., M], /, *args: Any, **_kwargs: Any
) -> Spec[M]: ...
@overload
def spec(target: type[K], /, *args: Any, **_kwargs: Any) -> Spec[K]: ...
@overload
def spec(target: Function, /, *args: Any, **_kwargs: Any) -> Spec[Any]: ...
def spec(target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Describes a call of a class or function, which `Spec.build` makes later.

    Args:
      target: the class or function.
      *args, **kwargs: its arguments except `rngs`, which `build` takes; specs in place of parts. To have one object
        in two places, use a `Ref` in the second. Refs of a spec to its own parts stay valid when the spec becomes a
        part of another.

    Returns:
      The spec.

    Raises:
      ConstructionError: an argument is unknown or missing.
      ConfigError: a spec cannot hold a value: arrays, models and other mutable objects.
      DepthError: specs are nested more than 100 levels deep.

    >>> import declax as dx
    >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
    >>> model.build(rngs=dx.Rngs(0))(jax.numpy.ones((2, 3))).shape
    (2, 4)
    """
    parameters = parameters_of(plain_target(target))
    given = bind(parameters, args, kwargs)
    reader_of = Spec._reader(parameters.target).reader_of
    return Spec(target, {name: moved_in(value, reader_of(name), (name,)) for name, value in given.items()})


# --- the dry run: shapes, with nothing allocated or computed -----------------------


class SpecSummary(Summary):
    """The arrays that a spec would create, module by module; prints as a table.

    Attributes:
      rows: one for each module with direct arrays.
      output: the shapes of the result of the model; None if it was not called.
      devices: the bytes on each device; None without a mesh.
    """

    __slots__ = ("devices", "output")

    output: Any
    devices: DeviceBytes | None

    def __init__(self, rows: Iterable[Row], output: Any = None, devices: DeviceBytes | None = None) -> None:
        super().__init__(rows)
        self.output = output
        self.devices = devices

    @property
    def sizes(self) -> dict[tuple[str, str], int]:
        """Bytes by kind and dtype, the largest first: ``{("Param", "bfloat16"): 1024}``."""
        found: dict[tuple[str, str], int] = {}
        for entry in self.entries:
            key = (entry.kind, str(entry.dtype))
            found[key] = found.get(key, 0) + entry.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        lines = [super().__str__(), ""]
        lines += [f"{kind} in {dtype}: {bytes_text(size)}" for (kind, dtype), size in self.sizes.items()]
        if self.output is not None:
            lines.append(f"output: {shapes_text(self.output)}")
        if self.devices is not None:
            lines += ["", str(self.devices)]
        return "\n".join(lines)
