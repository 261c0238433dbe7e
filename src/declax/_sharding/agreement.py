"""Whether all processes of a mesh make the same values.

A replicated array has one value by its sharding. If processes make it from other seeds, each goes on with its own, and
nobody notices.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding

from declax._variables.placement import make_spec
from declax.errors import ShardingError


def check_same_program(where: str, program: ClosedJaxpr, arguments: Sequence[Any], mesh: Mesh) -> None:
    """Raises on all processes of a mesh, if one has another program or arguments; compares a digest.

    Raises:
      ShardingError: names the processes that differ from the first.
    """
    processes = [device.process_index for device in mesh.devices.flat]
    if len({*processes}) == 1:
        return
    digests = _gathered(_digest(program, arguments), mesh)
    others = {process for process, one in zip(processes, digests, strict=True) if (one != digests[0]).any()}
    if others:
        raise ShardingError(
            where,
            "the processes make different values",
            expected=f"those of process {processes[0]} in all processes of the mesh",
            got=f"others in {', '.join(map(str, sorted(others)))}",
            why="seeds, sizes and constants must be the same everywhere; each process makes its shards of one model",
            fix="rngs=dx.Rngs(0)        # no jax.process_index() in it, nor a seed of the clock",
        )


def _digest(program: ClosedJaxpr, arguments: Sequence[Any]) -> np.ndarray[Any, Any]:
    """64 bits of a program and the values that it begins with."""
    found = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)).encode())
    for value in (*program.consts, *arguments):
        is_key = jnp.issubdtype(getattr(value, "dtype", None) or np.float32, jax.dtypes.prng_key)
        data = jax.random.key_data(value) if is_key else value
        if getattr(data, "is_fully_addressable", True):
            found.update(np.asarray(data).tobytes())
    return np.frombuffer(found.digest()[:8], np.uint32)


def _gathered(digest: np.ndarray[Any, Any], mesh: Mesh) -> np.ndarray[Any, Any]:
    """The digest of the process of each device, by one collective."""
    automatic = Mesh(mesh.devices, mesh.axis_names)
    rows = NamedSharding(automatic, make_spec(mesh.axis_names))
    everywhere = NamedSharding(automatic, make_spec())
    shape = (mesh.devices.size, *digest.shape)
    each = jax.make_array_from_callback(shape, rows, lambda index: digest[None])
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(each))
