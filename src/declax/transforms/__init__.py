"""JAX's transforms for functions of mutable, shared objects.

Each transform is a thin file over `_lift`: what a function has is found by `_structure` and `_captures`, labels are
matched by `prefixes`, and loops and derivatives share `_tracing`, `_carry` and `_differentiated`.
"""

from declax.transforms.autodiff import DiffState as DiffState
from declax.transforms.autodiff import grad as grad
from declax.transforms.autodiff import value_and_grad as value_and_grad
from declax.transforms.compilation import JitWrapped as JitWrapped
from declax.transforms.compilation import jit as jit
