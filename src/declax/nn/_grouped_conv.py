"""Grouped convolutions on meshes where XLA computes wrong gradients, or JAX asks for the sharding of the output.

The gradient of the kernel of a grouped convolution is a convolution whose batch has groups. If the batch is split on a
mesh that has other axes, XLA multiplies it by their sizes (jaxlib 0.10.2 to 0.12.0). A sum of products, one for each
position of the kernel, has the right gradients on all meshes. It reads the input once for each of them.

The types of traced arrays do not show automatic axes. So where several devices are there and the mesh is not known, the
result is that of XLA, and its derivative is that of the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType

from declax._variables.placement import context_mesh, on_mesh, put


def safe_for_groups(convolve: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function for a convolution with groups: the given one, or on such a mesh one that avoids its gradient."""
    mesh = context_mesh()
    if convolve is not lax.conv_general_dilated:
        return convolve
    if mesh is None:
        return convolve if jax.device_count() == 1 else _derived_from_sum
    kinds = [kind for size, kind in zip(mesh.shape.values(), mesh.axis_types, strict=True) if size > 1]
    is_split_by_several = len(kinds) - kinds.count(AxisType.Manual) > 1
    return _sum_over_kernel if is_split_by_several or AxisType.Explicit in kinds else convolve


def _derived_from_sum(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str | Sequence[tuple[int, int]], **options: Any
) -> jax.Array:
    """`jax.lax.conv_general_dilated` with the features last, whose derivative is that of a sum of products."""

    @jax.custom_jvp
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, strides, padding, **options)

    def derive(primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
        pairs = [(tangents[0], primals[1]), (primals[0], tangents[1])]
        found = [
            _sum_over_kernel(*pair, strides, padding, **options)
            for pair, tangent in zip(pairs, tangents, strict=True)
            if not isinstance(tangent, SymbolicZero)
        ]
        return convolve(*primals), sum(found[1:], start=found[0])

    convolve.defjvp(derive, symbolic_zeros=True)
    return convolve(x, kernel)


def _sum_over_kernel(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    out_sharding: Any = None,
    **options: Any,
) -> jax.Array:
    """`jax.lax.conv_general_dilated` with the features last, as a sum of products."""
    options.pop("dimension_numbers")
    sizes, (inputs, outputs) = kernel.shape[:-2], kernel.shape[-2:]
    reaches = [dilation * (size - 1) for size, dilation in zip(sizes, rhs_dilation, strict=True)]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:-1], [reach + 1 for reach in reaches], strides, padding)
    around = [(low, high, d - 1) for (low, high), d in zip(padding, lhs_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *around, (0, 0, 0)])
    ends = [(size - reach - 1) // s * s + 1 for size, reach, s in zip(x.shape[1:-1], reaches, strides, strict=True)]
    grouped = kernel.reshape(*sizes, inputs, feature_group_count, outputs // feature_group_count)

    def product(position: tuple[int, ...]) -> jax.Array:
        starts = [i * dilation for i, dilation in zip(position, rhs_dilation, strict=True)]
        limits = [start + end for start, end in zip(starts, ends, strict=True)]
        read = lax.slice(x, (0, *starts, 0), (x.shape[0], *limits, x.shape[-1]), (1, *strides, 1))
        read = read.reshape(*read.shape[:-1], feature_group_count, inputs)
        return jnp.einsum("...gi,igo->...go", read, grouped[position], **options)

    y = sum(
        map(product, itertools.product(*map(range, sizes))),
        start=jnp.zeros((), options.get("preferred_element_type") or x.dtype),
    )
    y = y.reshape(*y.shape[:-2], outputs)
    return y if out_sharding is None else put(y, on_mesh(out_sharding))
