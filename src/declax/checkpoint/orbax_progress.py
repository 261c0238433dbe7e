"""The bytes that Orbax has written: its own handlers of arrays, with a limiter of bytes that counts them.

Orbax reserves the bytes of each part of an array of JAX by its limiter while it writes them. It writes arrays of NumPy
without a limiter: they are counted when all of an item are written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np

from declax.checkpoint.arrays import Outgoing
from declax.checkpoint.items import Item
from declax.checkpoint.progress import Counter, Progress


def counter_of(progress: Progress | None, items: Iterable[Item]) -> Counter:
    """A counter of the bytes that this process writes."""
    values = [leaf.value for item in items for leaf in item.leaves.values()]
    return Counter(progress, 0 if progress is None else sum(map(_size_here, values)))


def _size_here(value: Any) -> int:
    """The bytes of the parts of an array that Orbax writes here: the first copy of each."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if not isinstance(value, jax.Array) or not value.size:
        return 0
    here = sum(shard.data.size for shard in value.addressable_shards if shard.replica_id == 0)
    return int(Outgoing(value).nbytes * here // value.size)


class Counted:
    """Which handler Orbax uses for items: its own, which counts for the current counter.

    Attributes:
      registry: the handlers by the arguments of an item, as Orbax takes them.
      counter: of the save that is under way; None counts for nobody.
    """

    def __init__(self, ocp: Any) -> None:
        self.counter: Counter | None = None
        self._error: BaseException | None = None
        self.registry: Any = ocp.handlers.DefaultCheckpointHandlerRegistry()
        self.registry.add(None, ocp.args.StandardSave, _handler_of(ocp, self))

    def add(self, size: int) -> None:
        """Counts bytes. Keeps an error of the function until `finish`: Orbax cannot end a save in the middle."""
        if self.counter is None:
            return
        try:
            self.counter.add(size)
        except BaseException as error:  # noqa: BLE001  # raised by `finish`
            self._error = error

    def finish(self) -> None:
        """Ends the save that was under way; raises an error of the function."""
        counter, self.counter = self.counter, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        if counter is not None:
            counter.finish()


def _handler_of(ocp: Any, counted: Counted) -> Any:
    """The handler that Orbax has for `StandardSave`, with handlers of arrays that count."""
    types = ocp.type_handlers
    kinds = {kind: types.get_type_handler(kind) for kind in types.supported_types()}
    for kind, serialize in ((jax.Array, _serialize), (np.ndarray, _serialize_numpy)):
        made = copy.copy(kinds[kind])
        made.serialize = partial(serialize, made.serialize, counted)
        kinds[kind] = made
    registry = types.create_type_handler_registry(*kinds.items())

    class Handler(ocp.PyTreeCheckpointHandler):  # type: ignore[misc]  # a class of Any
        @classmethod
        def typestr(cls) -> str:
            """The name that readers of the checkpoint know."""
            return str(ocp.StandardCheckpointHandler.typestr())

        async def async_save(self, directory: Any, args: Any) -> Any:
            return await super().async_save(directory, args=ocp.args.PyTreeSave(args.item))

    return Handler(type_handler_registry=registry)


async def _serialize(serialize: Any, counted: Counted, values: Any, infos: Any, args: Any = None) -> Any:
    limited = [info.replace(byte_limiter=_Limiter(info.byte_limiter, counted)) for info in infos]
    return await serialize(values, limited, args)


async def _serialize_numpy(serialize: Any, counted: Counted, values: Any, infos: Any, args: Any = None) -> Any:
    futures = await serialize(values, infos, args)
    return [_Future(futures, sum(value.nbytes for value in values), counted)]


class _Limiter:
    """A limiter of the bytes under way that counts those that are written."""

    def __init__(self, limiter: Any, counted: Counted) -> None:
        self._limiter = limiter
        self._counted = counted

    async def wait_for_bytes(self, requested_bytes: int) -> None:
        """Waits until the bytes may be written."""
        await self._limiter.wait_for_bytes(requested_bytes)

    async def release_bytes(self, requested_bytes: int) -> None:
        """Counts the bytes, which are written."""
        await self._limiter.release_bytes(requested_bytes)
        self._counted.add(requested_bytes)


class _Future:
    """Several futures of Orbax as one, which counts bytes when the last one is done."""

    def __init__(self, futures: Iterable[Any], size: int, counted: Counted) -> None:
        self._futures = tuple(futures)
        self._size = size
        self._counted = counted

    def result(self, timeout: float | None = None) -> None:
        """Waits for all; several threads may call this."""
        for future in self._futures:
            future.result(timeout=timeout)
        size, self._size = self._size, 0
        if size:
            self._counted.add(size)
