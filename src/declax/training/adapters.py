"""Low-rank adapters put into models, and folded back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from declax import errors
from declax._filters import Filter, as_written, ask, predicate_of
from declax._graph.rewriting import recursive_map
from declax._random.streams import Rngs
from declax._typing import Path
from declax.initializers import zeros
from declax.nn import dtypes
from declax.nn.contractions import LinearGeneral, sizes_of
from declax.nn.linear import Linear
from declax.nn.lora import LoRA, LoRALinear, LoRALinearGeneral
from declax.nn.stacking import Stacked

M = TypeVar("M")

Adapted: TypeAlias = LoRALinear | LoRALinearGeneral

_ADAPTED: Final = (Linear, LinearGeneral)
_OF_LORA: Final = {"lora_dtype": "dtype", "lora_param_dtype": "param_dtype", "lora_promote_dtype": "promote_dtype"}
"""What `LoRA` calls some of the arguments of `LoRALinear`."""


def lora(model: M, only: Filter = ..., /, *, rank: int, rngs: Rngs, **options: Any) -> M:
    """A model in which selected linear layers have low-rank adapters.

    Each selected `Linear` becomes a `LoRALinear` at the same path, and each `LinearGeneral`, such as the projections of
    attention, a `LoRALinearGeneral`. They have the same Variables: the result computes what the model does, and its
    base is that of the model. A layer that the model shares has one adapter; those of `Stacked` have one each. Layers
    of other classes, subclasses of `Linear` among them, stay, and so does a `LinearGeneral` with batch axes.

    Args:
      model: a Module, or any tree or graph of them. It is left as it is.
      only: a filter of the layers.
      rank: the rank of the adapters.
      rngs: gives the keys of the adapters, from `params`.
      **options: further arguments of `LoRALinear`, such as `lora_param_type` or `a_initializer`.

    Returns:
      The new model, whose other Variables are those of `model`. ``wrt=dx.LoRAParam`` trains the adapters alone.

    Raises:
      LayerError: if the filter selects no such layer.

    >>> import declax as dx
    >>> model = dx.MLP(3, 8, rngs=dx.Rngs(0))
    >>> adapted = dx.lora(model, dx.PathContains("up"), rank=2, rngs=dx.Rngs(1))
    >>> dx.state(adapted, dx.LoRAParam).paths
    (('up', 'lora', 'lora_a'), ('up', 'lora', 'lora_b'))
    >>> adapted.up.kernel is model.up.kernel
    True
    """
    predicate = predicate_of(only, "lora, filter")
    adapted: list[Adapted] = []

    def adapt(path: Path, value: Any) -> Any:
        if type(value) not in _ADAPTED or getattr(value, "batch_axis", None) or not ask(predicate, path, value):
            return value
        make: Any
        make, rank_of_kernel = (_linear, 2) if type(value) is Linear else (_linear_general, _kernel_rank(value))
        stack = value.kernel.shape[: value.kernel.ndim - rank_of_kernel]
        layer = _made(lambda rngs: make(value, rank, rngs, options), stack, rngs)
        layer.kernel, layer.bias = value.kernel, value.bias
        adapted.append(layer)
        return layer

    result: M = recursive_map(adapt, model)
    if not adapted:
        raise errors.LayerError(
            "lora",
            f"the filter {as_written(only)} selects no linear layer of the model",
            expected="a filter that selects a Linear or LinearGeneral, by its path or class",
            got=errors.describe(model),
            fix="dx.lora(model, rank=8, rngs=rngs)        # adapts all of them",
        )
    return result


def merge_lora(model: M) -> M:
    """A model whose adapters are folded into the kernels that they adapt; the inverse of `lora`.

    ``kernel + lora_a @ lora_b``, computed in float32 at least, is the kernel of a `Linear` in place of a
    `LoRALinear`, or of a `LoRA` whose base is a `Linear`, and of a `LinearGeneral` in that of a `LoRALinearGeneral`.
    Outputs agree up to rounding.

    Args:
      model: a Module, or any tree or graph of them. It is left as it is.

    Returns:
      The new model. Its Variables are those of `model`, except for the kernels.

    Raises:
      LayerError: for a model without adapters, and for a `LoRA` whose base is not a `Linear`.

    >>> import declax as dx
    >>> model = dx.lora(dx.MLP(3, 8, rngs=dx.Rngs(0)), rank=2, rngs=dx.Rngs(1))
    >>> type(dx.merge_lora(model).up).__name__
    'Linear'
    """
    merged: list[Linear | LinearGeneral] = []

    def merge(path: Path, value: Any) -> Any:
        if isinstance(value, Adapted):
            merged.append(_folded(value, value.lora))
        elif type(value) is LoRA and path[-1:] != ("lora",):
            merged.append(_folded(_base_of(value, path), value))
        else:
            return value
        return merged[-1]

    result: M = recursive_map(merge, model)
    if not merged:
        raise errors.LayerError(
            "merge_lora",
            "the model has no adapters",
            expected="a model with LoRALinear or LoRA layers, as dx.lora makes them",
            got=errors.describe(model),
        )
    return result


def _linear(linear: Linear, rank: int, rngs: Rngs, options: Mapping[str, Any]) -> LoRALinear:
    arguments: dict[str, Any] = _arguments_of(linear, Linear)
    arguments |= {"lora_rank": rank, "kernel_init": zeros, **options}
    return LoRALinear(**arguments, rngs=rngs)


def _linear_general(linear: LinearGeneral, rank: int, rngs: Rngs, options: Mapping[str, Any]) -> LoRALinearGeneral:
    sizes = math.prod(sizes_of(linear.in_features)), rank, math.prod(sizes_of(linear.out_features))
    adapter = LoRA(*sizes, **{_OF_LORA.get(name, name): value for name, value in options.items()}, rngs=rngs)
    return LoRALinearGeneral(**_arguments_of(linear, LinearGeneral), kernel_init=zeros, lora=adapter, rngs=rngs)


def _kernel_rank(linear: LinearGeneral) -> int:
    return len(sizes_of(linear.in_features)) + len(sizes_of(linear.out_features))


def _made(make: Callable[[Rngs], Adapted], stack: tuple[int, ...], rngs: Rngs) -> Adapted:
    """A layer, with leading axes if the kernel that it adapts is stacked."""
    if not stack:
        return make(rngs)
    return Stacked(lambda rngs: _made(make, stack[1:], rngs), stack[0], rngs=rngs).layers


def _arguments_of(linear: Linear | LinearGeneral, cls: type[Any]) -> dict[str, Any]:
    return {argument.name: getattr(linear, argument.name) for argument in dataclasses.fields(cls) if argument.init}


def _base_of(layer: LoRA, path: Path) -> Linear:
    if type(layer.base_module) is not Linear:
        raise errors.LayerError(
            f"merge_lora: {errors.format_path(path)}",
            "the adapter cannot be folded into its base",
            expected="a LoRA whose base_module is a Linear",
            got=errors.describe(layer.base_module),
        )
    return layer.base_module


def _folded(linear: Linear | LinearGeneral, adapter: LoRA) -> Linear | LinearGeneral:
    cls = Linear if isinstance(linear, Linear) else LinearGeneral
    kernel: jax.Array = linear.kernel.value
    wide = dtypes.statistics_dtype(kernel.dtype)
    a, b = (factor.value.astype(wide) for factor in (adapter.lora_a, adapter.lora_b))
    change = jnp.matmul(a, b).reshape(kernel.shape)
    folded: Linear | LinearGeneral = cls(**_arguments_of(linear, cls), kernel_init=zeros, rngs=Rngs(0))
    folded.kernel = linear.kernel.replace((kernel.astype(wide) + change).astype(kernel.dtype))
    folded.bias = linear.bias
    return folded
