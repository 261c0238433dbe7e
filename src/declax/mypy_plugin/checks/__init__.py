"""The checks by subject, and the hooks of mypy that run them."""

from __future__ import annotations

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import (
    configs,
    declarations,
    fields,
    gradients,
    keys,
    kinds,
    models,
    options,
    parts,
    reads,
    results,
    sizes,
    values,
)
from declax.mypy_plugin.modules import method_of_module
from declax.mypy_plugin.registry import Entry, Registry, table
from declax.mypy_plugin.reporting import FAILED
from declax.mypy_plugin.transformed import applied


def registry() -> Registry:
    """All checks by hook; those of one hook run in this order."""
    return Registry(
        classes=[
            Entry(fields.check_statuses, fields.FIELD),
            Entry(fields.check_arguments, fields.FIELD),
            Entry(parts.check, parts.PART),
            Entry(values.check, values.VALUE),
            Entry(declarations.check_decorated, declarations.UNDECORATED),
            Entry(declarations.check_unset, declarations.UNSET),
            Entry(keys.check_declared, keys.KEYS),
        ],
        calls=[
            Entry(fields.check_call, fields.FIELD),
            Entry(configs.check_dicts, FAILED),
            Entry(keys.check_call, keys.KEYS),
            Entry(results.of_constructor, FAILED),
        ],
        class_attributes=[Entry(values.check_outside, values.VALUE)],
        call_signatures=[Entry(configs.without_types, FAILED)],
        signatures=table(([names.REPLACE, names.STANDARD_REPLACE], configs.replace_signature, FAILED)),
        attributes=table(
            (names.BY_PATH, reads.check_attribute, reads.PATH),
            ([names.VARIABLE], reads.check_variable, reads.ATTRIBUTE),
            ([names.MODULE], method_of_module, FAILED),
        ),
        functions=table(
            (names.SPECIFIERS, declarations.check_specifier, declarations.UNDECORATED),
            *(([one], applied(one, options.check_axes, given), options.AXES) for one, given in options.MAPPED.items()),
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
            ([names.SEQUENTIAL], results.of_sequential, FAILED),
            ([names.LOAD], results.of_load, FAILED),
            ([names.CAPTURE], results.of_capture, FAILED),
            ([names.REPLACE, names.STANDARD_REPLACE], keys.check_replace, keys.KEYS),
            ([names.SPEC], configs.check_spec, configs.SPEC),
            ([names.REGISTER_KIND], kinds.check, kinds.KIND),
            (names.CONFIG_READERS, configs.check_config, FAILED),
        ),
        methods=table(
            ([f"{one}.__call__" for one in names.OF_OPTIONS], gradients.of_decorated, FAILED),
            ([f"{one}.__call__" for one in (names.UNTYPED, *names.OF_LAMBDA.values())], gradients.of_lambda, FAILED),
            ([f"{one}.__getitem__" for one in names.BY_PATH], reads.check_item, reads.PATH),
            ([f"{one}.__setitem__" for one in names.BY_PATH], reads.check_written, reads.PATH),
            ([f"{one}.__delitem__" for one in names.BY_PATH], reads.check_written, reads.PATH),
            *(([one], models.check_taker(taker), models.FILTER) for one, taker in models.METHODS.items()),
            ([f"{names.CHECKPOINTS}.load"], results.of_load, FAILED),
            ([f"{names.RESTORED}.__getitem__"], results.of_restored, reads.PATH),
            ([f"{names.SEQUENTIAL}.__getitem__"], results.of_element, FAILED),
            ([f"{one}.__call__" for one in names.RECURRENT], results.of_recurrent, FAILED),
            ([f"{names.SPEC_CLASS}.__getitem__"], results.of_spec_item, configs.SPEC),
            ([f"{names.SPEC_CLASS}.replace"], configs.check_replace, configs.SPEC),
            ([f"{names.SPEC_CLASS}.build"], configs.check_build, configs.SPEC),
        ),
    )
