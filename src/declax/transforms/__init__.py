"""JAX's transforms for functions of mutable, shared objects.

Each transform is a thin file over `_lift`. From the bottom:

====================== ==========================================================
what a function has    `_structure`, `_captures`, `_rebinding`
labels of leaves       `prefixes`, `shardings`
the engine             `_lift`, `_naming`, `_wrapping`
compiled               `compilation`, `retraces`, `stages`, `partial`, `jit_partial`
mapped                 `axis_names`, `vectorization`, `replication`, `sharding`
loops and branches     `_tracing`, `_carry`,
                       `scanning`, `loops`, `branching`
differentiated         `_differentiated`, `autodiff`, `differentials`, `custom_rules`,
                       `rematerialization`
looked at              `tracing`, `checking`, `trees`
====================== ==========================================================
"""

from declax.transforms.autodiff import DiffState as DiffState
from declax.transforms.autodiff import grad as grad
from declax.transforms.autodiff import value_and_grad as value_and_grad
from declax.transforms.compilation import JitWrapped as JitWrapped
from declax.transforms.compilation import jit as jit
