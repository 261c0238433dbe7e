"""The names of Flax NNX that declax does not have, and why, for the error of a missing name and for the docs."""

from typing import Final

_AXES = "a Variable has the methods add_axis and remove_axis; get_partition_spec takes a Variable too"
_LINEN = "it leads to Flax Linen, which declax does not need; nnx.state and nnx.update move weights"
_HIJAX = "declax has no hijax Variables: its own transforms write Variables back, and refs are written under jax.jit"
_INTERNAL = "an internal module of Flax"

ABSENT: Final[dict[str, str]] = {
    name: why
    for why, names in {
        _AXES: "add_axis get_var_pspec remove_axis",
        _LINEN: "bridge wrappers",
        _HIJAX: "AbstractVariable HijaxVariable",
        _INTERNAL: "deprecations proxy_caller reprlib tracers",
    }.items()
    for name in names.split()
}
"""By name, why declax does not have it."""
