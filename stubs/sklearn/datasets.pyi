# Only what examples/ uses.
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

class _Digits:
    images: npt.NDArray[np.float64]
    data: npt.NDArray[np.float64]
    target: npt.NDArray[np.int64]
    target_names: npt.NDArray[Any]

def load_digits(
    *, n_class: int = 10, return_X_y: Literal[False] = False, as_frame: Literal[False] = False
) -> _Digits: ...
