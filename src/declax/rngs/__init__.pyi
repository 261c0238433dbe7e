"""Random numbers: named streams of keys, alone and inside of models."""

from declax.rngs.calls import broadcast_rngs as broadcast_rngs
from declax.rngs.changes import RngBackups as RngBackups
from declax.rngs.changes import backup_keys as backup_keys
from declax.rngs.changes import fork_rngs as fork_rngs
from declax.rngs.changes import reseed as reseed
from declax.rngs.changes import restore_rngs as restore_rngs
from declax.rngs.changes import split_rngs as split_rngs
from declax.rngs.changes import with_rngs as with_rngs
from declax.rngs.streams import KeylessInitializer as KeylessInitializer
from declax.rngs.streams import RngCount as RngCount
from declax.rngs.streams import RngKey as RngKey
from declax.rngs.streams import Rngs as Rngs
from declax.rngs.streams import RngState as RngState
from declax.rngs.streams import RngStream as RngStream
from declax.rngs.tables import StreamBackup as StreamBackup
