"""Metrics: the numbers of the peer, masks, mapped axes, and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.training import metrics


def batches(count: int = 3) -> list[jax.Array]:
    draw = np.random.default_rng(0)
    return [jnp.asarray(draw.normal(3.0, 2.0, size=(4, 5)), jnp.float32) for _ in range(count)]


def test_average_and_welford_equal_the_peer() -> None:
    nnx = pytest.importorskip("flax.nnx")
    pairs: list[tuple[Any, Any]] = [
        (metrics.Average("x"), nnx.metrics.Average("x")),
        (metrics.Welford("x"), nnx.metrics.Welford("x")),
    ]
    for ours, theirs in pairs:
        for batch in batches():
            for metric in (ours, theirs):
                metric.update(x=batch, other=None)
                metric.update(x=2)
                metric.update(x=jnp.arange(3))
        found, wanted = ours.compute(), theirs.compute()
        if isinstance(found, metrics.Statistics):
            found, wanted = (
                [value.mean, value.standard_error_of_mean, value.standard_deviation] for value in (found, wanted)
            )
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        ours.reset()
        assert np.isnan(jax.tree.leaves(ours.compute())[-1])


@pytest.mark.parametrize("threshold", [None, 0.25])
def test_accuracy_equals_the_peer(threshold: float | None) -> None:
    nnx = pytest.importorskip("flax.nnx")
    draw = np.random.default_rng(1)
    ours, theirs = metrics.Accuracy(threshold), nnx.metrics.Accuracy(threshold)
    for _ in range(3):
        logits = jnp.asarray(draw.normal(size=(6, 3) if threshold is None else 6), jnp.float32)
        labels = jnp.asarray(draw.integers(0, 2, 6), jnp.int32)
        mask = jnp.asarray(draw.integers(0, 2, 6))
        for metric in (ours, theirs):
            metric.update(logits=logits, labels=labels)
            metric.update(logits=logits, labels=labels, mask=mask)
    assert float(ours.compute()) == pytest.approx(float(theirs.compute()))


def test_a_masked_value_does_not_count() -> None:
    values = jnp.array([[1.0, jnp.nan], [3.0, 100.0]])
    mask = jnp.array([1, 0])  # broadcasts over the rows
    for metric in (metrics.Average(), metrics.Welford()):
        metric.update(values=values, mask=mask)
        metric.update(values=values, mask=jnp.zeros((2, 2), bool))
        assert int(metric.count[...]) == 2
    assert float(metrics.Average.compute(metric_of(values, mask))) == 2.0
    statistics = metric.compute()
    assert (float(statistics.mean), float(statistics.standard_deviation)) == (2.0, 1.0)


def metric_of(values: jax.Array, mask: jax.Array) -> metrics.Average:
    metric = metrics.Average()
    metric.update(values=values, mask=mask)
    return metric


def test_a_mapped_axis_gives_the_numbers_of_the_whole_batch() -> None:
    batch = batches(1)[0]
    for make in (metrics.Average, metrics.Welford):
        whole, mapped = make(), make(axis_name="data")

        def update(row: jax.Array, metric: Any = mapped) -> dx.State[Any]:
            local = dx.clone(metric)
            local.update(values=row)
            return dx.state(local)

        whole.update(values=batch)
        states = jax.vmap(update, axis_name="data")(batch)
        for one, stacked in zip(jax.tree.leaves(dx.state(whole)), jax.tree.leaves(states), strict=True):
            np.testing.assert_allclose(stacked, jnp.broadcast_to(one, stacked.shape), rtol=1e-5)


def test_a_training_step_updates_several_metrics() -> None:
    found = dx.MultiMetric(accuracy=metrics.Accuracy(), loss=metrics.Average("loss"))

    @dx.jit
    def step(found: dx.MultiMetric, logits: jax.Array, labels: jax.Array) -> None:
        loss = (logits**2).mean()
        found.update(logits=logits, labels=labels, loss=loss)

    logits = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    step(found, logits, jnp.array([1, 1]))
    step(found, logits, jnp.array([1, 0]))
    assert {name: float(value) for name, value in found.compute().items()} == {"accuracy": 0.75, "loss": 0.5}
    graphdef, state = found.split()
    assert float(dx.merge(graphdef, state).compute()["loss"]) == 0.5
    found.reset()
    assert np.isnan(found.compute()["loss"])


def test_masks_of_several_metrics() -> None:
    found = dx.MultiMetric(a=metrics.Average("a"), b=metrics.Average("b"))
    found.update(a=jnp.array([1.0, 3.0]), b=jnp.array([1.0, 3.0]), mask={"a": jnp.array([True, False])})
    assert [float(value) for value in found.compute().values()] == [1.0, 2.0]
    with pytest.raises(dx.errors.LayerError, match="there is no metric 'c'"):
        found.update(a=1.0, b=1.0, mask={"c": jnp.array(True)})


def test_an_update_under_the_wrong_name_says_which_is_missing() -> None:
    with pytest.raises(TypeError, match="the argument 'loss' is missing"):
        metrics.Average("loss").update(values=1.0)


def test_inputs_that_do_not_fit_are_refused() -> None:
    accuracy = metrics.Accuracy()
    with pytest.raises(dx.errors.LayerError, match="For multi-class classification, logits and labels do not fit"):
        accuracy.update(logits=jnp.ones(3), labels=jnp.array([1, 0, 1]))
    with pytest.raises(dx.errors.LayerError, match="labels are numbers of classes"):
        accuracy.update(logits=jnp.ones((3, 2)), labels=jnp.ones(3))
    with pytest.raises(dx.errors.LayerError, match="'mask' does not broadcast to the values"):
        metrics.Average().update(values=jnp.ones(3), mask=jnp.ones(2))
    with pytest.raises(dx.errors.FieldError, match="this is not a threshold"):
        metrics.Accuracy(1)
    with pytest.raises(dx.errors.FieldError, match="this is not a metric"):
        dx.MultiMetric(loss=1.0)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(dx.errors.FieldError, match="this is the name of a method"):
        dx.MultiMetric(reset=metrics.Average())
    assert float(accuracy.count[...]) == 0


@pytest.mark.parametrize("call", ["reset", "update", "compute"])
def test_a_metric_without_methods_says_which(call: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"does not define {call}\(\)"):
        getattr(metrics.Metric(), call)()


def test_an_axis_that_no_transform_has() -> None:
    for metric in (dx.metrics.Average(axis_name="data"), dx.metrics.Welford(axis_name="data")):
        text = r"\.axis_name: no transform around this call has the axis 'data'(?s:.)*a metric without axis_name"
        with pytest.raises(dx.errors.LayerError, match=text):
            metric.update(values=jnp.ones(3))
