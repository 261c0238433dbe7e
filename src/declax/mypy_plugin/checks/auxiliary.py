"""declax-aux: a loss that returns more than one number, without `has_aux`."""

from __future__ import annotations

from mypy.types import Instance, ProperType, TupleType

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.transformed import Application, register_transforms
from declax.mypy_plugin.wording import text_of

AUX = error_code("declax-aux", "A loss returns a tuple, and has_aux is not given")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    register_transforms(hooks, (names.GRAD, names.VALUE_AND_GRAD), AUX, check)


def check(found: Application, report: Report) -> None:
    """Checks what the loss of one application returns."""
    function = found.function
    given = found.options.get("has_aux")
    if function is None or not found.is_whole or (given is not None and literal(given) is not False):
        return
    result = function.result
    if result is None or not _is_tuple(result):
        return
    is_pair = not isinstance(result, TupleType) or len(result.items) == 2
    # the parameters of a lambda, and so the types of what it returns, are others in each trial
    returned = "a tuple" if function.name == "lambda" else text_of(result)
    report.error(
        f"{found.transform}({function.name}): {function.name} returns {returned}, and a loss is one number",
        found.place if given is None else given,
        fix="has_aux=True" + ("" if is_pair else ", and return a pair: the loss, and a tuple of all others"),
        always=True,
    )


def _is_tuple(result: ProperType) -> bool:
    if isinstance(result, TupleType):
        return result.partial_fallback.type.fullname == "builtins.tuple"
    return isinstance(result, Instance) and result.type.fullname == "builtins.tuple"
