"""The names of Flax NNX that declax does not have, for the error of a missing name and the page of differences."""

from typing import Final

_PRIVATE = "nothing: it serves the implementation of Flax"
_MODULE = "a nnx.Module, with nnx.bridge.ToNNX around Linen modules"
_FUNCTIONAL = "graphdef, state = nnx.split(Model(..., rngs=rngs)), and graphdef.apply(state)"
_OPAQUE = "a GraphDef is opaque; nnx.iter_graph and nnx.iter_children list what a model has"
_REGISTRY = "derive from nnx.Pytree, or register the class by jax.tree_util.register_pytree_node"
_TYPES = "an annotation: write the type"
_WRAPPED = "annotate a transformed function as a Callable"
_HIJAX = "a Variable, which declax writes back under its transforms, or a ref, which is written under jax.jit"

ROWS: Final[tuple[tuple[str, str, str], ...]] = (
    ("", "deprecations proxy_caller reprlib tracers", "nothing: an internal module of Flax"),
    ("", "wrappers", "nnx.bridge"),
    ("bridge", "AttrPriority Module Scope compact current_context current_module", _MODULE),
    ("bridge", "Functional functional", _FUNCTIONAL),
    ("bridge", "interop linen_in_bridge_mdl module nnx_in_bridge_mdl", _MODULE),
    ("bridge.wrappers", "Functional functional", _FUNCTIONAL),
    ("bridge.wrappers", "current_linen_module linen_rngs_dict", _PRIVATE),
    ("bridge.wrappers", "to_linen_class", "functools.partial(nnx.bridge.to_linen, Model)"),
    ("bridge.variables", "get_col_name is_vanilla_variable sort_variable_types", _PRIVATE),
    (
        "extract",
        (
            "ExtractIndex GraphDefState Mask Opaque PrefixMapping TreeState broadcast_prefix broadcast_prefix2"
            " broadcast_prefix_map default_split_fn extract from_tree2 insert is_tree_node merge_tree_node to_tree2"
        ),
        "nnx.to_tree and nnx.from_tree, or nnx.split and nnx.merge",
    ),
    (
        "extract",
        (
            "Updates apply_updates check_consistent_aliasing check_consistent_aliasing2 check_no_aliases check_prefix"
            " check_same_variables clear_non_graph_nodes copy_var_structure filter_kwargs find get_updates labeled"
            " mask_at replace_at slice_at snapshot to_masked treemap_copy_args update_carry_variables variable_changed"
        ),
        _PRIVATE,
    ),
    ("extract", "Index KeepFn KeyPath Leaf OrderedDict Prefix", _TYPES),
    ("filterlib", "FilterLiteral", "annotate with nnx.filterlib.Filter"),
    ("filterlib", "HasTag", "annotate with a Protocol that has `tag: str`"),
    (
        "graphlib",
        (
            "ArrayRefDef ArrayRefOutput AttrType DataElem IndexMap IndexesPytreeDef LEAF_ATTR LeafAttr NODE_ATTR"
            " NO_UPDATE Names NoUpdate NodeAttr NodeDef NodeDefType NodeRef PythonRefMap REPEATED Repeated Static"
            " StaticElem TreeNodeDef VariableDef"
        ),
        _OPAQUE,
    ),
    (
        "graphlib",
        (
            "GRAPH_REGISTRY GenericPytree GraphNodeImpl NodeImpl NodeImplBase PYTREE_NODE_IMPL PYTREE_REGISTRY"
            " PytreeNodeImpl get_node_impl get_node_impl_for_type register_graph_node_type register_pytree_node_type"
        ),
        _REGISTRY,
    ),
    (
        "graphlib",
        "is_graph_node is_node is_node_leaf is_node_module is_node_type is_pytree_node",
        "isinstance(x, nnx.Pytree), or isinstance(x, nnx.Variable)",
    ),
    ("graphlib", "graph_pop", "nnx.pop"),
    ("graphlib", "jax_to_nnx_path", "tuple(getattr(key, 'key', getattr(key, 'name', None)) for key in path)"),
    ("graphlib", "GRAPH_CONTEXT GraphContext UpdateContextManager", "nnx.update_context"),
    ("graphlib", "StaticCache static_cache", "nnx.cached_partial"),
    ("graphlib", "GraphFlatState Index LeafType", _TYPES),
    ("helpers", "ModuleDefApply", _TYPES),
    ("helpers", "has_keyword_arg", "inspect.signature"),
    ("ids", "UUIDManager", "nnx.ids.uuid"),
    ("module", "ModuleMeta", "type(nnx.Module)"),
    ("module", "P StateMapping", _TYPES),
    ("module", "tuple_init tuple_reduce", "a reduce_fn and an init_fn: lambda xs, x: (*xs, x), and tuple"),
    ("nn.attention", "Array", _TYPES),
    ("nn.initializers", "DtypeLikeInexact", _TYPES),
    ("nn.linear", "Array Axis Size", _TYPES),
    ("nn.lora", "Array Axis Size", _TYPES),
    ("nn.recurrent", "Array Output", _TYPES),
    (
        "pytreelib",
        "ArrayRepr MutableArrayRepr OBJECT_CONTEXT ObjectContext PytreeState VariableRepr BUILDING_DOCS",
        _PRIVATE,
    ),
    (
        "pytreelib",
        "AttributeStatus DATA_REGISTRY DataAnnotation StaticAnnotation",
        "nnx.is_data, nnx.register_data_type, nnx.Data and nnx.Static",
    ),
    ("pytreelib", "ObjectMeta", "type(nnx.Pytree)"),
    ("rnglib", "AxesValue Counts Fargs KeylessInitializer OutShardingType RngValue SplitBackups SplitPattern", _TYPES),
    ("rnglib", "NotKey", "nnx.All(nnx.RngState, nnx.Not(nnx.RngKey))"),
    ("spmd", "add_axis remove_axis", "the methods add_axis and remove_axis of a Variable"),
    ("spmd", "get_var_pspec", "nnx.get_partition_spec, which accepts a Variable too"),
    ("statelib", "ExtractValueFn SetValueFn", _TYPES),
    ("statelib", "NestedStateRepr", _PRIVATE),
    ("statelib", "create_path_filters", "nnx.filterlib.PathIn for each State"),
    (
        "summary",
        "ArrayRepr CallInfo NodeStats NoneDumper ObjectInfo SimpleObjectRepr SizeBytes filter_rng_streams tabulate",
        "nnx.tabulate",
    ),
    ("training.optimizer", "to_opt_state", "nnx.Optimizer makes the Variables of its opt_state"),
    (
        "transforms.autodiff",
        (
            "BwdFn CustomVjp CustomVjpFnWrapper FwdFn GradFn SimpleBwdFn SimpleCustomVjp SimpleCustomVjpFn SimpleFwdFn"
            " SimpleGradFn SimpleJvpFn SimpleRematFn SimpleVjpFn"
        ),
        _WRAPPED,
    ),
    (
        "transforms.compilation",
        (
            "Compiled JitFn Lowered ShardMapFn SimpleCompiled SimpleJitFn SimpleJitPartialFn SimpleJitPartialWrapped"
            " SimpleJitWrapped SimpleLowered SimplePartialCompiled SimplePartialLowered SimplePartialTraced"
            " SimpleShardMapFn SimpleTraced Stage"
        ),
        _WRAPPED,
    ),
    (
        "transforms.iteration",
        (
            "AxisFn Broadcasted ForiLoopBodyFn PmapFn ScanFn SimpleForiLoopBodyFn SimplePmapFn SimpleScanFn"
            " SimpleVmapFn SimpleWhileLoopBodyFn SimpleWhileLoopCondFn VmapFn WhileLoopBodyFn WhileLoopCondFn"
        ),
        _WRAPPED,
    ),
    (
        "transforms.transforms",
        "CheckifyFn SimpleCheckifyFn SimpleCondFn SimpleEvalShapeFn SimpleMakeJaxprFn",
        _WRAPPED,
    ),
    ("transforms.transforms", "LiftedModule", "a nnx.Module that calls the transform"),
    ("transforms.transforms", "resolve_kwargs", "inspect.signature(f).bind"),
    ("transforms.autodiff", "AxisName", _TYPES),
    ("transforms.compilation", "AxisName Specs", _TYPES),
    ("transforms.iteration", "AxisName Index Leaves", _TYPES),
    ("transforms.transforms", "AxisName Index Leaves ValueMetadata", _TYPES),
    ("traversals", "IsLeafCallable", _TYPES),
    (
        "variablelib",
        (
            "AbstractVariable GetVariable HijaxVariable HijaxVariableMeta NewVariable SetVariable VariableEffect"
            " VariableQDD get_variable_p new_variable_p set_variable_p variable_effect"
        ),
        _HIJAX,
    ),
    ("variablelib", "AddAxisHook AxisIndex AxisName CreateValueHook GetValueHook Leaf PyTreeDef", _TYPES),
    ("variablelib", "RemoveAxisHook SetValueHook", _TYPES),
    ("variablelib", "VARIABLE_CONTEXT VarDefaultsContext VariableContext VariableTypeCache", _PRIVATE),
    ("variablelib", "VariableMeta", "type(nnx.Variable)"),
    ("visualization", "render_object_constructor", "nnx.display"),
)
"""The module, the names, and what to write instead, or why there is nothing to write."""

_NEWER_NAMES: Final = {"graph": "graphlib", "object": "pytreelib"}


def instead_of(module: str, name: str) -> str | None:
    """What to write instead of a name of the peer's module, ``""`` being its root; None for other names."""
    module = _NEWER_NAMES.get(module, module)
    return next((instead for where, names, instead in ROWS if where == module and name in names.split()), None)
