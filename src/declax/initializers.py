"""Initializers: the functions of ``jax.nn.initializers``, as values.

Two that are made alike are equal and hash alike, so that two equal models have equal tree definitions; they pickle,
and they print as the code that makes them. The numbers are JAX's own.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.nn import initializers as _jax_initializers

from declax import errors
from declax._fields import snapshots
from declax._typing import MISSING, ArrayLike, Dtype, Immutable
from declax._typing import Initializer as Initializer
from declax._variables import drawing as _drawing
from declax._variables.metadata import AXES, Metadata, VariableMetadata
from declax._variables.placement import on_mesh
from declax._variables.variable import Variable

Axes: TypeAlias = int | Sequence[int]
Mode: TypeAlias = Literal["fan_in", "fan_out", "fan_avg", "fan_geo_avg"]
Distribution: TypeAlias = Literal["truncated_normal", "normal", "uniform"]

_KEYLESS: Final = frozenset({"zeros", "ones", "constant"})
_DECOMPOSING: Final = frozenset({"orthogonal", "delta_orthogonal"})
"""Those that take a QR decomposition, which XLA lacks for floats of less than 32 bits."""
_PYTHON_SCALARS: Final = (bool, int, float, complex)
_INTEGERS: Final = (int, np.integer)


class NamedInitializer(Immutable):
    """An initializer of ``jax.nn.initializers``, known by its name and settings.

    Made by the factories of this module; `zeros` and `ones` have no settings.

    Attributes:
      name: the name of the factory.
      settings: its arguments, all of them, defaults included; None for an initializer that takes none.

    >>> import declax as dx
    >>> init = dx.initializers.normal(stddev=0.02)
    >>> init, init == dx.initializers.normal(0.02), init.arguments["stddev"]
    (normal(stddev=0.02), True, 0.02)
    """

    name: str
    settings: tuple[tuple[str, Hashable], ...] | None

    can_place: ClassVar[bool] = True
    """Whether it takes `out_sharding`."""

    def __init__(self, name: str, settings: tuple[tuple[str, Hashable], ...] | None = None) -> None:
        vars(self).update(name=name, settings=settings)

    def __eq__(self, other: object) -> bool:  # of equal hash too, since the dtype float64 equals None
        return super().__eq__(other) if hash(self) == hash(other) else NotImplemented

    def __hash__(self) -> int:
        return super().__hash__()

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that make this initializer, by name."""
        return MappingProxyType({name: snapshots.thaw(setting) for name, setting in self.settings or ()})

    @property
    def needs_key(self) -> bool:
        """Whether it draws random numbers."""
        return self.name not in _KEYLESS

    def __call__(
        self, key: jax.Array | None, shape: int | Sequence[int], dtype: Dtype | None = None, out_sharding: Any = None
    ) -> jax.Array:
        """Makes an array.

        Args:
          key: a PRNG key; `zeros`, `ones` and `constant` ignore it.
          shape: of the array; an int means one axis.
          dtype: of the array; None means the factory's, or the default float. Orthogonal matrices of floats below 32
            bits are made in float32.
          out_sharding: of the array. No device holds more than its shards of it, and the numbers are the same for
            all shardings.

        Raises:
          InitializerError: the shape does not suit, or the key is missing.
          ShardingError: `out_sharding` is a spec, and there is no mesh.

        >>> import declax as dx
        >>> dx.initializers.ones(None, (2,))
        Array([1., 1.], dtype=float32)
        """
        sizes = (int(shape),) if isinstance(shape, _INTEGERS) else tuple(shape)
        if key is None and self.needs_key:
            raise errors.InitializerError(
                repr(self),
                "draws random numbers and needs a key",
                expected="a PRNG key",
                got="None",
                fix=f"{self!r}(jax.random.key(0), {sizes})",
            )
        target = None if out_sharding is None else on_mesh(out_sharding)
        try:
            if _drawing.is_apart() and self.needs_key:
                drawn: jax.Array = _drawing.draw(self, key, sizes, dtype, target)
                return drawn
            if target is not None:
                placed: jax.Array = _drawing.make_placed(self, key, sizes, dtype, target)
                return placed
            if self.settings is None and dtype is not None:
                filled: jax.Array = _filled(int(self.name == "ones"), sizes, dtype)
                return filled
            wanted = self.arguments.get("dtype") if dtype is None else dtype
            if self.name in _DECOMPOSING and _is_half(wanted):
                return self(key, sizes, jnp.float32).astype(wanted)
            found = _function_of.__wrapped__ if self.name == "constant" else _function_of  # 0.0 and -0.0 are equal keys
            make = found(self.name, self.settings)
            return make(key, sizes) if dtype is None else make(key, sizes, dtype)
        except (ValueError, IndexError) as error:
            problem = f"cannot make an array of shape {sizes}"
            fix = "dx.initializers.zeros        # or dx.initializers.normal(0.02), which count no inputs or outputs"
            is_vector = "in_axis" in self.arguments and len(sizes) < 2
            raise errors.InitializerError(
                repr(self), problem, why=str(error), fix=fix if is_vector else None
            ) from error

    def __repr__(self) -> str:
        if self.settings is None:
            return self.name
        usual = inspect.signature(globals()[self.name]).parameters
        shown = [f"{k}={_show(v)}" for k, v in self.settings if not _is_default(v, usual[k].default)]
        return f"{self.name}({', '.join(shown)})"


