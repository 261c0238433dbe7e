"""States, and functions of them, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._state.functions import diff as diff
from declax._state.functions import from_flat_state as from_flat_state
from declax._state.functions import map_state as map_state
from declax._state.functions import merge_state as merge_state
from declax._state.functions import replace_by_pure_dict as replace_by_pure_dict
from declax._state.functions import restore_int_paths as restore_int_paths
from declax._state.functions import to_flat_state as to_flat_state
from declax._state.functions import to_pure_dict as to_pure_dict
from declax._state.states import FlatState as FlatState
from declax._state.states import State as State
from declax._state.states import filter_state as filter_state
from declax._state.states import split_state as split_state

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
