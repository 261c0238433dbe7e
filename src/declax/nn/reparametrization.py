"""Wrappers of layers that normalize their weights before each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.keys import needed_rngs
from declax._fields.specifiers import KW_ONLY, data, field, static
from declax._filters import All, Filter, PathContains, as_written
from declax._graph.api import state as state_of
from declax._graph.updating import update
from declax._lazy import lazy_names
from declax._module.module import Module
from declax._random.streams import Rngs
from declax._state.states import State
from declax._typing import Dtype, Initializer, Path
from declax._variables.kinds import BatchStat, Param
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import NamedInitializer, normal, ones
from declax.nn import dtypes
from declax.nn._checks import axes_of, check_axes_type, field_of
from declax.nn._gathering import gathered
from declax.nn.layer import Layer


@dataclass
class WeightNorm(Layer):
    """Normalizes the weights of a layer before each call.

    ``weight = scale * weight / sqrt(sum(weight**2) + epsilon)``, with the sum over all axes but `feature_axes`

    The layer keeps the normalized weights, and its gradients are those of the weights before. As in NNX, the scales are
    arrays and not Params: an optimizer of Params does not change them.

    Salimans and Kingma, "Weight Normalization", https://arxiv.org/abs/1602.07868.

    Args:
      layer_instance: the layer.
      feature_axes: the axis or axes of a weight that have a scale for each element; None normalizes a weight as a
        whole, with one scale.
      use_scale: multiply by a scale; without it, `scales` is None.
      scale_init: makes each scale, of the shape of the feature axes, in its own default dtype.
      epsilon: added to the sum of squares, against division by zero.
      dtype: dtype of the normalized weights; None infers it from weight and scale.
      param_dtype: taken for parity with NNX; it decides on nothing.
      variable_filter: selects among the Params of the layer.
      promote_dtype: taken for parity with NNX; it decides on nothing.
      rngs: gives one key to each scale, from `params`, unless `scale_init` makes constants.

    Raises:
      LayerError: for a layer that cannot be called; if the filter matches no Param; if a weight has no such axis; and
        if the layer got another Param after construction.

    >>> import declax as dx
    >>> layer = dx.WeightNorm(dx.Linear(3, 2, rngs=dx.Rngs(0)), rngs=dx.Rngs(1))
    >>> layer(jnp.ones(3)).shape, layer.scales[("kernel",)].shape
    ((2,), (2,))
    >>> jnp.linalg.norm(layer.layer_instance.kernel[...], axis=0).round(3).tolist()
    [1.0, 1.0]
    """

    layer_instance: Module
    _: KW_ONLY
    feature_axes: int | Sequence[int] | None = field(default=-1)
    use_scale: bool = field(default=True)
    scale_init: InitVar[Initializer] = field(default=ones)
    epsilon: float = field(default=1e-12, ge=0.0)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    variable_filter: Filter = static(default=PathContains("kernel"))
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    scales: dict[Path, jax.Array] | None = data(default=None, init=False)

    def __post_init__(self, scale_init: Initializer, *, rngs: Rngs | None = None) -> None:
        _check_callable(self, self.layer_instance)
        if self.feature_axes is not None:
            check_axes_type(self, "feature_axes")
        weights = self._weights()
        if not weights:
            raise errors.LayerError(
                field_of(self, "variable_filter"),
                "the filter matches no Param of the layer",
                expected="a filter for at least one weight",
                got=f"{as_written(self.variable_filter)} for {errors.describe(self.layer_instance)}",
                fix='dx.WeightNorm(layer, variable_filter=dx.PathContains("embedding"), rngs=rngs)',
            )
        if self.use_scale:
            self.scales = {path: self._first_scale(weight, scale_init, rngs) for path, weight in weights.items()}

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        """Normalizes the weights, and calls the layer.

        Args:
          x: the input of the layer.
          *args: its further arguments.
          **kwargs: its keywords.

        Returns:
          The output of the layer.
        """
        weights = {path: self._normalized(path, weight) for path, weight in self._weights().items()}
        update(self.layer_instance, State.from_flat_path(weights))
        layer: Any = self.layer_instance
        return layer(x, *args, **kwargs)

    def _weights(self) -> dict[Path, jax.Array]:
        return _params(self.layer_instance, All(Param, self.variable_filter))

    def _features(self, weight: jax.Array) -> tuple[int, ...]:
        return () if self.feature_axes is None else axes_of(self, "feature_axes", weight, "weight")

    def _first_scale(self, weight: jax.Array, initializer: Initializer, rngs: Rngs | None) -> jax.Array:
        shape = tuple(weight.shape[axis] for axis in self._features(weight))
        if isinstance(initializer, NamedInitializer) and not initializer.needs_key:
            return initializer(None, shape)  # NNX draws no key, and takes only constants
        return initializer(needed_rngs(rngs).params(), shape)

    def _normalized(self, path: Path, weight: jax.Array) -> jax.Array:
        features = self._features(weight)
        unit = _unit(weight, tuple(axis for axis in range(weight.ndim) if axis not in features), self.epsilon)
        if self.scales is None:
            return unit.astype(dtypes.canonicalize_dtype(weight, dtype=self.dtype))
        if path not in self.scales:
            raise _new_param(self, "scales", path)
        scale = gathered(self.scales[path], weight, dict(enumerate(features)))
        dtype = dtypes.canonicalize_dtype(weight, scale, dtype=self.dtype)
        along = [weight.shape[axis] if axis in features else 1 for axis in range(weight.ndim)]
        with jax.numpy_dtype_promotion("standard"):  # a dtype that is given says what comes out
            return (unit * scale.reshape(along)).astype(dtype)


@dataclass
class SpectralNorm(Layer):
    """Divides the weights of a layer by their largest singular value before each call.

    ``weight = weight / sigma``, with ``sigma = v @ weight @ u``

    `u` and `v` are vectors of length 1 that the power iteration brings closer to the singular vectors:
    ``v = unit(weight @ u)``, ``u = unit(v @ weight)``. Weights of more than two axes count as matrices, with the
    last axis for the columns; those of fewer stay. The layer keeps the normalized weights, and its gradients are those
    of the weights before.

    Miyato et al., "Spectral Normalization for Generative Adversarial Networks", https://arxiv.org/abs/1802.05957.

    `model.train()` and `model.eval()` set `use_running_average`, the opposite of `update_stats`.

    Args:
      layer_instance: the layer.
      n_steps: steps of the power iteration at each call.
      epsilon: added to squares of lengths, against division by zero.
      dtype: dtype to which the normalized weights are rounded; they are stored in their own.
      param_dtype: dtype in which `u` and `sigma` are stored.
      error_on_non_matrix: refuse weights of more than two axes.
      update_stats: keep the new `u` and `sigma` of each call.
      rngs: gives one key to each weight, from `params`.

    Attributes:
      batch_stats: `u` and `sigma` of each weight, by the path of the weight and their name.

    Raises:
      LayerError: for a layer that cannot be called; for weights of more than two axes with `error_on_non_matrix`; and
        if the layer got another Param after construction.

    >>> import declax as dx
    >>> layer = dx.SpectralNorm(dx.Linear(3, 2, rngs=dx.Rngs(0)), n_steps=20, rngs=dx.Rngs(1))
    >>> layer(jnp.ones(3)).shape, layer.batch_stats[("kernel", "u")].shape
    ((2,), (1, 2))
    >>> float(jnp.linalg.svd(layer.layer_instance.kernel[...])[1].max().round(3))
    1.0
    """

    layer_instance: Module
    _: KW_ONLY
    n_steps: int = field(default=1, ge=1)
    epsilon: float = field(default=1e-12, ge=0.0)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    error_on_non_matrix: bool = field(default=False)
    update_stats: InitVar[bool] = field(default=True)
    use_running_average: bool = field(default=False, init=False)
    batch_stats: dict[Path, BatchStat[jax.Array]] = data(default_factory=dict, init=False)

    def __post_init__(self, update_stats: bool, *, rngs: Rngs | None = None) -> None:
        _check_callable(self, self.layer_instance)
        self.use_running_average = not update_stats
        for path, weight in self._weights().items():
            key, shape = needed_rngs(rngs).params(), (1, weight.shape[-1])
            self.batch_stats[*path, "u"] = BatchStat(normal()(key, shape, self.param_dtype))
            self.batch_stats[*path, "sigma"] = BatchStat(ones(key, (), self.param_dtype))

    def __call__(self, x: jax.Array, update_stats: bool | None = None) -> Any:
        """Normalizes the weights, and calls the layer.

        Args:
          x: the input of the layer.
          update_stats: overrides the argument of the constructor.

        Returns:
          The output of the layer.
        """
        weights, stats = {}, {}
        for path, weight in self._weights().items():
            weights[path], stats[*path, "u"], stats[*path, "sigma"] = self._normalized(path, weight)
        update(self.layer_instance, State.from_flat_path(weights))
        if update_stats is True or (update_stats is None and not self.use_running_average):
            for path, stat in stats.items():
                kept = self.batch_stats[path]
                kept.value = stat.astype(kept.value.dtype)
        layer: Any = self.layer_instance
        return layer(x)

    def set_view(self, use_running_average: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        """Sets attributes of a view; called by `dx.view`.

        Args:
          use_running_average: keep `u` and `sigma` as they are.
          **kwargs: arguments for other layers.

        Returns:
          The arguments for other layers.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average
        return kwargs

    def _weights(self) -> dict[Path, jax.Array]:
        weights = {path: weight for path, weight in _params(self.layer_instance, Param).items() if weight.ndim > 1}
        for path, weight in weights.items():
            if self.error_on_non_matrix and weight.ndim > 2:
                raise errors.LayerError(
                    field_of(self, "error_on_non_matrix"),
                    f"{errors.format_path(path)} is not a matrix",
                    expected="weights of two axes at most",
                    got=errors.describe(weight),
                    fix="error_on_non_matrix=False, which joins all axes but the last",
                )
        return weights

    def _normalized(self, path: Path, weight: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The weight, `u` and `sigma`."""
        if (*path, "u") not in self.batch_stats:
            raise _new_param(self, "batch_stats", path)
        stored = weight.dtype
        weight, u = dtypes.promote_dtype((weight, self.batch_stats[*path, "u"].value))
        u, whole = gathered(u, u, {}), gathered(weight, weight, {})
        matrix = whole.reshape(-1, whole.shape[-1])
        v = u  # which the first of the steps replaces
        for _ in range(self.n_steps):
            v = _unit(u @ matrix.T, None, self.epsilon)
            u = _unit(v @ matrix, None, self.epsilon)
        u, v = lax.stop_gradient(u), lax.stop_gradient(v)
        sigma = (v @ matrix @ u.T)[0, 0]
        unit = weight / jnp.where(sigma != 0, sigma, 1)
        rounded = unit.astype(dtypes.canonicalize_dtype(unit, dtype=self.dtype))
        return rounded.astype(stored), u, sigma


def _params(layer: Module, filter: Filter) -> dict[Path, jax.Array]:
    return {path: param.value for path, param in state_of(layer, filter).flat_state()}


def _unit(x: jax.Array, axes: tuple[int, ...] | None, epsilon: float) -> jax.Array:
    return x * lax.rsqrt((x * x).sum(axes, keepdims=True) + epsilon)


def _check_callable(wrapper: object, layer: Module) -> None:
    if not callable(layer):
        raise errors.LayerError(
            field_of(wrapper, "layer_instance"),
            "the layer cannot be called",
            expected="a module with __call__",
            got=errors.describe(layer),
        )


def _new_param(wrapper: object, field: str, path: Path) -> errors.LayerError:
    return errors.LayerError(
        field_of(wrapper, field),
        f"the layer has a Param that it did not have at construction: {errors.format_path(path)}",
        expected="the Params of the layer that the constructor was given",
        got="another one",
        fix=f"{errors.type_name(type(wrapper))}(layer, rngs=rngs)   # once the layer is complete",
    )


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