@functools.lru_cache(maxsize=512)
def _function_of(name: str, settings: tuple[tuple[str, Hashable], ...] | None) -> Callable[..., jax.Array]:
    """The function of JAX; kept, since most layers of a model have the same."""
    found: Callable[..., Any] = getattr(_jax_initializers, name)
    return found if settings is None else found(**{key: snapshots.thaw(setting) for key, setting in settings})


def _is_half(dtype: Dtype | None) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _filled(value: int, shape: tuple[int, ...], dtype: Dtype) -> jax.Array:
    """An array of one value; compiled, since JAX dispatches several operations for it otherwise."""
    return jnp.full(shape, value, dtype)


def _is_default(setting: object, default: object) -> bool:
    """Whether a setting is the default of its argument; in NumPy, float64 equals None."""
    return setting is default or (default is not None and bool(setting == default))


def _show(setting: object) -> str:
    if isinstance(setting, np.dtype):
        return repr(setting.name)
    return setting.__name__ if isinstance(setting, type) else " ".join(repr(setting).split())


def _number(value: object) -> Hashable:
    """A number or array as a hashable setting, or MISSING; zero-dimensional arrays become numbers."""
    if isinstance(value, _PYTHON_SCALARS):
        return value
    if isinstance(value, Tracer) or not isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return MISSING
    if not jnp.issubdtype(value.dtype, np.number):
        return MISSING
    number: Hashable = value.item() if value.ndim == 0 else snapshots.freeze_array(np.asarray(value))
    return number


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key) or (array.dtype == jnp.uint32 and array.shape == (2,))


def _axes(value: Any) -> Hashable:
    return tuple(map(operator.index, value)) if isinstance(value, Sequence) else operator.index(value)


def _dtype(value: Any) -> Any:
    return value if value is None or any(value is scalar for scalar in _PYTHON_SCALARS) else jnp.dtype(value)


def _one_of(options: tuple[str, ...], value: Any) -> Hashable:
    return options[options.index(value)]


_SETTINGS: Final[dict[str, tuple[Callable[[Any], Hashable], str]]] = {
    "dtype": (_dtype, "a dtype"),
    **dict.fromkeys(("in_axis", "out_axis", "batch_axis", "column_axis"), (_axes, "an int, or a sequence of ints")),
    "mode": (functools.partial(_one_of, get_args(Mode)), f"one of {get_args(Mode)}"),
    "distribution": (functools.partial(_one_of, get_args(Distribution)), f"one of {get_args(Distribution)}"),
}
"""For each setting that is not a number, a function that makes it hashable, and its description."""


def _make(name: str, /, **arguments: Any) -> NamedInitializer:
    settings: list[tuple[str, Hashable]] = []
    for argument, value in arguments.items():
        convert, expected = _SETTINGS.get(argument, (_number, "a number or an array of numbers, which is not traced"))
        try:
            setting = convert(value)
        except (TypeError, ValueError):
            setting = MISSING
        if setting is MISSING:
            is_called = any(isinstance(given, jax.Array) and _is_key(given) for given in arguments.values())
            raise errors.InitializerError(
                f"{name}.{argument}",
                "this is not a valid setting",
                expected=expected,
                got=errors.describe(value),
                fix=f"dx.initializers.{name}()(key, shape)        # {name}() makes the initializer"
                if is_called
                else None,
            )
        settings.append((argument, setting))
    return NamedInitializer(name, tuple(settings))


