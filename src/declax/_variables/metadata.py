"""Metadata of Variables: interned immutable mappings, declarations of kinds, and names of axes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

from jax.sharding import NamedSharding, PartitionSpec

from declax import errors
from declax._fields import snapshots
from declax._fields.annotations import annotations_of
from declax._fields.interning import Interned, Shared
from declax._text import objects
from declax._typing import MISSING, T

HOOKS: Final = ("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis")

AXES: Final = "out_sharding"
"""The metadata that names the axes of the value, one entry an axis."""

OPTIMIZER_AXES: Final = "optimizer_sharding"
"""The same for the state of an optimizer, if it differs."""

ACT_NAMES: Final = "act_names"
"""The metadata of a parameter that names the axes of the result of its layer."""

_OTHER_NAMES: Final = {"sharding": AXES, "sharding_names": AXES}
"""Names under which metadata may be given. Of a Variable, `sharding` is that of its value."""

EAGER_SHARDING: Final = "eager_sharding"
"""Whether a value is placed when it is set; as `use_eager_sharding` says, unless a Variable has this metadata."""

PLACEMENT: Final = (AXES, *_OTHER_NAMES, OPTIMIZER_AXES, "sharding_rules", EAGER_SHARDING, "mesh")
"""What says where a value lies."""

KNOWN: Final = frozenset({*HOOKS, *PLACEMENT, ACT_NAMES, "tag", "trainable", "weight_decay"})
"""Names that declax interprets. A similar name is an error."""

OF_VALUE: Final = frozenset({"dtype", "ndim", "shape", "size"})
"""Attributes of the value that a Variable has too. Metadata may have these names."""

_VALUE: Final = {"".join(sorted(name)): name for name in ("value", "raw_value")}
"""Names by their sorted letters, to find swapped letters: `v.vaule = x` would not change the value."""

NEAR: Final = 0.85
"""The similarity of two names (0 to 1) from which on one is a misspelling of the other."""


class Metadata(Shared, Mapping[str, Any]):
    """Immutable metadata, interned by content and types of values: use `Metadata.of`.

    >>> Metadata.of({"trainable": False}) is Metadata.of({"trainable": False})
    True
    """

    __slots__ = ("__weakref__", "_content", "axes", "create_hook", "frozen", "get_hook", "is_plain", "set_hook")

    frozen: Mapping[str, Hashable]
    """The values as they are hashed, with snapshots in place of containers."""
    get_hook: Callable[..., Any] | None
    set_hook: Callable[..., Any] | None
    create_hook: Callable[..., Any] | None
    axes: Any
    """The names of the axes of the value, or its sharding, or None."""
    is_plain: bool
    """Whether the attributes of a Variable's value are those of its raw value: no hook, and none of `OF_VALUE`."""

    EMPTY: ClassVar[Metadata]

    @staticmethod
    def of(content: Mapping[str, object], where: str = "Variable") -> Metadata:
        """The one Metadata with this content."""
        if not content:
            return EMPTY
        content = {_OTHER_NAMES.get(name, name): value for name, value in content.items()}
        frozen = {name: snapshots.freeze(value, f"{where}.{name}") for name, value in sorted(content.items())}
        for name in HOOKS:
            hooks = content.get(name)
            if isinstance(hooks, list):
                frozen[name] = tuple(hooks)  # hooks are called as they are
        return _intern(frozen)

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

    def __repr__(self) -> str:
        return repr(dict(self))


_table: Final[Interned[Metadata]] = Interned()


def _intern(frozen: Mapping[str, Hashable]) -> Metadata:
    def make() -> Metadata:
        metadata = object.__new__(Metadata)
        metadata.frozen = frozen
        metadata.get_hook = chain(frozen.get("on_get_value"))
        metadata.set_hook = chain(frozen.get("on_set_value"))
        metadata.create_hook = chain(frozen.get("on_create_value"))
        metadata.axes = snapshots.thaw(frozen.get(AXES))
        metadata.is_plain = metadata.get_hook is None and OF_VALUE.isdisjoint(frozen)
        return metadata

    content = tuple((name, value, snapshots.exact_types(value)) for name, value in frozen.items())
    return _table.find_or_make(content, make)


def chain(hooks: Any) -> Callable[..., Any] | None:
    """One function for a hook, a tuple of hooks, or none; each hook of values takes the result of the one before."""
    if not isinstance(hooks, tuple):
        return hooks  # type: ignore[no-any-return]  # a function, or None
    if len(hooks) < 2:
        return hooks[0] if hooks else None

    def call_each(variable: Any, value: Any, *axis: Any) -> Any:
        for hook in hooks:
            result = hook(variable, value, *axis)
            value = value if axis else result
        return value

    return call_each


