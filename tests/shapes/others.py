"""What other tools find of the planted mistakes: type checkers without a run, and the rest in one run at usual sizes.

`planted.py` runs with a stand-in for `dx`, which makes the same classes of modules and layers of Flax NNX or Equinox. A
mistake is found if the call raises.
"""

import functools
import itertools
import operator
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import Array, Bool, Float, Int, jaxtyped

import declax as dx
from declax._graph.nodes import walk_nodes
from declax.shapes.annotations import annotated, input_of
from declax.shapes.inputs import Choice, chosen, made

eqx = pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")

PLANTED = Path(__file__).with_name("planted.py")
SIZES = {"b": 8, "n": 16, "m": 12, "h": 32, "w": 32, "k": 24, "axis1": 8}
FIELDS = {"dim": 32, "heads": 4, "hidden": 128, "vocab": 16, "length": 32}


def pairs_with(stand_in: Any) -> list[Any]:
    """The pairs of `planted.py`, of classes that a stand-in for `dx` makes."""
    source = PLANTED.read_text().replace("import declax as dx\n", "\n")
    names = {"__name__": "shapes.planted", "dx": stand_in}
    exec(compile(source, str(PLANTED), "exec"), names)
    found: list[Any] = names["PAIRS"]
    return found


def inputs_of(pair: Any) -> list[Any]:
    """Arrays of usual sizes for a pair of declax, all optional ones too."""
    if pair.inputs:
        patterns = [input_of(text, "inputs") for text in pair.inputs]
    else:
        cls = pair.wrong if isinstance(pair.wrong, type) else None
        function = pair.wrong if callable(pair.wrong) and not isinstance(pair.wrong, (type, dx.Module)) else None
        owner = cls or (None if function else type(pair.wrong))
        known = annotated(function or owner.__call__, owner)
        patterns = [chosen(p.pattern, Choice(is_given=True), itertools.count(1)) for p in known.parameters.values()]
    sizes = {**SIZES, **{f"self.{name}": size for name, size in FIELDS.items()}}
    return [jnp.ones(array.shape, array.dtype) for array in (made(pattern, sizes) for pattern in patterns)]


def object_of(target: Any) -> Any:
    """A model of a class at usual sizes; functions and models as they are."""
    if not (isinstance(target, type) and hasattr(target, "__dataclass_fields__") and issubclass(target, dx.Module)):
        return target() if isinstance(target, type) else target
    names = [name for name in target.__dataclass_fields__ if name in FIELDS]
    return target(**{name: FIELDS[name] for name in names}, rngs=dx.Rngs(0))


def fails(call: Any, inputs: list[Any]) -> bool:
    """Whether a call raises."""
    try:
        call(*inputs)
    except Exception:  # noqa: BLE001  # of any tool
        return True
    return False


def found_by(stand_in: Any) -> list[str]:
    """The names of the mistakes at which the classes of a stand-in raise; their right twins run."""
    found = []
    for pair, other in zip(pairs_with(dx), pairs_with(stand_in), strict=True):
        inputs = inputs_of(pair)
        object_of(other.right)(*inputs)
        found += [pair.name] if fails(lambda *inputs, other=other: object_of(other.wrong)(*inputs), inputs) else []
    return found


# ================================================================= jaxtyping with beartype


def found_by_jaxtyping() -> list[str]:
    """The mistakes at which beartype raises, or JAX before it."""
    found = []
    for pair in pairs_with(dx):
        inputs = inputs_of(pair)
        _typed(pair, pair.right)(*inputs)
        found += [pair.name] if fails(lambda *inputs, pair=pair: _typed(pair, pair.wrong)(*inputs), inputs) else []
    return found


def _typed(pair: Any, target: Any) -> Any:
    """A target whose calls beartype checks; functions are annotated as their inputs are."""
    check = functools.partial(jaxtyped, typechecker=beartype)
    model = object_of(target)
    if isinstance(model, dx.Module):
        for cls in {type(node) for _, node in walk_nodes(model) if type(node).__module__ == "shapes.planted"}:
            cls.__call__ = check(cls.__call__.__wrapped__)
        return model
    if pair.inputs:
        kinds = {"float32": Float, "int32": Int, "bool": Bool}
        names = model.__code__.co_varnames[: model.__code__.co_argcount]
        parts = [re.fullmatch(r"(\w+)\[(.*)\]", text).groups() for text in pair.inputs]
        shapes = [kinds[dtype][Array, axes.replace(",", " ")] for dtype, axes in parts]
        model.__name__ = "function"  # as that of a lambda, which jaxtyping cannot write
        model.__annotations__ = dict(zip(names, shapes, strict=True))
    return check(model)


# ================================================================= type checkers


def found_by_checker(*command: str) -> list[str]:
    """The mistakes at whose lines a type checker has an error that it has at no right line."""
    told = subprocess.run([sys.executable, "-m", *command, str(PLANTED)], capture_output=True, text=True, check=False)
    errors = re.findall(r"planted\.py:(\d+):.*?error: (.*)", told.stdout)
    texts = PLANTED.read_text().splitlines()
    usual = {error for line, error in errors if "# wrong" not in texts[int(line) - 1]}
    lines = {int(line) for line, error in errors if error not in usual}
    assert re.search(r"checked 1 source file|\d+ errors?, ", told.stdout), told.stdout + told.stderr
    names, current = [], ""
    for number, line in enumerate(texts, 1):
        current = found[1] if (found := re.match(r'@pair\("([^"]+)"', line)) else current
        if "# wrong" in line and number in lines:
            names.append(current)
    return names


# ================================================================= stand-ins


