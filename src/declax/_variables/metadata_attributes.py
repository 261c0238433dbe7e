"""The half of a Variable that is not its value: metadata that is read, checked and changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, overload

from declax import _jax, errors
from declax._tree import epoch
from declax._tree.read_only import ReadOnly, WritesThrough
from declax._typing import MISSING
from declax._variables.metadata import AXIS_NAMES, KNOWN, Metadata, check_names
from declax._variables.metadata_fields import insert_axis, remove_axis

_trace_state: Final = _jax.trace_state


class MetadataHolder:
    """Base of Variables: holds metadata, and the mark of the trace that may change it."""

    __slots__ = ("_metadata", "_trace")

    _metadata: Metadata
    _trace: Any

    _known: ClassVar[frozenset[str]] = KNOWN
    _accepted: ClassVar[set[str]] = set(KNOWN)
    _defaults: ClassVar[Metadata] = Metadata.EMPTY

    @classmethod
    def _make_metadata(cls, content: Mapping[str, Any]) -> Metadata:
        cls._check_metadata(content)
        return Metadata.of({**cls._defaults, **content}, errors.type_name(cls))

    @classmethod
    def _check_metadata(cls, names: Mapping[str, Any]) -> None:
        unknown = names.keys() - cls._accepted
        if unknown:
            check_names(sorted(unknown), errors.type_name(cls), cls._known, lambda name: hasattr(cls, name))
            if len(cls._accepted) < 1000:  # a program that makes up names must not grow the set for ever
                cls._accepted |= unknown

    def _change_metadata(self, metadata: Metadata) -> None:
        if _trace_state.value is not self._trace:
            change_elsewhere(self, "metadata", "_change_metadata", metadata)
            return
        if metadata is not self._metadata:
            _set_metadata(self, metadata)
            epoch.advance()

    @overload
    def set_metadata(self, metadata: Mapping[str, Any], /) -> None: ...
    @overload
    def set_metadata(self, name: str, value: Any, /) -> None: ...
    @overload
    def set_metadata(self, **metadata: Any) -> None: ...
    def set_metadata(self, *content: Any, **metadata: Any) -> None:
        """Changes metadata: ``(name=value, ...)`` or ``("name", value)`` some of it, ``({...})`` all of it.

        Raises:
          MetadataError: a name is a misspelling or hides an attribute.
          TraceContextError: the Variable belongs to another trace.
        """
        cls = type(self)
        kept: Mapping[str, Any] = self._metadata
        if len(content) == 1 and isinstance(content[0], Mapping) and not metadata:
            kept, metadata = {}, dict(content[0])
        elif len(content) == 2 and not metadata:
            metadata = {str(content[0]): content[1]}
        elif content:
            raise errors.MetadataError(
                errors.type_name(cls),
                "set_metadata was called with arguments that do not go together",
                expected="keywords, one mapping, or a name and a value",
            )
        cls._check_metadata(metadata)
        self._change_metadata(Metadata.of({**kept, **metadata}, errors.type_name(cls)))

    def get_metadata(self, name: str | None = None, default: Any = MISSING) -> Any:
        """The metadata of a name, or a dict of all of it.

        Raises:
          MetadataError: there is none of that name, and no default was given.
        """
        if name is None:
            return dict(self._metadata)
        if name in self._metadata:
            return self._metadata[name]
        if default is MISSING:
            raise self._no_metadata(name)
        return default

    def has_metadata(self, name: str) -> bool:
        """True where there is metadata of that name."""
        return name in self._metadata

    def del_metadata(self, name: str) -> None:
        """Takes metadata away.

        Raises:
          MetadataError: there is none of that name.
          TraceContextError: the Variable belongs to another trace.
        """
        if name not in self._metadata:
            raise self._no_metadata(name)
        rest = {key: value for key, value in self._metadata.items() if key != name}
        self._change_metadata(Metadata.of(rest, errors.type_name(type(self))))

    def _no_metadata(self, name: str) -> errors.MetadataError:
        where = f"{errors.type_name(type(self))}.{name}"
        return errors.MetadataError(where, "there is no such metadata", fix=errors.suggest(name, self._metadata))

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Tells the Variable that its value has got an axis: names it in the sharding, runs the hooks."""
        self._move_axis(axis_index, axis_name, insert_axis, "on_add_axis")

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Tells the Variable that its value has lost an axis; the inverse of `add_axis`.

        Raises:
          MetadataError: the sharding calls the axis by another name.
        """
        self._move_axis(axis_index, axis_name, functools.partial(remove_axis, type(self)), "on_remove_axis")

    def _move_axis(self, index: int, axis_name: str | None, move: Callable[..., Any], hook_name: str) -> None:
        moved = {
            name: move(self._metadata[name], index, axis_name)
            for name in AXIS_NAMES
            if self._metadata.get(name) is not None
        }
        if moved:
            self._change_metadata(Metadata.of({**self._metadata, **moved}, errors.type_name(type(self))))
        hook = self._metadata.axis_hook(hook_name) or getattr(type(self), hook_name, None)
        if hook is not None:
            hook(self, index, axis_name)


_set_metadata: Final = MetadataHolder.__dict__["_metadata"].__set__


def change_elsewhere(variable: Any, part: str, method: str, *args: Any, **options: Any) -> None:
    """Has a method change what a Variable shows, where the Variable is a view.

    Raises:
      DeclaxError: the Variable is none; see `foreign_trace`.
    """
    if not isinstance(variable._trace, WritesThrough):
        raise foreign_trace(variable, part)
    variable._trace.write(variable, method, *args, **options)


def foreign_trace(variable: Any, part: str) -> errors.DeclaxError:
    """The error of a change that comes from another trace, or is of a Variable that is read only."""
    name = errors.type_name(type(variable))
    if isinstance(variable._trace, ReadOnly):
        return variable._trace.refusal(name)
    return errors.TraceContextError(
        name,
        f"the {part} of a {name} was changed from another trace level than its own",
        got=f"a {name} that holds {errors.describe(variable.raw_value)}",
        why="the change would happen once, while JAX traces, and a tracer would leak into the Variable.\n"
        + errors.WHERE_CAPTURES_ARE_FOUND,
        fix=f"pass the {name}, or the model that has it, to the transformed function as an argument",
    )
