"""JAX's transforms for functions of mutable, shared objects.

Each transform is a file over `_engine`: `call` and `captures` find the models of a call, `prefixes` matches labels to
their leaves, `outcome` runs the function inside of the transform, and `commit` writes its changes. Loops and branches
share `_carry`, and derivatives share `_differentiated`. `trees` leads out to raw JAX and back.
"""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms.autodiff import DiffState as DiffState
from declax.transforms.autodiff import grad as grad
from declax.transforms.autodiff import value_and_grad as value_and_grad
from declax.transforms.compilation import JitWrapped as JitWrapped
from declax.transforms.compilation import jit as jit

if TYPE_CHECKING:
    from declax.transforms import general as general
    from declax.transforms import iteration as iteration
    from declax.transforms import transforms as transforms
else:
    __getattr__ = lazy_names(__name__, **dict.fromkeys(("general", "iteration", "transforms"), __name__))
