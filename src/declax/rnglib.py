"""Random streams, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._random.changes import backup_keys as backup_keys
from declax._random.changes import fork_rngs as fork_rngs
from declax._random.changes import reseed as reseed
from declax._random.changes import restore_rngs as restore_rngs
from declax._random.changes import split_rngs as split_rngs
from declax._random.changes import with_rngs as with_rngs
from declax._random.streams import Rngs as Rngs
from declax._random.streams import RngStream as RngStream
from declax._random.streams import StreamBackup as StreamBackup
from declax._variables.kinds import RngCount as RngCount
from declax._variables.kinds import RngKey as RngKey
from declax._variables.kinds import RngState as RngState

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
