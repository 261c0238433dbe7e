"""Metrics: numbers that training and evaluation accumulate over batches."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh
from typing_extensions import TypeVar

from declax import _jax, errors
from declax._classes.decorator import dataclass
from declax._classes.pytree import Pytree
from declax._fields.specifiers import KW_ONLY, field, variable
from declax._filters import Filter
from declax._graph.api import split, state
from declax._variables.placement import context_mesh
from declax._variables.variable import Variable
from declax.initializers import zeros

R = TypeVar("R", default=Any)

AxisName: TypeAlias = str | tuple[str, ...] | None
Mask: TypeAlias = jax.Array | None


class MetricState(Variable[Any]):
    """A Variable with the accumulated values of a metric."""


class Metric(Pytree):
    """The base class of metrics: a subclass defines `reset`, `update` and `compute`.

    >>> import declax as dx
    >>> class Largest(dx.Metric):
    ...     def __init__(self):
    ...         self.value = dx.metrics.MetricState(jnp.float32(-jnp.inf))
    ...     def reset(self):
    ...         self.value[...] = -jnp.inf
    ...     def update(self, *, values, **_):
    ...         self.value[...] = jnp.maximum(self.value[...], values.max())
    ...     def compute(self):
    ...         return self.value[...]
    >>> largest = Largest()
    >>> largest.update(values=jnp.array([1.0, 3.0]))
    >>> float(largest.compute())
    3.0
    """

    def reset(self) -> None:
        """Resets the metric to its initial state."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset()")

    def update(self, **kwargs: Any) -> None:
        """Adds a batch to the metric, in place."""
        raise NotImplementedError(f"{type(self).__name__} does not define update()")

    def compute(self) -> Any:
        """The value of the metric over all batches since the last reset."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute()")

    def split(self, *filters: Filter) -> Any:
        """The GraphDef and States of the metric, as `dx.split` gives them."""
        return split(self, *filters)


@dataclass
class _OfValues(Metric):
    """The fields of metrics of one keyword of `update`, and how they read it."""

    argname: str = field(default="values")
    _: KW_ONLY
    axis_name: AxisName = field(default=None)

    def _batch(self, mask: Mask, given: Mapping[str, Any]) -> tuple[jax.Array, Mask]:
        """The values, and a boolean mask of their shape."""
        values = self._array(self.argname, given)
        if mask is None:
            return values, None
        try:
            return values, jnp.broadcast_to(jnp.asarray(mask).astype(bool), values.shape)
        except ValueError:
            raise errors.LayerError(
                f"{errors.type_name(type(self))}.update",
                "'mask' does not broadcast to the values",
                expected=f"a shape that broadcasts to {values.shape}",
                got=errors.describe(mask),
                why="the values should be a jax array with the axes of the mask",
            ) from None

    def _array(self, name: str, given: Mapping[str, Any]) -> jax.Array:
        """An argument of `update`."""
        value = _argument(self, name, given)
        if jax.process_count() > 1:
            _refuse_array_of_one_process(self, name, value, self._accumulated())
        return jnp.asarray(value)

    def _accumulated(self) -> jax.Array:
        """What the values of all batches make, which lies where these do."""
        raise NotImplementedError

    def _over_axis(self, *batch: jax.Array) -> tuple[jax.Array, ...]:
        if self.axis_name is None:
            return batch
        psum: Callable[..., tuple[jax.Array, ...]] = lax.psum  # jax leaves it untyped
        try:
            return psum(batch, self.axis_name)
        except NameError as error:
            where, fix = f"{errors.type_name(type(self))}.axis_name", "a metric without axis_name under jit alone"
            raise errors.unbound_axis(where, self.axis_name, batch[0], fix) from error


def _refuse_array_of_one_process(metric: Metric, name: str, value: Any, accumulated: jax.Array) -> None:
    """Raises for an array of one process, if the metric is of all: each process would have another value.

    A number may be that of all processes, such as a loss that was read.
    """
    if isinstance(value, Tracer) or isinstance(accumulated, Tracer) or not np.ndim(value):
        return
    mesh = context_mesh()
    is_of_all = not accumulated.is_fully_addressable or (isinstance(mesh, Mesh) and mesh.is_multi_process)
    if is_of_all and (not isinstance(value, jax.Array) or value.is_fully_addressable):
        raise errors.LayerError(
            f"{errors.type_name(type(metric))}.update",
            f"{name!r} is an array of process {jax.process_index()} alone, and the metric is of all processes",
            expected=f"an array on the devices of all {jax.process_count()} processes",
            got=errors.describe(value),
            fix=f"{name} = jax.make_array_from_process_local_data(jax.NamedSharding(mesh, jax.P('data')), {name})\n"
            f"{name} = jax.device_put({name}, jax.NamedSharding(mesh, jax.P()))        # if it is the same in all",
        )


def _warn_of_one_process(metric: Metric, *accumulated: jax.Array) -> None:
    """Warns if the values are those of one process, of several that compute one program."""
    if jax.process_count() == 1 or not accumulated:
        return
    if all(not isinstance(array, Tracer) and array.is_fully_addressable for array in accumulated):
        name = errors.type_name(type(metric))
        warnings.warn(
            f"{name}.compute: this is the value of process {jax.process_index()} alone, of {jax.process_count()}, "
            f"since the metric was updated with arrays of one process. Update it in dx.jit with arrays of the mesh, "
            f"made by jax.make_array_from_process_local_data.",
            stacklevel=_jax.level_of_user(sys._getframe()),
        )


@dataclass
class Average(_OfValues):
    """The mean of all values.

    ``sum(values) / number of values``, in float32; NaN before the first update.

    Args:
      argname: the keyword of `update` that holds the values.
      axis_name: a mapped axis, or several, (of `jax.vmap`, `jax.shard_map`) over which each batch is summed. Under
        `jit` none is needed: arrays there are whole.

    Raises:
      LayerError: for an update without the values, for a mask that does not broadcast to them, and for an array of one
        process where the metric has values of all.

    >>> import declax as dx
    >>> loss = dx.metrics.Average("loss")
    >>> loss.update(loss=jnp.array([1.0, 2.0]))
    >>> loss.update(loss=jnp.array([6.0, 9.0]), mask=jnp.array([True, False]))
    >>> float(loss.compute())
    3.0
    """

    total: MetricState = variable((), initializer=zeros, stream=None)
    count: MetricState = variable((), initializer=zeros, dtype=jnp.int32, stream=None)

    def reset(self) -> None:
        """Forgets all values."""
        self.total[...] = jnp.zeros((), jnp.float32)
        self.count[...] = jnp.zeros((), jnp.int32)

    def update(self, mask: Mask = None, **kwargs: Any) -> None:
        """Adds values.

        Args:
          mask: nonzero where a value counts; of a shape that broadcasts to that of the values. It gives no weights.
          **kwargs: the values, a number or an array, under `argname`. Other keywords are for other metrics.
        """
        values, where = self._batch(mask, kwargs)
        total, count = self._over_axis(jnp.sum(values, dtype=jnp.float32, where=where), _count(values, where))
        self.total[...] += total
        self.count[...] += count

    def compute(self) -> jax.Array:
        """The mean, a float32 scalar; of several processes that update it with arrays of their own, warns."""
        _warn_of_one_process(self, self.total[...])
        mean: jax.Array = self.total[...] / self.count[...].astype(jnp.float32)
        return mean

    def _accumulated(self) -> jax.Array:
        total: jax.Array = self.total[...]
        return total


@dataclass
class Statistics(Pytree):
    """The result of `Welford`.

    Attributes:
      mean: the mean.
      standard_error_of_mean: the standard deviation divided by the root of the number of values.
      standard_deviation: the root of the biased variance.
    """

    mean: jax.Array
    standard_error_of_mean: jax.Array
    standard_deviation: jax.Array


@dataclass
class Welford(_OfValues):
    """Mean and standard deviation of all values, in one pass without cancellation.

    Batches are merged by the formula of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances" (1979). The variance is biased. NaN before the first update, except for the mean.

    Args:
      argname: the keyword of `update` that holds the values.
      axis_name: a mapped axis, or several, over which each batch is merged.

    Raises:
      LayerError: for an update without the values, for a mask that does not broadcast to them, and for an array of one
        process where the metric has values of all.

    >>> import declax as dx
    >>> statistics = dx.metrics.Welford()
    >>> statistics.update(values=jnp.array([1.0, 3.0]))
    >>> found = statistics.compute()
    >>> float(found.mean), float(found.standard_deviation)
    (2.0, 1.0)
    """

    count: MetricState = variable((), initializer=zeros, dtype=jnp.int32, stream=None)
    mean: MetricState = variable((), initializer=zeros, stream=None)
    m2: MetricState = variable((), initializer=zeros, stream=None)

    def reset(self) -> None:
        """Forgets all values."""
        self.count[...] = jnp.zeros((), jnp.int32)
        self.mean[...] = jnp.zeros((), jnp.float32)
        self.m2[...] = jnp.zeros((), jnp.float32)

    def update(self, mask: Mask = None, **kwargs: Any) -> None:
        """Adds values.

        Args:
          mask: nonzero where a value counts; of a shape that broadcasts to that of the values. It gives no weights.
          **kwargs: the values, a number or an array, under `argname`. Other keywords are for other metrics.
        """
        values, where = self._batch(mask, kwargs)
        values = values.astype(jnp.float32)
        total, added = self._over_axis(jnp.sum(values, where=where), _count(values, where))
        before, batch = (count.astype(jnp.float32) for count in (self.count[...], added))
        after = jnp.maximum(before + batch, 1)  # a mask may leave nothing
        mean = total / jnp.maximum(batch, 1)
        (deviation,) = self._over_axis(jnp.sum(jnp.square(values - mean), where=where))
        delta = mean - self.mean[...]
        self.count[...] += added
        self.mean[...] += delta * batch / after
        self.m2[...] += deviation + jnp.square(delta) * batch * before / after

    def compute(self) -> Statistics:
        """The statistics, float32 scalars; of several processes that update it with arrays of their own, warns."""
        _warn_of_one_process(self, self.mean[...])
        count = self.count[...].astype(jnp.float32)
        standard_deviation = jnp.sqrt(self.m2[...] / count)
        return Statistics(self.mean[...], standard_deviation / jnp.sqrt(count), standard_deviation)

    def _accumulated(self) -> jax.Array:
        mean: jax.Array = self.mean[...]
        return mean


class Accuracy(Average):
    """The share of predictions that are right.

    Without a threshold the prediction is the class of the largest logit. With one it is positive from the threshold on.

    Args:
      threshold: a float, for binary classification; None for several classes.
      axis_name: a mapped axis, or several, over which each batch is summed.

    Raises:
      LayerError: for labels that are not integers, shapes that do not fit, a mask that does not broadcast to the
        labels, and arrays of one process where the metric has values of all.
      FieldError: for a threshold that is not a float.

    >>> import declax as dx
    >>> accuracy = dx.metrics.Accuracy()
    >>> accuracy.update(logits=jnp.array([[1.0, 2.0], [1.0, 0.0]]), labels=jnp.array([1, 1]))
    >>> float(accuracy.compute())
    0.5
    """

    threshold: float | None

    def __init__(self, threshold: float | None = None, *, axis_name: AxisName = None) -> None:
        if threshold is not None and not isinstance(threshold, float):
            raise errors.FieldError(
                "Accuracy.threshold", "this is not a threshold", expected="a float or None", got=repr(threshold)
            )
        super().__init__(axis_name=axis_name)
        self.threshold = threshold

    def update(self, mask: Mask = None, **kwargs: Any) -> None:
        """Compares predictions with labels.

        Args:
          mask: nonzero where a label counts; of a shape that broadcasts to that of the labels.
          **kwargs: `logits`, of shape ``(..., classes)``, or with a threshold the shape of the labels; and `labels`,
            integers. Other keywords are for other metrics.
        """
        logits, labels = (self._array(name, kwargs) for name in ("logits", "labels"))
        self._check(logits, labels)
        if self.threshold is None:
            is_right = logits.argmax(axis=-1) == labels
        else:
            is_right = (logits >= self.threshold) == (labels > 0)
        super().update(mask, **{self.argname: is_right})

    def _check(self, logits: jax.Array, labels: jax.Array) -> None:
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise errors.LayerError(
                "Accuracy.update",
                "labels are numbers of classes",
                expected="an array of an integer dtype",
                got=errors.describe(labels),
                fix="metric.update(logits=logits, labels=labels.astype(jnp.int32))",
            )
        is_multi_class = self.threshold is None
        shape = logits.shape[:-1] if is_multi_class else logits.shape
        if shape != labels.shape or (is_multi_class and not logits.ndim):
            named = "(*labels.shape, classes)" if is_multi_class else "the shape of the labels"
            raise errors.LayerError(
                "Accuracy.update",
                f"For {'multi-class' if is_multi_class else 'binary'} classification, logits and labels do not fit",
                expected=f"logits of {named}",
                got=f"logits: {errors.describe(logits)}, labels: {errors.describe(labels)}",
                fix="dx.metrics.Accuracy(threshold=0.5)   # for binary classification"
                if shape != labels.shape
                else None,
            )


class MultiMetric(Metric, Generic[R]):
    """Several metrics that are updated by one call.

    Args:
      **metrics: the metrics, which are attributes of these names.

    Raises:
      FieldError: for a value that is not a metric, and for the name of a method.

    >>> import declax as dx
    >>> metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))
    >>> metrics.update(logits=jnp.array([[1.0, 2.0]]), labels=jnp.array([1]), loss=0.25)
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'accuracy': 1.0, 'loss': 0.25}
    """

    @overload
    def __init__(self: MultiMetric[jax.Array], **metrics: Average) -> None: ...
    @overload
    def __init__(self: MultiMetric[Any], **metrics: Metric) -> None: ...
    def __init__(self, **metrics: Any) -> None:
        for name, metric in metrics.items():
            if hasattr(type(self), name):
                raise errors.FieldError(
                    f"MultiMetric.{name}", "this is the name of a method", fix=f"dx.MultiMetric({name}_metric=...)"
                )
            if not isinstance(metric, Metric):
                raise errors.FieldError(
                    f"MultiMetric.{name}",
                    "this is not a metric",
                    expected="an object of a subclass of dx.Metric",
                    got=errors.describe(metric),
                )
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Metric: ...

    def reset(self) -> None:
        """Resets all metrics."""
        for metric in self._metrics().values():
            metric.reset()

    def update(self, mask: Mask | Mapping[str, Mask] = None, **kwargs: Any) -> None:
        """Updates all metrics.

        Args:
          mask: the mask for all metrics, or a dict of masks by the names of metrics.
          **kwargs: the keywords of all metrics; each takes those that it knows.
        """
        metrics = self._metrics()
        masks = mask if isinstance(mask, Mapping) else dict.fromkeys(metrics, mask)
        unknown = [name for name in masks if name not in metrics]
        if unknown:
            raise errors.LayerError(
                "MultiMetric.update", f"there is no metric {unknown[0]!r}", expected=f"masks for {list(metrics)}"
            )
        for name, metric in metrics.items():
            given = {} if masks.get(name) is None else {"mask": masks[name]}
            metric.update(**kwargs, **given)

    def compute(self) -> dict[str, R]:
        """The values of all metrics by name; of several processes that update them with arrays of their own, warns."""
        for metric in self._metrics().values():
            if not isinstance(metric, _OfValues):  # which warn themselves
                _warn_of_one_process(metric, *jax.tree.leaves(state(metric, MetricState)))
        return {name: metric.compute() for name, metric in self._metrics().items()}

    def _metrics(self) -> dict[str, Metric]:
        return {name: getattr(self, name) for name in self._metric_names}


def _argument(metric: Metric, name: str, given: Mapping[str, Any]) -> Any:
    if name in given:
        return given[name]
    raise errors.ConstructionError(
        f"{errors.type_name(type(metric))}.update",
        f"the argument {name!r} is missing",
        expected=f"update({name}=...)",
        got=", ".join(given) or "no arguments",
    )


def _count(values: jax.Array, where: Mask) -> jax.Array:
    return jnp.int32(values.size) if where is None else jnp.sum(where, dtype=jnp.int32)
