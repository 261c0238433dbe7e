"""What parts a State by filters, with a type for each number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from declax._filters import Filter
from declax._typing import Tuple2, Tuple3, Tuple4, Tuple5, Tuple6, Tuple7, Tuple8

S = TypeVar("S")


class Splits(Generic[S]):
    """The methods `split` and `filter` of a State; `S` is what they give."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[S, ...]: ...

    @overload
    def split(self, a: Filter, /) -> S: ...
    @overload
    def split(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, /) -> Tuple5[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, /) -> Tuple6[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, g: Filter, /) -> Tuple7[S]: ...
    @overload
    def split(
        self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, g: Filter, h: Filter, /
    ) -> Tuple8[S]: ...
    @overload
    def split(self, a: Filter, /, *filters: Filter) -> Any: ...
    def split(self, a: Filter, /, *filters: Filter) -> Any:
        """States of the leaves that each filter takes.

        Raises:
          FilterError: for leaves that no filter takes.

        >>> from declax.states import State
        >>> numbers, rest = State({"a": 1, "b": "text"}).split(int, ...)
        >>> numbers.to_pure_dict(), rest.to_pure_dict()
        ({'a': 1}, {'b': 'text'})
        """
        found = self._parts((a, *filters), "State.split", is_exhaustive=True)
        return found if filters else found[0]

    @overload
    def filter(self, a: Filter, /) -> S: ...
    @overload
    def filter(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, /) -> Tuple5[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, /) -> Tuple6[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, g: Filter, /) -> Tuple7[S]: ...
    @overload
    def filter(
        self, a: Filter, b: Filter, c: Filter, d: Filter, e: Filter, f: Filter, g: Filter, h: Filter, /
    ) -> Tuple8[S]: ...
    @overload
    def filter(self, a: Filter, /, *filters: Filter) -> Any: ...
    def filter(self, a: Filter, /, *filters: Filter) -> Any:
        """As `split`, leaving out what no filter takes."""
        found = self._parts((a, *filters), "State.filter", is_exhaustive=False)
        return found if filters else found[0]
