"""Full names by which mypy knows what the plugin looks for.

mypy names a thing by the module that defines it, not by the one it is imported from.
"""

from __future__ import annotations

from typing import Final

PYTREE: Final = "declax._pytree.Pytree"
MODULE: Final = "declax._module.Module"
VARIABLE: Final = "declax._variables.Variable"
RNGS: Final = "declax.rngs.streams.Rngs"
STATE: Final = "declax.states.State"

DATACLASS: Final = "declax._dataclass.dataclass"
STANDARD_DATACLASS: Final = "dataclasses.dataclass"
REPLACE: Final = "declax._dataclass.replace"
STANDARD_REPLACE: Final = "dataclasses.replace"

DATA: Final = "declax._fields.data"
STATIC: Final = "declax._fields.static"
VARIABLE_FIELD: Final = "declax._fields.variable"
INITIALIZER: Final = "declax.initializers.NamedInitializer"
SUBMODULE: Final = "declax._fields.submodule"
STANDARD_FIELD: Final = "dataclasses.field"

SPECIFIERS: Final = {
    DATA: "data",
    STATIC: "static",
    VARIABLE_FIELD: "variable",
    SUBMODULE: "submodule",
    STANDARD_FIELD: "field",
}
"""The functions that declare a field."""

MARKS: Final = {"declax._fields.Data": "data", "declax._fields.Static": "static"}
"""The annotations that give a field its status."""

ARRAYS: Final = frozenset({"jax._src.basearray.Array", "jax.Array", "numpy.ndarray", "jax._src.core.Ref"})
ABSTRACT_ARRAYS: Final = frozenset({"jax._src.core.ShapeDtypeStruct", "jax._src.core.Tracer"})
DATA_BASES: Final = frozenset({PYTREE, VARIABLE, *ARRAYS, *ABSTRACT_ARRAYS})
"""Classes whose instances are data."""

JIT: Final = "declax.transforms.compilation.jit"
JIT_PARTIAL: Final = "declax.transforms.jit_partial.jit_partial"
REMAT: Final = "declax.transforms.rematerialization.remat"
VMAP: Final = "declax.transforms.vectorization.vmap"
PMAP: Final = "declax.transforms.replication.pmap"
SCAN: Final = "declax.transforms.scanning.scan"
GRAD: Final = "declax.transforms.autodiff.grad"
VALUE_AND_GRAD: Final = "declax.transforms.autodiff.value_and_grad"
UNTYPED: Final = "declax.transforms._signatures.Untyped"
"""What a gradient of a lambda is."""
OF_GRAD: Final = "declax.transforms._signatures.OfGrad"
OF_GRAD_AUX: Final = "declax.transforms._signatures.OfGradAux"
OF_VALUE_AND_GRAD: Final = "declax.transforms._signatures.OfValueAndGrad"
OF_VALUE_AND_GRAD_AUX: Final = "declax.transforms._signatures.OfValueAndGradAux"
CUSTOM_VJP: Final = "declax.transforms.custom_rules.custom_vjp"
DIFF_STATE: Final = "declax.transforms.autodiff.DiffState"
CARRY: Final = "declax.transforms.prefixes.Carry"
STATE_AXES: Final = "declax.transforms.prefixes.StateAxes"
STATE_SHARDING: Final = "declax.transforms.prefixes.StateSharding"
PARTIAL: Final = "functools.partial"

LIST: Final = "declax._containers.List"
DICT: Final = "declax._containers.Dict"
SEQUENTIAL: Final = "declax._containers.Sequential"

GRAPH_STATE: Final = "declax.graph.graph_state.GraphState"
GRAPHDEF: Final = "declax.graph.flattening.GraphDef"
SPLIT: Final = "declax.graph.api.split"
STATE_OF: Final = "declax.graph.api.state"
POP: Final = "declax.graph.popping.pop"
UNPACK: Final = "declax.graph.graph_state.unpack"
GRAPHDEF_OF: Final = "declax.graph.api.graphdef"
CLONE: Final = "declax.graph.api.clone"
VARIABLES_OF: Final = "declax.graph.api.variables"
MERGE: Final = "declax.graph.api.merge"
UPDATE: Final = "declax.graph.updating.update"
VIEW: Final = "declax.viewing.view"
WITH_ATTRIBUTES: Final = "declax.viewing.with_attributes"
SUMMARY: Final = "declax.summarizing.summary"
AS_ABSTRACT: Final = "declax.abstract.as_abstract"
AS_PURE: Final = "declax.refs.as_pure"
TO_REFS: Final = "declax.refs.to_refs"
TO_ARRAYS: Final = "declax.refs.to_arrays"
ITER_GRAPH: Final = "declax.graph.iteration.iter_graph"
ITER_MODULES: Final = "declax._module.iter_modules"
FIND_DUPLICATES: Final = "declax.graph.iteration.find_duplicates"
EXPLAIN_FILTERS: Final = "declax.graph.explaining.explain_filters"
SET_METADATA: Final = "declax.graph.assigning.set_metadata"
FILTER_STATE: Final = "declax.statelib.filter_state"
SPLIT_STATE: Final = "declax.statelib.split_state"
FLAT_STATE: Final = "declax.states.FlatState"
OPTIMIZER: Final = "declax.training.optimizer.Optimizer"
FILTERS: Final = frozenset({"declax._filters.All", "declax._filters.Any", "declax._filters.Not"})
"""The classes of filters that combine others."""
PREDICATES: Final = FILTERS | {"declax._filters._OfPaths", "declax._filters.OfType", "declax._filters.WithTag"}
"""The classes whose instances are filters, and their bases."""

LINEAR: Final = "declax.nn.linear.Linear"
EMBED: Final = "declax.nn.linear.Embed"
CONV: Final = "declax.nn.conv.Conv"
LAYER_NORM: Final = "declax.nn.normalization.LayerNorm"
BATCH_NORM: Final = "declax.nn.normalization.BatchNorm"
DROPOUT: Final = "declax.nn.stochastic.Dropout"

SPEC: Final = "declax.config.spec.spec"
SPEC_OF: Final = "declax.config.loading.spec_of"
TO_CONFIG: Final = "declax.config.loading.to_config"
SPEC_CLASS: Final = "declax.config.spec.Spec"
REF: Final = "declax.config._data.Ref"
FROM_CONFIG: Final = "declax.config.loading.from_config"
SPEC_FROM_CONFIG: Final = "declax.config.loading.spec_from_config"