class Late:
    """A value that is known when an object is made: a field, an expression of fields, or a layer."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def _with(self, operation: Any, *others: Any) -> "Late":
        return Late(lambda values: operation(*(known(x, values) for x in (self, *others))))

    def __mul__(self, other: Any) -> "Late":
        return self._with(operator.mul, other)

    __rmul__ = __mul__


class Field(Late):
    """A field, whose value is the default or the usual one."""

    def __init__(self, default: Any = None, **notes: Any) -> None:
        super().__init__(lambda values: values[self.name])
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


def known(value: Any, values: dict[str, Any]) -> Any:
    """A value at the values of fields."""
    if isinstance(value, tuple):
        return tuple(known(item, values) for item in value)
    return value.make(values) if isinstance(value, Late) else value


def layer(make: Any) -> Any:
    """A layer in a class body, or, with `rngs`, an object."""

    def declare(*args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        late = Late(
            lambda values: make(*known(args, values), **{name: known(value, values) for name, value in kwargs.items()})
        )
        return late if rngs is None else known(late, {})

    return declare


def stand_in_for(base: type, *, frozen: bool, **layers: Any) -> Any:
    """A namespace in place of `dx`: `layers` are those of a framework, and `base` is its class of modules."""

    def dataclass(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return dataclass
        lates = {name: value for name, value in vars(cls).items() if isinstance(value, Late)}

        def __init__(self: Any, *args: Any, rngs: Any = None) -> None:
            fields = [late for late in lates.values() if isinstance(late, Field)]
            values = {field.name: FIELDS[field.name] if field.default is None else field.default for field in fields}
            values.update(zip(values, args, strict=False))
            for name, late in lates.items():
                setattr(self, name, known(late, values))

        rest = {name: vars(cls)[name] for name in ("__module__", "__call__")}
        annotations = {"__annotations__": dict.fromkeys(lates, Any)} if frozen else {}
        return type(base)(cls.__name__, (base,), {**rest, **annotations, "__init__": __init__})

    return SimpleNamespace(
        dataclass=dataclass,
        field=Field,
        Layer=object,
        Rngs=lambda seed: seed,
        Param={Array: Array},
        initializers=SimpleNamespace(zeros=None),
        defer=layer,
        **layers,
    )


def flax() -> Any:
    """The stand-in of Flax NNX."""
    rngs = nnx.Rngs(0)

    def convolution(cls: Any) -> Any:
        return layer(lambda i, o, size, strides=1: cls(i, o, size, strides, rngs=rngs))

    return stand_in_for(
        nnx.Module,
        frozen=False,
        Linear=layer(lambda i, o: nnx.Linear(i, o, rngs=rngs)),
        Embed=layer(lambda n, d: nnx.Embed(n, d, rngs=rngs)),
        Conv=convolution(nnx.Conv),
        ConvTranspose=convolution(nnx.ConvTranspose),
        MultiHeadAttention=layer(lambda h, d, decode: nnx.MultiHeadAttention(h, d, decode=decode, rngs=rngs)),
        MLP=layer(lambda i, h, o: nnx.Sequential(nnx.Linear(i, h, rngs=rngs), nnx.gelu, nnx.Linear(h, o, rngs=rngs))),
        variable=layer(lambda shape, initializer: nnx.Param(jnp.zeros(shape))),
        max_pool=nnx.max_pool,
        avg_pool=nnx.avg_pool,
        grad=nnx.grad,
    )


class Mapped(eqx.Module):
    """A layer of Equinox, which takes one example, over the leading axes of arrays whose last axis has the features."""

    inner: Any
    rank: int = 1

    def __call__(self, x: Any) -> Any:
        call = (lambda x: jnp.moveaxis(self.inner(jnp.moveaxis(x, -1, 0)), 0, -1)) if self.rank > 1 else self.inner
        for _ in range(x.ndim - self.rank):
            call = jax.vmap(call)
        return call(x)

    @property
    def embedding(self) -> Any:
        """The table of an embedding."""
        return self.inner.weight


def equinox() -> Any:
    """The stand-in of Equinox."""
    key = jax.random.key(0)

    def convolution(cls: Any) -> Any:
        def make(i: int, o: int, size: Any, strides: int = 1) -> Any:
            return Mapped(cls(len(size), i, o, size, strides, "SAME", key=key), len(size) + 1)

        return layer(make)

    def pool(cls: Any) -> Any:
        def call(x: Any, window: Any, strides: Any = None, padding: str = "VALID") -> Any:
            amount = tuple(0 if padding == "VALID" else size // 2 for size in window)
            return Mapped(cls(window, strides or 1, amount), len(window) + 1)(x)

        return call

    def attention(heads: int, dim: int, decode: bool) -> Any:
        inner = eqx.nn.MultiheadAttention(heads, dim, key=key)
        return jax.vmap(lambda x: inner(x, x, x))

    return stand_in_for(
        eqx.Module,
        frozen=True,
        Linear=layer(lambda i, o: Mapped(eqx.nn.Linear(i, o, key=key))),
        Embed=layer(lambda n, d: Mapped(eqx.nn.Embedding(n, d, key=key), 0)),
        Conv=convolution(eqx.nn.Conv),
        ConvTranspose=convolution(eqx.nn.ConvTranspose),
        MultiHeadAttention=layer(attention),
        MLP=layer(lambda i, h, o: Mapped(eqx.nn.MLP(i, o, h, 1, key=key))),
        variable=layer(lambda shape, initializer: jnp.zeros(shape)),
        max_pool=pool(eqx.nn.MaxPool2d),
        avg_pool=pool(eqx.nn.AvgPool2d),
        grad=eqx.filter_grad,
    )