def check_names(names: Iterable[str], where: str, known: frozenset[str], reserved: Callable[[str], bool]) -> None:
    """Refuses names that hide attributes of a Variable, or resemble a known name."""
    for name in names:
        if name in known or name in OF_VALUE:
            continue
        if reserved(name):
            raise errors.MetadataError(
                f"{where}.{name}",
                "metadata would hide an attribute of the Variable",
                why=f"every Variable has '{name}' already",
                fix="choose another name",
            )
        # A short name is near to other words: `tags` is not `tag`.
        near = difflib.get_close_matches(name, [one for one in known if len(one) > 4], n=1, cutoff=NEAR)
        meant = near[0] if near else _VALUE.get("".join(sorted(name)))
        if meant is not None:
            raise errors.MetadataError(
                f"{where}.{name}",
                f"unknown metadata; the name resembles {'one that declax interprets' if near else 'value'}",
                fix=f"did you mean {meant!r}?",
            )


EMPTY: Final = _intern({})
Metadata.EMPTY = EMPTY


class VariableMetadata(Generic[T]):
    """A value for a Variable that will be made, with its metadata.

    What an initializer wrapped by `with_metadata` returns; `Variable` unpacks it.
    """

    __slots__ = ("metadata", "value")

    value: T
    metadata: Mapping[str, Any]

    def __init__(self, value: T, metadata: Mapping[str, Any]) -> None:
        self.value = value
        self.metadata = metadata

    @property
    def raw_value(self) -> T:
        """The value, by its name in NNX."""
        return self.value

    def __repr__(self) -> str:
        return f"VariableMetadata({objects.value_text(self.value)}, {dict(self.metadata)!r})"


# --- declarations of kinds ------------------------------------------------------


class DeclaredMetadata:
    """Descriptor of declared metadata; without it the default of the class would hide the metadata of an instance."""

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default

    def __get__(self, variable: Any, owner: type) -> Any:
        if variable is None:
            return self.default
        return variable.__getattr__(self.name)

    def __set__(self, variable: Any, value: Any) -> None:
        variable.set_metadata(self.name, value)


def declared_metadata(cls: type) -> dict[str, Any]:
    """The metadata that a class body declares, with defaults or MISSING; puts descriptors in their place."""
    declared: dict[str, Any] = {}
    for name, annotation in annotations_of(cls).items():
        if name.startswith("_") or name == "raw_value" or "ClassVar" in str(annotation):
            continue
        default = cls.__dict__.get(name, MISSING)
        if hasattr(type(default), "__set__"):
            continue  # a property or slot of that name
        declared[name] = default
        if default is not MISSING:
            setattr(cls, name, DeclaredMetadata(name, default))
    return declared


# --- names of axes ---------------------------------------------------------------

_spec: Callable[..., PartitionSpec] = PartitionSpec  # which jax leaves without types


def insert_axis(names: Any, index: int, axis_name: str | None) -> Any:
    """The names with one axis more: a tuple, list, `PartitionSpec` or `NamedSharding`; other values stay."""
    entries = names_of_axes(names)
    if entries is None:
        return names
    at = index if index >= 0 else index + len(entries) + 1
    entries.extend([None] * (at - len(entries)))
    entries.insert(at, axis_name)
    return _with_entries(names, entries)


def remove_axis(kind: type, names: Any, index: int, axis_name: str | None) -> Any:
    """The names of the axes of an array that has lost one."""
    entries = names_of_axes(names)
    if entries is None or not -len(entries) <= index < len(entries):
        return names
    removed = entries.pop(index)
    if removed != axis_name:
        raise errors.MetadataError(
            f"{errors.type_name(kind)}.remove_axis",
            f"axis {index} has another name",
            expected=repr(axis_name),
            got=f"{removed!r} in {names!r}",
        )
    return _with_entries(names, entries)


def names_of_axes(names: Any) -> list[Any] | None:
    if isinstance(names, NamedSharding):
        return list(names.spec)
    return list(names) if isinstance(names, (tuple, list, PartitionSpec)) else None


def _with_entries(names: Any, entries: list[Any]) -> Any:
    if isinstance(names, NamedSharding):
        return NamedSharding(names.mesh, _spec(*entries), memory_kind=names.memory_kind)
    return _spec(*entries) if isinstance(names, PartitionSpec) else type(names)(entries)
