# Only what examples/ uses.
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

X = TypeVar("X", bound=npt.NDArray[Any])
Y = TypeVar("Y", bound=npt.NDArray[Any])

def train_test_split(
    x: X,
    y: Y,
    /,
    *,
    test_size: float | int | None = None,
    random_state: int | np.random.RandomState | None = None,
    shuffle: bool = True,
    stratify: npt.NDArray[Any] | None = None,
) -> tuple[X, X, Y, Y]: ...
