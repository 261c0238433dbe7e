"""Shows the code that was generated for a class."""

from __future__ import annotations

import inspect
from typing import Any

from declax._classes.pytree import Pytree, layout_of, prepare
from declax._tree.layout import Layout
from declax.errors import FieldError, describe


def source_of(target: type[Pytree] | Pytree, /) -> str:
    """The generated source of a class, or of one instance's layout.

    This is the function that makes the parts of an instance, if the class declares some, and `flatten` and `unflatten`.
    For a class whose instances have different attributes, it is the former only.

    Args:
      target: a dataclass that derives from `Pytree`, or any Pytree instance.

    Raises:
      FieldError: for objects without generated code, such as a class whose instances have different attributes.

    >>> import declax as dx
    >>> class Scale(dx.Pytree):
    ...     def __init__(self):
    ...         self.dim = 3
    >>> print(dx.source_of(Scale()).splitlines()[0])
    def flatten(self):
    """
    cls: Any = target if isinstance(target, type) else type(target)
    if not (issubclass(cls, Pytree) and cls._pytree__is_pytree):
        raise FieldError("source_of", "only Pytrees have generated code", got=describe(target))
    info = cls._pytree__info
    if not info.is_complete:
        prepare(info)
    maker = info.maker
    sources = [maker.source] if maker.source else []
    layout: Layout = layout_of(target) if isinstance(target, Pytree) else cls._pytree__layout
    if isinstance(target, Pytree) or layout.is_closed:
        functions = (layout.flatten, layout.unflatten)
        sources += [inspect.cleandoc("\n" + inspect.getsource(function)) for function in functions]
    elif not sources:
        raise FieldError(
            cls.__name__,
            "each layout of instances has its own code; the class has none",
            fix="dx.source_of(instance)",
        )
    return "\n\n".join(sources) + "\n"
