"""What is known of a Pytree class once it is prepared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from declax._fields.expressions import Expression
from declax._fields.specifiers import FieldSpec

INFO_KEY: Final = "_pytree__info"
MAKER_KEY: Final = "_pytree__maker"


class ClassInfo:
    """What the annotations, fields and decorator of a class say. The class has it as the attribute `INFO_KEY`.

    Attributes:
      cls: the class; a subclass that is not prepared yet inherits the attribute.
      specs: its fields.
      variables: the fields of a dataclass that are Variables.
      is_frozen: whether it is a frozen dataclass.
      is_registered: whether JAX and the layouts know the class in this process.
      is_complete: whether all names in its annotations were found, or never will be.
    """

    __slots__ = ("cls", "is_complete", "is_frozen", "is_registered", "specs", "variables")

    def __init__(
        self,
        cls: type,
        specs: Mapping[str, FieldSpec],
        variables: frozenset[str] = frozenset(),
        is_frozen: bool = False,
    ) -> None:
        self.cls = cls
        self.specs = specs
        self.variables = variables
        self.is_frozen = is_frozen
        self.is_registered = self.is_complete = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A class that is pickled by value (cloudpickle) is prepared anew."""
        return ClassInfo, (self.cls, self.specs, self.variables, self.is_frozen)


class Undeclared:
    """Stands for the `Maker` of a class that no decorator of declax has seen, and whose bases none has."""

    own: Mapping[str, Expression] = {}
    expressions: Mapping[str, tuple[Expression, ...]] = {}
    recorded: Sequence[str] = ()
    internal: Sequence[Any] = ()
    draws = is_needed = False
    source = ""
    names: frozenset[str] = frozenset()
    guarded: Collection[str] = ()


UNDECLARED: Final = Undeclared()


def maker_of(cls: Any) -> Any:
    """The `Maker` of a class, or of its nearest decorated base; `UNDECLARED` for others."""
    return getattr(cls, MAKER_KEY, UNDECLARED)


NOT_PREPARED: Final = ClassInfo(object, {})


def info_of(value: Any) -> ClassInfo:
    """What is known of the class of a value, or of a class; `NOT_PREPARED` for others."""
    found: ClassInfo = getattr(value, INFO_KEY, NOT_PREPARED)
    return found


def own_info(cls: type) -> ClassInfo:
    """What is known of a class itself, and not of a base."""
    found = info_of(cls)
    return found if found.cls is cls else NOT_PREPARED
