"""Modules, and functions of them, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._classes.pytree import Pytree as Pytree
from declax._graph.iteration import iter_children as iter_children
from declax._lazy import lazy_names
from declax._module.capturing import capture as capture
from declax._module.module import A as A
from declax._module.module import M as M
from declax._module.module import Module as Module
from declax._module.module import first_from as first_from
from declax._module.module import iter_module_children as iter_module_children
from declax._module.module import iter_modules as iter_modules
from declax._module.viewing import view as view
from declax._module.viewing import view_info as view_info
from declax._module.viewing import with_attributes as with_attributes

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
