"""The grammar of sizes and conditions, and the numbers and symbols that satisfy them."""

import itertools

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given

from declax import errors
from declax._text.dimensions import (
    Axis,
    Operation,
    Symbol,
    evaluate,
    parse_condition,
    parse_shape,
    parse_size,
    symbols_of,
    text_of,
)
from declax.shapes.domains import Domain
from declax.shapes.polynomials import is_never_negative
from declax.shapes.rounding import normalized
from declax.shapes.symbols import Symbols

SIZES = st.recursive(
    st.one_of(st.integers(0, 20), st.sampled_from("abc").map(Symbol)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner).map(
        lambda parts: Operation(parts[0], parts[1:])
    ),
    max_leaves=8,
)


@given(SIZES, st.tuples(*[st.integers(1, 30)] * 3))
def test_a_size_reads_as_it_is_written(size, numbers):
    values = dict(zip("abc", numbers, strict=True))
    again = parse_size(text_of(size))
    assert outcome(size, values) == outcome(again, values)


def outcome(size, values):
    try:
        return evaluate(size, values)
    except ZeroDivisionError:
        return None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("n +", "ends too early"),
        ("n m", "'m' is not expected"),
        ("__import__('os')", "is no part of it"),
        ("n.m", "'n.m' is not a size"),
        ("(n", "missing"),
        ("n ** 2", "not a size"),
        ("n^m", "'m' is no power"),
        ("lambda: 3", "is no part of it"),
        (" + ".join(["n"] * 150), "more than 200 words"),
    ],
)
def test_what_is_no_size(text, why):
    with pytest.raises(errors.FieldError, match="this is no size or condition") as caught:
        parse_size(text)
    assert why in caught.value.why


def test_conditions():
    assert [c.text for c in parse_condition("1 <= n < {self.length} // 2")] == ["1 <= n", "n < {self.length}//2"]
    with pytest.raises(errors.FieldError, match="it compares nothing"):
        parse_condition("n + 1")


def test_shapes_in_the_convention_of_jaxtyping():
    axes = parse_shape("*batch #n _ rows=4 {self.dim} {self.dim // 2}+1 n-1")
    assert axes[:4] == (Axis(None, "batch"), Axis(Symbol("n"), None, True), Axis(None), Axis(4))
    assert [text_of(axis.size) for axis in axes[4:]] == ["dim", "dim//2 + 1", "n - 1"]
    assert parse_shape("...") == (Axis(None, ""),)
    assert parse_shape("") == ()
    with pytest.raises(errors.FieldError, match="several entries for any number of axes"):
        parse_shape("*a ...")


CONDITIONS = """a % 2 == 0, a % 6 == 0, a % b == 0, b % c == 0, a == b + 1, b == 2 * c, c <= 12, a >= 5, b <= c,
a % 4 == 3""".split(",")


@given(st.lists(st.sampled_from(CONDITIONS), max_size=3, unique=True))
def test_numbers_satisfy_the_conditions(texts):
    conditions = [c for text in texts for c in parse_condition(text)]
    domain = Domain("abc", conditions)
    found = list(itertools.islice(domain.samples([7, 32]), 12))
    if not found:  # the conditions contradict each other
        sizes = (dict(zip("abc", one, strict=True)) for one in itertools.product(range(1, 25), repeat=3))
        assert not any(all(condition.holds(values) for condition in conditions) for values in sizes), texts
    for values in found:
        assert all(condition.holds(values) for condition in conditions)
        assert min(values.values()) >= 1


@given(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True), SIZES)
def test_a_symbolic_size_has_the_value_of_its_numbers(texts, size):
    """Substitution and the way back change no value."""
    domain = Domain("abc", [c for text in texts for c in parse_condition(text)])
    symbols = Symbols(domain)
    try:
        dimension = evaluate(size, symbols.sizes)
    except (ZeroDivisionError, jax.errors.InconclusiveDimensionOperation, ValueError):
        return
    for values in itertools.islice(domain.samples(), 6):
        wanted = outcome(size, values)
        if wanted is not None:
            assert symbols.number(dimension, values) == wanted
            assert evaluate(symbols.written(dimension), values) == wanted


