"""Arrays as files hold them, and back on devices."""

from __future__ import annotations

import functools
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from declax._variables.donation import BETWEEN_STEPS, is_deleted, why_deleted
from declax.checkpoint.file_arrays import FileArray, aligned
from declax.checkpoint.safetensors import DTYPES, little
from declax.errors import CheckpointError, describe

SCALARS: Final = (bool, int, float, str)

KEY: Final = "key<"
_RAW: Final = {
    str(dtype): dtype
    for name in ("complex128", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3")
    + ("float8_e4m3b11fnuz",)
    for dtype in [np.dtype(getattr(jnp, name))]
}
"""Dtypes of JAX that the format of the files does not have; their arrays are stored as bytes."""
_NAMES: Final = frozenset([*map(str, DTYPES.values()), *_RAW])


class Outgoing:
    """An array on its way into a file. `numpy.asarray` fetches it, and raises if it was deleted meanwhile.

    Args:
      value: an array of JAX or numpy.
      where: its path, for errors.

    Attributes:
      shape, dtype: as the file has them.
    """

    def __init__(self, value: Any, where: str = "") -> None:
        self._value = value
        self._where = where
        found = key_data_of(value) if is_key(value) else value
        self.shape: tuple[int, ...] = tuple(found.shape)
        self.dtype: np.dtype[Any] = np.dtype(found.dtype)
        if str(self.dtype) in _RAW:
            self.shape, self.dtype = (*self.shape, self.dtype.itemsize), np.dtype(np.uint8)

    @property
    def nbytes(self) -> int:
        """The size in the file."""
        return prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        value = self._value
        try:
            array = np.asarray(jax.random.key_data(value) if is_key(value) else value)
        except RuntimeError as error:
            if is_deleted(value):
                raise deleted(self._where, value) from error
            raise
        return (
            np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8) if str(array.dtype) in _RAW else array
        )


def dtype_text(value: Any) -> str:
    """The dtype of an array as manifests write it: ``key<...>`` with the implementation for random keys."""
    if is_key(value):
        return f"{KEY}{implementation_of(value)}>" if isinstance(value, jax.Array) else str(value.dtype)
    return str(little(np.dtype(value.dtype)))


def check_storable(where: str, value: Any) -> None:
    """Raises unless a value is an array of numbers or random keys."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise CheckpointError(where, "an abstract model has no arrays to save", got=describe(value))
    if isinstance(value, np.ma.MaskedArray):
        raise CheckpointError(where, "a file has no mask", got=describe(value), fix="(array.data, array.mask)")
    if is_deleted(value):
        raise deleted(where, value)
    if not (is_key(value) or dtype_text(value) in _NAMES):
        raise CheckpointError(where, "a checkpoint holds arrays of numbers", got=describe(value))


def deleted(where: str, value: Any) -> CheckpointError:
    """The error for an array that has lost its buffer, perhaps to a step of another thread."""
    got, why = describe(value), why_deleted()
    return CheckpointError(where, "this array was deleted", got=got, why=why, fix=BETWEEN_STEPS)


def is_key(value: Any) -> bool:
    """Whether an array holds typed keys of random numbers."""
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def implementation_of(keys: Any) -> str:
    """The name of the implementation of random keys, of a ref of some, or of their shape."""
    if isinstance(keys, jax.Array):
        return str(jax.random.key_impl(keys))
    found: list[str] = []
    shape = jax.ShapeDtypeStruct((), keys.dtype)  # type: ignore[no-untyped-call]  # of JAX
    jax.eval_shape(lambda traced: found.append(implementation_of(traced)), shape)  # JAX reads it of arrays only
    return found[0]


def key_data_of(keys: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the data of random keys, of a ref of some, or of their shape."""
    shape = jax.ShapeDtypeStruct(keys.shape, keys.dtype)  # type: ignore[no-untyped-call]  # of JAX
    found: jax.ShapeDtypeStruct = jax.eval_shape(jax.random.key_data, shape)
    return found


