"""Parts of the parameters, given to optax by filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from declax import errors
from declax._filters import Filter, Nothing, PathMatches, Predicate, as_written, ask, predicate_of
from declax._state.definition import values_of
from declax._state.states import State, make_state
from declax._typing import Path
from declax.training._transformation import Transformation, check_transformation

if TYPE_CHECKING:
    import optax


def mask_by(only: Filter, /) -> Callable[[State[Any]], State[Any]]:
    """A mask for optax: True for the parameters that a filter matches.

    Args:
      only: the filter.

    Returns:
      A function from the parameters to a State of bools, as `optax.masked` and `optax.adamw` take it.

    Raises:
      OptimizerError: when the optimizer is made, if the filter matches no parameter.

    >>> import optax
    >>> import declax as dx
    >>> model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    >>> dx.mask_by(dx.PathContains("kernel"))(dx.state(model)).to_pure_dict()
    {'bias': False, 'kernel': True}
    >>> tx = optax.adamw(1e-3, mask=dx.mask_by(dx.is_decayed))
    """
    predicate = predicate_of(only, "mask_by")

    def mask(parameters: State[Any]) -> State[Any]:
        chosen = _each(parameters, "mask_by", predicate)
        if chosen.leaves and not any(chosen.leaves) and not isinstance(predicate, Nothing):
            fix = f"dx.mask_by(dx.PathContains({only!r}))   # a name alone is a tag" if isinstance(only, str) else None
            raise _unmatched("mask_by", only, "a filter that matches a parameter, or None", parameters, fix)
        return chosen

    return mask


def by_filter(transformations: Mapping[Any, Transformation], /) -> optax.GradientTransformation:
    """An optax transformation that treats each parameter by the first filter that matches it.

    Args:
      transformations: by filter, an optax transformation. A text is a pattern of paths, as of `PathMatches`; ``...``
        matches the rest.

    Returns:
      `optax.multi_transform` of the transformations, with the labels that the filters give.

    Raises:
      OptimizerError: for a value that is not a transformation; when the optimizer is made, if no filter matches a
        parameter, or a filter takes none.

    >>> import optax
    >>> import declax as dx
    >>> model = dx.MLP(2, 4, rngs=dx.Rngs(0))
    >>> tx = dx.by_filter({"down.*": optax.sgd(1.0), ...: optax.set_to_zero()})
    >>> _ = dx.Optimizer(model, tx).update(model, dx.state(model, dx.Param))
    >>> bool((model.down.kernel == 0).all()), bool((model.up.kernel == 0).any())
    (True, False)
    """
    import optax  # declax starts without it

    filters = [PathMatches(given) if isinstance(given, str) else given for given in transformations]
    predicates = [predicate_of(given, "by_filter") for given in filters]
    for given, tx in transformations.items():
        name = as_written(given)
        check_transformation(f"by_filter[{name}]", tx, f"dx.by_filter({{{name}: optax.adam(1e-3), ...}})")

    def labels(parameters: State[Any]) -> State[Any]:
        def label(path: Path, value: Any) -> int:
            taking = (number for number, predicate in enumerate(predicates) if ask(predicate, path, value))
            return next(taking, -1)

        labelled = _each(parameters, "by_filter", label)
        _check_labels(filters, labelled)
        return labelled

    numbered: dict[Any, Any] = dict(enumerate(transformations.values()))
    return optax.multi_transform(numbered, labels)


def _each(parameters: Any, where: str, function: Predicate | Callable[[Path, Any], Any]) -> State[Any]:
    """A State with the results of a function of path and Variable in place of the values."""
    if not isinstance(parameters, State):
        raise errors.OptimizerError(
            where,
            "filters need the paths and kinds of a State",
            expected="a State of parameters",
            got=errors.describe(parameters),
            fix="dx.Optimizer(model, tx), or tx.init(dx.state(model, dx.Param))",
        )
    values = values_of(parameters.definition, parameters.leaves)
    found = [function(path, value) for path, value in zip(parameters.paths, values, strict=True)]
    return make_state(parameters.definition, found)


def _check_labels(filters: Sequence[Filter], labelled: State[Any]) -> None:
    untaken = [path for path, label in zip(labelled.paths, labelled.leaves, strict=True) if label < 0]
    if untaken:
        raise errors.OptimizerError(
            "by_filter",
            f"no filter matches the parameter {errors.format_path(untaken[0])}",
            got=f"{len(untaken)} such parameters of {len(labelled.paths)}",
            fix="dx.by_filter({..., ...: optax.set_to_zero()})        # freezes the rest",
        )
    for number, given in enumerate(filters):
        if number not in labelled.leaves and given is not ... and given is not True:
            expected = "a filter that takes a parameter which no filter before it takes"
            raise _unmatched("by_filter", given, expected, labelled)


def _unmatched(
    where: str, given: Filter, expected: str, parameters: State[Any], fix: str | None = None
) -> errors.OptimizerError:
    return errors.OptimizerError(
        where,
        f"the filter {as_written(given)} matches no parameter",
        expected=expected,
        got=", ".join(errors.format_path(path) for path in parameters.paths[:4]),
        fix=fix,
    )
