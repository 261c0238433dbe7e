"""Pytrees, and the status of their attributes, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._classes.decorator import dataclass as dataclass
from declax._classes.pytree import Object as Object
from declax._classes.pytree import Pytree as Pytree
from declax._classes.pytree import check_pytree as check_pytree
from declax._classes.pytree import has_data as has_data
from declax._classes.pytree import is_data as is_data
from declax._classes.pytree import register_data_type as register_data_type
from declax._fields.specifiers import Data as Data
from declax._fields.specifiers import Static as Static
from declax._fields.specifiers import data as data
from declax._fields.specifiers import static as static
from declax._lazy import lazy_names

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
