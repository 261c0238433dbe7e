"""Training: optimizers over optax, and the state of a training loop."""

from declax._variables.selection import is_decayed as is_decayed
from declax._variables.selection import is_trainable as is_trainable
from declax.training import ema as ema
from declax.training import metrics as metrics
from declax.training import optimizer as optimizer
from declax.training._opt_state import OptArray as OptArray
from declax.training._opt_state import OptState as OptState
from declax.training._opt_state import OptVariable as OptVariable
from declax.training.accumulation import accumulate as accumulate
from declax.training.adapters import lora as lora
from declax.training.adapters import merge_lora as merge_lora
from declax.training.ema import EMA as EMA
from declax.training.loss_scaling import LossScaleState as LossScaleState
from declax.training.loss_scaling import dynamic_loss_scale as dynamic_loss_scale
from declax.training.optimizer import ModelAndOptimizer as ModelAndOptimizer
from declax.training.optimizer import Optimizer as Optimizer
from declax.training.selection import by_filter as by_filter
from declax.training.selection import mask_by as mask_by
from declax.training.train_state import TrainState as TrainState
