"""Modules of Flax Linen as models, and models as modules of Linen.

A collection of Linen is a kind of Variable (``params`` is `Param`, ``batch_stats`` is `BatchStat`, as
`register_variable_name` says), and a box of Linen is the metadata of a Variable. The rest of declax does not import
Flax.
"""

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)
