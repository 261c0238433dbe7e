"""A package named declax with a few of its names and without JAX, so that mypy reads it in no time.

For tests of how the plugin runs. What it finds is tested on the real package.
"""

SMALL_DECLAX = {
    "declax/__init__.py": """
        from dataclasses import KW_ONLY as KW_ONLY, InitVar as InitVar
        from declax._classes.decorator import dataclass as dataclass
        from declax._fields.specifiers import data as data, field as field, static as static
        from declax._fields.specifiers import submodule as submodule, variable as variable
        from declax._module.module import Module as Module
        from declax._variables.kinds import Param as Param
        from declax._random.streams import Rngs as Rngs
        from declax.config.replacing import replace as replace
        from declax.config.specs import spec as spec
        from declax.nn.layer import Layer as Layer
        from declax.nn.linear import Linear as Linear
        from declax._fields.deferring import when as when
        from declax._graph.api import state as state
        from declax._state.states import State as State
    """,
    "declax/_classes/pytree.py": """
        class PytreeMeta(type):
            pass

        class Pytree(metaclass=PytreeMeta):
            pass
    """,
    "declax/_module/module.py": """
        from declax._classes.pytree import Pytree

        class Module(Pytree):
            def sow(self, kind: object, name: str, value: object) -> None: ...
    """,
    "declax/nn/__init__.py": "",
    "declax/nn/layer.py": """
        from dataclasses import InitVar

        from declax._classes.decorator import dataclass
        from declax._fields.specifiers import field
        from declax._module.module import Module
        from declax._random.streams import Rngs

        @dataclass
        class Layer(Module):
            rngs: InitVar[Rngs | None] = field(default=None, kw_only=True)
    """,
    "declax/nn/linear.py": """
        from declax._classes.decorator import dataclass
        from declax._fields.specifiers import field, variable
        from declax._variables.kinds import Param
        from declax.nn.layer import Layer

        @dataclass
        class Linear(Layer):
            in_features: int = field()
            out_features: int = field()
            kernel: Param[float] = variable((in_features, out_features), initializer=None)
    """,
    "declax/_state/__init__.py": "",
    "declax/_state/states.py": """
        from typing import Any, Generic, TypeVar

        M = TypeVar("M")

        class State(Generic[M]):
            def __getattr__(self, name: str) -> Any: ...
    """,
    "declax/_graph/__init__.py": "",
    "declax/_graph/api.py": """
        from typing import TypeVar

        from declax._classes.pytree import Pytree
        from declax._state.states import State

        P = TypeVar("P", bound=Pytree)

        def state(node: P, /) -> State[P]:
            raise NotImplementedError
    """,
    "declax/_fields/deferring.py": """
        from typing import TypeVar

        T = TypeVar("T")

        def when(flag: bool, item: T, /) -> T | None:
            raise NotImplementedError
    """,
    "declax/config/specs.py": """
        from typing import Any, Callable, Generic, TypeVar

        T = TypeVar("T")

        class Spec(Generic[T]):
            def __getitem__(self, path: str) -> Any: ...
            def replace(self, changes: dict[str, Any] = {}, /, **named: Any) -> "Spec[T]":
                raise NotImplementedError

            def build(self, **given: Any) -> T:
                raise NotImplementedError

        def spec(target: Callable[..., T], /, *args: Any, **kwargs: Any) -> Spec[T]:
            raise NotImplementedError
    """,
    "declax/_variables/variable.py": """
        from typing import Generic, TypeVar

        T = TypeVar("T")

        class Variable(Generic[T]):
            value: T
    """,
    "declax/_variables/kinds.py": """
        from typing import TypeVar

        from declax._variables.variable import Variable

        T = TypeVar("T")

        class Param(Variable[T]):
            pass
    """,
    "declax/_classes/__init__.py": "",
    "declax/_fields/__init__.py": "",
    "declax/_module/__init__.py": "",
    "declax/_random/__init__.py": "",
    "declax/_variables/__init__.py": "",
    "declax/_random/streams.py": """
        from declax._classes.pytree import Pytree

        class Rngs(Pytree):
            def __init__(self, seed: int) -> None:
                self.seed = seed
    """,
    "declax/_fields/specifiers.py": """
        from typing import Any, Callable, Literal, Sequence, TypeVar

        M = TypeVar("M")

        def data(
            *, default: Any = ..., default_factory: Any = ..., init: bool = True, kw_only: bool = False,
            renamed_from: str | None = None
        ) -> Any: ...
        def static(
            *, default: Any = ..., default_factory: Any = ..., init: bool = True, kw_only: bool = False,
            renamed_from: str | None = None
        ) -> Any: ...
        def field(
            *, default: Any = ..., default_factory: Any = ..., init: bool = True, kw_only: bool = False,
            renamed_from: str | None = None
        ) -> Any: ...
        def variable(
            shape: Sequence[int] = (),
            *,
            initializer: Any,
            dtype: Any = None,
            when: bool | None = None,
            stream: str | None = "params",
            renamed_from: str | None = None,
            init: Literal[False] = False,
        ) -> Any: ...
        def submodule(build: Callable[[Any, Any], M]) -> M:
            raise NotImplementedError
    """,
    "declax/_classes/decorator.py": """
        import dataclasses
        from typing import Any, Callable, TypeVar, dataclass_transform, overload

        from declax._fields.specifiers import data, field, static, submodule, variable
        from declax._classes.pytree import Pytree

        P = TypeVar("P", bound=Pytree)

        @overload
        def dataclass(cls: type[P], /) -> type[P]: ...
        @overload
        def dataclass(*, eq: bool = False, frozen: bool = False) -> Callable[[type[P]], type[P]]: ...
        @dataclass_transform(field_specifiers=(field, data, static, variable, submodule, dataclasses.field))
        def dataclass(cls: type[P] | None = None, /, **options: Any) -> Any: ...
    """,
    "declax/config/replacing.py": """
        from typing import Any, TypeVar

        from declax._classes.pytree import Pytree

        P = TypeVar("P", bound=Pytree)

        def replace(obj: P, /, **changes: Any) -> P:
            raise NotImplementedError
    """,
}
