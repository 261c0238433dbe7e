"""declax: a dataclass-first, declarative modelling framework for JAX."""

# `import declax` loads nothing: each name loads its module when it is first used, so that tools that need
# a part, such as the plugin of mypy and the command line, do not wait for JAX. The names are in `__init__.pyi`.

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)
