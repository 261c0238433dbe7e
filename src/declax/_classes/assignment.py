"""Assignments that a declared class refuses: to names that its own resemble, and to fields that decided its parts."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

import numpy as np

from declax._fields.annotations import annotations_of
from declax._fields.call import Unmade
from declax._fields.class_info import maker_of
from declax._tree.attributes import class_attribute
from declax._tree.layout import Layout
from declax._tree.statuses import has_data
from declax.errors import MissingAttributeError, describe, type_name


def check_assignment(self: Any, name: str, value: object, layout: Layout) -> None:
    """Raises for a new attribute that is a misspelt one, or a new value of a field from which parts were made.

    An assignment that needs no look at the caller returns first.
    """
    attributes = self.__dict__
    deciding: Mapping[str, str] = maker_of(type(self)).deciding
    if layout.guarded is not deciding:
        layout.guard(deciding)
    if isinstance(value, Unmade):  # another error, or the default of a part
        return
    if name in attributes:
        if name in deciding and not _is_same(value, attributes[name]):
            if not (_is_open(type(self)) or _may_decide(self, _caller(self))):
                raise _deciding(self, name, value, deciding[name])
        return
    declared = maker_of(type(self)).names
    if name in declared:
        return
    near = near_miss(name, declared)
    if near is None or _is_open(type(self)) or _is_known(type(self), name) or _holds(self, _caller(self)):
        return
    cls = type_name(type(self))
    raise MissingAttributeError(
        f"{cls}.{name}",
        f"the class declares no {name!r}; did you mean {near!r}?",
        got=describe(value),
        why="the assignment would add an attribute whose name differs in one letter from a declared one",
        fix=f"model.{near} = ...\n{name}: ... = dx.field(init=False)        # in class {cls}, if both are meant",
    )


def _deciding(self: Any, name: str, value: object, part: str) -> MissingAttributeError:
    cls = type(self)
    rngs = ", rngs=dx.Rngs(0)" if "rngs" in cls.__dataclass_fields__ else ""
    return MissingAttributeError(
        f"{type_name(cls)}.{name}",
        f"the part {part!r} was made from this field, and an assignment does not make it again",
        expected=repr(self.__dict__[name]),
        got=describe(value),
        why="the description of the model would be wrong: repr, dx.spec_of and checkpoints",
        fix=f"model = dx.replace(model, {name}=...{rngs})        # makes the parts anew\n"
        f"model.set_attributes({name}=...)        # changes the attribute alone",
    )


def _is_same(value: object, old: object) -> bool:
    is_alike = value.__class__ is old.__class__ or any(isinstance(value, k) and isinstance(old, k) for k in _NUMBERS)
    return value is old or (is_alike and not has_data(value) and bool(value == old))


_NUMBERS: Final = ((int, np.integer), (float, np.floating), (bool, np.bool_))


# --- who assigns ----------------------------------------------------------------


def _caller(self: Any) -> FrameType:
    """The frame of an assignment, behind the ``__setattr__`` of the object and its bases."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__setattr__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("declax.")


def _holds(self: Any, frame: FrameType) -> bool:
    """Whether a frame is of the library, or of code that holds an object as ``self``."""
    return _is_library(frame) or frame.f_locals.get("self") is self


def _may_decide(self: Any, frame: FrameType) -> bool:
    """Whether a frame is of the library, or runs while an object is constructed."""
    if _is_library(frame):
        return True
    around: FrameType | None = frame
    while around is not None:
        code = around.f_code
        if code.co_name in ("__init__", "__post_init__") and code.co_argcount:
            if around.f_locals.get(code.co_varnames[0]) is self:
                return True
        around = around.f_back
    return False


def _is_open(cls: Any) -> bool:
    """Whether a class is a subclass of a declared one without the decorator, and has its own ``__init__``."""
    owner = next(base for base in cls.__mro__ if "__init__" in base.__dict__)
    return "__dataclass_fields__" not in owner.__dict__


def _is_known(cls: type, name: str) -> bool:
    return class_attribute(cls, name) is not None or name in annotations_of(cls)


# --- near misses ----------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def near_miss(name: str, declared: frozenset[str]) -> str | None:
    """The declared name that differs from a name in one transposed, doubled, dropped or replaced letter."""
    return next((known for known in sorted(declared) if is_near_miss(name, known)), None)


def is_near_miss(name: str, known: str) -> bool:
    """Whether a name is a known one with one letter transposed, doubled, dropped or replaced.

    The letter is in a word of at least three letters. Numbers, suffixes and plurals are names of their own, and so are
    words with another first letter, and short words with a letter that is no neighbour on the keyboard: such pairs are
    usual in one model (`rate` and `gate`, `fwd` and `bwd`, `step` and `stop`), and rarely mistyped.

    >>> [is_near_miss(name, "scale") for name in ("scael", "scalle", "scal", "skale", "scales", "scale2", "scale_q")]
    [True, True, True, True, False, False, False]
    >>> [is_near_miss(*names) for names in (("gate", "rate"), ("mode", "model"), ("mid", "min"), ("din", "dim"))]
    [False, False, False, True]
    """
    if abs(len(name) - len(known)) > 1 or name == known:
        return False
    first = next((i for i, (a, b) in enumerate(zip(name, known, strict=False)) if a != b), min(len(name), len(known)))
    word = next((word for word in re.finditer(r"[^\W\d_]+", known) if word.start() <= first <= word.end()), None)
    if word is None or len(word[0]) < 3:
        return False
    if len(name) > len(known):  # doubled: the first difference is behind the letter
        return first > word.start() and name[first] == known[first - 1] and name[first + 1 :] == known[first:]
    if first == word.end():
        return False
    if len(name) < len(known):
        is_suffix = first == word.end() - 1 and known[first] not in "aeiou"
        return name[first:] == known[first + 1 :] and first > word.start() and not is_suffix
    if name[first + 1 :] == known[first + 1 :]:
        return _may_replace(name[first], known[first], word[0], first - word.start())
    is_swapped = name[first] == known[first + 1 : first + 2] and name[first + 1] == known[first]
    return is_swapped and first + 1 < word.end() and name[first + 2 :] == known[first + 2 :]


def _may_replace(letter: str, known: str, word: str, place: int) -> bool:
    """Whether a letter was probably meant to be the known one at a place of a word."""
    letter, known = letter.lower(), known.lower()
    if place == 0 or letter == known:
        return letter == known
    return letter.isalpha() and (len(word) >= 5 or _are_neighbours(letter, known))


_KEYS: Final = {
    letter: (row, column + row / 2)
    for row, letters in enumerate(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
    for column, letter in enumerate(letters)
}
"""The rows and columns of the keys of letters; each row is half a key to the right of the one above."""


def _are_neighbours(letter: str, other: str) -> bool:
    keys = [_KEYS[one] for one in (letter, other) if one in _KEYS]
    return len(keys) == 2 and all(abs(a - b) <= 1 for a, b in zip(*keys, strict=True))
