"""How declared Variables are made, and checks of their declarations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Final

import jax
import jax.numpy as jnp

from declax import _jax
from declax._fields.annotations import AnnotationScope, annotation_text
from declax._fields.class_body import layer_line
from declax._fields.class_info import info_of
from declax._fields.deciding import class_within, decide
from declax._fields.expressions import Expression
from declax._fields.keys import NO_RNGS, RNGS
from declax._fields.sources import declared_text
from declax._fields.specifiers import VariableRecipe
from declax._typing import MISSING
from declax._variables.kinds import Param
from declax._variables.metadata import AXES, EMPTY, Metadata, VariableMetadata
from declax._variables.placement import sharding_at_creation
from declax._variables.policy import PARAM_DTYPE
from declax._variables.variable import Variable
from declax.errors import DeclaxError, FieldError, InitializerError, MissingRngsError, describe, type_name

WITHOUT_VALUES: Final[ContextVar[bool]] = ContextVar("declax_without_values", default=False)
"""Whether Variables of symbolic shapes are made without their initializers: JAX takes long to decide for these."""


class VariableMaker:
    """Makes a declared Variable of a class, or of a subclass."""

    def __init__(self, cls: Any, name: str, recipe: VariableRecipe) -> None:
        self._cls = cls
        self._name = name
        self._recipe = recipe
        self._kind: Any = None
        self._marks: dict[str, bool] = {}  # the notes of the field that are metadata
        self.__name__: str = f"make_{name}"

    @property
    def _where(self) -> str:
        return f"{type_name(self._cls)}.{self._name}"

    def _prepare(self) -> Any:
        """Reads the spec of the field, which is known when all names of its annotation are; returns its kind."""
        spec = info_of(self._cls).specs[self._name]
        self._marks = {name: False for name in ("trainable", "weight_decay") if not spec.notes.get(name, True)}
        self._kind = _kind_of(self._where, spec.annotation, AnnotationScope(self._cls))
        return self._kind

    def __call__(
        self, rngs: Any, shape: Any, initializer: Any, dtype: Any, metadata: Any, sharding: Any = None, **computed: Any
    ) -> Variable[Any]:
        """Makes the Variable with a key of its stream; `computed` are the options that expressions give."""
        kind: Any = self._kind or self._prepare()
        shape = self._shape(shape)
        if dtype is None:
            dtype = PARAM_DTYPE() if issubclass(kind, Param) else jnp.float32
        stream = computed.pop("stream", self._recipe.stream)
        is_without = WITHOUT_VALUES.get() and any(map(_jax.is_symbolic, shape))
        key = None if stream is None or is_without else self._draw(rngs, stream)
        is_plain = metadata is EMPTY or metadata is None
        try:
            if is_without:
                metadata, value = {} if is_plain else metadata, jnp.zeros(shape, dtype)
            elif (
                is_plain and sharding is None and not (computed or self._marks) and not hasattr(initializer, "metadata")
            ):
                metadata, value = {}, initializer(key, shape, dtype)
            else:
                metadata = self._metadata(metadata, sharding, computed)
                value = initializer(key, shape, dtype, **self._placement(initializer, shape, metadata))
        except Exception as error:
            if any(map(_jax.is_symbolic, shape)):  # a check for all sizes needs no values, which initializers compute
                metadata, value = {} if is_plain else metadata, jnp.zeros(shape, dtype)
            else:
                if isinstance(error, TypeError):
                    self._explain(initializer, error)
                raise
        if getattr(value, "shape", None) != shape:
            _check_called(self._where, initializer, value)
            self._check_made(value, shape, dtype)
        made: Variable[Any] = kind(value, **metadata)
        return made

    def _explain(self, initializer: Any, error: TypeError) -> None:
        """Raises an error in our words for an initializer that was not called, or takes other arguments."""
        _check_called(self._where, initializer)
        trace = error.__traceback__
        if trace is not None and trace.tb_next is None:  # the call itself failed
            raise _takes_others(self._where, initializer, error) from None

    def _placement(self, initializer: Any, shape: tuple[int, ...], metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The option with which an initializer of declax makes no more than the shards of a value on each device."""
        brought = getattr(initializer, "metadata", None)
        if not (metadata or brought) or not getattr(initializer, "can_place", False):
            return {}
        known = Metadata.of({**self._kind._defaults, **metadata, **(brought or {})}, self._where)
        sharding = sharding_at_creation(self._where, known, shape)
        return {} if sharding is None else {"out_sharding": sharding}

    def _shape(self, given: Any) -> tuple[int, ...]:
        is_one = hasattr(given, "__index__") or not hasattr(given, "__iter__")
        sizes = (given,) if is_one else tuple(given)
        for index, size in enumerate(sizes):
            if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
                if _jax.is_symbolic(size):
                    return sizes  # of a check for all sizes
                declared: Any = self._recipe.shape
                declared = declared[index] if isinstance(declared, tuple) else declared
                is_float = isinstance(size, float) and isinstance(declared, Expression)
                text = declared_text(declared, type_name(self._cls)) if is_float else ""
                raise FieldError(
                    self._where,
                    f"the entry {index} of the declared shape gives no size",
                    expected="an int of 0 or more",
                    got=describe(size),
                    fix=f"dx.defer(int)({text})        # in place of {text}" if is_float else None,
                )
        return tuple(map(int, sizes))

    def _metadata(
        self, declared: Mapping[str, Any] | None, sharding: Any, computed: Mapping[str, Any]
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = dict(declared) if declared else {}
        if sharding is not None:
            metadata.setdefault(AXES, sharding)
        for name in ("trainable", "weight_decay"):
            if not computed.get(name, name not in self._marks):
                metadata.setdefault(name, False)
        return metadata

    def _check_made(self, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
        value = value.value if isinstance(value, VariableMetadata) else value
        got = getattr(value, "shape", () if isinstance(value, (int, float, complex)) else None)
        if got is None or tuple(got) != shape:
            raise InitializerError(
                self._where,
                "the initializer returned a value of the wrong shape",
                expected=f"an array of shape {shape} and dtype {jnp.dtype(dtype)}",
                got=describe(value),
            )

    def _draw(self, rngs: Any, stream: str) -> Any:
        """The next key of a stream; or of the one stream that the constructor got."""
        if rngs is None:
            raise MissingRngsError(RNGS, NO_RNGS, fix="rngs=dx.Rngs(0)")
        # a stream, by its own attributes: an Rngs answers for any name with its default stream
        is_stream = callable(rngs) and {"key", "count", "tag"} <= getattr(rngs, "__dict__", {}).keys()
        try:
            draw: Any = rngs if is_stream else getattr(rngs, stream)
        except AttributeError as error:
            if isinstance(error, DeclaxError):  # an Rngs without this stream, which it says
                raise
            draw = None
        if not callable(draw):
            raise FieldError(
                self._where,
                f"a declared Variable draws from the stream {stream!r}, and the given rngs have no streams",
                expected="dx.Rngs, or one of its streams",
                got=describe(rngs),
                fix="rngs=dx.Rngs(0)",
            )
        return draw()


def _check_called(where: str, initializer: Any, made: Any = MISSING) -> None:
    """Raises for a function that makes initializers, in place of its result; `made` is what a call of it gave."""
    made = made.value if isinstance(made, VariableMetadata) else made
    if isinstance(initializer, Expression) or not (made is MISSING or callable(made)):
        return
    initializer = getattr(initializer, "initializer", initializer)  # of `with_metadata`
    owner = _FACTORIES.get(getattr(initializer, "__module__", "")) if isinstance(initializer, FunctionType) else None
    if owner is None or initializer in (jax.nn.initializers.zeros, jax.nn.initializers.ones):
        return
    name = f"{owner}.{initializer.__name__}"
    raise InitializerError(
        where, f"{name} makes an initializer, and is given in place of one", fix=f"{name}()        # call it"
    ) from None


def _takes_others(where: str, initializer: Any, error: TypeError) -> InitializerError:
    """The error for a function of other arguments, such as `jnp.zeros`, or for a value, in place of an initializer."""
    name = getattr(initializer, "__name__", "function")
    if isinstance(initializer, (int, float)):
        fix = f"dx.initializers.constant({initializer!r})"
    elif name in ("zeros", "ones"):
        fix = f"dx.initializers.{name}"
    else:
        fix = f"lambda key, shape, dtype: {name}(shape, dtype)"
    return InitializerError(
        where,
        "the initializer is called with a key, a shape and a dtype, and takes no such arguments",
        got=describe(initializer),
        why=str(error),
        fix=fix,
    )


_FACTORIES: Final = {
    "declax.initializers": "dx.initializers",
    jax.nn.initializers.normal.__module__: "jax.nn.initializers",
}
"""The modules whose functions make initializers."""


# --- checks at class creation -------------------------------------------------


def check_variable(cls: type, name: str, recipe: VariableRecipe, annotation: object, known: Collection[str]) -> None:
    """Checks the declaration of a Variable when the class is created; `known` are all fields and InitVars."""
    where = f"{type_name(cls)}.{name}"
    if recipe.stream is not None and RNGS not in known:
        raise FieldError(
            where,
            f"a declared Variable draws from the stream {recipe.stream!r}, and the class takes no rngs",
            fix=f"{layer_line(cls)}\nvariable(..., stream=None)        # draws no key",
        )
    _check_called(where, recipe.initializer)
    scope = AnnotationScope(cls)
    decide(annotation, scope)  # looks up all names in it
    if scope.is_complete:
        _kind_of(where, annotation, scope)


def _kind_of(where: str, annotation: object, scope: AnnotationScope) -> type:
    kind = class_within(scope.resolve(annotation), scope, Variable)
    if kind is None:
        raise FieldError(
            where,
            "variable(...) declares a Variable, and the annotation is not a kind of Variable",
            expected="a kind of Variable, as Param[jax.Array]",
            got=annotation_text(annotation),
            fix=f"{where.rpartition('.')[2]}: dx.Param[jax.Array] = dx.variable(...)",
        )
    return kind
