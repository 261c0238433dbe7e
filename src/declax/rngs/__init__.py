"""Random numbers: named streams of keys, alone and inside of models.

From the bottom: `samplers` are the functions of ``jax.random`` as methods,
`streams` the streams, `finding` the table of those of a model, `backups`
replaces their keys and puts them back, `changes` and `reseeding` say by which.
"""

# The names are in `__init__.pyi`; each loads its module when it is first used.

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)
