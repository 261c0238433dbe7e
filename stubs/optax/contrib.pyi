# Only what declax, its pages and examples use.
from jax.typing import ArrayLike
from optax import GradientTransformationExtraArgs

def reduce_on_plateau(
    factor: float = 0.1,
    patience: ArrayLike = 10,
    rtol: float = 1e-4,
    atol: float = 0.0,
    cooldown: ArrayLike = 0,
    accumulation_size: ArrayLike = 1,
    min_scale: ArrayLike = 0.0,
) -> GradientTransformationExtraArgs: ...