zeros: Final = NamedInitializer("zeros")
"""Makes arrays full of zeros; needs no key."""
ones: Final = NamedInitializer("ones")
"""Makes arrays full of ones; needs no key."""


def zeros_init() -> NamedInitializer:
    """The initializer `zeros`, for code that calls every factory.

    >>> import declax as dx
    >>> dx.initializers.zeros_init()
    zeros
    """
    return zeros


def ones_init() -> NamedInitializer:
    """The initializer `ones`, for code that calls every factory.

    >>> import declax as dx
    >>> dx.initializers.ones_init()
    ones
    """
    return ones


def constant(value: ArrayLike, dtype: Dtype | None = None) -> NamedInitializer:
    """Arrays full of `value`, which may be an array that broadcasts to the shape.

    Args:
      value: the number or array.
      dtype: used where the call gives none.

    >>> import declax as dx
    >>> dx.initializers.constant(3)(None, (2,))
    Array([3., 3.], dtype=float32)
    """
    return _make("constant", value=value, dtype=dtype)


def uniform(scale: ArrayLike = 1e-2, dtype: Dtype | None = None) -> NamedInitializer:
    """Uniform between 0 and `scale`.

    Args:
      scale: the upper bound.
      dtype: used where the call gives none.

    >>> import declax as dx
    >>> dx.initializers.uniform(scale=0.5)
    uniform(scale=0.5)
    """
    return _make("uniform", scale=scale, dtype=dtype)


def normal(stddev: ArrayLike = 1e-2, dtype: Dtype | None = None) -> NamedInitializer:
    """Normal with mean 0 and standard deviation `stddev`.

    Args:
      stddev: the standard deviation.
      dtype: used where the call gives none.

    >>> import declax as dx
    >>> dx.initializers.normal(stddev=0.02)
    normal(stddev=0.02)
    """
    return _make("normal", stddev=stddev, dtype=dtype)


def truncated_normal(
    stddev: ArrayLike = 1e-2, dtype: Dtype | None = None, lower: ArrayLike = -2.0, upper: ArrayLike = 2.0
) -> NamedInitializer:
    """Normal, cut at `lower` and `upper` standard deviations, then scaled by `stddev`.

    The deviation of the result is smaller than `stddev`, since the tails are gone.

    Args:
      stddev: the standard deviation before the cut.
      dtype: used where the call gives none.
      lower: the lower cut, in standard deviations.
      upper: the upper cut, in standard deviations.

    >>> import declax as dx
    >>> dx.initializers.truncated_normal(0.02)
    truncated_normal(stddev=0.02)
    """
    return _make("truncated_normal", stddev=stddev, dtype=dtype, lower=lower, upper=upper)


def variance_scaling(
    scale: ArrayLike,
    mode: Mode,
    distribution: Distribution,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: Dtype | None = None,
) -> NamedInitializer:
    """Random with variance ``scale / n``, where `mode` says what `n` counts.

    Args:
      scale: of the variance.
      mode: `n` is the inputs of one output (``fan_in``), the outputs of one input (``fan_out``), or their arithmetic
        (``fan_avg``) or geometric (``fan_geo_avg``) mean.
      distribution: ``truncated_normal`` (at two deviations), ``normal`` or ``uniform``.
      in_axis: axis or axes of the inputs.
      out_axis: axis or axes of the outputs.
      batch_axis: axis or axes that count in neither; the rest is the receptive field.
      dtype: used where the call gives none.

    Raises:
      InitializerError: an unknown mode or distribution.

    >>> import declax as dx
    >>> dx.initializers.variance_scaling(2.0, "fan_in", "normal")
    variance_scaling(scale=2.0, mode='fan_in', distribution='normal')
    """
    return _make(
        "variance_scaling",
        scale=scale,
        mode=mode,
        distribution=distribution,
        in_axis=in_axis,
        out_axis=out_axis,
        batch_axis=batch_axis,
        dtype=dtype,
    )


