"""Mixtures of experts: feed-forward networks of which each token uses a few."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer, when
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._module.module import Module
from declax._typing import CAPTURES_KEY, Activation, Dtype, Initializer, PrecisionLike
from declax._variables.kinds import Intermediate, Param
from declax._variables.metadata import EMPTY
from declax._variables.placement import (
    declared_sharding,
    explicit_spec,
    make_spec,
    mesh_of,
    names_of_entry,
    on_mesh,
    put,
    sizes_of,
)
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import adapted, without_metadata
from declax.nn import dtypes
from declax.nn._checks import check_last_axis, field_of
from declax.nn._defaults import default_kernel_init
from declax.nn.activations import silu
from declax.nn.layer import Layer
from declax.nn.linear import Linear
from declax.nn.routing import balance_loss, capacity, choose, combine, dispatch, slots_of


@dataclasses.dataclass(frozen=True)
class _OfEach:
    """Makes the kernels of the experts one by one, so that fan-in and fan-out are those of one expert."""

    initializer: Initializer
    can_place: ClassVar[bool] = True

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32, out_sharding: Any = None
    ) -> jax.Array:
        made: jax.Array = _make_each(self.initializer, key, shape, dtype, out_sharding and on_mesh(out_sharding))
        return made


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4), inline=True)
def _make_each(initializer: Initializer, key: jax.Array, shape: tuple[int, ...], dtype: Any, target: Any) -> jax.Array:
    """Compiled for the sharding, so that no device makes more than its shards."""
    keys = jax.random.split(key, shape[0])
    made = jax.vmap(lambda key: initializer(key, shape[1:], dtype))(keys)
    return made if target is None else put(made, target)


def _router_dtype(dtype: Dtype | None, param_dtype: Dtype) -> Dtype:
    """Float32 at least: a choice among experts should not depend on rounding."""
    return dtypes.statistics_dtype(param_dtype if dtype is None else dtype)


class _Split(NamedTuple):
    """How the devices of a mesh share the examples.

    Attributes:
      mesh: the devices; None leaves all to JAX.
      axes: the mesh axes along which each device computes for itself.
      rows: the mesh axes that split the examples.
      exchanged: those of them that split the experts.
    """

    mesh: Mesh | AbstractMesh | None
    axes: frozenset[str] = frozenset()
    rows: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()

    def run(
        self,
        function: Callable[..., jax.Array],
        arrays: tuple[jax.Array, ...],
        kernels: Sequence[jax.Array | None],
    ) -> jax.Array:
        """Calls a function with this device's share of the examples, and of the experts along the axes `exchanged`.

        Args:
          function: of the arrays and the kernels.
          arrays: with a first axis of examples.
          kernels: with a first axis of experts.
        """
        if self.mesh is None:
            return function(arrays, tuple(kernels))
        rows, own = make_spec(self.rows or None), make_spec(self.exchanged or None)
        if explicit_spec(arrays[0]) is not None:  # where the types of arrays must be those that the function takes
            arrays = jax.tree.map(lambda array: _reshard(array, rows), arrays)
            kernels = jax.tree.map(lambda kernel: _reshard(kernel, own), tuple(kernels))
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=(rows, own), out_specs=rows, axis_names=self.axes)
        found: jax.Array = jax.jit(mapped)(arrays, tuple(kernels))
        return found


def _split_as(inputs: jax.Array, result: jax.Array) -> jax.Array:
    """A result whose tokens are where those of the input are."""
    spec = explicit_spec(inputs)
    assert spec is not None  # of an input that was moved
    mesh = jax.typeof(inputs).sharding.mesh
    return _reshard(result, NamedSharding(mesh, make_spec(*[*spec, *[None] * inputs.ndim][: inputs.ndim - 1])))


_WHOLE = _Split(None)
_reshard: Callable[..., jax.Array] = jax.sharding.reshard
_all_to_all: Callable[..., jax.Array] = lax.all_to_all
_all_gather: Callable[..., jax.Array] = lax.all_gather


@dataclass
class MoE(Layer):
    """A mixture of experts: of several feed-forward networks, each token uses the `top_k` that a router chooses.

    ``y = sum_e weight_e * down_e(activation(gate_e(x)) * up_e(x))``, over the chosen experts `e`. The weights are the
    probabilities of the router.

    Without `capacity_factor` each token reaches its experts (*dropless*). With it, an expert computes at most
    ``ceil(capacity_factor * top_k * length / num_experts)`` tokens of each example: those with this expert as their
    first choice, in their order, then those of the second choice. For the others it adds zero.

    On a mesh axis that splits the experts and divides the batch, tokens go to the devices of their experts, and back,
    by two all-to-alls, if there is a capacity. Dropless layers gather the kernels of all experts on each device
    instead: how many tokens a device receives would depend on their values. Any other batch is left to XLA. Mesh axes
    before that of the experts count as axes of the batch; one that splits hidden layers belongs behind it. Explicit
    axes that split the tokens of an example split the examples within the layer, if they divide their number.

    JAX does not map `jax.lax.ragged_dot` over tokens alone. So under a `vmap` that shares a dropless layer, each expert
    computes all tokens, and a loop or a compiled function inside of it is an error of JAX. The layer takes any number
    of batch axes without `vmap`.

    While `capture` runs, each call sows ``balance_loss``, which is 1 if all experts are chosen equally often and larger
    otherwise, to be added to the loss with a small factor. With a `capacity_factor`, it also sows ``dropped``, the
    fraction of choices without effect.

    Shazeer et al., "Outrageously Large Neural Networks", https://arxiv.org/abs/1701.06538. Fedus, Zoph and Shazeer,
    "Switch Transformers", https://arxiv.org/abs/2101.03961, has the loss.

    Args:
      in_features: size of the last axis of input and output.
      hidden_features: size of the hidden layer of each expert.
      num_experts: how many experts there are.
      top_k: how many of them compute each token.
      capacity_factor: how many tokens an expert accepts, in multiples of the mean; None for all.
      activation: applied to the gate, or to the hidden layer without one.
      use_gate: multiply the hidden layer by a gate, as in `GatedMLP`.
      renormalize: divide the weights of a token by their sum; None does so if `top_k` is above 1. The weight of a
        single choice would be 1, and the router would get no gradient.
      dtype: dtype of the computation; None infers it from input and parameters. The router computes in float32 at
        least.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      kernel_init: makes the kernel of each expert, and that of the router.
      promote_dtype: brings input and kernels to one dtype.
      rngs: gives one key to the router, `up`, `down` and `gate` each, from `params`.
      kernel_metadata: metadata of `up` and `gate`, such as ``{"out_sharding": ("experts", None, "mlp")}``. The first
        name is that of the axis of experts.
      down_kernel_metadata: metadata of `down`; none is `kernel_metadata`.
      router: the map to the logits of the experts.

    Attributes:
      up: the kernels to the hidden layers, of shape ``(num_experts, in_features, hidden_features)``.
      down: the kernels from the hidden layers.
      gate: the kernels to the gates; None without.

    Raises:
      LayerError: for a size below 1, `top_k` above `num_experts`, a `capacity_factor` of zero or less, and an input
        whose last axis is not `in_features`.

    >>> import declax as dx
    >>> layer = dx.MoE(3, 8, num_experts=4, top_k=2, rngs=dx.Rngs(0))
    >>> x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    >>> y, sown = dx.capture(layer, dx.Intermediate)(x)
    >>> y.shape, layer.up.shape, sown["balance_loss"].value[0].shape
    ((2, 5, 3), (4, 3, 8), ())
    """

    in_features: int = field(ge=1)
    hidden_features: int = field(ge=1)
    num_experts: int = field(ge=1)
    _: KW_ONLY
    top_k: int = field(default=2, ge=1)
    capacity_factor: float | None = field(default=None)
    activation: Activation = field(default=silu)
    use_gate: bool = field(default=True)
    renormalize: bool | None = field(default=None)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    down_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    router: Linear = Linear(
        in_features,
        num_experts,
        use_bias=False,
        dtype=defer(_router_dtype)(dtype, param_dtype),
        param_dtype=param_dtype,
        precision=precision,
        kernel_init=defer(without_metadata)(kernel_init),  # names of axes are those of kernels of experts
        promote_dtype=promote_dtype,
    )
    up: Param[jax.Array] = variable(
        (num_experts, in_features, hidden_features),
        initializer=defer(adapted)(kernel_init, _OfEach),
        dtype=param_dtype,
        metadata=kernel_metadata,
    )
    down: Param[jax.Array] = variable(
        (num_experts, hidden_features, in_features),
        initializer=defer(adapted)(kernel_init, _OfEach),
        dtype=param_dtype,
        metadata=when(defer(bool)(down_kernel_metadata), down_kernel_metadata, kernel_metadata),
    )
    gate: Param[jax.Array] | None = variable(
        (num_experts, in_features, hidden_features),
        initializer=defer(adapted)(kernel_init, _OfEach),
        dtype=param_dtype,
        when=use_gate,
        metadata=kernel_metadata,
    )

    def __post_init__(self, *used_up: object) -> None:
        if self.top_k > self.num_experts:
            raise errors.LayerError(
                field_of(self, "top_k"),
                "a token cannot use more experts than there are",
                expected=f"at most num_experts={self.num_experts}",
                got=repr(self.top_k),
            )
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise errors.LayerError(
                field_of(self, "capacity_factor"),
                "the experts would compute nothing",
                expected="a number above 0, such as 1.25, or None, with which no token is dropped",
                got=repr(self.capacity_factor),
            )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies to each token the experts that the router chooses.

        Args:
          inputs: array of shape ``(..., length, in_features)``. Along `length` are the tokens of an example, which
            share a capacity.

        Returns:
          Array of the shape of the input.
        """
        check_last_axis(self, "in_features", inputs)
        by_example = self._with_whole_examples(inputs)
        found = self._of_examples(self._examples(by_example)).reshape(inputs.shape)
        return found if by_example is inputs else _split_as(inputs, found)

    def _of_examples(self, x: jax.Array) -> jax.Array:
        """The result for an input of three axes."""
        probabilities = jax.nn.softmax(self.router(x))
        renormalize = self.top_k > 1 if self.renormalize is None else self.renormalize
        experts, weights = choose(probabilities, self.top_k, renormalize=renormalize)
        if CAPTURES_KEY in self.__dict__:
            Module.sow(self, Intermediate, "balance_loss", balance_loss(probabilities, experts))
        gate = None if self.gate is None else self.gate.value
        x, *kernels = self.promote_dtype((x, self.up.value, self.down.value, gate), dtype=self.dtype)
        weights = dtypes.cast(weights, x.dtype)
        split = self._split(x)
        if self.capacity_factor is None:
            run = functools.partial(self._dropless, split.exchanged)
            return split.run(run, (x, experts, weights), kernels)
        size = capacity(self.capacity_factor, self.top_k, x.shape[1], self.num_experts)
        slots = slots_of(experts, self.num_experts, size)
        if CAPTURES_KEY in self.__dict__:
            Module.sow(self, Intermediate, "dropped", (slots == self.num_experts * size).mean())
        run = functools.partial(self._with_capacity, size, split.exchanged)
        return split.run(run, (x, slots, weights), kernels)

    def _with_whole_examples(self, inputs: jax.Array) -> jax.Array:
        """An input of which explicit axes split no example: they split the first axis instead, where they divide it.

        The tokens of an example share a capacity, and JAX has no sharding for the order in which they get slots.
        """
        spec = explicit_spec(inputs)
        if spec is None or inputs.ndim < 2:
            return inputs
        entries: list[Any] = [*spec, *[None] * (inputs.ndim - len(spec))]
        first, *others = map(names_of_entry, entries[:-1])
        is_one = inputs.ndim == 2 and self.capacity_factor is not None  # all tokens are those of one example
        if not (any(others) or (is_one and first)):
            return inputs
        mesh, joined = jax.typeof(inputs).sharding.mesh, (*first, *itertools.chain(*others))
        divides = inputs.shape[0] % math.prod(mesh.shape[name] for name in joined) == 0
        rows = () if is_one else joined if divides else first
        return _reshard(inputs, NamedSharding(mesh, make_spec(rows or None, *[None] * (inputs.ndim - 2), entries[-1])))

    def _examples(self, inputs: jax.Array) -> jax.Array:
        """The input as ``(examples, length, features)``; without a capacity, a row of tokens is one of examples."""
        if inputs.ndim == 3:
            return inputs
        if inputs.ndim > 3:
            return inputs.reshape(math.prod(inputs.shape[:-2]), *inputs.shape[-2:])
        tokens = inputs.reshape(math.prod(inputs.shape[:-1]), inputs.shape[-1])
        return tokens[:, None] if self.capacity_factor is None else tokens[None]

    def _dropless(
        self, exchanged: tuple[str, ...], arrays: tuple[jax.Array, ...], kernels: Sequence[jax.Array | None]
    ) -> jax.Array:
        """Computes all choices, in the order of their experts, with the kernels of all devices."""
        if exchanged:
            kernels = jax.tree.map(lambda kernel: _all_gather(kernel, exchanged, tiled=True), kernels)
        x, experts, weights = arrays
        tokens, chosen = x.reshape(-1, x.shape[-1]), experts.reshape(-1)
        order = jnp.argsort(chosen)
        sizes = jax.nn.one_hot(chosen, self.num_experts, dtype=jnp.int32).sum(0)
        product = functools.partial(lax.ragged_dot, group_sizes=sizes, precision=self.precision)
        try:
            results = self._network(product, tokens[order // self.top_k], kernels)
        except (
            NotImplementedError
        ):  # JAX does not map it over tokens alone: with a slot for each token, no one is dropped
            length = x.shape[1]
            slots = slots_of(experts, self.num_experts, length)
            return self._with_capacity(length, (), (x, slots, weights), kernels)
        back = results[jnp.argsort(order)].reshape(*weights.shape, x.shape[-1])
        return (back * weights[..., None]).sum(-2)

    def _with_capacity(
        self,
        size: int,
        exchanged: tuple[str, ...],
        arrays: tuple[jax.Array, ...],
        kernels: Sequence[jax.Array | None],
    ) -> jax.Array:
        """Computes the choices that have slots: the slots go to the devices of their experts, and the results back."""
        x, slots, weights = arrays
        sent = dispatch(x, slots, self.num_experts, size)
        if exchanged:
            sent = _all_to_all(sent, exchanged, split_axis=1, concat_axis=0, tiled=True)
        product = functools.partial(jnp.einsum, "gecd,edh->gech", precision=self.precision)
        results = self._network(product, sent, kernels)
        if exchanged:
            results = _all_to_all(results, exchanged, split_axis=0, concat_axis=1, tiled=True)
        return combine(results, slots, weights)

    def _network(
        self, product: Callable[..., jax.Array], x: jax.Array, kernels: Sequence[jax.Array | None]
    ) -> jax.Array:
        up, down, gate = kernels
        hidden = product(x, up)
        hidden = self.activation(hidden) if gate is None else self.activation(product(x, gate)) * hidden
        return product(hidden, down)

    def _split(self, x: jax.Array) -> _Split:
        """How devices share the work: along the axis of the experts, or as an input on explicit axes is split."""
        where, metadata, spec = field_of(self, "up"), self.up._metadata, explicit_spec(x)
        mesh = mesh_of(metadata)
        if self.up.shape[0] != self.num_experts:
            raise errors.LayerError(
                where,
                "the function sees only a part of the experts",
                expected=f"kernels of all {self.num_experts} experts",
                got=errors.describe(self.up.value),
                why="a shard_map around the layer splits them; the layer has its own",
                fix="dx.jit(lambda moe, x: moe(x))(moe, x)",
            )
        if mesh is None:
            return _WHOLE
        declared = declared_sharding(where, metadata, self.up.shape, mesh)[0].spec
        experts = names_of_entry(declared[0]) if declared else ()
        if spec is not None:
            rows = names_of_entry(spec[0])
            kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
            explicit = frozenset(name for name, kind in kinds if kind is AxisType.Explicit)
            return _Split(mesh, explicit, rows, experts if set(experts) <= set(rows) else ())
        if not experts:
            return _WHOLE
        sizes = sizes_of(mesh)
        before = mesh.axis_names[: min(map(mesh.axis_names.index, experts))]
        for rows in ((*before, *experts), experts):
            if x.shape[0] % math.prod(sizes[name] for name in rows) == 0:
                return _Split(mesh, frozenset(rows), rows, experts)
        return _WHOLE
