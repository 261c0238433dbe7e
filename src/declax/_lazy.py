"""The public names of the package, each of which loads its module when it is first used."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable
from typing import Any

from declax import errors

NOT_YET = frozenset(
    """Bidirectional ConvTranspose EMA Einsum GRUCell GroupNorm InstanceNorm LSTMCell LinearGeneral LoRA
    LoRALinear Metric ModelAndOptimizer MultiHeadAttention MultiMetric OptimizedLSTMCell
    PReLU RMSNorm RNN RNNCellBase SimpleCell SpectralNorm   WeightNorm
    abstract_with_sharding bridge combine_masks deprecations dot_product_attention extract
    get_abstract_model get_named_sharding get_partition_spec graph graphlib helpers logical_axis_rules
    make_attention_mask make_causal_mask metrics module object optimizer proxy_caller pytreelib reprlib rnglib
    spmd tabulate tracers use_eager_sharding using_eager_sharding variablelib vars_as visualization
    with_partitioning wrappers""".split()
)
"""The public names of ``flax.nnx`` that declax does not have."""

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2\b", re.MULTILINE)


def exports(package: str) -> dict[str, str]:
    """Which module has which name of a package, as the stub of the package says.

    >>> exports("declax")["Linear"]
    'declax.nn'
    """
    stub = pkgutil.get_data(package, "__init__.pyi") or b""
    return {name: module for module, name in _EXPORT.findall(stub.decode())}


def lazy_attributes(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    A name is looked up once, and then is in the namespace of the package. No public name may be that of a module of the
    package as well, since Python puts modules there when they load.
    """
    module_of = exports(package)
    public = sorted(name for name in module_of if not name.startswith("_"))

    def load(name: str) -> Any:
        if name not in module_of:
            is_known = package == "declax" and name in NOT_YET
            near = None if name.startswith("_") else errors.suggest(name, public)  # Python asks for modules here too
            raise errors.MissingAttributeError(
                f"module {package}",
                f"it has no attribute {name!r}",
                why=f"flax.nnx.{name} is not in declax yet" if is_known else None,
                fix='see "What is not there yet" in docs/coming_from_nnx.md' if is_known else near,
            )
        module = module_of[name]
        is_module = module == package
        value = importlib.import_module(f"{package}.{name}" if is_module else module)
        value = value if is_module else getattr(value, name)
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: list(public), public
