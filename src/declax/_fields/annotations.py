"""The annotations of a class: the names in them, and their text; and the classes whose instances are data.

An *unresolved* name exists for type checkers only, or not yet. Upper layers add the classes whose instances are data.
`declax._fields.meanings` reads what an annotation says.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import functools
import importlib
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

from declax._fields.sources import class_text
from declax._fields.specifiers import Status
from declax._typing import INFO_KEY

_DATA_TYPES: set[type] = {jax.Array, Tracer, np.ndarray, jax.ShapeDtypeStruct, jax.Ref}

caches_by_type: list[dict[type, Any]] = []
"""Caches of upper layers that depend on the types that are data; cleared when one is registered."""


def add_data_type(cls: type) -> None:
    """Makes instances of a class (and of its subclasses) data."""
    _DATA_TYPES.add(cls)
    _is_data_class.cache_clear()
    for cache in caches_by_type:
        cache.clear()


@functools.cache
def _is_data_class(cls: type) -> bool:
    return not _DATA_TYPES.isdisjoint(cls.__mro__) or issubclass(cls, jax.Array)


is_data_class: collections.abc.Callable[[type], bool] = _is_data_class
"""Whether instances of a class are data by themselves."""


_WORD = re.compile(r"[^\W\d]\w*")


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations that a class itself writes, without those of its bases."""
    if sys.version_info >= (3, 14):
        annotationlib = importlib.import_module("annotationlib")
        return dict(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    found: dict[str, Any] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063  # at creation, which a copy would slow down
    return found


def names_around(cls: type, annotations: Mapping[str, Any]) -> dict[str, object]:
    """The names that the annotations of a class use as text and the functions around it define.

    Must run while the functions do: at the creation of the class.
    """
    wanted = set[str]()
    for annotation in annotations.values():
        if not isinstance(annotation, type):
            wanted.update(_WORD.findall(annotation if isinstance(annotation, str) else repr(annotation)))
    found: dict[str, object] = {}
    frame = sys._getframe(1) if wanted else None
    while frame is not None:
        around = f"{frame.f_code.co_qualname}.<locals>."
        if cls.__qualname__.startswith(around) and frame.f_globals.get("__name__") == cls.__module__:
            names = frame.f_locals
            found = {**{word: names[word] for word in wanted.intersection(names)}, **found}
        frame = frame.f_back
    return found


class Unresolved:
    """A name of an annotation that does not exist at run time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *args: object, **kwargs: object) -> Unresolved:
        return self

    def __getitem__(self, item: object) -> Unresolved:
        return self

    def __getattr__(self, name: str) -> Unresolved:
        if name.startswith("__"):
            raise AttributeError(name)  # a probe of `typing`, not of a user
        return Unresolved(f"{self.name}.{name}")

    def __or__(self, other: object) -> object:
        return typing.Union[self, other]  # noqa: UP007  # an instance has no type to build `|` from

    def __ror__(self, other: object) -> object:
        return typing.Union[other, self]  # noqa: UP007  # as above


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> types.CodeType:
    """An annotation as code: each is evaluated several times, and many fields have the same."""
    return compile(text.strip(), "<annotation>", "eval")


class AnnotationScope(dict[str, object]):
    """The names that the annotations of one class may use.

    Looks in the class, in the functions around it, its module, the builtins, and the scope around, in this order; a
    name that is in none of them becomes `Unresolved`.

    Attributes:
      owner: the class.
      is_complete: whether all names were found.
      evaluated: the meaning of texts.
    """

    def __init__(self, cls: type, around: AnnotationScope | None = None) -> None:
        super().__init__({cls.__name__: cls})
        parameters = vars(cls).get("__type_params__", ())
        for parameter in parameters if isinstance(parameters, tuple) else ():  # `type` has a descriptor
            self[parameter.__name__] = parameter
        self.owner = cls
        self._module = vars(sys.modules.get(cls.__module__, builtins))
        self._around = around
        self.is_complete: bool = True
        self.evaluated: dict[str, object] = {}

    def __reduce__(self) -> tuple[type[AnnotationScope], tuple[type]]:
        return AnnotationScope, (self.owner,)  # not the names of the module

    def __missing__(self, name: str) -> object:
        cls = self.owner
        info = vars(cls).get(INFO_KEY)  # a `ClassInfo`
        for names in (vars(cls), {} if info is None else info.names_around, self._module, vars(builtins)):
            if name in names:
                found: object = names[name]
                return found
        if self._around is not None:
            return self._around[name]
        self.lack_names()
        return Unresolved(name)

    def lack_names(self) -> None:
        """Records that a name was not found, here and in the scope around."""
        self.is_complete = False
        if self._around is not None:
            self._around.lack_names()

    def resolve(self, annotation: object) -> object:
        """An annotation with its strings evaluated, as far as names exist."""
        while isinstance(annotation, (str, typing.ForwardRef)):
            text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
            if text not in self.evaluated:
                try:
                    self.evaluated[text] = eval(_compiled(text), {}, self)
                except Exception:  # noqa: BLE001  # an annotation may be any text; it then decides nothing
                    self.lack_names()
                    self.evaluated[text] = Unresolved(text)
            annotation = self.evaluated[text]
        return annotation


_DTYPES: Final = str(jax.typing.DTypeLike).removeprefix("typing.Union[").removesuffix("]")


def annotation_text(annotation: object) -> str:
    """An annotation as a user writes it."""
    if isinstance(annotation, dataclasses.InitVar):
        return f"dx.InitVar[{annotation_text(annotation.type)}]"
    tags = [tag for tag in getattr(annotation, "__metadata__", ()) if isinstance(tag, Status)]
    if tags:
        return f"dx.{tags[0].name.title()}[{annotation_text(annotation.__origin__)}]"  # type: ignore[attr-defined]  # Annotated
    text = class_text(annotation) if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"\b__main__\.|[\w.]+\.<locals>\.", "", text)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    if annotation is jax.Array:
        return "jax.Array"
    text = text.replace(_DTYPES, "dtype").replace("typing.Union[dtype]", "dtype")
    text = text.replace("typing.Union[dtype, NoneType]", "dtype | None")
    text = text.replace(f"{jax.Array.__module__}.{jax.Array.__qualname__}", "jax.Array")
    return re.sub(r"\bdeclax(?:\.\w+)*\.(\w+)", r"dx.\1", text)


def annotations_of(cls: type) -> Mapping[str, object]:
    """The annotations of a class and its bases, the nearest first."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        found.update(own_annotations(base))
    return found
