"""The full names of functions and classes that the plugin checks; mypy uses the defining module."""

from __future__ import annotations

from typing import Final

METADATA: Final = "declax"
"""The key of the plugin in mypy's metadata of a class."""

PYTREE: Final = "declax._classes.pytree.Pytree"
MODULE: Final = "declax._module.module.Module"
CALLABLE_MODULE: Final = "declax._module.callable_module.CallableModule"
LAYER: Final = "declax.nn.layer.Layer"
VARIABLE: Final = "declax._variables.variable.Variable"
RNGS: Final = "declax._random.streams.Rngs"
STATE: Final = "declax._state.states.State"
BRANCH: Final = "declax.training._branches.Branch"
BY_PATH: Final = (STATE, BRANCH)
"""The mappings with the paths of a model, which is their type argument."""

DATACLASS: Final = "declax._classes.decorator.dataclass"
STANDARD_DATACLASS: Final = "dataclasses.dataclass"
REPLACE: Final = "declax.config.replacing.replace"
STANDARD_REPLACE: Final = "dataclasses.replace"

SUBMODULE: Final = "declax._fields.specifiers.submodule"
SPECIFIERS: Final = {
    "declax._fields.specifiers.field": "field",
    "declax._fields.specifiers.data": "data",
    "declax._fields.specifiers.static": "static",
    "declax._fields.specifiers.variable": "variable",
    SUBMODULE: "submodule",
    "dataclasses.field": "standard",
}
"""The functions that declare a field."""
DEFERRING: Final = frozenset(f"declax._fields.deferring.{name}" for name in ("defer", "repeat", "when"))
"""The functions that defer a call."""

MARKS: Final = {"declax._fields.specifiers.Data": "data", "declax._fields.specifiers.Static": "static"}
"""The annotations that set the status of a field."""

ARRAYS: Final = frozenset({"jax._src.basearray.Array", "jax.Array", "numpy.ndarray", "jax._src.core.Ref"})
PARTITION_SPECS: Final = frozenset(f"jax._src.partition_spec.{name}" for name in ("P", "PartitionSpec"))
ABSTRACT_ARRAYS: Final = frozenset({"jax._src.core.ShapeDtypeStruct", "jax._src.core.Tracer"})
DATA_BASES: Final = frozenset({PYTREE, CALLABLE_MODULE, VARIABLE, *ARRAYS, *ABSTRACT_ARRAYS})
"""Classes whose instances are data."""
ARRAYS_AND_VARIABLES: Final = ARRAYS | {VARIABLE}

JIT: Final = "declax.transforms.compilation.jit"
JIT_PARTIAL: Final = "declax.transforms.compilation.jit_partial"
REMAT: Final = "declax.transforms.rematerialization.remat"
VMAP: Final = "declax.transforms.vectorization.vmap"
PMAP: Final = "declax.transforms.replication.pmap"
SHARD_MAP: Final = "declax.transforms.sharding.shard_map"
SCAN: Final = "declax.transforms.scanning.scan"
GRAD: Final = "declax.transforms.autodiff.grad"
VALUE_AND_GRAD: Final = "declax.transforms.autodiff.value_and_grad"
ACCUMULATE: Final = "declax.training.accumulation.accumulate"
UNTYPED: Final = "declax.transforms._engine.signatures.Untyped"
"""The type of the gradient of a lambda with options."""
OF_LAMBDA: Final = {
    GRAD: "declax.transforms._engine.signatures.GradientOfLambda",
    VALUE_AND_GRAD: "declax.transforms._engine.signatures.ValueAndGradientOfLambda",
}
"""The types of the gradients of lambdas without options."""
OF_OPTIONS: Final = tuple(
    f"declax.transforms._engine.signatures.{name}"
    for name in ("OfGrad", "OfGradAux", "OfAnyGrad", "OfValueAndGrad", "OfValueAndGradAux", "OfAnyValueAndGrad")
)
"""The types of transforms with options but no function."""
CUSTOM_VJP: Final = "declax.transforms.custom_rules.custom_vjp"
DIFF_STATE: Final = "declax.transforms._argnums.DiffState"
STATE_AXES: Final = "declax.transforms._engine.prefixes.StateAxes"
STATE_SHARDING: Final = "declax.transforms._engine.prefixes.StateSharding"

LIST: Final = "declax._module.containers.List"
DICT: Final = "declax._module.containers.Dict"
SEQUENTIAL: Final = "declax._module.containers.Sequential"

GRAPH_STATE: Final = "declax._graph.api.GraphState"
GRAPHDEF: Final = "declax._graph.flattening.GraphDef"
SPLIT: Final = "declax._graph.api.split"
STATE_OF: Final = "declax._graph.api.state"
POP: Final = "declax._graph.editing.pop"
UNPACK: Final = "declax._graph.api.unpack"
MERGE: Final = "declax._graph.api.merge"
UPDATE: Final = "declax._graph.updating.update"
SET_METADATA: Final = "declax._graph.editing.set_metadata"
FILTER_STATE: Final = "declax._state.states.filter_state"
SPLIT_STATE: Final = "declax._state.states.split_state"
FLAT_STATE: Final = "declax._state.states.FlatState"
OPTIMIZER: Final = "declax.training.optimizer.Optimizer"
NODE_TAKERS: Final = frozenset(
    {
        *(SPLIT, STATE_OF, POP, UNPACK, UPDATE, SET_METADATA, OPTIMIZER),
        *(f"declax._graph.api.{name}" for name in ("graphdef", "clone", "variables")),
        *(f"declax._module.viewing.{name}" for name in ("view", "with_attributes")),
        "declax._displays.summarizing.summary",
        "declax._graph.abstract.as_abstract",
        *(f"declax._graph.array_refs.{name}" for name in ("as_pure", "to_refs", "to_arrays")),
        *(f"declax._graph.iteration.{name}" for name in ("iter_graph", "find_duplicates")),
        "declax._module.module.iter_modules",
        *(f"declax.config.loading.{name}" for name in ("spec_of", "to_config")),
    }
)
"""The functions whose first argument is a model."""
FILTERS: Final = frozenset({"declax._filters.All", "declax._filters.Any", "declax._filters.Not"})
"""The classes of filters that combine others."""
PREDICATE: Final = "declax._filters.BuiltIn"
"""The base class of the filters of declax."""

LINEAR: Final = "declax.nn.linear.Linear"
EMBED: Final = "declax.nn.embedding.Embed"
CONV: Final = "declax.nn.conv.Conv"
LAYER_NORM: Final = "declax.nn.normalization.LayerNorm"
BATCH_NORM: Final = "declax.nn.batch_norm.BatchNorm"
DROPOUT: Final = "declax.nn.stochastic.Dropout"

RECURRENT: Final = frozenset({"declax.nn.recurrent.RNN", "declax.nn.recurrent.Bidirectional"})
CAPTURE: Final = "declax._module.capturing.capture"

LOAD: Final = "declax.checkpoint.loading.load"
CHECKPOINTS: Final = "declax.checkpoint.steps.Checkpoints"
RESTORED: Final = "declax.checkpoint.loading.Restored"

SPEC: Final = "declax.config.specs.spec"
SPEC_CLASS: Final = "declax.config.specs.Spec"
REF: Final = "declax.config._data.Ref"
REGISTER_KIND: Final = "declax.config.registry.register_kind"
CONFIG_READERS: Final = frozenset({"declax.config.loading.from_config", "declax.config.loading.spec_from_config"})
DICT_READERS: Final = CONFIG_READERS | {LOAD, "declax.checkpoint.saving.save"}
"""The functions that read a dict and change nothing in it."""
