"""The base class of declared layers and models, whose parts get random keys without being told."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from declax._classes.decorator import dataclass
from declax._fields.specifiers import field
from declax._module.module import Module
from declax._random.streams import Rngs

if TYPE_CHECKING:

    class UsedUp:
        """The type of `rngs` of an instance, which only the constructor receives."""

    class ImpliedRngs:
        """The type of `rngs` in a class: a constructor takes ``Rngs | None``, and an instance has none."""

        @overload
        def __get__(self, instance: None, owner: Any) -> Rngs | None: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> UsedUp: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: object, value: Rngs | None) -> None: ...


@dataclass
class Layer(Module):
    """Base class of declared layers and models: a `Module` whose constructor takes `rngs`.

    The class body does not mention `rngs`. A call in it gets the `rngs` of the instance if its class or function has a
    parameter `rngs` that is required or None by default, and the call does not give it. Parts draw their keys in the
    order of the class body. ``rngs=None`` in a call opts out.

    Args:
      rngs: the random streams of all parts, by keyword. Needed if a part draws keys.

    Raises:
      MissingRngsError: a part draws keys, and no `rngs` were given.
      FieldError: at class creation, for a class that declares `rngs` as an InitVar again.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class MLP(dx.Layer):
    ...     dim: int = dx.field(ge=1)
    ...     up = dx.Linear(dim, 4 * dim)
    ...     drop = dx.Dropout(0.1)
    ...     down = dx.Linear(4 * dim, dim)
    ...     def __call__(self, x: jax.Array) -> jax.Array:
    ...         return self.down(self.drop(dx.gelu(self.up(x))))
    >>> mlp = MLP(8, rngs=dx.Rngs(0))
    >>> mlp(jax.numpy.ones((2, 8))).shape
    (2, 8)
    """

    _pytree__implies_rngs: ClassVar[bool] = True
    if TYPE_CHECKING:
        _pytree__keys: ClassVar[Literal["implied"]]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]  # other than a Module
        _: KW_ONLY  # ty overlooks `kw_only` of a field that is a descriptor
        rngs: ImpliedRngs = field(default=None)  # type: ignore[arg-type]  # editors show the default
    else:
        rngs: InitVar[Rngs | None] = field(default=None, kw_only=True)
