"""Any transform of JAX for functions of models: `split_inputs` outside of it, `merge_inputs` inside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, overload

import jax

from declax._graph.contexts import update_context
from declax.transforms._engine.structure import is_root
from declax.transforms.trees import from_tree, to_tree

F = TypeVar("F", bound=Callable[..., Any])

_TAG = "split_merge_inputs"


@overload
def split_inputs(*, ctxtag: Hashable = _TAG) -> Callable[[F], F]: ...
@overload
def split_inputs(f: F, *, ctxtag: Hashable = _TAG) -> F: ...
def split_inputs(f: Any = None, *, ctxtag: Hashable = _TAG) -> Any:
    """Lets a function of States be called with models; the outer half of a pair with `merge_inputs`.

    The function takes positional arguments and returns the pair that a
    function under `merge_inputs` returns, or a pair of that structure, as
    `jax.jit`, `jax.lax.cond` and others do. Changes of the models come back.

    Args:
      f: a function that a transform of JAX made; without it, a decorator is returned.
      ctxtag: the tag of the update context that the pair uses.

    >>> import jax
    >>> import declax as dx
    >>> import declax.transforms.general as general
    >>> @general.split_inputs
    ... @jax.jit
    ... @general.merge_inputs
    ... def double(scale):
    ...     scale.value *= 2
    >>> scale = dx.Param(1.5)
    >>> double(scale)
    >>> float(scale)
    3.0
    """
    if f is None:
        return functools.partial(split_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def call_with_states(*args: Any) -> Any:
        with update_context(ctxtag):
            returned = f(*to_tree(args, ctxtag=ctxtag))
            _, output = from_tree(returned, ctxtag=ctxtag, is_inner=False)
        return output

    return call_with_states


@overload
def merge_inputs(*, ctxtag: Hashable = _TAG) -> Callable[[F], F]: ...
@overload
def merge_inputs(f: F, *, ctxtag: Hashable = _TAG) -> F: ...
def merge_inputs(f: Any = None, *, ctxtag: Hashable = _TAG) -> Any:
    """Lets a function of models be called with States; the inner half of a pair with `split_inputs`.

    Args:
      f: a function of models; without it, a decorator is returned.
      ctxtag: the tag of the update context that the pair uses.

    Returns:
      A function that returns a pair: its arguments, with None for leaves that
      are not models, and its output. A transform with axes or shardings for
      outputs needs them for both.
    """
    if f is None:
        return functools.partial(merge_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def call_with_models(*split_args: Any) -> Any:
        args = from_tree(split_args, ctxtag=ctxtag, is_inner=True)
        output = f(*args)
        models = jax.tree.map(lambda leaf: leaf if is_root(leaf) else None, args, is_leaf=is_root)
        return to_tree((models, output), ctxtag=ctxtag)

    return call_with_models
