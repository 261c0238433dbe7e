"""What is known of a Pytree class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from declax._fields.annotations import own_annotations
from declax._fields.expressions import Expression
from declax._fields.specifiers import FieldSpec
from declax._typing import INFO_KEY, MISSING

if TYPE_CHECKING:
    import dataclasses

    from declax._fields.class_body import BodyNames


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


class ClassInfo:
    """What is known of one class: what its body says, what its decorator makes of it, and how far JAX knows it.

    A Pytree class has it as the attribute `INFO_KEY` from its creation on.

    Attributes:
      cls: the class.
      annotations: those that it writes itself.
      names_around: the names in them that the functions around the class define.
      class_variables: the names that its annotations mark as shared by all instances, once the decorator reads them.
      body: what its body binds to expressions, until the decorator takes them; None if that is nothing.
      marks: the fields of the bare specifiers of an open class, by name.
      reserved: the names of methods of declax, which no field may hide.
      is_declared: whether the decorator has seen it.
      maker: its `Maker`, or that of the nearest declared base.
      post_init: the ``__post_init__`` that makes the parts first, its own or an inherited one.
      taken: the InitVars that the ``__post_init__`` of users takes: all, or some; None if there is no such method, and
        MISSING until an instance is made.
      specs: its fields.
      init_vars: the names of its InitVars, in the order of the constructor.
      variables: the fields of a dataclass that are Variables.
      is_frozen: whether it is a frozen dataclass.
      lacks_names: whether names in its annotations were not found, so that it is read again.
      is_registered: whether JAX and the layouts know the class in this process.
      is_complete: whether all names in its annotations were found, or never will be.
    """

    __slots__ = (
        *("cls", "annotations", "names_around", "class_variables", "body", "marks", "reserved"),
        *("is_declared", "maker", "post_init", "taken"),
        *("specs", "init_vars", "variables", "is_frozen", "lacks_names", "is_registered", "is_complete"),
    )

    def __init__(self, body: BodyNames | None = None) -> None:
        self.cls: type = object
        self.annotations: dict[str, Any] = {}
        self.names_around: Mapping[str, object] = {}
        self.class_variables: frozenset[str] = frozenset()
        self.body = body
        self.marks: Mapping[str, dataclasses.Field[Any]] = {}
        self.reserved: frozenset[str] = frozenset()
        self.is_declared = False
        self.maker: Any = UNDECLARED
        self.post_init: Callable[..., None] | None = None
        self.taken: Any = MISSING
        self.specs: Mapping[str, FieldSpec] = {}
        self.init_vars: Sequence[str] = ()
        self.variables: frozenset[str] = frozenset()
        self.is_frozen = self.lacks_names = self.is_registered = self.is_complete = False

    def __set_name__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.annotations = own_annotations(cls)
        self.inherit()

    def inherit(self) -> None:
        """Takes what the class has from its bases, of which the nearest counts."""
        for base in reversed(self.cls.__mro__[1:]):
            info: ClassInfo | None = base.__dict__.get(INFO_KEY)
            if info is None:
                continue
            if info.is_declared:
                self.maker = info.maker
            if info.post_init is not None and info.post_init is base.__dict__.get("__post_init__"):
                self.post_init = info.post_init
            if base.__module__.startswith("declax."):
                self.reserved |= info.reserved

    def annotate(self, annotations: dict[str, Any]) -> None:
        """Gives the class other annotations."""
        self.cls.__annotations__ = self.annotations = annotations

    def __reduce__(self) -> tuple[Any, ...]:
        """A class that is pickled by value (cloudpickle) is prepared anew."""
        kept = {name: getattr(self, name) for name in self.__slots__ if name not in ("is_registered", "is_complete")}
        return ClassInfo, (), kept

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


NOT_PREPARED: Final = ClassInfo()


def info_of(value: Any) -> ClassInfo:
    """What is known of the class of a value, or of a class; `NOT_PREPARED` for others."""
    found: ClassInfo = getattr(value, INFO_KEY, NOT_PREPARED)
    return found


def own_info(cls: type) -> ClassInfo:
    """As `info_of`, of a class that may be none of declax, as a base."""
    found: ClassInfo = cls.__dict__.get(INFO_KEY, NOT_PREPARED)
    return found


def maker_of(cls: Any) -> Any:
    """The `Maker` of a class, or of its nearest decorated base; `UNDECLARED` for others."""
    return getattr(cls, INFO_KEY, NOT_PREPARED).maker