class _FanFactory(Protocol):
    """Makes an initializer from the axes of the fans."""

    def __call__(
        self, in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Dtype | None = None
    ) -> NamedInitializer: ...


_FAN_ARGUMENTS: Final = """Args:
  in_axis: axis or axes of the inputs.
  out_axis: axis or axes of the outputs.
  batch_axis: axis or axes that count in neither; the rest is the receptive field.
  dtype: used where the call gives none."""


def _fan_factory(name: str, doc: str) -> _FanFactory:
    """A factory with the variance of a name; the axes are those of `variance_scaling`."""

    def make(
        in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Dtype | None = None
    ) -> NamedInitializer:
        return _make(name, in_axis=in_axis, out_axis=out_axis, batch_axis=batch_axis, dtype=dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"{doc}\n\n{_FAN_ARGUMENTS}\n\n>>> import declax as dx\n>>> dx.initializers.{name}()\n{name}()\n"
    return make


glorot_uniform: Final = _fan_factory(
    "glorot_uniform", "Uniform with variance ``2 / (fan_in + fan_out)``, or Xavier uniform (Glorot and Bengio, 2010)."
)
glorot_normal: Final = _fan_factory(
    "glorot_normal",
    "Truncated normal with variance ``2 / (fan_in + fan_out)``, or Xavier normal (Glorot and Bengio, 2010).",
)
lecun_uniform: Final = _fan_factory("lecun_uniform", "Uniform with variance ``1 / fan_in`` (LeCun et al., 1998).")
lecun_normal: Final = _fan_factory(
    "lecun_normal", "Truncated normal with variance ``1 / fan_in`` (LeCun et al., 1998)."
)
he_uniform: Final = _fan_factory(
    "he_uniform", "Uniform with variance ``2 / fan_in``, or Kaiming uniform (He et al., 2015)."
)
he_normal: Final = _fan_factory(
    "he_normal", "Truncated normal with variance ``2 / fan_in``, or Kaiming normal (He et al., 2015)."
)


def orthogonal(scale: ArrayLike = 1.0, column_axis: int = -1, dtype: Dtype | None = None) -> NamedInitializer:
    """Uniformly random orthogonal matrices, times `scale` (Saxe et al., 2013).

    More than two axes are taken as matrices with columns along `column_axis`.

    Args:
      scale: the factor of all elements.
      column_axis: the axis of the columns.
      dtype: used where the call gives none.

    >>> import declax as dx
    >>> dx.initializers.orthogonal(scale=2.0)
    orthogonal(scale=2.0)
    """
    return _make("orthogonal", scale=scale, column_axis=column_axis, dtype=dtype)


def delta_orthogonal(scale: ArrayLike = 1.0, column_axis: int = -1, dtype: Dtype | None = None) -> NamedInitializer:
    """Convolution kernels that are orthogonal at their centre and zero elsewhere (Xiao et al., 2018).

    The shape must have three to five axes.

    Args:
      scale: the factor of all elements.
      column_axis: the axis of the columns.
      dtype: used where the call gives none.

    >>> import declax as dx
    >>> dx.initializers.delta_orthogonal()
    delta_orthogonal()
    """
    return _make("delta_orthogonal", scale=scale, column_axis=column_axis, dtype=dtype)


xavier_uniform: Final = glorot_uniform
xavier_normal: Final = glorot_normal
kaiming_uniform: Final = he_uniform
kaiming_normal: Final = he_normal


# --- metadata -------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

ValueHook: TypeAlias = Callable[[Variable[Any], Any], Any]
AxisHook: TypeAlias = Callable[[Variable[Any], int, str | None], None]
ValueHooks: TypeAlias = ValueHook | Sequence[ValueHook]
AxisHooks: TypeAlias = AxisHook | Sequence[AxisHook]


class InitializerWithMetadata(Immutable):
    """An initializer whose values bring metadata; hashable and equal by value, so that it causes no retrace."""

    initializer: Callable[..., Any]
    metadata: Metadata

    def __init__(self, initializer: Callable[..., Any], metadata: Metadata) -> None:
        vars(self).update(initializer=initializer, metadata=metadata)

    @property
    def can_place(self) -> bool:
        """Whether it takes `out_sharding`."""
        return getattr(self.initializer, "can_place", False)

    def __call__(self, *args: Any, **options: Any) -> VariableMetadata[Any]:
        """Makes the value, and hands it on with the metadata."""
        made = self.initializer(*args, **options)
        if isinstance(made, VariableMetadata):  # wrapped twice: the outer one has the last word
            return VariableMetadata(made.value, {**made.metadata, **self.metadata})
        return VariableMetadata(made, self.metadata)


def adapted(initializer: Callable[..., Any], adapt: Callable[[Callable[..., Any]], Any]) -> Any:
    """What a function makes of an initializer; the metadata that its values bring stay."""
    if isinstance(initializer, InitializerWithMetadata):
        return InitializerWithMetadata(adapted(initializer.initializer, adapt), initializer.metadata)
    return adapt(initializer)


def without_metadata(initializer: Callable[..., Any]) -> Callable[..., Any]:
    """The initializer that `with_metadata` wrapped, or the same."""
    while isinstance(initializer, InitializerWithMetadata):
        initializer = initializer.initializer
    return initializer


def with_metadata(
    initializer: F,
    on_set_value: ValueHooks = (),
    on_get_value: ValueHooks = (),
    on_create_value: ValueHooks = (),
    on_add_axis: AxisHooks = (),
    on_remove_axis: AxisHooks = (),
    **metadata: Any,
) -> F:
    """Wraps an initializer so that the Variable made from its value carries metadata, which overrides the layer's.

    Args:
      initializer: a function that makes a value, as those of `jax.nn.initializers`.
      on_set_value: one or several functions ``(variable, value) -> value``, run on each value that is put in.
      on_get_value: the same, run on each value that is read.
      on_create_value: the same, run on the first value.
      on_add_axis: one or several functions ``(variable, axis_index, axis_name)``, run when a transform adds an axis.
      on_remove_axis: the same, run when a transform removes one.
      **metadata: further metadata of the Variable, such as ``sharding``. The older names ``set_value_hooks``,
        ``get_value_hooks``, ``create_value_hooks``, ``add_axis_hooks`` and ``remove_axis_hooks`` add to the hooks.

    Raises:
      StatusError: the value of a name has no hash.

    >>> import declax as dx
    >>> zeros = dx.with_metadata(dx.initializers.zeros, sharding=("in", "out"))
    >>> dx.Param(zeros(jax.random.key(0), (2, 3))).out_sharding
    ('in', 'out')
    """
    given = {
        "set_value": on_set_value,
        "get_value": on_get_value,
        "create_value": on_create_value,
        "add_axis": on_add_axis,
        "remove_axis": on_remove_axis,
    }
    for name, hooks in given.items():
        together = (*_as_tuple(hooks), *_as_tuple(metadata.pop(f"{name}_hooks", ())))
        if together:
            metadata[f"on_{name}"] = together[0] if len(together) == 1 else together
    return cast(F, InitializerWithMetadata(initializer, Metadata.of(metadata, "with_metadata")))


def with_partitioning(initializer: F, sharding: Any, mesh: Any = None, **metadata: Any) -> F:
    """Wraps an initializer so that the Variable made from its value names its axes, as `with_metadata` does.

    Args:
      initializer: a function that makes a value.
      sharding: for each dimension a mesh axis, a logical name, a tuple of these, or None; or a sharding.
      mesh: the devices; None for the mesh of `jax.set_mesh`.
      **metadata: further metadata of the Variable.

    Raises:
      StatusError: as `with_metadata`.

    >>> import declax as dx
    >>> init = dx.with_partitioning(dx.initializers.lecun_normal(), (None, "model"))
    >>> dx.Linear(2, 4, kernel_init=init, rngs=dx.Rngs(0)).kernel.out_sharding
    (None, 'model')
    """
    named = {AXES: sharding} if mesh is None else {AXES: sharding, "mesh": mesh}
    return with_metadata(initializer, **named, **metadata)


def _as_tuple(hooks: Any) -> tuple[Any, ...]:
    return tuple(hooks) if isinstance(hooks, (tuple, list)) else (hooks,)
