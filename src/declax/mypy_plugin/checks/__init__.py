"""The checks by subject, and the hooks of mypy that run them."""

from __future__ import annotations

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import configs, declarations, gradients, keys, models, options, reads, sizes
from declax.mypy_plugin.registry import Entry, Registry, table
from declax.mypy_plugin.reporting import FAILED
from declax.mypy_plugin.transformed import applied


def registry() -> Registry:
    """All checks by hook; those of one hook run in this order."""
    return Registry(
        classes=[
            Entry(declarations.check_statuses, declarations.FIELD),
            Entry(declarations.check_parts, declarations.PART),
            Entry(declarations.check_decorated, declarations.UNDECORATED),
            Entry(declarations.check_unset, declarations.UNSET),
            Entry(keys.check_declared, keys.KEYS),
        ],
        calls=[
            Entry(declarations.check_call, declarations.FIELD),
            Entry(configs.check_dicts, FAILED),
            Entry(keys.check_call, keys.KEYS),
        ],
        call_signatures=[Entry(configs.without_types, FAILED)],
        signatures=table(([names.REPLACE, names.STANDARD_REPLACE], configs.replace_signature, FAILED)),
        attributes=table(
            ([names.STATE], reads.check_attribute, reads.PATH),
            ([names.VARIABLE], reads.check_variable, reads.ATTRIBUTE),
        ),
        functions=table(
            (names.SPECIFIERS, declarations.check_specifier, declarations.UNDECORATED),
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
            ([names.REPLACE, names.STANDARD_REPLACE], keys.check_replace, keys.KEYS),
            ([names.SPEC], configs.check_spec, configs.SPEC),
            (names.CONFIG_READERS, configs.check_config, FAILED),
        ),
        methods=table(
            *(([f"{one}.__call__"], gradients.of_decorated(s), FAILED) for one, s in gradients.FACTORIES.items()),
            ([f"{names.UNTYPED}.__call__"], gradients.of_lambda, FAILED),
            ([f"{names.STATE}.__getitem__"], reads.check_item, reads.PATH),
            ([f"{names.STATE}.__setitem__", f"{names.STATE}.__delitem__"], reads.check_written, reads.PATH),
            *(([one], models.check_taker(taker), models.FILTER) for one, taker in models.METHODS.items()),
            ([f"{names.SPEC_CLASS}.replace"], configs.check_replace, configs.SPEC),
            ([f"{names.SPEC_CLASS}.build"], configs.check_build, configs.SPEC),
        ),
    )
