"""The measured systems: a module each, which is loaded if its library is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import jax

from benchmarks.harness import Batch

MODULES = ("of_jax", "of_declax", "of_flax", "of_flax_tuned", "of_equinox")


@dataclass(frozen=True)
class GraphBatches:
    """Taking a model apart and putting it together again.

    `split_changed` changes a static attribute before each split, so that nothing cached about the structure holds.
    """

    split: Batch
    merge: Batch
    split_changed: Batch | None = None


@dataclass(frozen=True)
class Operations:
    """What is done with a model as data; the model is one of `blocks` blocks.

    `sow` leaves a value in each block, and `write` sets a Variable; neither is measured. `pop` takes out what was sown,
    and `state_written` reads what was written.
    """

    split_two: Callable[[], object]
    merge: Callable[[], object]
    state: Callable[[], object]
    write: Callable[[], object]
    state_written: Callable[[], object]
    update: Callable[[], object]
    clone: Callable[[], object]
    sow: Callable[[], object]
    pop: Callable[[], object]
    a_state: object


@dataclass(frozen=True, kw_only=True)
class System:
    """What one system offers to measure; None where it has no such thing.

    Trees have 8 fields: 8 arrays, or 5 arrays and 3 static values; declared classes have a specifier for each.
    Models are made of `blocks` blocks of a linear layer and a normalization, with 6 arrays of a few numbers each.
    """

    name: str
    package: str | None = None
    make_tree: Callable[[], object] | None = None
    make_mixed_tree: Callable[[], object] | None = None
    make_open_tree: Callable[[], object] | None = None
    make_class: Callable[[], type] | None = None
    make_declared_class: Callable[[], type] | None = None
    make_layer: Batch | None = None
    make_layer_by_hand: Batch | None = None
    make_step: Callable[[int], Batch] | None = None
    make_graph: Callable[[int], GraphBatches] | None = None
    make_operations: Callable[[int], Operations] | None = None


def load() -> tuple[list[System], dict[str, str]]:
    """The systems that can be measured here, and for each other one why it cannot."""
    systems, skipped = [], {}
    for module in MODULES:
        try:
            system = importlib.import_module(f"{__name__}.{module}").SYSTEM
        except (ImportError, AttributeError) as error:
            skipped[module.removeprefix("of_")] = f"{type(error).__name__}: {error}"
        else:
            systems.append(system)
    return systems, skipped


def repeat(work: Callable[[], object]) -> Batch:
    """A batch of calls of `work`."""

    def batch(n: int) -> None:
        for _ in range(n):
            work()

    return batch


def wait_for(array: object) -> None:
    """Returns when an array is there, and with it all that its program computes: JAX hands them out before that.

    One array is enough, and asking for more would cost a walk over the model in every batch.
    """
    jax.block_until_ready(array)  # type: ignore[no-untyped-call]  # its types are missing in jax
