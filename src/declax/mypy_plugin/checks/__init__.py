"""The checks, one in each file, and the hooks of mypy that run them."""

from __future__ import annotations

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import (
    argnames,
    attribute,
    axes,
    config,
    field,
    filtering,
    gradients,
    model,
    parts,
    path,
    replace,
    sizes,
    spec,
    undecorated,
    unset,
)
from declax.mypy_plugin.registry import Entry, Registry, table
from declax.mypy_plugin.reporting import FAILED
from declax.mypy_plugin.transformed import applied


def registry() -> Registry:
    """All checks by hook; those of one hook run in this order."""
    return Registry(
        classes=[
            Entry(field.check, field.FIELD),
            Entry(parts.check, parts.PART),
            Entry(undecorated.check_decorated, undecorated.UNDECORATED),
            Entry(unset.check, unset.UNSET),
        ],
        calls=[Entry(field.check_call, field.FIELD), Entry(config.check_dicts, FAILED)],
        call_signatures=[Entry(config.without_types, FAILED)],
        signatures=table(([names.REPLACE, names.STANDARD_REPLACE], replace.signature, FAILED)),
        attributes=table(
            ([names.STATE], path.check_attribute, path.PATH),
            ([names.VARIABLE], attribute.check, attribute.ATTRIBUTE),
        ),
        functions=table(
            (names.SPECIFIERS, undecorated.check_specifier, undecorated.UNDECORATED),
            *(([one], applied(one, axes.check, axes.OPTIONS), axes.AXES) for one in (names.VMAP, names.PMAP)),
            ([names.SCAN], applied(names.SCAN, axes.check, ()), axes.AXES),  # its defaults are checked too
            *(
                ([one], applied(one, argnames.check, argnames.OPTIONS), argnames.ARGNAMES)
                for one in argnames.TRANSFORMS
            ),
            (gradients.TRANSFORMS, gradients.of_function, FAILED),
            *(([one], filtering.check_taker(taker), filtering.FILTER) for one, taker in filtering.FUNCTIONS.items()),
            *(([one], filtering.check_named(*named), filtering.FILTER) for one, named in filtering.NAMED.items()),
            (names.FILTERS, filtering.check_any, filtering.FILTER),
            ([names.STATE_AXES, names.STATE_SHARDING], filtering.check_labels, filtering.FILTER),
            (names.NODE_TAKERS, model.check_node, model.MODEL),
            ([names.UPDATE, names.MERGE], model.check_states, model.MODEL),
            ([names.SEQUENTIAL], sizes.check, sizes.SIZES),
            ([names.SPEC], spec.check, spec.SPEC),
            (names.CONFIG_READERS, config.check, FAILED),
        ),
        methods=table(
            *(([f"{one}.__call__"], gradients.of_decorated(s), FAILED) for one, s in gradients.FACTORIES.items()),
            ([f"{names.UNTYPED}.__call__"], gradients.of_lambda, FAILED),
            ([f"{names.STATE}.__getitem__"], path.check_item, path.PATH),
            ([f"{names.STATE}.__setitem__", f"{names.STATE}.__delitem__"], path.check_written, path.PATH),
            *(([one], filtering.check_taker(taker), filtering.FILTER) for one, taker in filtering.METHODS.items()),
            ([f"{names.SPEC_CLASS}.replace"], spec.check_replace, spec.SPEC),
            ([f"{names.SPEC_CLASS}.build"], spec.check_build, spec.SPEC),
        ),
    )
