"""Programs that sow and capture, which do the same with `import declax as nnx` as with Flax NNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import LayerError

flax_nnx = pytest.importorskip("flax.nnx")
X = jnp.array([1.0, 2.0, 3.0])
MODES: list[dict[str, bool]] = [{}, {"graph_updates": False}, {"graph": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def assert_same(program: Callable[[Any], Any]) -> None:
    """Runs a program with both libraries, and compares the paths and values that it returns."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # sow without a capture
        ours, peers = program(dx), program(flax_nnx)
        found, wanted = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (ours, peers))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6)


def model_of(nnx: Any) -> Any:
    class Inner(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.full(3, 2.0))

        def __call__(self, x: Any) -> Any:
            x = self.perturb("dx", x)
            self.sow(nnx.Intermediate, "h", x)
            return x * self.w

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.first, self.second = Inner(), Inner()

        def __call__(self, x: Any) -> Any:
            x = self.second(self.first(x))
            self.sow(nnx.Intermediate, "y", x)
            return x.sum()

    return Model()


@each_mode
@pytest.mark.parametrize("transform", ["jit", "remat", "grad", "vmap"])
def test_around_transforms(transform: str, mode: dict[str, bool]) -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        call = lambda m: m(X)  # noqa: E731  # as users write it
        if transform == "vmap":
            model = nnx.vmap(lambda _: model_of(nnx))(jnp.arange(4))
        run = getattr(nnx, transform)(call, **mode)
        result, seen = nnx.capture(run, nnx.Intermediate)(model)
        return seen if transform == "grad" else (result, seen)

    assert_same(program)


@each_mode
def test_inside_of_a_compiled_function(mode: dict[str, bool]) -> None:
    def program(nnx: Any) -> Any:
        return nnx.jit(lambda m, x: nnx.capture(m, nnx.Perturbation, nnx.Intermediate)(x), **mode)(model_of(nnx), X)

    assert_same(program)


def test_layers_over_which_a_scan_runs() -> None:
    def program(nnx: Any) -> Any:
        layers = nnx.vmap(lambda _: model_of(nnx))(jnp.arange(4))
        run = nnx.scan(lambda total, m: total + m(X), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return nnx.capture(lambda m: run(jnp.zeros(()), m), nnx.Intermediate)(layers)

    assert_same(program)


def test_a_model_that_is_split_and_merged_in_a_vmap() -> None:
    def program(nnx: Any) -> Any:
        @nnx.capture(nnx.Perturbation)
        def start(model: Any, x: Any) -> Any:
            graphdef, sown, params = nnx.split(model, nnx.Intermediate, nnx.Param)
            run = lambda sown, params, x: nnx.merge(graphdef, sown, params)(x)  # noqa: E731  # as users write it
            return nnx.vmap(run, in_axes=(0, None, 0))(sown, params, x)

        return start(model_of(nnx), jnp.stack([X, 2 * X]))

    assert_same(program)


def test_a_model_that_is_split_and_merged_in_a_raw_transform() -> None:
    def program(nnx: Any) -> Any:
        @nnx.capture(nnx.Intermediate)
        def run(model: Any) -> Any:
            graphdef, state = nnx.split(model)
            return jax.jit(lambda state: nnx.merge(graphdef, state)(X))(state)

        return run(model_of(nnx))

    assert_same(program)


def test_perturbations_of_instances() -> None:
    def program(nnx: Any) -> Any:
        @nnx.vmap(in_axes=(None, 0))
        def start(model: Any, x: Any) -> Any:
            return nnx.capture(model, nnx.Perturbation)(x)[1]

        @nnx.vmap(in_axes=(None, 0, 0))
        def step(model: Any, perturbations: Any, x: Any) -> Any:
            def loss(model: Any, perturbations: Any) -> Any:
                return nnx.capture(model, nnx.Intermediate, init=perturbations)(x)

            return nnx.grad(loss, argnums=1, has_aux=True)(model, perturbations)

        model, x = model_of(nnx), jnp.stack([X, 2 * X])
        return step(model, start(model, x), x)

    assert_same(program)


@each_mode
def test_sown_without_a_capture_and_popped(mode: dict[str, bool]) -> None:
    def program(nnx: Any) -> Any:
        @nnx.jit(**mode)
        def run(model: Any) -> Any:
            y = model(X)
            return y, nnx.pop(model, nnx.Intermediate)

        model = model_of(nnx)
        return run(model), run(model), nnx.state(model)

    assert_same(program)


@pytest.mark.parametrize(
    "kinds", [("Intermediate",), ("Intermediate", "Perturbation"), ("Perturbation", "Intermediate")]
)
def test_a_module_has_its_captures_as_a_sequence(kinds: tuple[str, ...]) -> None:
    def run(nnx: Any) -> Any:
        found: list[Any] = []

        class Model(nnx.Module):  # type: ignore[misc, name-defined]  # of both libraries
            def __call__(self, x: Any) -> Any:
                found.append([variable.get_value() for variable in self.__captures__])
                self.sow(nnx.Intermediate, "h", x)
                self.sow(nnx.Intermediate, "h", x + 1)
                x = self.perturb("p", x)
                captures = self.__captures__
                found.append([sorted(variable.get_value()) for variable in captures])
                found.append([type(captures[i]).__name__ for i in range(len(captures))])
                found.append(jax.tree.map(float, captures[kinds.index("Intermediate")].get_value()["h"]))
                with pytest.raises(IndexError):
                    captures[len(captures)]
                return x

        nnx.capture(Model(), *(getattr(nnx, kind) for kind in kinds))(jnp.array(2.0))
        return found

    assert run(dx) == run(flax_nnx)


def test_what_a_module_has_sown_cannot_be_written() -> None:
    class Model(dx.Module):
        def __call__(self, x: Any) -> None:
            self.sow(dx.Intermediate, "h", x)
            self.__captures__[0].value = {}

    with pytest.raises(LayerError, match=r"this is part of what a module has sown, and cannot be changed"):
        dx.capture(Model(), dx.Intermediate)(1.0)
