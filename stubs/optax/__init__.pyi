# Only what declax, its examples, pages and benchmarks use, and what takes a State and gives one. optax has its types
# inline and no py.typed to say so; its trees are `ArrayTree` there, a union that no model is among, and that is no
# State when it comes back. Here they are Any where nothing is known of them, and a tree of the same type where the
# result has the structure of an argument.
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
from jax.typing import ArrayLike
from optax import contrib as contrib
from optax import tree as tree
from typing_extensions import disjoint_base

_Tree = TypeVar("_Tree")
_PyTree: TypeAlias = Any
OptState: TypeAlias = _PyTree
Params: TypeAlias = _PyTree
Updates: TypeAlias = _PyTree
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
ScalarOrSchedule: TypeAlias = float | jax.Array | Schedule

# --- transformations

class TransformInitFn(Protocol):
    def __call__(self, params: Params) -> OptState: ...

class TransformUpdateFn(Protocol):
    def __call__(self, updates: _Tree, state: OptState, params: Params | None = None) -> tuple[_Tree, OptState]: ...

class TransformUpdateExtraArgsFn(Protocol):
    def __call__(
        self, updates: _Tree, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[_Tree, OptState]: ...

class GradientTransformation(NamedTuple):
    init: TransformInitFn
    update: TransformUpdateFn

@disjoint_base
class GradientTransformationExtraArgs(GradientTransformation):
    update: TransformUpdateExtraArgsFn

class EmptyState(NamedTuple): ...

class MultiStepsState(NamedTuple):
    mini_step: ArrayLike
    gradient_step: ArrayLike
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()

class MultiSteps:
    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Schedule,
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[..., tuple[Any, _PyTree]] | None = None,
        accumulator_dtype: Any = ...,
    ) -> None: ...
    @property
    def inner_opt(self) -> GradientTransformation: ...
    def init(self, params: Params) -> MultiStepsState: ...
    def update(
        self, updates: _Tree, state: MultiStepsState, params: Params | None = None, **extra_args: Any
    ) -> tuple[_Tree, MultiStepsState]: ...
    def has_updated(self, state: MultiStepsState | _PyTree) -> ArrayLike: ...
    def gradient_transformation(self) -> GradientTransformation: ...

def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs: ...
def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformationExtraArgs: ...
def chain(*args: GradientTransformation) -> GradientTransformationExtraArgs: ...
def masked(
    inner: GradientTransformation,
    mask: _PyTree | Callable[[Params], _PyTree],
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformationExtraArgs: ...
def multi_transform(
    transforms: Mapping[Hashable, GradientTransformation],
    param_labels: _PyTree | Callable[[_PyTree], _PyTree],
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformationExtraArgs: ...
def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any | None = None,
) -> Callable[..., GradientTransformationExtraArgs]: ...
def clip(max_delta: ArrayLike) -> GradientTransformation: ...
def clip_by_global_norm(max_norm: ArrayLike) -> GradientTransformation: ...
def scale(step_size: ArrayLike) -> GradientTransformation: ...
def set_to_zero() -> GradientTransformation: ...
def apply_updates(params: _Tree, updates: Updates) -> _Tree: ...
def incremental_update(new_tensors: _Tree, old_tensors: _Tree, step_size: ArrayLike) -> _Tree: ...
def periodic_update(new_tensors: _Tree, old_tensors: _Tree, steps: ArrayLike, update_period: ArrayLike) -> _Tree: ...
def global_norm(updates: _PyTree) -> jax.Array: ...

# --- optimizers

def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any | None = None,
) -> GradientTransformationExtraArgs: ...
def adam(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: Any | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: Any | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: _PyTree | Callable[[Params], _PyTree] | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs: ...
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = ...,
) -> GradientTransformationExtraArgs: ...

# --- schedules and losses

def constant_schedule(value: ArrayLike) -> Schedule: ...
def linear_schedule(
    init_value: ArrayLike, end_value: ArrayLike, transition_steps: int, transition_begin: int = 0
) -> Schedule: ...
def cosine_decay_schedule(
    init_value: ArrayLike, decay_steps: int, alpha: ArrayLike = 0.0, exponent: ArrayLike = 1.0
) -> Schedule: ...
def warmup_cosine_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: int,
    decay_steps: int,
    end_value: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> Schedule: ...
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule: ...
def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> jax.Array: ...
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: int | tuple[int, ...] = -1, where: ArrayLike | None = None
) -> jax.Array: ...
