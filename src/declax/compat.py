"""The functions with a graph mode, with graphs and graph updates on whatever the defaults are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declax._graph.api import clone, graphdef, split, state
from declax._graph.iteration import iter_children, iter_graph
from declax._graph.rewriting import recursive_map
from declax._modes import in_graph_mode
from declax._module.module import iter_modules
from declax._module.viewing import view, view_info
from declax._random.changes import backup_keys, fork_rngs, reseed, split_rngs
from declax._sharding.initialization import get_abstract_model
from declax.transforms.abstract import eval_shape
from declax.transforms.autodiff import grad, value_and_grad
from declax.transforms.branching import cond, switch
from declax.transforms.checking import checkify
from declax.transforms.compilation import cached_partial, jit
from declax.transforms.custom_rules import custom_vjp
from declax.transforms.differentials import jvp, vjp
from declax.transforms.loops import fori_loop, while_loop
from declax.transforms.rematerialization import remat
from declax.transforms.replication import pmap
from declax.transforms.scanning import scan
from declax.transforms.sharding import shard_map
from declax.transforms.trees import flatten
from declax.transforms.vectorization import vmap

__all__ = ["backup_keys", "cached_partial", "checkify", "clone", "cond", "custom_vjp", "eval_shape", "flatten"]
__all__ += ["get_abstract_model"]
__all__ += ["fori_loop", "fork_rngs", "grad", "graphdef", "iter_children", "iter_graph", "iter_modules", "jit", "jvp"]
__all__ += ["pmap", "recursive_map", "remat", "reseed", "scan", "shard_map", "split", "split_rngs", "state", "switch"]
__all__ += ["value_and_grad", "view", "view_info", "vjp", "vmap", "while_loop"]

if not TYPE_CHECKING:  # a checker sees the functions themselves, whose types a partial would lose
    globals().update({name: in_graph_mode(globals()[name]) for name in __all__})
