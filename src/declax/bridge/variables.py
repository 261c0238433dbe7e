"""Variables of Linen, by collection and with boxes, and Variables of declax, by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from declax import errors, initializers
from declax._sharding.declared import get_partition_spec
from declax._variables.kinds import variable_name_from_type, variable_type_from_name
from declax._variables.variable import Variable
from declax.traversals import flatten_mapping, unflatten_mapping

try:
    from flax import struct
    from flax.core import meta
except ImportError:
    raise errors.MissingExtraError(
        "declax.bridge", "the bridge to Flax Linen needs Flax", fix='pip install "declax[linen]"'
    ) from None

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

BOX = "linen_meta_type"
"""The metadata of a Variable that came in a box: the class of the box."""


_field: Any = struct.field  # flax leaves it untyped


class NNXMeta(struct.PyTreeNode, meta.AxisMetadata[Any]):  # type: ignore[no-untyped-call]  # flax leaves it untyped
    """The box of a value whose Variable has metadata, among the variables of a Linen module.

    `flax.linen.unbox` gives the value, and `flax.linen.get_partition_spec` reads the sharding.

    Attributes:
      var_type: the kind of the Variable.
      value: its value.
      metadata: its metadata.
    """

    var_type: type[Variable[Any]] = _field(pytree_node=False)
    value: Any = _field(pytree_node=True)
    metadata: dict[str, Any] = _field(pytree_node=False)

    def unbox(self) -> Any:
        """The value."""
        return self.value

    def replace_boxed(self, val: Any) -> NNXMeta:
        """The box with another value."""
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> NNXMeta:
        """The box of a value with a new axis, which `flax.linen.vmap` and `scan` name in their `metadata_params`."""
        return self._changed("add_axis", index, params)

    def remove_axis(self, index: int, params: dict[Any, Any]) -> NNXMeta:
        """The box of a value without an axis; the inverse of `add_axis`."""
        return self._changed("remove_axis", index, params)

    def get_partition_spec(self) -> jax.P:
        """The sharding that the metadata declares."""
        spec: jax.P = get_partition_spec(self.to_nnx_variable()).raw_value
        return spec

    def to_nnx_variable(self) -> Variable[Any]:
        """The Variable."""
        return self.var_type.from_metadata(self.value, self.metadata)

    def _changed(self, method: str, index: int, params: dict[Any, Any]) -> NNXMeta:
        variable = self.to_nnx_variable()
        getattr(variable, method)(index, params.get(meta.PARTITION_NAME))
        return self.replace(metadata=variable.get_metadata(exclude_required=True))


def to_linen_var(variable: Variable[Any]) -> Any:
    """The value of a Variable, in a box if the Variable has metadata."""
    metadata, value = variable.get_metadata(exclude_required=True), variable.raw_value
    box = metadata.pop(BOX, None)
    if box is None:
        return NNXMeta(type(variable), value, metadata) if metadata else value
    if hasattr(box, "from_nnx_metadata"):
        return box.from_nnx_metadata({"mesh": None, "sharding_rules": None, **metadata, "value": value})
    return box(**{**metadata, "value": value})


def to_nnx_var(collection: str, value: Any) -> Variable[Any]:
    """The Variable of a value that a Linen module has in a collection."""
    kind = variable_type_from_name(collection, allow_register=True)
    if isinstance(value, NNXMeta):
        if value.var_type is not kind:
            raise errors.RegistryError(
                repr(collection),
                "this collection has a Variable of another kind",
                expected=errors.type_name(kind),
                got=errors.type_name(value.var_type),
                fix=f"dx.register_variable_name({collection!r}, {errors.type_name(value.var_type)}, overwrite=True)",
            )
        return value.to_nnx_variable()
    if isinstance(value, meta.AxisMetadata):
        box: Any = value
        metadata = dict(box.to_nnx_metadata() if hasattr(box, "to_nnx_metadata") else vars(box))
        content = metadata.pop("value")
        return kind(content, **{name: what for name, what in metadata.items() if what is not None}, **{BOX: type(box)})
    return kind(value)


def linen_vars_to_nnx_attrs(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of Variables, by path, from the variables of a Linen module, by collection and path.

    Raises:
      GraphError: two collections have a variable of one path.
    """
    found: dict[tuple[Any, ...], Variable[Any]] = {}
    for collection, content in variables.items():
        for path, value in flatten_mapping(content).items():
            if path in found:
                raise errors.GraphError(
                    "/".join(map(str, path)),
                    "two collections of a Linen module have a variable of this path, and an attribute holds one",
                    got=f"{variable_name_from_type(type(found[path]))!r} and {collection!r}",
                    fix="another name in one of the two collections",
                )
            found[path] = to_nnx_var(collection, value)
    return unflatten_mapping(found)


def nnx_attrs_to_linen_vars(
    attributes: Mapping[str, Any], content: Callable[[Variable[Any]], Any] | None = to_linen_var
) -> dict[str, Any]:
    """The variables of a Linen module, by collection and path, from nested dicts of Variables.

    Args:
      attributes: the Variables.
      content: what a collection holds of a Variable; None for its value.

    Raises:
      GraphError: a value is not a Variable.
    """
    found: dict[tuple[Any, ...], Any] = {}
    for path, variable in flatten_mapping(attributes).items():
        if not isinstance(variable, Variable):
            raise errors.GraphError(
                "/".join(map(str, path)),
                "a value that is not in a Variable belongs to no collection of Linen",
                got=errors.describe(variable),
                fix="dx.Param(...), or a name with the prefix to_nnx__ for what Linen does not need",
            )
        name = variable_name_from_type(type(variable), allow_register=True)
        found[name, *path] = variable.raw_value if content is None else content(variable)
    return unflatten_mapping(found)


def with_partitioning(fn: F, names: Any, mesh: Any = None) -> F:
    """As `declax.with_partitioning`; in Linen, the Variable is in a `flax.linen.Partitioned`."""
    return initializers.with_partitioning(fn, names, mesh, **{BOX: meta.Partitioned})
