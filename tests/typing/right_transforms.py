"""A right program: transforms keep signatures, as functions, decorators, factories of decorators and methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar, assert_type

import jax
import jax.numpy as jnp
import optax

import declax as dx

B = TypeVar("B", bound="Block")


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    up: dx.Linear = dx.Linear(dim, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.jit
    def predict(self, x: jax.Array, *, factor: float = 1.0) -> jax.Array:
        return factor * self.up(x)

    @dx.jit(static_argnames=("times",))
    def repeat(self, x: jax.Array, times: int) -> jax.Array:
        return jnp.tile(self.up(x), times)

    @dx.vmap(in_axes=(None, 0))
    def each(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.remat
    def again(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.value_and_grad
    def loss(self, x: jax.Array) -> jax.Array:
        return self.up(x).sum()

    @dx.grad(has_aux=True)
    def slope(self, x: jax.Array) -> tuple[jax.Array, int]:
        return self.up(x).sum(), self.dim

    @dx.jit
    @dx.value_and_grad
    def compiled_loss(self, x: jax.Array) -> jax.Array:
        return self.up(x).sum()

    @dx.pmap(in_axes=(None, 0))
    def on_devices(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.checkify
    def checked(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.scan(in_axes=(None, dx.Carry, 0), out_axes=(dx.Carry, 0))
    def steps(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.up(carry), x

    @dx.capture(dx.Intermediate)
    def watched(self, x: jax.Array) -> jax.Array:
        return self.up(x)

    @dx.jit
    def itself(self) -> Self:
        return self

    @dx.jit(static_argnames=("times",))
    def itself_with_options(self: B, times: int) -> B:
        return self

    @dx.jit
    def in_a_pair(self, x: jax.Array) -> tuple[Self, jax.Array]:
        return self, x


@dx.dataclass
class Wide(Block):
    pass


def loss_of(block: Block, x: jax.Array) -> jax.Array:
    return block(x).sum()


def loss_and_size(block: Block, x: jax.Array) -> tuple[jax.Array, int]:
    return block(x).sum(), block.dim


def distance(student: Block, teacher: dx.Linear, x: jax.Array) -> jax.Array:
    return jnp.sum((student(x) - teacher(x)) ** 2)


def batch_loss(block: Block, batch: dict[str, Any]) -> jax.Array:
    return block(batch["x"]).sum()


def of_blocks(blocks: list[Block], x: jax.Array) -> jax.Array:
    return blocks[0](x).sum()


def square(x: jax.Array) -> jax.Array:
    return jnp.sum(x**2)


def cube(x: float) -> float:
    return x**3


def of_param(p: dx.Param[jax.Array]) -> jax.Array:
    return jnp.sum(p**2)


def of_parts(parts: dict[str, jax.Array]) -> jax.Array:
    return parts["a"].sum()


def forward(block: Block, x: jax.Array) -> jax.Array:
    return block(x)


def methods_keep_their_types(block: Block, x: jax.Array) -> None:
    assert_type(block.predict(x, factor=2.0), jax.Array)
    assert_type(Block.predict(block, x), jax.Array)
    assert_type(block.repeat(x, 2), jax.Array)
    assert_type(block.each(x), jax.Array)
    assert_type(block.again(x), jax.Array)
    assert_type(block.loss(x), tuple[jax.Array, dx.State[Block]])
    assert_type(block.slope(x), tuple[dx.State[Block], int])
    assert_type(block.compiled_loss(x), tuple[jax.Array, dx.State[Block]])
    assert_type(block.on_devices(x[None]), jax.Array)
    assert_type(block.checked(x)[1], jax.Array)
    assert_type(block.steps(x, x[None]), tuple[jax.Array, jax.Array])
    assert_type(block.watched(x), tuple[jax.Array, dx.State[Any]])


def methods_know_their_instance(wide: Wide, x: jax.Array) -> None:
    same: Wide = wide.itself()
    again: Wide = wide.itself_with_options(2)
    assert_type(wide.in_a_pair(x), tuple[Wide, jax.Array])
    assert_type(wide.predict(x), jax.Array)
    print(same.dim, again.dim)  # reached, which it is not behind a value of the type Never


def trees_of_optax(block: Block, x: jax.Array) -> None:
    grads = dx.grad(loss_of)(block, x)
    clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    assert_type(clipped, dx.State[Block])
    assert_type(dx.Optimizer(block, optax.sgd(0.1)).update(block, clipped), dx.State[Block])
    average = optax.incremental_update(dx.state(block), dx.state(block), 0.1)
    assert_type(average, dx.State[Block])
    assert_type(optax.tree.scale(0.5, average), dx.State[Block])
    dx.update(block, average)


def gradients_are_states(block: Block, x: jax.Array) -> None:
    assert_type(dx.grad(loss_of)(block, x), dx.State[Block])
    assert_type(dx.grad(loss_of)(block, x=x), dx.State[Block])
    assert_type(dx.grad()(loss_of)(block, x), dx.State[Block])
    assert_type(dx.grad(loss_of, allow_int=True, graph=True)(block, x), dx.State[Block])
    assert_type(dx.grad(loss_of, argnums=1)(block, x), jax.Array)
    assert_type(dx.grad(loss_of, argnums=(0, 1))(block, x), tuple[dx.State[Block], jax.Array])
    selected: dx.State[Block] = dx.grad(loss_of, argnums=dx.DiffState(0, dx.Param))(block, x)
    assert_type(dx.grad(loss_and_size, has_aux=True)(block, x), tuple[dx.State[Block], int])
    assert_type(dx.grad(batch_loss)(block, {"x": x}), dx.State[Block])
    assert_type(dx.value_and_grad(loss_of)(block, x), tuple[jax.Array, dx.State[Block]])
    assert_type(dx.value_and_grad(batch_loss)(block, {"x": x}), tuple[jax.Array, dx.State[Block]])
    assert_type(dx.value_and_grad(loss_and_size, has_aux=True)(block, x), tuple[tuple[jax.Array, int], dx.State[Block]])
    assert_type(dx.value_and_grad(has_aux=True)(loss_and_size)(block, x), tuple[tuple[jax.Array, int], dx.State[Block]])
    (loss, size), grads = dx.value_and_grad(loss_and_size, has_aux=True)(block, x)
    optimizer = dx.Optimizer(block, optax.sgd(0.1))
    optimizer.update(block, selected)
    assert_type(optimizer.update(block, grads), dx.State[Block])
    assert_type((loss, size), tuple[jax.Array, int])


def gradients_of_two_models(block: Block, linear: dx.Linear, x: jax.Array) -> None:
    assert_type(dx.grad(distance)(block, linear, x), dx.State[Block])
    assert_type(dx.grad(distance, argnums=1)(block, linear, x), dx.State[dx.Linear])
    assert_type(dx.grad(distance, argnums=(0, 1))(block, linear, x), tuple[dx.State[Block], dx.State[dx.Linear]])
    loss, (of_block, of_linear) = dx.value_and_grad(distance, argnums=(0, 1))(block, linear, x)
    assert_type(loss, jax.Array)
    assert_type(of_block, dx.State[Block])
    assert_type(of_linear, dx.State[dx.Linear])
    assert_type(
        dx.value_and_grad(distance, argnums=1)(block, linear, x),
        tuple[jax.Array, dx.State[dx.Linear]],
    )


def tools_of_training(block: Block, x: jax.Array) -> None:
    ema = dx.EMA(block, 0.9)
    ema.update(block)
    ema.update(dx.state(block, dx.Param))
    assert_type(ema, dx.EMA[Block])
    assert_type(dx.EMA(dx.state(block), 0.9), dx.EMA[Block])
    assert_type(ema.apply_to(block), Block)
    assert_type(ema.params.map(lambda path, value: value), dx.State[Block])
    assert_type(dx.accumulate(loss_of, steps=4)(block, x), tuple[jax.Array, dx.State[Block]])
    of_all: list[dx.State[Block]] = dx.accumulate(of_blocks, steps=4)([block], x)[1]
    metrics = dx.MultiMetric(accuracy=dx.metrics.Accuracy(), loss=dx.metrics.Average("loss"))
    assert_type(metrics.compute(), dict[str, jax.Array])
    assert_type(dx.MultiMetric(loss=dx.metrics.Welford("loss")).compute(), dict[str, Any])
    unspecified(ema, metrics)
    print(of_all)


def unspecified(ema: dx.EMA, metrics: dx.MultiMetric) -> None:
    print(ema.params, metrics.compute())


def gradients_of_others(x: jax.Array) -> None:
    assert_type(dx.grad(square)(x), jax.Array)
    assert_type(dx.grad(cube)(2.0), jax.Array)
    assert_type(dx.value_and_grad(square)(x), tuple[jax.Array, jax.Array])
    assert_type(dx.grad(of_param)(dx.Param(x)), dx.Param[jax.Array])
    parts: dict[str, jax.Array] = dx.grad(of_parts)({"a": x})
    assert_type(dx.vmap(dx.grad(square))(x), jax.Array)
    assert_type(dx.jit(dx.value_and_grad(square))(x), tuple[jax.Array, jax.Array])
    second: jax.Array = dx.grad(dx.grad(cube))(2.0)
    print(parts, second)


def gradients_in_gradients(block: Block, x: jax.Array) -> None:
    def outer(block: Block) -> jax.Array:
        def inner(block: Block) -> jax.Array:
            return block(x).sum()

        grads = dx.grad(inner)(block)
        assert_type(grads, dx.State[Block])
        kernel: jax.Array = grads["up"]["kernel"].value
        return (kernel**2).sum()

    assert_type(dx.grad(outer)(block), dx.State[Block])


def compiled_functions(block: Block, x: jax.Array) -> None:
    compiled = dx.jit(forward)
    assert_type(compiled(block, x), jax.Array)
    compiled.lower(block, x).compile()
    assert_type(dx.jit_partial(forward, block)(x), jax.Array)
    assert_type(dx.cached_partial(forward, block)(x=x), jax.Array)
    assert_type(dx.remat(forward)(block, x), jax.Array)
    print(dx.make_jaxpr(forward)(block, x).jaxpr)
    mapped: Callable[[Block, jax.Array], jax.Array] = dx.vmap(forward, in_axes=(None, 0))
    assert_type(mapped(block, x), jax.Array)
    axes = dx.StateAxes({dx.Param: None, ...: None})
    assert_type(dx.vmap(forward, in_axes=(axes, 0))(block, x), jax.Array)


def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return total + x, total


def double(x: jax.Array) -> jax.Array:
    return 2 * x


def halve(x: jax.Array) -> jax.Array:
    return x / 2


def control_flow(block: Block, x: jax.Array) -> None:
    assert_type(dx.scan(step)(x[0], x), tuple[jax.Array, jax.Array])
    assert_type(dx.scan(length=1)(step)(x[0], x), tuple[jax.Array, jax.Array])
    assert_type(dx.scan(step, in_axes=(dx.Carry, 0))(x[0], x), tuple[jax.Array, jax.Array])
    assert_type(dx.cond(True, double, halve, x), jax.Array)
    assert_type(dx.cond(x.sum() > 0, forward, forward, block, x), jax.Array)
    assert_type(dx.switch(1, [double, halve], x), jax.Array)
    assert_type(dx.while_loop(lambda pair: pair[0] < 3, lambda pair: (pair[0] + 1, pair[1]), (0, x))[1], jax.Array)
    assert_type(dx.fori_loop(0, 3, lambda i, y: double(y), x), jax.Array)


@dx.custom_vjp
def clipped(block: Block, x: jax.Array) -> jax.Array:
    return block(x).sum()


def clipped_fwd(block: Block, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return clipped(block, x), x


def clipped_bwd(residuals: jax.Array, g: tuple[Any, jax.Array]) -> tuple[None, jax.Array]:
    return None, g[1] * residuals


clipped.defvjp(clipped_fwd, clipped_bwd)


def rules(block: Block, x: jax.Array) -> None:
    assert_type(clipped(block, x), jax.Array)
    assert_type(dx.vjp(forward, block, x)[0], jax.Array)
    assert_type(dx.jvp(forward, (block, x), (dx.state(block, dx.Param), x))[0], jax.Array)


def made_as_shards(make: Callable[[], tuple[Block, int]], mesh: jax.sharding.Mesh) -> None:
    """What takes any model, as `fsdp` does, leaves the type of the model as it is."""
    assert_type(dx.init_sharded(make, mesh=mesh), tuple[Block, int])
    assert_type(dx.init_sharded(make, mesh=mesh, shardings=dx.fsdp), tuple[Block, int])
