"""Says so when what a function writes to its copy of a model is lost.

The transforms of JAX call a function with copies of its arguments. What the
function writes to a copy, and does not return, is gone with it. Only at the
end is it known what was lost, so a copy looks for itself when it dies.

Vocabulary
----------
copy:   a Pytree that JAX made to call a function with. A Variable that is part of
        none is not looked after: it has no attributes to look at. Nor is a copy
        that outlives the trace, as one in a cycle does: the function may have raised.
known:  what JAX has seen of a copy: when it made it, and whenever it was
        flattened or read as a graph since. What a copy holds beyond is lost.
switch: a static attribute that says how a call computes: a flag or a text. To
        set one on a copy, as `eval()` does, is meant for the call.
place:  where a copy sits in the argument that it is part of.
"""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

from declax import _jax
from declax._typing import BOUND_KEY, LAYOUT_KEY, MISSING
from declax.errors import MAX_DEPTH, LostWriteWarning, format_path, type_name

Keys = tuple[Any, ...]

_MOST_SHOWN: Final = 6
"""How many paths a warning lists."""

_trace_state: Final = _jax.trace_state
_kinds: Final[set[Any]] = set()
"""The classes of Variables."""
_told: Final[set[str]] = set()
"""The paths that a warning has named; each is named once."""
_lock: Final = threading.RLock()  # again by a finaliser that runs while it is held


def add_kind(kind: type) -> None:
    """Makes known that a class is one of Variables."""
    _kinds.add(kind)


def forget_told() -> None:
    """Has each path named again; for tests."""
    _told.clear()


class Place:
    """Where a copy sits. The topmost place collects what was lost below, and tells when the last copy has gone.

    Attributes:
      cls: the class of the copy.
      keys: the way to it from the copy that it is part of.
      within: the place of that; None for an argument.
      lost: the ways from an argument to what was lost.
    """

    __slots__ = ("cls", "keys", "lost", "within")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.keys: Keys = ()
        self.within: Place | None = None
        self.lost: list[Keys] = []

    def lose(self, ways: Iterable[Keys]) -> None:
        """Notes what was lost, by the ways to it from here."""
        top: Place = self
        before: Keys = ()
        while top.within is not None:
            top, before = top.within, top.keys + before
        top.lost.extend(before + keys for keys in ways)

    def __del__(self) -> None:
        if self.lost:
            _warn(self.cls, self.lost)


class Attributes(dict[Any, Any]):
    """The attributes of a copy, which look at the end for what was lost.

    Generated code reads attributes by ``[...]``, so that these see when the
    copy is flattened. A binding of a graph is not kept in them, for the same
    reason: what is read through it has to be read anew.
    """

    __slots__ = ("_cls", "_known", "_mark", "_place", "_statics")

    def __init__(self, cls: Any, attributes: dict[Any, Any], mark: object) -> None:
        super().__init__(attributes)
        self._cls = cls
        self._mark = mark
        self._place = Place(cls)
        self._known: dict[Keys, Any] = {}
        layout = self._layout()
        self._statics: dict[Any, Any] = {name: attributes[name] for name in layout.static_names}
        for name in layout.data_names:
            for keys, item in _items(name, attributes[name]):
                self._known[keys] = _content(item)
                self._own(keys, item)

    def _layout(self) -> Any:
        return self.get(LAYOUT_KEY) or self._cls._pytree__layout

    def _own(self, keys: Keys, item: Any) -> None:
        """Notes of a copy that it is part of this one."""
        if hasattr(item.__class__, LAYOUT_KEY):
            inner = item.__dict__
            if inner.__class__ is Attributes:
                inner._place.keys, inner._place.within = keys, self._place

    def __getitem__(self, name: Any) -> Any:
        value = super().__getitem__(name)
        if _jax.name_of(sys._getframe(1)) in _FLATTENING:
            self._statics[name] = value
            for keys, item in _items(name, value):
                self._known[keys] = _content(item)
        return value

    def __setitem__(self, name: Any, value: Any) -> None:
        if name != BOUND_KEY:
            super().__setitem__(name, value)

    def __del__(self) -> None:
        if _trace_state.value is not self._mark:
            return  # the function raised, or has kept the copy for later
        known, layout = self._known, self._layout()
        found = (pair for name in layout.data_names if name in self for pair in _items(name, self.get(name)))
        lost: list[Keys] = [keys for keys, item in found if known.get(keys, MISSING) is not _content(item)]
        lost += [(name,) for name in layout.static_names if name in self and self._is_set(name, self.get(name))]
        if lost:
            self._place.lose(lost)

    def _is_set(self, name: Any, value: Any) -> bool:
        """Whether a static attribute, which is no switch, was set to another value."""
        known = self._statics.get(name, MISSING)
        if value is known or isinstance(value, _SWITCHES):
            return False
        try:
            return type(value) is not type(known) or bool(value != known)
        except Exception:  # noqa: BLE001  # what a user's `__ne__` raises: a finaliser has nobody to tell it to
            return True


