"""Closures through pickle: what optax makes comes back, equal by structure."""

from __future__ import annotations

import functools
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from declax import errors
from declax.training._equality import Structural
from declax.training._pickling import Address, _make_function, dumps, loads


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.sgd(0.1, momentum=0.9),
        lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100), weight_decay=1e-4),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
        lambda: optax.multi_transform({"a": optax.adam(1e-3), "b": optax.set_to_zero()}, {"x": "a", "y": "b"}),
        lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
        lambda: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4).gradient_transformation(),
        optax.lbfgs,
        lambda: optax.adafactor(1e-3),
        lambda: optax.noisy_sgd(0.1, key=0),
    ],
)
def test_optax_transformations_come_back(make: Callable[[], Any]) -> None:
    tx = make()
    copied = loads(dumps(tx))
    assert Structural(tx) == Structural(copied)
    assert pickle.loads(pickle.dumps(Structural(tx))) == Structural(tx)
    params = {"x": jnp.ones(2), "y": jnp.ones((2, 3))}
    state = copied.init(params)
    if len(state) < 3 or not hasattr(state, "_fields"):  # lbfgs needs a value function
        extra = {"value": 1.0, "grad": params, "value_fn": lambda p: jnp.sum(p["x"])}
        tx = optax.with_extra_args_support(tx)
        np.testing.assert_array_equal(
            tx.update(params, tx.init(params), params, **extra)[0]["x"],
            optax.with_extra_args_support(copied).update(params, state, params, **extra)[0]["x"],
        )


def counter(step: int) -> Callable[[int], int]:
    def count(n: int, stop: int = 0, *, times: int = 2) -> int:
        return n * times if n <= stop else count(n - step)

    count.note = "kept"  # type: ignore[attr-defined]  # attributes are part of a function
    return count


def test_recursion_defaults_and_attributes_come_back() -> None:
    copied = loads(dumps(counter(2)))
    assert copied(5) == counter(2)(5) == -2
    assert copied(-1, -2) == counter(2)(-1, -2)
    assert copied.note == "kept"
    assert copied.__qualname__ == "counter.<locals>.count"
    assert copied is not counter


def lambdas(x: int) -> tuple[Callable[[], int], ...]:
    return (lambda: x, lambda: -x, lambda: 2 * x)


def test_lambdas_of_one_function_are_told_apart() -> None:
    assert [f() for f in loads(dumps(lambdas(3)))] == [3, -3, 6]


class Maker:
    def method(self, x: int) -> Callable[[], int]:
        return lambda: x

    @staticmethod
    def static_method(x: int) -> Callable[[], int]:
        return lambda: x + 1


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
def outer(x: int) -> Callable[[], int]:
    return lambda: x + 2


def empty_cell() -> Callable[[], int]:
    def read() -> int:
        return late

    if not empty_cell:
        late = 1
    return read


def test_methods_decorated_functions_and_empty_cells() -> None:
    assert loads(dumps(Maker().method(1)))() == 1
    assert loads(dumps(Maker.static_method(1)))() == 2
    assert loads(dumps(outer(1)))() == 3
    with pytest.raises(NameError):
        loads(dumps(empty_cell()))()


def test_functions_with_a_name_are_pickled_by_it() -> None:
    assert loads(dumps(counter)) is counter
    assert "_make_function" not in [str(argument) for _, argument, _ in pickletools.genops(dumps(counter))]


nameless = lambda x: x  # noqa: E731  # a lambda at the top of a module has no outer function


def test_code_that_cannot_be_found_is_said() -> None:
    with pytest.raises(errors.OptimizerError, match=r"the function <lambda> in .* cannot be pickled"):
        dumps(nameless)
    made: dict[str, Any] = {}
    exec("def f(x):\n    return lambda: x", made)
    with pytest.raises(errors.OptimizerError, match=r"the function f\.<locals>\.<lambda> in .* cannot be pickled"):
        dumps(made["f"](1))


def test_code_that_has_changed_is_said() -> None:
    for address in (
        Address(__name__, "counter.<locals>.count", 0, ("other",)),
        Address(__name__, "counter.<locals>.gone", 0, ()),
        Address(__name__, "gone.<locals>.count", 0, ()),
        Address("no_such_module", "f.<locals>.g", 0, ()),
    ):
        with pytest.raises(errors.OptimizerError, match="is not what it was when the optimizer was pickled"):
            _make_function(address, "count", "count")
