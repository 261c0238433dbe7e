"""Specs: descriptions of constructions, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from declax.config._building import Builder, check
from declax.config._catalog import catalog_for
from declax.config._data import Ref as Ref
from declax.config._data import SpecData, bind
from declax.config._dry_run import SpecSummary, summary
from declax.config._editing import SpecDiff, diff, get, replace
from declax.config._parameters import Target, parameters_of, plain_target
from declax.config._part_readers import CallReader
from declax.config._printing import fingerprint, spec_text, to_python
from declax.config._refs import annotation_at, moved_in
from declax.rngs import Rngs, RngStream

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
P = ParamSpec("P")


class Spec(SpecData, Generic[M_co]):
    """A description of a construction: immutable, hashable, compared by value.

    Made by `spec`, or from a target and its arguments by name. Lists and dicts
    may be arguments, as may other specs, which are built first. Two equal
    specs are two objects when they are built; one object in two places is a
    `Ref` in the second.

    Args:
      target: a class, or a function that makes something.
      arguments: its arguments by name.

    Raises:
      ConstructionError: for names that are no parameters, and missing ones.
      ConfigError: for values that are no part of a spec, such as arrays.

    >>> import declax as dx
    >>> layer = Spec(dx.Linear, {"in_features": 3, "out_features": 4, "use_bias": True})
    >>> layer == dx.spec(dx.Linear, 3, 4), layer
    (True, spec(Linear, in_features=3, out_features=4))
    """

    __slots__ = ()

    @classmethod
    def _call(cls, target: Target) -> CallReader:
        return catalog_for(()).call(target)

    @property
    def target(self) -> Callable[..., M_co]:
        """The class or function."""
        return self._target

    def __getitem__(self, path: str) -> Any:
        """The value at a path, or its default; lists and dicts are there in a frozen form.

        Raises:
          ConfigError: for a path to nothing.

        >>> import declax as dx
        >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
        >>> model["layers.0.out_features"], model["layers[0].use_bias"]
        (4, True)
        """
        return get(self, path)

    def build(self, *, rngs: Rngs | RngStream | None = None) -> M_co:
        """Makes what the spec describes.

        Parts are made first, in the order of the parameters, then the whole;
        each that has a parameter `rngs` is given the same. So the draws are
        those of constructor calls that are nested in the same way.

        Args:
          rngs: the random streams.

        Raises:
          ConfigError: for values that do not fit their parameters, all at once,
            for a Ref to nothing, and where rngs are missing.
          DepthError: for Refs that lead forwards one after the other.

        Errors of constructors come as they are, with a note that says where in
        the spec.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).build(rngs=dx.Rngs(0)).kernel.shape
        (3, 4)
        """
        check(self)
        made: M_co = Builder(self, rngs).run()
        return made

    def check(self) -> None:
        """Looks for what can be seen to be wrong without building: types, ranges, choices, Refs.

        Raises:
          ConfigError: with all of it in `problems`.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).check()
        """
        check(self)

    def replace(self, changes: Mapping[str, object] | None = None, /, **named: object) -> Spec[M_co]:
        """The spec with other values at some paths.

        Args:
          changes: values by path, such as ``blocks.0.hidden``; ``*`` stands for
            each element of a list or dict.
          **named: further ones; ``**{"blocks.0.hidden": 128}`` works as well.

        Raises:
          ConfigError, ConstructionError: for a path to nothing, and values that
            are no part of a spec.

        >>> import declax as dx
        >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.spec(dx.Linear, 4, 5))
        >>> model.replace({"layers.*.use_bias": False})["layers.1"]
        spec(Linear, in_features=4, out_features=5, use_bias=False)
        """
        return replace(self, {**(changes or {}), **named})

    def diff(self, other: SpecData) -> SpecDiff:
        """The differences to another spec; defaults count as the values that they are.

        Returns:
          One `SpecChange` for each path, with `path`, `old` and `new`; empty
          for equal specs.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).diff(dx.spec(dx.Linear, 3, 8, use_bias=False))
        out_features: 4 → 8
        use_bias: True → False
        """
        return diff(self, other)

    def fingerprint(self, *, full: bool = False) -> str:
        """A hash of the spec that is the same in every process and on every machine.

        Args:
          full: count defaults too, so that it changes when one of the code
            does; and ``config_version`` of the classes.

        Returns:
          64 hexadecimal digits.

        Raises:
          ConfigError: for values that have no name to be found by, as a lambda.

        >>> import declax as dx
        >>> dx.spec(dx.Linear, 3, 4).fingerprint()[:8]
        'd9a9cf6a'
        """
        return fingerprint(self, full=full)

    def to_python(self, *, name: str = "model", rngs: str = "dx.Rngs(0)") -> str:
        """A program of constructor calls that makes what `build` makes.

        Args:
          name: the variable that holds it.
          rngs: the code of the random streams.

        Raises:
          ConfigError: for values that no code makes, as a lambda.

        >>> import declax as dx
        >>> print(dx.spec(dx.Linear, 3, 4).to_python(name="layer"), end="")
        import declax as dx
        <BLANKLINE>
        rngs = dx.Rngs(0)
        layer = dx.Linear(in_features=3, out_features=4, rngs=rngs)
        """
        return to_python(self, name=name, rngs=rngs)

    def summary(self, *inputs: Any, **named_inputs: Any) -> SpecSummary:
        """What would be built, and what it would answer; nothing is allocated or computed.

        Args:
          *inputs, **named_inputs: what to call it with: arrays, or
            `jax.ShapeDtypeStruct`. It is not called where there are none.

        Returns:
          The table of `dx.summary`, bytes by kind and dtype, and the shapes of
          the answer.

        Raises:
          ConfigError: as `build`.

        Errors of the model, such as of sizes that do not fit, come as they are,
        with a note that says where in the spec.

        >>> import declax as dx, jax
        >>> found = dx.spec(dx.Linear, 4096, 4096).summary(jax.ShapeDtypeStruct((2, 4096), "float32"))
        >>> found.count("Param"), found.output.shape
        (16781312, (2, 4096))
        """
        return summary(self, inputs, named_inputs)

    def __repr__(self) -> str:
        return spec_text(self)


@overload
def spec(target: Callable[P, M], /, *args: P.args, **kwargs: P.kwargs) -> Spec[M]: ...
@overload
def spec(  # type: ignore[overload-cannot-match]  # it can: where parts are specs, and where rngs are left out
    target: Callable[..., M], /, *args: Any, **kwargs: Any
) -> Spec[M]: ...
def spec(target: Callable[..., M], /, *args: Any, **kwargs: Any) -> Spec[M]:
    """Describes a call of a class or function, to be made later by `Spec.build`.

    Args:
      target: the class or function.
      *args, **kwargs: its arguments less `rngs`, which `build` takes. Where a
        part is expected, its spec is given; where one object is in two places,
        a `Ref` in the second. Refs of a spec that lead to its own parts do so
        when it is a part of another.

    Returns:
      The spec.

    Raises:
      ConstructionError: for arguments that the target does not take, or lacks.
      ConfigError: for values that are no part of a spec: arrays, models, and
        others that can change.
      DepthError: for specs nested more than 100 levels deep.

    >>> import declax as dx
    >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
    >>> model.build(rngs=dx.Rngs(0))(jax.numpy.ones((2, 3))).shape
    (2, 4)
    """
    parameters = parameters_of(plain_target(target))
    given = bind(parameters, args, kwargs)
    arguments = {name: moved_in(value, annotation_at(parameters, name), (name,)) for name, value in given.items()}
    return Spec(target, arguments)
