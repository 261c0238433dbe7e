"""How new Variables hold their values: `ref` and `hijax`, and the defaults of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Final, overload

from declax._modes import Default, is_on
from declax._typing import Immutable
from declax.errors import MetadataError

is_used = False
"""Whether this process has changed the defaults; no Variable asks for them before."""


class VarDefaults(Immutable, Mapping[str, bool]):
    """The defaults of two arguments of `Variable`.

    Attributes:
      hijax: always False outside of a block that asks for True.
      ref: whether a new Variable holds a ref in place of an array.
    """

    hijax: bool
    ref: bool

    def __init__(self, hijax: bool = False, ref: bool = False) -> None:
        vars(self).update(hijax=hijax, ref=ref)

    def __getitem__(self, name: str) -> bool:
        return vars(self)[name]  # type: ignore[no-any-return]  # both are bools

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return 2


_INITIAL: Final = VarDefaults()


class DefaultsChange(Default[VarDefaults]):
    """Other defaults, from now on, in a ``with``, or for the calls of a decorated function."""

    _current: ClassVar[ContextVar[VarDefaults]] = ContextVar("declax_var_defaults", default=_INITIAL)


_current = DefaultsChange._current.get


@overload
def var_defaults() -> VarDefaults: ...  # pyright: ignore[reportOverlappingOverload]  # without arguments
@overload
def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> DefaultsChange: ...
def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> VarDefaults | DefaultsChange:
    """The defaults of new Variables; with arguments, changes them.

    Args:
      hijax: a kind of Variable that declax does not have. With True, making a Variable raises a MetadataError.
      ref: whether a new Variable holds a ref, which `jax.jit` lets a function write to.

    Returns:
      Without arguments the defaults. With arguments, what sets them: from now on, in a ``with`` until the end of the
      block, and as a decorator during the calls of a function.

    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> with dx.var_defaults(ref=True):
    ...     scale = dx.Param(jnp.ones(2))
    >>> scale.ref, dx.var_defaults().ref
    (True, False)
    """
    global is_used  # read where Variables are made
    before = _current()
    if hijax is None and ref is None:
        return before
    is_used = True
    return DefaultsChange(
        VarDefaults(is_on("hijax", hijax, lambda: before.hijax), is_on("ref", ref, lambda: before.ref))
    )


def take_ref(metadata: dict[str, Any], where: str) -> bool:
    """Whether a new Variable holds a ref; takes `ref` and `hijax` out of its metadata."""
    defaults = _current()
    if metadata.pop("hijax", defaults.hijax):
        raise MetadataError(
            where,
            "declax has no hijax Variables",
            got="hijax=True",
            why="a hijax Variable lets raw JAX transforms write to it. The transforms of declax write Variables back, "
            "and a ref can be written to in a function under jax.jit",
            fix="nnx.jit(f)(model)   # or ref=True, to use jax.jit",
        )
    return is_on("ref", metadata.pop("ref", defaults.ref), lambda: defaults.ref)


def without_fixed(metadata: Mapping[str, Any], where: str, is_ref: bool) -> dict[str, Any]:
    """Metadata of an existing Variable, less `ref` and `hijax`, which have to be as they are."""
    fixed = {"hijax": False, "ref": is_ref}
    for name in metadata.keys() & fixed.keys():
        if bool(metadata[name]) is not fixed[name]:
            raise MetadataError(
                f"{where}.{name}",
                f"`{name}` cannot change after construction",
                expected=repr(fixed[name]),
                got=repr(metadata[name]),
                fix="dx.with_vars(variable, ref=True)        # or False" if name == "ref" else None,
            )
    return {name: value for name, value in metadata.items() if name not in fixed}
