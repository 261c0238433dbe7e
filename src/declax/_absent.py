"""The names of Flax NNX that declax does not have, and why, for the error of a missing name and for the docs."""

from typing import Final

_SHARDING = "sharding by names of axes comes in a later release"
_LINEN = "it leads to Flax Linen, which declax does not need; nnx.state and nnx.update move weights"
_HIJAX = "declax has no hijax Variables: its own transforms write Variables back, and refs are written under jax.jit"
_INTERNAL = "an internal module of Flax"

ABSENT: Final[dict[str, str]] = {
    name: why
    for why, names in {
        _SHARDING: """abstract_with_sharding add_axis get_abstract_model get_named_sharding get_partition_spec
            get_var_pspec logical_axis_rules remove_axis use_eager_sharding using_eager_sharding with_partitioning""",
        _LINEN: "bridge wrappers",
        _HIJAX: "AbstractVariable HijaxVariable",
        _INTERNAL: "deprecations proxy_caller reprlib tracers",
    }.items()
    for name in names.split()
}
"""By name, why declax does not have it."""
