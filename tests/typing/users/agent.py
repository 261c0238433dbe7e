"""An actor and critic that learn to push a cart to the middle: simulated episodes, targets, and jitted methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax

import declax as dx


class Cart(NamedTuple):
    """Carts on a line, each with its position and speed."""

    position: jax.Array
    speed: jax.Array

    @property
    def observation(self) -> jax.Array:
        return jnp.stack([self.position, self.speed], axis=-1)

    def push(self, force: jax.Array) -> tuple[Cart, jax.Array]:
        speed = 0.9 * self.speed + 0.1 * jnp.clip(force, -1, 1)
        moved = Cart(self.position + speed, speed)
        return moved, -(moved.position**2)


class Transition(NamedTuple):
    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    following: jax.Array


class Policy(Protocol):
    """What acts: gives an action for each observation."""

    def __call__(self, observation: jax.Array, *, key: jax.Array) -> jax.Array: ...


P = TypeVar("P", bound=Policy)


@dx.dataclass
class Torso(dx.Layer):
    sizes: tuple[int, ...] = dx.field()
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.tanh)

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        pairs = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return [dx.Linear(before, after, rngs=rngs) for before, after in pairs]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def sizes_of(hidden: int) -> tuple[int, ...]:
    return (2, hidden, hidden)


@dx.dataclass
class Gaussian(dx.Layer):
    """A policy whose actions are spread around a mean."""

    hidden: int = dx.field(ge=1)
    body: Torso = Torso(dx.defer(sizes_of)(hidden))
    mean = dx.Linear(hidden, 1)
    log_spread: dx.Param[jax.Array] = dx.variable((), initializer=dx.initializers.constant(-1.0))

    def __call__(self, observation: jax.Array, *, key: jax.Array) -> jax.Array:
        mean = self.best(observation)
        return mean + jnp.exp(self.log_spread) * jax.random.normal(key, mean.shape)

    def best(self, observation: jax.Array) -> jax.Array:
        return self.mean(self.body(observation))[..., 0]


@dx.dataclass
class Critic(dx.Layer):
    hidden: int = dx.field(default=16)
    body = dx.Sequential(dx.Linear(3, hidden), dx.relu, dx.Linear(hidden, hidden), dx.relu, dx.Linear(hidden, 1))

    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        return self.body(jnp.concatenate([observation, action[..., None]], axis=-1))[..., 0]


@dx.dataclass
class Agent(dx.Module, Generic[P]):
    """A policy, what it is worth, and how both learn."""

    policy: P
    critic: Critic
    _: dx.KW_ONLY
    discount: float = dx.field(default=0.9, ge=0, le=1)
    updates: dx.Variable[jax.Array] = dx.data(default_factory=lambda: dx.Variable(jnp.zeros((), jnp.int32)))

    @dx.jit
    def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
        return self.policy(observation, key=key)

    @dx.jit
    def update(self, learner: Learner, batch: Transition, key: jax.Array) -> dict[str, jax.Array]:
        target = learner.target.apply_to(self.critic)

        def critic_loss(critic: Critic) -> jax.Array:
            following = self.policy(batch.following, key=key)
            wanted = batch.reward + self.discount * target(batch.following, following)
            return jnp.mean((critic(batch.observation, batch.action) - jax.lax.stop_gradient(wanted)) ** 2)

        loss, grads = dx.value_and_grad(critic_loss)(self.critic)
        learner.critic.update(self.critic, grads)
        learner.target.update(self.critic)
        self.updates.value += 1
        return {"loss": loss, "norm": optax.tree.norm(grads)}


@dx.dataclass
class Learner(dx.Module):
    critic: dx.Optimizer[Critic]
    target: dx.EMA[Critic]


def rollout(agent: Agent[Gaussian], start: Cart, key: jax.Array, steps: int) -> Transition:
    """Transitions of shape (steps, carts)."""

    def step(cart: Cart, key: jax.Array) -> tuple[Cart, Transition]:
        action = agent.act(cart.observation, key)
        moved, reward = cart.push(action)
        return moved, Transition(cart.observation, action, reward, moved.observation)

    _, transitions = dx.scan(step)(start, jax.random.split(key, steps))
    return transitions


def policy_loss(policy: Gaussian, critic: Critic, batch: Transition) -> jax.Array:
    return -jnp.mean(critic(batch.observation, policy.best(batch.observation)))


@dx.jit(static_argnames=("weight",))
def improve(
    agent: Agent[Gaussian], optimizer: dx.Optimizer[Gaussian], batch: Transition, *, weight: float = 1.0
) -> jax.Array:
    loss, (grads, _) = dx.value_and_grad(policy_loss, argnums=(0, 1))(agent.policy, agent.critic, batch)
    optimizer.update(agent.policy, grads.map(lambda path, value: weight * value))
    return loss


def main(rounds: int = 3) -> tuple[Agent[Gaussian], list[float]]:
    rngs = dx.Rngs(0, actions=1)
    agent = Agent(Gaussian(16, rngs=rngs), Critic(rngs=rngs), discount=0.8)
    of_policy = dx.Optimizer(agent.policy, optax.adam(1e-2), wrt=dx.Param)
    learner = Learner(dx.Optimizer(agent.critic, optax.adam(1e-2)), dx.EMA(agent.critic, 0.9))
    losses: list[float] = []
    for _ in range(rounds):
        start = Cart(rngs.actions.normal((8,)), jnp.zeros(8))
        batch = rollout(agent, start, rngs.actions(), steps=5)
        found = agent.update(learner, batch, rngs.actions())
        losses.append(float(found["loss"]) + float(improve(agent, of_policy, batch, weight=0.5)))
    each = dx.vmap(Gaussian.best, in_axes=(None, 0))(agent.policy, jnp.ones((4, 2)))
    print(each.shape, agent.updates.value, dx.summary(agent.critic))
    return agent, losses


if __name__ == "__main__":
    print(main()[1])