def test_sizes_are_written_in_the_names_of_the_user():
    symbols = Symbols(
        Domain(
            ["n", "self.dim", "self.heads"],
            [*parse_condition("{self.dim} % {self.heads} == 0"), *parse_condition("n % 4 == 0")],
        )
    )
    n, dim, heads = symbols.sizes.values()
    assert symbols.text(dim) == "dim"
    assert symbols.text(dim // heads) == "dim//heads"
    assert symbols.text(4 * dim * dim + 7 * dim) == "4*dim^2 + 7*dim"
    assert symbols.text(n // 2 * dim) == "dim*(n//2)"
    assert symbols.text(n // 4 + 1) == "n//4 + 1"
    assert symbols.message(f"shapes=[({dim}, {n}), ({dim // heads},)] and {n // 8}") == (
        "shapes=[(dim, n), (dim//heads,)] and n//8"
    )


@pytest.mark.parametrize("texts", [["a <= 3", "a >= 5"], ["a % 2 == 0", "a % 2 == 1"], ["a == b", "a > b"]])
def test_contradictory_conditions_have_no_numbers(texts):
    domain = Domain("ab", [c for text in texts for c in parse_condition(text)])
    assert next(domain.samples(), None) is None


def test_symbols_of_a_size():
    assert symbols_of(parse_size("a * {self.b} + a")) == ["a", "self.b"]


@pytest.mark.parametrize(
    "text", ["0 - (0 - a)//2", "(a + 1)//2", "((2*a + 1)//2 + 1)//2", "(a*b - 1)//b - a + (a + 1)//2 + 1"]
)
def test_rounded_sizes_have_one_form(text):
    assert text_of(normalized(parse_size(text))) == "(a - 1)//2 + 1"


@given(SIZES, st.lists(st.integers(1, 30), min_size=3, max_size=3))
def test_a_normalized_size_is_equal(size, numbers):
    values = dict(zip("abc", numbers, strict=True))
    try:
        wanted = evaluate(size, values)
    except ZeroDivisionError:
        return
    assert evaluate(normalized(size), values) == wanted


@given(SIZES, st.lists(st.integers(1, 30), min_size=3, max_size=3))
def test_what_is_never_negative(size, numbers):
    values = dict(zip("abc", numbers, strict=True))
    if is_never_negative(size, dict.fromkeys("abc", 1)):
        assert evaluate(size, values) >= 0


def test_products_that_are_never_negative():
    starts = {"a": 1, "b": 2}
    assert is_never_negative(parse_size("a*b - 2*a"), starts)
    assert not is_never_negative(parse_size("a*b - 3*a"), starts)


def test_texts_of_rounded_sizes():
    assert text_of(parse_size("-((-a)//2) - a%b")) == "(-((-a)//2)) - a % b"
    assert [parse_condition(text)[0].simplified().text for text in ("max(a - 4, 15) <= 15", "min(a - 1, 8) <= 7")] == [
        "a <= 19",
        "a <= 8",
    ]
    assert parse_condition("max(a, 8) >= 3")[0].simplified().text == "max(a, 8) >= 3"


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "=="])
@pytest.mark.parametrize("text", ["(n*n - n)//2", "(n*n + 3*n)//4", "(2*n - 5)//3", "(0 - n)//2"])
@pytest.mark.parametrize("number", [-2, -1, 0, 1])
def test_a_condition_that_is_impossible_holds_for_no_numbers(text, sign, number):
    (condition,) = parse_condition(f"{text} {sign} 0")
    condition = condition._replace(right=number)
    if Domain(["n"], []).is_impossible(condition):
        assert not any(condition.holds({"n": n}) for n in range(1, 40))


def test_rounded_products_are_seen():
    (never,) = parse_condition("(n*n - n)//2 < 0")
    (possible,) = parse_condition("(n*n - n)//2 <= 0")
    assert Domain(["n"], []).is_impossible(never)
    assert not Domain(["n"], []).is_impossible(possible)
