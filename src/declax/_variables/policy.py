"""Which dtypes the layers of a model take where their own arguments say none."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

import jax.numpy as jnp
import numpy as np

from declax._typing import Dtype
from declax.errors import LayerError, describe

D = TypeVar("D")

POLICY: Final = "policy"
"""The attribute by which a module has a policy."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of a model: of its parameters, of its computations, and of its results.

    In a ``with`` block, layers that are made there take `param` and `compute` as their `param_dtype` and `dtype` unless
    they are given these arguments. So do the declared parts of a module with a field ``policy: dx.Policy``, and the
    results of its ``__call__`` are in `output`. A dtype of None is that of the policy around it, or the
    usual one. The block holds for this thread or task; a compiled function keeps what it was traced with.

    Args:
      param: dtype in which parameters are stored.
      compute: dtype in which layers compute.
      output: dtype of the floating-point arrays that a module with this policy returns.

    Raises:
      LayerError: for a dtype that is not floating or complex.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> with dx.Policy(compute=jnp.bfloat16):
    ...     layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> layer(jnp.ones(2)).dtype, layer.kernel.dtype
    (dtype(bfloat16), dtype('float32'))
    """

    param: Dtype | None = None
    compute: Dtype | None = None
    output: Dtype | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if given is not None and not _is_inexact(given):
                raise LayerError(
                    f"Policy.{field.name}",
                    "layers cannot compute in this dtype",
                    expected="a floating or complex dtype, such as jnp.bfloat16, or None",
                    got=repr(given) if isinstance(given, (type, str)) else describe(given),
                    fix=f"dx.Policy({field.name}=jnp.bfloat16)",
                )

    @property
    def is_empty(self) -> bool:
        """Whether it sets no dtype."""
        return self.param is None and self.compute is None and self.output is None

    def within(self, outer: Policy) -> Policy:
        """This policy, with the dtypes of another one where it leaves them None.

        >>> import declax as dx
        >>> dx.Policy(compute="bfloat16").within(dx.Policy("float32", "float32")).param
        'float32'
        """
        own = {name: dtype for name, dtype in vars(self).items() if dtype is not None}
        return dataclasses.replace(outer, **own)

    def __enter__(self) -> Policy:
        policies = _policies.get()
        merged = self.within(policies[-1])
        _policies.set((*policies, merged))
        return merged

    def __exit__(self, *error: object) -> None:
        _policies.set(_policies.get()[:-1])


NO_POLICY: Final = Policy()

_policies: Final[ContextVar[tuple[Policy, ...]]] = ContextVar("declax_policies", default=(NO_POLICY,))
"""The policies of the blocks that are open, the innermost last."""


def current_policy() -> Policy:
    """The policy that holds now."""
    return _policies.get()[-1]


def _is_inexact(dtype: Any) -> bool:
    if not isinstance(dtype, (str, type, np.dtype)):  # jnp.dtype also takes an array
        return False
    try:
        return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.inexact))
    except TypeError:
        return False


class DtypeDefault(Generic[D]):
    """A default factory: the dtype of the current policy, or else the usual one."""

    __slots__ = ("_name", "usual")

    def __init__(self, name: str, usual: D) -> None:
        self._name = name
        self.usual = usual

    def __call__(self) -> D:
        found = getattr(_policies.get()[-1], self._name)
        return self.usual if found is None else found

    def __repr__(self) -> str:
        return repr(self.usual)


COMPUTE_DTYPE: Final[DtypeDefault[Dtype | None]] = DtypeDefault("compute", None)
PARAM_DTYPE: Final[DtypeDefault[Dtype]] = DtypeDefault("param", jnp.float32)