def from_file(where: str, dtype: str, content: FileArray) -> Any:
    """An array of a file in the dtype of the manifest, which is not read yet; random keys as `StoredKeys`."""
    if dtype.startswith(KEY) and dtype.endswith(">"):
        return StoredKeys(where, dtype[len(KEY) : -1], content)
    known = _RAW.get(dtype)
    if known is not None and content.dtype == np.uint8 and content.shape[-1:] == (known.itemsize,):
        return content.view(known)
    if str(content.dtype) != dtype:
        raise CheckpointError(
            where, "the file and the manifest have different dtypes", expected=dtype, got=str(content.dtype)
        )
    return content


class StoredKeys:
    """Random keys in a file: raw data and the name of an implementation."""

    def __init__(self, where: str, implementation: str, content: FileArray) -> None:
        try:
            key = jax.eval_shape(lambda: jax.random.key(0, impl=implementation))
        except ValueError as error:
            raise CheckpointError(where, "unknown implementation of random keys", got=str(error)[:200]) from None
        data = key_data_of(key)
        if content.dtype != data.dtype or content.shape[content.ndim - data.ndim :] != data.shape:
            raise CheckpointError(where, "the data are not those of random keys", got=describe(content))
        self.implementation = implementation
        self.content = content
        self.nbytes: int = content.nbytes
        self.dtype: jnp.dtype = key.dtype
        self.shape: tuple[int, ...] = content.shape[: content.ndim - data.ndim]

    def read(self) -> Any:
        """The keys."""
        return jax.random.wrap_key_data(jnp.asarray(self.content[...]), impl=self.implementation)


def is_of_jax(found: Any) -> bool:
    """Whether JAX has an array as it is: not without 64-bit numbers, if it has such ones."""
    return is_key(found) or jax.dtypes.canonicalize_dtype(found.dtype) == found.dtype


def _without_like(found: Any) -> Any:
    """A stored array of JAX; of numpy where JAX would change the dtype."""
    if isinstance(found, StoredKeys):
        return found.read()
    if isinstance(found, jax.Array):
        return found
    return jax.device_put(_copied(found)) if is_of_jax(found) else np.array(found)


def _copied(found: FileArray | np.ndarray[Any, Any], index: Any = ...) -> np.ndarray[Any, Any]:
    """A copy of a part of an array, which JAX need not copy again."""
    if isinstance(found, FileArray):
        return found[index]
    part = found[index]
    copy = aligned(part.shape, part.dtype)
    copy[...] = part
    return copy


def on_device(found: Any, like: Any) -> Any:
    """A stored leaf as an array of the kind and on the devices of another one, a copy.

    Only the parts that this process holds are read.
    """
    if isinstance(found, SCALARS):
        is_array = hasattr(like, "dtype") and not isinstance(like, np.generic)
        return jnp.asarray(found, like.dtype) if is_array else found
    if like is None:
        return _without_like(found)
    if isinstance(like, np.ndarray):
        return np.array(found, np.dtype(found.dtype).newbyteorder(like.dtype.byteorder))
    if isinstance(like, np.generic):
        return np.asarray(found)[()]
    return typed_like(_placed_like(found, like), like)


def _placed_like(found: Any, like: Any) -> Any:
    sharding = getattr(like, "sharding", None) if getattr(like, "committed", True) else None
    if isinstance(found, (StoredKeys, jax.Array)):
        array = found.read() if isinstance(found, StoredKeys) else found
        return array if sharding is None else jax.device_put(array, sharding)
    if sharding is None:
        return jax.device_put(_copied(found))
    return jax.make_array_from_callback(found.shape, sharding, lambda index: _copied(found, index))


def typed_like(array: Any, like: Any) -> Any:
    """An array, weakly typed if another one is: it decides of the dtype of results, and of what is compiled."""
    if not getattr(like, "weak_type", False) or array.weak_type:
        return array
    return _as_weak(array.shape, array.dtype, array.sharding if array.committed else None)(array)


@functools.lru_cache(maxsize=256)
def _as_weak(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """The function that returns an array of this type as weakly typed, for which JAX has no other one."""
    like = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, weak_type=True)  # type: ignore[no-untyped-call]  # of JAX
    return jax.jit(lambda array: array).lower(like).compile()
