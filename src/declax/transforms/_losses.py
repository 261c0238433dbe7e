"""What `grad` and `value_and_grad` differentiate: the loss, one real number.

Vocabulary
----------
loss: what the function returns, or the first of it with `has_aux`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from declax.errors import TransformError, describe
from declax.transforms._differentiated import check_pair, result_leaves, target_of_result
from declax.transforms._lift import Outcome
from declax.transforms._naming import name_of
from declax.transforms._structure import is_array_like


def loss_of(
    outcome: Outcome, values: Sequence[Any], user: Callable[..., Any], *, has_aux: bool, is_complex: bool
) -> Any:
    """The loss, as JAX differentiates it.

    Args:
      outcome: of the function.
      values: of the graph's leaves that went in.
      user: the function.
      has_aux: whether it returns a pair, of which the loss is the first.
      is_complex: whether the loss is a complex number.

    Raises:
      TransformError: for no pair with `has_aux`, and for a loss that is not one real number.
    """
    if outcome.plan.change is None:
        loss = outcome.output
        if has_aux:
            check_pair(jax.tree_util.tree_structure(loss))
            loss = loss[0]
    else:
        loss = _loss_of_models(outcome, values, user, has_aux=has_aux)
    if not (isinstance(loss, jax.Array) and loss.shape == () and loss.dtype.kind == "f" and not is_complex):
        _check_number(loss, user, is_complex=is_complex)
    return loss


def _loss_of_models(outcome: Outcome, values: Sequence[Any], user: Callable[..., Any], *, has_aux: bool) -> Any:
    """The loss where a function returns models, or Variables, which stand for their values."""
    target = target_of_result(outcome, has_aux)
    of_models, plain = result_leaves(outcome, values, target)
    if any(part.definition is not None and part.definition.paths != ((),) for part in target.parts):
        raise TransformError(
            f"the result of {name_of(user)}",
            "it is a model, and a loss is one number",
            fix=f"return loss, model        # and dx.grad({name_of(user)}, has_aux=True)",
        )
    leaves = [(plain if p.definition is None else of_models)[p.positions[0]] for p in target.parts]
    return jax.tree_util.tree_unflatten(target.tree, leaves)


def _check_number(loss: Any, user: Callable[..., Any], *, is_complex: bool) -> None:
    """Checks that a loss is one real number, or one complex number where such a one is meant."""
    name = name_of(user)
    where = f"the result of {name}"
    if loss is None:
        raise TransformError(where, "the function returns None, and a loss is one number", fix="return loss")
    if not is_array_like(loss):
        leaves, tree = jax.tree_util.tree_flatten(loss)
        problem, fix = "this is no number, so it has no gradient", "return the loss, as a scalar array"
        if not jax.tree_util.treedef_is_leaf(tree):
            problem = "a loss is one number, and this is a tree"
            fix = f"dx.grad({name}, has_aux=True)        # for a pair of the loss and anything else"
        got = f"{describe(loss)}, of {len(leaves)} leaves"
        raise TransformError(where, problem, got=got if problem.startswith("a loss") else describe(loss), fix=fix)
    found = jax.typeof(loss)
    if found.shape != ():
        raise TransformError(
            where,
            "a loss is one number, and this is an array of several",
            expected="shape ()",
            got=f"shape {found.shape} and dtype {found.dtype}",
            fix="return loss.mean()        # or .sum(); dx.vjp for a function with many results",
        )
    if jnp.issubdtype(found.dtype, jnp.complexfloating) and not is_complex:
        fix = "return jnp.abs(loss)        # or loss.real; holomorphic=True where the function is so"
        raise TransformError(where, "a loss is a real number, and this is a complex one", got=str(found.dtype), fix=fix)
    if not jnp.issubdtype(found.dtype, jnp.complexfloating if is_complex else jnp.floating):
        kind = "complex number, as holomorphic=True says" if is_complex else "real number"
        fix = "holomorphic=False" if is_complex else "return loss.astype(jnp.float32)"
        raise TransformError(where, f"a loss is a {kind}, and this is none", got=str(found.dtype), fix=fix)
