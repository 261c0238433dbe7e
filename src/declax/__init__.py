"""declax: a dataclass-first, declarative modelling framework for JAX.

``help(dx.jit)`` describes one name. The names by topic, all in `dx`:

  classes        dataclass field data static variable submodule defer repeat when Static Data InitVar KW_ONLY
  modules        Module Pytree Sequential List Dict Stacked view with_attributes capture replace CallableModule
  Variables      Variable Param BatchStat Cache Intermediate Perturbation Policy
  random         Rngs RngStream split_rngs fork_rngs reseed
  layers         Linear Conv Embed MultiHeadAttention RNN LSTMCell LayerNorm BatchNorm Dropout MLP ... (nn)
  training       Optimizer EMA metrics accumulate by_filter lora merge_lora TrainState dynamic_loss_scale
  transforms     jit grad value_and_grad vmap scan cond while_loop remat eval_shape vjp jvp custom_vjp
  models as data split merge update state pop clone diff variables GraphDef State map iter_modules
  filters        All Any Not OfType PathContains PathMatches WithTag
  devices        sharding_rules init_sharded fsdp shard_map pipeline get_named_sharding StateSharding
  configuration  spec from_config spec_of to_config json_schema cli Spec Run
  files          save load Checkpoints load_weights save_weights export load_exported
  displays       summary tabulate plot display
  errors         DeclaxError ConfigError CheckpointError explain_retrace checkify
"""

# `import declax` loads nothing: each name loads its module when it is first used, so that tools that need
# a part, such as the plugin of mypy and the command line, do not wait for JAX. The names are in `__init__.pyi`.

from declax._lazy import lazy_attributes

__getattr__, __dir__, _ = lazy_attributes(__name__)
