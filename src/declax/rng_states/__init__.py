"""The streams inside of a model, all at once: split, forked, reseeded, and put back.

From the bottom: `finding` looks for streams, `backups` puts them back,
`spreading` draws other keys for them, which `splitting` hands to users,
`reseeding` gives them keys that come from outside.
"""

from declax.rng_states.backups import RngBackups as RngBackups
from declax.rng_states.backups import StreamBackup as StreamBackup
from declax.rng_states.backups import backup_keys as backup_keys
from declax.rng_states.backups import restore_rngs as restore_rngs
from declax.rng_states.reseeding import reseed as reseed
from declax.rng_states.splitting import fork_rngs as fork_rngs
from declax.rng_states.splitting import split_rngs as split_rngs
from declax.rng_states.splitting import with_rngs as with_rngs
