"""The shape of an array in an annotation, for those who do not use jaxtyping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declax._text.dimensions import Axis, parse_shape

if TYPE_CHECKING:
    from declax._typing import Dtype


class Shape:
    """A shape with names, for `Annotated`; see `shape`."""

    __slots__ = ("axes", "dtype", "text")

    def __init__(self, text: str, dtype: Dtype | None) -> None:
        self.text: str = text
        self.dtype: Dtype | None = dtype
        self.axes: tuple[Axis, ...] = parse_shape(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and (other.text, other.dtype) == (self.text, self.dtype)

    def __hash__(self) -> int:
        return hash((self.text, str(self.dtype)))

    def __repr__(self) -> str:
        return f"shape({self.text!r})" if self.dtype is None else f"shape({self.text!r}, dtype={self.dtype!r})"


def shape(text: str, *, dtype: Dtype | None = None) -> Shape:
    """The shape of an array, for ``Annotated[jax.Array, dx.shape("b n {self.dim}")]``.

    It is read by `check_shapes`, and by nothing at run time. A name is bound once in each call, ``{self.dim}`` is the
    field; ``...`` and ``*names`` are any number of axes, ``_`` is any size, and ``#n`` may also be 1, as in jaxtyping.

    Args:
      text: the sizes, separated by spaces.
      dtype: the dtype with which the check calls; None for float32.

    Raises:
      FieldError: the text is no shape.

    >>> import declax as dx
    >>> from typing import Annotated
    >>> Tokens = Annotated[jax.Array, dx.shape("b n", dtype="int32")]
    >>> @dx.dataclass
    ... class Table(dx.Layer):
    ...     dim: int = dx.field(ge=1)
    ...     embed = dx.Embed(100, dim)
    ...     def __call__(self, x: Tokens) -> Annotated[jax.Array, dx.shape("b n {self.dim}")]:
    ...         return self.embed(x)
    >>> dx.check_shapes(Table).proven
    True
    """
    return Shape(text, dtype)
