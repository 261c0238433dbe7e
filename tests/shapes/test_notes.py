"""`multiple_of=` of fields: constructors, configurations and schemas check it too."""

import pytest
from jaxtyping import Array, Float

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    heads: int = dx.field(default=4, ge=1)
    dim: int = dx.field(default=8, multiple_of=heads, ge=8, le=64, help="the width")
    tile: int = dx.field(default=8, multiple_of=8)

    def __call__(self, x: Float[Array, "b {self.dim} {self.tile}"]) -> Float[Array, "b n 8"]:
        x = x.reshape(x.shape[0], self.heads, self.dim // self.heads, self.tile)
        return x.reshape(x.shape[0], -1, 8)


def test_constructors():
    assert Block(heads=3, dim=9, rngs=dx.Rngs(0)).dim == 9
    with pytest.raises(dx.errors.LayerError, match=r"Block\.dim: this value is not a multiple of heads"):
        Block(heads=3, rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.LayerError, match="not a multiple of 8"):
        Block(tile=9, rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.LayerError, match="out of bounds"):
        Block(dim=68, rngs=dx.Rngs(0))


def test_configurations():
    assert dx.from_config(Block, {"heads": 3, "dim": 9}, rngs=dx.Rngs(0)).heads == 3
    with pytest.raises(dx.ConfigError, match="not a multiple of heads=3") as caught:
        dx.from_config(Block, {"heads": 3, "dim": 10}, rngs=dx.Rngs(0))
    assert [problem.code for problem in caught.value.problems] == ["not-a-multiple"]
    with pytest.raises(dx.ConfigError, match="not a multiple of heads=3"):
        dx.from_config(Block, {"heads": 3}, rngs=dx.Rngs(0))  # of the default


def test_schemas():
    """A schema has the numbers; it cannot compare fields, so that the text says this."""
    properties = dx.json_schema(Block)["properties"]
    assert properties["tile"]["multipleOf"] == 8
    assert properties["dim"]["description"] == "the width; a multiple of heads"
    assert (properties["dim"]["minimum"], properties["dim"]["maximum"]) == (8, 64)


def test_the_verdict_has_the_order_of_the_declaration():
    (line,) = dx.check_shapes(Block).checked
    assert line.verdict == "proven"
    assert line.text.startswith(
        "for all b, heads, dim, tile ≥ 1 with dim >= 8, dim <= 64, dim % heads == 0, tile % 8 == 0"
    )


def test_two_factors_of_one_field():
    @dx.dataclass(where=("{self.dim} % {self.heads} == 0", "{self.dim} % {self.groups} == 0", "{self.dim} % 4 == 0"))
    class Both(dx.Layer):
        heads: int = dx.field(ge=1)
        groups: int = dx.field(ge=1)
        dim: int = dx.field(ge=1)

        def __call__(self, x: Float[Array, "b {self.dim}"]) -> Float[Array, "b {self.dim}"]:
            for count in (self.heads, self.groups, 4):
                x = x.reshape(x.shape[0], count, self.dim // count).reshape(x.shape)
            return x

    (line,) = dx.check_shapes(Both).checked
    assert line.verdict == "tested only"  # one factor is carried out by substitution, and the other becomes numbers
    assert line.text.endswith("at groups = 1, 2, 3")


def test_too_many_combinations_keep_the_defaults():
    @dx.dataclass
    class Switches(dx.Layer):
        a: bool = dx.field(default=False)
        b: bool = dx.field(default=False)
        c: bool = dx.field(default=False)
        d: bool = dx.field(default=False)
        e: bool = dx.field(default=False)

        def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
            return x[1:] if self.e else x

    (line,) = dx.check_shapes(Switches).checked
    assert line.verdict == "proven"
    assert "defaults of a, b, c, d, e" in line.text
