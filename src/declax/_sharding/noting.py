"""Notes of which Variables `fsdp` has split: a compiled function knows along which axes to expect the batch."""

from __future__ import annotations

from typing import Any

from declax._graph.binding import bind
from declax._sharding.plan_entries import FSDP
from declax._variables.batch_axes import note_batch_axes
from declax._variables.variable import Variable
from declax.transforms._engine.prefixes import StateSharding


def note_fully_sharded(made: Any, labels: StateSharding | None) -> None:
    """Records, of the Variables that `fsdp` has split by some labels, along which axes it expects the batch."""
    if labels is None or not labels.batch_axes:
        return
    binding, reasons = bind(made), labels.reasons or {}
    for path, variable in zip(binding.graphdef.definition.paths, binding.cells, strict=True):
        if reasons.get(path) == FSDP and isinstance(variable, Variable):
            note_batch_axes(variable, labels.batch_axes)
