"""Training: optimizers over optax, and the state of a training loop."""

from declax.training import metrics as metrics
from declax.training import optimizer as optimizer
from declax.training._opt_state import OptArray as OptArray
from declax.training._opt_state import OptState as OptState
from declax.training._opt_state import OptVariable as OptVariable
from declax.training.accumulation import accumulate as accumulate
from declax.training.optimizer import ModelAndOptimizer as ModelAndOptimizer
from declax.training.optimizer import Optimizer as Optimizer
from declax.training.train_state import TrainState as TrainState
