# Only what examples/ uses.
from typing import Any

import numpy as np
import numpy.typing as npt

class DigitsBunch:
    images: npt.NDArray[np.float64]
    data: npt.NDArray[np.float64]
    target: npt.NDArray[np.int64]
    target_names: npt.NDArray[Any]

def load_digits() -> DigitsBunch: ...
