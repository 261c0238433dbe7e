"""Models as data: graphs taken apart, put together, and changed in place.

From the bottom: `flattening` describes a graph and reads it from live objects, `unflattening` makes live objects from
a description, `binding` keeps what was read for as long as the structure stands, `api` is what users call.
"""

# The names are in `__init__.pyi`; each loads its module when it is first used.

from declax._graph import api as api  # gives GraphDef its method `merge`, which one from a file needs too
from declax._lazy import lazy_attributes
from declax._typing import Path

__getattr__, __dir__, __all__ = lazy_attributes(__name__)

PathParts = Path
"""A path, by the name that it has in NNX."""
