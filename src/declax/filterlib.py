"""The filters that select leaves of a graph, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING, TypeAlias

from declax._filters import All as All
from declax._filters import Any as Any
from declax._filters import Everything as Everything
from declax._filters import Filter as Filter
from declax._filters import Not as Not
from declax._filters import Nothing as Nothing
from declax._filters import OfType as OfType
from declax._filters import PathContains as PathContains
from declax._filters import PathIn as PathIn
from declax._filters import PathMatches as PathMatches
from declax._filters import Predicate as Predicate
from declax._filters import WithTag as WithTag
from declax._filters import filters_to_predicates as filters_to_predicates
from declax._filters import to_predicate as to_predicate
from declax._lazy import lazy_names
from declax._typing import Path

PathParts: TypeAlias = Path

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
