"""The type of Modules of any class that can be called."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from declax._module.module import Module
from declax._tree.attributes import class_attribute

if TYPE_CHECKING:

    class CallableModule(Protocol):
        """The annotation of a model of any class, which is called: a `Module` with a ``__call__``.

        Its methods have the type Any, since a class may define its own under the names of those of `Module`.
        """

        _pytree__is_module: ClassVar[bool]

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        @property
        def sow(self) -> Any: ...
        @property
        def perturb(self) -> Any: ...
        @property
        def split(self) -> Any: ...
        @property
        def get_state(self) -> Any: ...
        @property
        def update(self) -> Any: ...
        @property
        def iter_modules(self) -> Any: ...
        @property
        def iter_children(self) -> Any: ...
        @property
        def set_attributes(self) -> Any: ...
        @property
        def train(self) -> Any: ...
        @property
        def eval(self) -> Any: ...
else:

    class CallableModule(Module):
        """The annotation of a model of any class, which is called: a `Module` with a ``__call__``.

        `Module` itself has no ``__call__``, and checkers report the call of a value that is only known to be a Module;
        mypy with the plugin allows it. To a checker, this is a Protocol that each Module with a ``__call__`` fits.

        >>> import declax as dx
        >>> def mean_of(model: dx.CallableModule, x: jax.Array) -> jax.Array:
        ...     return jax.numpy.mean(model(x))
        >>> float(mean_of(dx.Linear(2, 3, use_bias=False, rngs=dx.Rngs(0)), jax.numpy.zeros(2)))
        0.0
        >>> isinstance(dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.CallableModule), isinstance(dx.Module(), dx.CallableModule)
        (True, False)
        """

        @classmethod
        def __subclasshook__(cls, other: type) -> bool:
            if cls is not CallableModule:
                return NotImplemented
            return Module in other.__mro__ and class_attribute(other, "__call__") is not None

        @abstractmethod
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
