"""Random numbers: named streams of keys, alone and inside of models."""

from declax._random.calls import broadcast_rngs as broadcast_rngs
from declax._random.changes import RngBackups as RngBackups
from declax._random.changes import backup_keys as backup_keys
from declax._random.changes import fork_rngs as fork_rngs
from declax._random.changes import reseed as reseed
from declax._random.changes import restore_rngs as restore_rngs
from declax._random.changes import split_rngs as split_rngs
from declax._random.changes import with_rngs as with_rngs
from declax._random.streams import KeylessInitializer as KeylessInitializer
from declax._random.streams import RngCount as RngCount
from declax._random.streams import RngKey as RngKey
from declax._random.streams import Rngs as Rngs
from declax._random.streams import RngState as RngState
from declax._random.streams import RngStream as RngStream
from declax._random.tables import StreamBackup as StreamBackup
