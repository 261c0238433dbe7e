"""Variables and their kinds, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._graph.array_refs import is_array_ref as is_array_ref
from declax._lazy import lazy_names
from declax._module.module import A as A
from declax._variables.defaults import VarDefaults as VarDefaults
from declax._variables.defaults import var_defaults as var_defaults
from declax._variables.kinds import BatchStat as BatchStat
from declax._variables.kinds import Cache as Cache
from declax._variables.kinds import Intermediate as Intermediate
from declax._variables.kinds import Param as Param
from declax._variables.kinds import Perturbation as Perturbation
from declax._variables.kinds import VariableState as VariableState
from declax._variables.kinds import register_variable_name as register_variable_name
from declax._variables.kinds import variable_name_from_type as variable_name_from_type
from declax._variables.kinds import variable_type_from_name as variable_type_from_name
from declax._variables.metadata import VariableMetadata as VariableMetadata
from declax._variables.placement import use_eager_sharding as use_eager_sharding
from declax._variables.placement import using_eager_sharding as using_eager_sharding
from declax._variables.variable import Variable as Variable
from declax.initializers import with_metadata as with_metadata

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
