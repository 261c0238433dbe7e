"""Models as data: graphs taken apart, put together, and changed in place.

From the bottom: `defs` describes a graph, `walk` reads one from live objects,
`build` makes live objects from a description, `binding` keeps what was read
for as long as the structure stands, `api` is what users call.
"""
