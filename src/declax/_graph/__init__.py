"""Models as data: graphs flattened, rebuilt, and changed in place.

From the bottom: `flattening` reads a graph and describes it, `unflattening` makes live objects from a description,
`binding` keeps a reading for as long as the structure stays, `updating` and `api` are what users call most.
"""

from declax._graph import api as api  # gives GraphDef its method `merge`, which an unpickled one needs too
