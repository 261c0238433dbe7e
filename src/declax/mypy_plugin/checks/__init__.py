"""The checks by subject, and the hooks of mypy that run them."""

from __future__ import annotations

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import (
    attribute,
    configs,
    fields,
    gradients,
    models,
    options,
    parts,
    path,
    replace,
    sizes,
)
from declax.mypy_plugin.registry import Entry, Registry, table
from declax.mypy_plugin.reporting import FAILED
from declax.mypy_plugin.transformed import applied


def registry() -> Registry:
    """All checks by hook; those of one hook run in this order."""
    return Registry(
        classes=[
            Entry(fields.check_statuses, fields.FIELD),
            Entry(parts.check, parts.PART),
            Entry(fields.check_decorated, fields.UNDECORATED),
            Entry(fields.check_unset, fields.UNSET),
        ],
        calls=[Entry(fields.check_call, fields.FIELD), Entry(configs.check_dicts, FAILED)],
        call_signatures=[Entry(configs.without_types, FAILED)],
        signatures=table(([names.REPLACE, names.STANDARD_REPLACE], replace.signature, FAILED)),
        attributes=table(
            ([names.STATE], path.check_attribute, path.PATH),
            ([names.VARIABLE], attribute.check, attribute.ATTRIBUTE),
        ),
        functions=table(
            (names.SPECIFIERS, fields.check_specifier, fields.UNDECORATED),
            *(
                ([one], applied(one, options.check_axes, options.MAPPING), options.AXES)
                for one in (names.VMAP, names.PMAP)
            ),
            ([names.SCAN], applied(names.SCAN, options.check_axes, ()), options.AXES),  # its defaults are checked too
            *(
                ([one], applied(one, options.check_argnames, options.SELECTING), options.ARGNAMES)
                for one in options.TRANSFORMS
            ),
            (gradients.TRANSFORMS, gradients.of_function, FAILED),
            *(([one], models.check_taker(taker), models.FILTER) for one, taker in models.FUNCTIONS.items()),
            *(([one], models.check_named(*named), models.FILTER) for one, named in models.NAMED.items()),
            (names.FILTERS, models.check_any, models.FILTER),
            ([names.STATE_AXES, names.STATE_SHARDING], models.check_labels, models.FILTER),
            (names.NODE_TAKERS, models.check_node, models.MODEL),
            ([names.UPDATE, names.MERGE], models.check_states, models.MODEL),
            ([names.SEQUENTIAL], sizes.check, sizes.SIZES),
            ([names.SPEC], configs.check_spec, configs.SPEC),
            (names.CONFIG_READERS, configs.check_config, FAILED),
        ),
        methods=table(
            *(([f"{one}.__call__"], gradients.of_decorated(s), FAILED) for one, s in gradients.FACTORIES.items()),
            ([f"{names.UNTYPED}.__call__"], gradients.of_lambda, FAILED),
            ([f"{names.STATE}.__getitem__"], path.check_item, path.PATH),
            ([f"{names.STATE}.__setitem__", f"{names.STATE}.__delitem__"], path.check_written, path.PATH),
            *(([one], models.check_taker(taker), models.FILTER) for one, taker in models.METHODS.items()),
            ([f"{names.SPEC_CLASS}.replace"], configs.check_replace, configs.SPEC),
            ([f"{names.SPEC_CLASS}.build"], configs.check_build, configs.SPEC),
        ),
    )