_SWITCHES: Final = (bool, str, types.NoneType)

_FLATTENING: Final = frozenset({("declax._generated", "flatten"), ("declax._generated", "flatten_with_keys")})


def _items(name: Any, value: Any) -> Iterator[tuple[Keys, Any]]:
    """What is in an attribute, with the way to it; plain containers are looked into."""
    stack: list[tuple[Keys, Any]] = [((name,), value)]
    while stack:
        keys, value = stack.pop()
        if isinstance(value, (list, tuple)) and len(keys) <= MAX_DEPTH:
            stack.extend([((*keys, i), item) for i, item in enumerate(value)][::-1])
        elif isinstance(value, dict) and len(keys) <= MAX_DEPTH:
            stack.extend([((*keys, key), item) for key, item in value.items()][::-1])
        else:
            yield keys, value


def _content(item: Any) -> Any:
    return item.raw_value if item.__class__ in _kinds else item


def note_pytree(node: Any) -> None:
    """Called for each Pytree that JAX makes under a trace: looks after it if it is an argument."""
    if _jax.makes_arguments(sys._getframe(1)):
        object.__setattr__(node, "__dict__", Attributes(type(node), node.__dict__, _trace_state.value))


def _warn(cls: type, lost: list[Keys]) -> None:
    """Warns of what was lost of an argument, at the line that called the transform."""
    transform, frame = _jax.transform_of(sys._getframe(1))
    if transform in _WITHOUT_RESULT:
        return
    while frame is not None and frame.f_back is not None and _jax.name_of(frame)[0].startswith(("declax.", "jax.")):
        frame = frame.f_back
    paths = [f"{type_name(cls)}{_behind(keys)}" for keys in lost]
    with _lock:
        new = [path for path in paths if f"{cls.__module__}.{path}" not in _told]
        _told.update(f"{cls.__module__}.{path}" for path in new)
    if not new:
        return
    try:
        _say(_text(transform, type_name(cls), new), frame)
    except Warning as error:  # where warnings are errors; this one is raised by a finaliser, where nothing can catch it
        _report(error.with_traceback(None))


def _say(text: str, frame: types.FrameType | None) -> None:
    if frame is None:
        warnings.warn(text, LostWriteWarning, stacklevel=2)
        return
    place = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(text, LostWriteWarning, *place, module=_jax.name_of(frame)[0])


def _report(error: Warning) -> None:
    """As the interpreter reports what a finaliser raises, without the frames, which hold what JAX traces."""
    what: Any = types.SimpleNamespace(
        exc_type=type(error), exc_value=error, exc_traceback=None, err_msg="Exception ignored in", object=_warn
    )
    sys.unraisablehook(what)


_WITHOUT_RESULT: Final = ("jax.eval_shape", "jax.make_jaxpr")
"""Nothing is computed by these, so that nothing is lost."""

_COUNTERPARTS: Final = {
    f"jax.{name}": f"dx.{name.removeprefix('lax.')}"
    for name in (
        *("jit", "vmap", "pmap", "shard_map", "grad", "value_and_grad", "vjp", "jvp"),
        *("lax.scan", "lax.while_loop", "lax.fori_loop", "lax.cond", "lax.switch"),
    )
} | {"jax.checkpoint": "dx.remat"}


def _behind(keys: Keys) -> str:
    path = format_path(keys)
    return path if path.startswith("[") else f".{path}"


def _text(transform: str | None, argument: str, paths: list[str]) -> str:
    """The text, in the form that errors have."""
    shown = ", ".join(paths[:_MOST_SHOWN])
    if len(paths) > _MOST_SHOWN:
        shown += f" and {len(paths) - _MOST_SHOWN} more"
    by = transform or "a transform of JAX"
    lifted = _COUNTERPARTS.get(by)
    instead = [f"{lifted}(...)        # in place of {by}: what is written comes back"] if lifted else []
    others = f"return output, model        # or return the {argument}; or dx.split it, and dx.merge it in the function"
    first, *rest = [*instead, others]
    lines = [
        f"{shown}: what was written here under {by} is lost. [{LostWriteWarning.code}]",
        f"  why:      {by} calls the function with a copy of the {argument}, which the function did not return",
        f"  fix:      {first}",
        *(f"            {line}" for line in rest),
    ]
    return "\n".join(lines)
