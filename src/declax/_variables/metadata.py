"""What a Variable knows about its value: interned, immutable metadata."""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from declax import errors
from declax._fields import snapshots

HOOKS: Final = ("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis")

AXIS_NAMES: Final = ("sharding", "sharding_names", "out_sharding")
"""Metadata that names the axes of the value, one entry an axis."""

KNOWN: Final = frozenset(
    {*HOOKS, *AXIS_NAMES, "sharding_rules", "eager_sharding", "mesh", "tag", "trainable", "weight_decay"}
)
"""Names that mean something to declax; what is spelt nearly like one is an error."""

_VALUE: Final = {"".join(sorted(name)): name for name in ("value", "raw_value")}
"""By its letters in order, what is misspelt by swapping some of them; `v.vaule = x` would leave the value as it was."""

NEAR: Final = 0.85
"""How alike two names are (0 to 1) before one counts as a misspelling of the other."""


class Metadata(Mapping[str, Any]):
    """Immutable metadata. Equal contents are the same object: use `Metadata.of`.

    Values that are equal but of different types (``1`` and ``True``) differ.

    >>> Metadata.of({"trainable": False}) is Metadata.of({"trainable": False})
    True
    """

    __slots__ = ("__weakref__", "create_hook", "frozen", "get_hook", "set_hook")

    frozen: Mapping[str, Hashable]
    """The values as they are hashed, with snapshots in place of containers."""
    get_hook: Callable[..., Any] | None
    set_hook: Callable[..., Any] | None
    create_hook: Callable[..., Any] | None

    EMPTY: ClassVar[Metadata]

    @staticmethod
    def of(content: Mapping[str, object], where: str = "Variable") -> Metadata:
        """The one Metadata with this content."""
        if not content:
            return EMPTY
        frozen = {name: snapshots.freeze(value, f"{where}.{name}") for name, value in sorted(content.items())}
        for name in HOOKS:
            if name in frozen:
                frozen[name] = _checked_hooks(frozen[name], f"{where}.{name}")
        return _intern(frozen)

    def axis_hook(self, name: str) -> Callable[..., Any] | None:
        """The one function that runs all hooks of a name, or None."""
        return chain(self.frozen.get(name))

    def __getitem__(self, name: str) -> Any:
        return snapshots.thaw(self.frozen[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.frozen)

    def __len__(self) -> int:
        return len(self.frozen)

    def __contains__(self, name: object) -> bool:
        return name in self.frozen

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Metadata) or not isinstance(other, Mapping):
            return False
        return dict(self) == dict(other)

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
    else:
        __hash__ = object.__hash__  # no frame of Python: every treedef asks for it

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.frozen,)

    def __copy__(self) -> Metadata:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Metadata:
        return self

    def __repr__(self) -> str:
        return repr(dict(self))


_table: weakref.WeakValueDictionary[Hashable, Metadata] = weakref.WeakValueDictionary()
_table_lock = threading.RLock()


def _intern(frozen: Mapping[str, Hashable]) -> Metadata:
    key = tuple((name, value, snapshots.exact_types(value)) for name, value in frozen.items())
    with _table_lock:
        found = _table.get(key)
        if found is None:
            found = _table[key] = _new_metadata(frozen)
        return found


def _new_metadata(frozen: Mapping[str, Hashable]) -> Metadata:
    metadata = object.__new__(Metadata)
    metadata.frozen = frozen
    metadata.get_hook = chain(frozen.get("on_get_value"))
    metadata.set_hook = chain(frozen.get("on_set_value"))
    metadata.create_hook = chain(frozen.get("on_create_value"))
    return metadata


def chain(hooks: Any) -> Callable[..., Any] | None:
    """One function for a hook, a tuple of hooks, or none.

    Hooks of values are fed one by the other; hooks of axes are called in turn.
    """
    if not isinstance(hooks, tuple):
        return hooks  # type: ignore[no-any-return]  # checked by _checked_hooks when it came in
    if len(hooks) < 2:
        return hooks[0] if hooks else None

    def call_each(variable: Any, value: Any, *axis: Any) -> Any:
        for hook in hooks:
            result = hook(variable, value, *axis)
            value = value if axis else result
        return value

    return call_each


def _checked_hooks(value: Any, where: str) -> Hashable:
    hooks = snapshots.thaw(value)
    hooks = tuple(hooks) if isinstance(hooks, (list, tuple)) else hooks
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        if hook is not None and not callable(hook):
            raise errors.MetadataError(
                where, "a hook must be a function", expected="a function or a tuple of them", got=errors.describe(hook)
            )
    return hooks


def check_names(names: Iterable[str], where: str, known: frozenset[str], reserved: Callable[[str], bool]) -> None:
    """Refuses names that hide what a Variable has, or look like a misspelling."""
    for name in names:
        if name in known:
            continue
        if reserved(name):
            raise errors.MetadataError(
                f"{where}.{name}",
                "metadata would hide an attribute of the Variable",
                why=f"every Variable has '{name}' already",
                fix="choose another name",
            )
        near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
        meant = near[0] if near else _VALUE.get("".join(sorted(name)))
        if meant is not None:
            raise errors.MetadataError(
                f"{where}.{name}",
                f"unknown metadata, and spelt nearly like {'metadata that means something' if near else 'the value'}",
                fix=f"did you mean {meant!r}?",
            )


EMPTY: Final = _intern({})
Metadata.EMPTY = EMPTY
