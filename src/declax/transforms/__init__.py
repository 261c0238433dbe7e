"""JAX's transforms for functions of mutable, shared objects.

Each transform is a file over `_engine`: `structure` and `captures` find the models of a call, `prefixes` matches labels
to their leaves, and `lift` runs the transform. Loops share `_carry`, and derivatives share `_differentiated`.
"""

from declax.transforms.autodiff import DiffState as DiffState
from declax.transforms.autodiff import grad as grad
from declax.transforms.autodiff import value_and_grad as value_and_grad
from declax.transforms.compilation import JitWrapped as JitWrapped
from declax.transforms.compilation import jit as jit
