"""The subjects of the peer's guide about intermediate values, with our own models: the peer's numbers at each step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agreement import agrees

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def twins(nnx):
    """A class that embeds both of its inputs and keeps the embeddings."""

    class Twins(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(3, 4, rngs=rngs)
            self.out = nnx.Linear(4, 2, rngs=rngs)

        def embed(self, x):
            embedding = self.out(nnx.tanh(self.hidden(x)))
            self.sow(nnx.Intermediate, "embedding", embedding)
            return embedding

        def __call__(self, x, y):
            return jnp.sum(self.embed(x) * self.embed(y))

    return Twins


def pure(nnx, state):
    return nnx.to_pure_dict(state)


# ================================================================= sow


@agrees
def test_sown_values_are_appended(nnx):
    model = twins(nnx)(nnx.Rngs(0))
    score, sown = nnx.capture(model, nnx.Intermediate)(X, -X)
    assert len(sown["embedding"].get_value()) == 2
    assert len(nnx.to_flat_state(nnx.state(model))) == 4
    return score, pure(nnx, sown)


@agrees
def test_a_reduction_takes_the_place_of_appending(nnx):
    class Walk(nnx.Module):
        def __call__(self, x):
            for step in range(3):
                x = x * 1.5 - step
                self.sow(nnx.Intermediate, "total", x, init_fn=lambda: 0.0, reduce_fn=lambda total, x: total + x)
            return x

    out, sown = nnx.capture(Walk(), nnx.Intermediate)(X)
    return out, pure(nnx, sown)


@agrees
def test_only_the_kinds_that_are_asked_for_are_kept(nnx):
    class Norms(nnx.Intermediate):
        pass

    class Masks(nnx.Intermediate):
        pass

    @nnx.capture(Norms)
    def measure(module, x):
        module.sow(Norms, "norm", jnp.sum(x**2))
        module.sow(Masks, "mask", x > 0)
        return x + 1

    out, sown = measure(nnx.Module(), X)
    assert [path for path, _ in nnx.to_flat_state(sown)] == [("norm",)]
    return out, pure(nnx, sown)


@agrees
def test_the_buffers_of_a_capture_are_an_attribute_while_it_lasts(nnx):
    class Watched(nnx.Module):
        def __call__(self, x):
            assert hasattr(self, "__captures__")
            self.sow(nnx.Intermediate, "x", x)
            return x * 2

    model = Watched()
    out, sown = nnx.capture(model, nnx.Intermediate)(X)
    assert not hasattr(model, "__captures__")
    return out, pure(nnx, sown)


@agrees
def test_the_output_of_each_method_is_kept(nnx):
    model = twins(nnx)(nnx.Rngs(0))
    score, sown = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(X, X[::-1])
    return score, pure(nnx, sown)


# ================================================================= gradients of values in the middle


def probed(nnx):
    """A class with a probe in front of a nonlinear function, which keeps its output too."""

    class Probed(nnx.Module):
        def __init__(self, rngs):
            self.scale = nnx.Param(rngs.normal((3,)))

        def __call__(self, x):
            middle = self.perturb("middle", x * self.scale)
            self.sow(nnx.Intermediate, "curve", jnp.sin(middle))
            return jnp.sum(jnp.sin(middle))

    return Probed


@agrees
def test_a_perturbation_starts_at_zero(nnx):
    model = probed(nnx)(nnx.Rngs(1))
    out, perturbations = nnx.capture(model, nnx.Perturbation)(X)
    assert jnp.array_equal(perturbations["middle"][...], jnp.zeros((2, 3)))
    assert out == jnp.sum(jnp.sin(X * model.scale))
    return out, pure(nnx, perturbations)


@agrees
def test_a_perturbation_that_is_given_is_added(nnx):
    model = probed(nnx)(nnx.Rngs(1))
    _, perturbations = nnx.capture(model, nnx.Perturbation)(X)
    shifted = jax.tree.map(lambda zeros: zeros + 0.25, perturbations)
    out, sown = nnx.capture(model, nnx.Intermediate, init=shifted)(X)
    assert out == jnp.sum(jnp.sin(X * model.scale + 0.25))
    return out, pure(nnx, sown)


@agrees
def test_the_gradient_of_a_perturbation_is_that_of_the_value(nnx):
    model = probed(nnx)(nnx.Rngs(1))
    _, perturbations = nnx.capture(model, nnx.Perturbation)(X)

    def loss(model, perturbations, x):
        return nnx.capture(model, nnx.Intermediate, init=perturbations)(x)

    (grads, slopes), sown = nnx.grad(loss, argnums=(0, 1), has_aux=True)(model, perturbations, X)
    expected = jnp.cos(X * model.scale[...])
    assert jnp.allclose(slopes["middle"][...], expected)
    both = nnx.merge_state(slopes, sown)
    return pure(nnx, grads), pure(nnx, both)


@agrees
def test_a_model_without_parameters_has_gradients_of_its_perturbations(nnx):
    class Cube(nnx.Module):
        def __call__(self, x):
            return jnp.sum(self.perturb("inner", x) ** 3)

    model = Cube()
    _, perturbations = nnx.capture(model, nnx.Perturbation)(X)

    def loss(model, perturbations, x):
        return nnx.capture(model, init=perturbations)(x)

    grads, slopes = nnx.grad(loss, argnums=(0, 1))(model, perturbations, X)
    assert not nnx.to_flat_state(grads)
    return pure(nnx, slopes)


# ================================================================= capture in transforms


@agrees
def test_a_vmapped_step_returns_what_each_row_kept(nnx):
    model = probed(nnx)(nnx.Rngs(1))

    def row(model, x):
        return nnx.capture(model, nnx.Intermediate)(x)

    out, sown = nnx.vmap(row, in_axes=(None, 0))(model, X)
    assert sown["curve"].get_value()[0].shape == (2, 3)
    return out, pure(nnx, sown)


@agrees
def test_perturbations_with_a_row_for_each_example(nnx):
    @nnx.capture(nnx.Perturbation)
    def zeros_of(model, xs):
        graphdef, buffers, params = nnx.split(model, nnx.Perturbation, nnx.Param)

        def forward(buffers, params, x):
            return nnx.merge(graphdef, buffers, params)(x)

        return nnx.vmap(forward, in_axes=(0, None, 0))(buffers, params, xs)

    @nnx.jit
    def step(model, xs):
        _, perturbations = zeros_of(model, xs)

        def gradients(model, perturbations, x):
            def loss(model, perturbations, x):
                return nnx.capture(model, nnx.Intermediate, init=perturbations)(x)

            (grads, slopes), sown = nnx.grad(loss, argnums=(0, 1), has_aux=True)(model, perturbations, x)
            return grads, nnx.merge_state(slopes, sown)

        return nnx.vmap(gradients, in_axes=(None, 0, 0))(model, perturbations, xs)

    model = probed(nnx)(nnx.Rngs(1))
    grads, kept = step(model, X)
    assert kept["middle"][...].shape == (2, 3)
    return pure(nnx, grads), pure(nnx, kept)
