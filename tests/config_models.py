"""A transformer with two kinds of mixers, as configurations describe it; its files with every mistake."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp

import declax as dx
from declax._typing import Dtype, Initializer
from declax.config._building import checked_refs
from declax.config._reading.catalog import catalog_for
from declax.config._reading.readers import Context


class Norm(enum.Enum):
    LAYER = "layer"
    RMS = "rms"


@dx.dataclass
class Attention(dx.Layer):
    """Mixes by attention.

    Args:
      heads: how many.
    """

    dim: int = dx.static(ge=1)
    heads: int = dx.static(default=4, ge=1, le=64)
    dropout: float = dx.static(default=0.0, ge=0.0, le=1.0)
    kernel_init: Initializer = dx.static(default=dx.initializers.lecun_normal())
    dtype: Dtype | None = dx.static(default=None)
    query = dx.Linear(dim, dim, kernel_init=kernel_init)


@dx.dataclass
class Mlp(dx.Layer):
    dim: int = dx.static(ge=1)
    hidden: int = dx.static(ge=1)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    kernel_init: Initializer = dx.static(default=dx.initializers.lecun_normal())
    up = dx.Linear(dim, hidden)


@dx.dataclass
class Block(dx.Module):
    mixer: Attention | Mlp
    name: str = "block"
    norm: Norm = dx.static(default=Norm.LAYER)
    scales: tuple[float, ...] = dx.static(default=(1.0,))
    mode: Literal["pre", "post"] = dx.static(default="pre")


@dataclass(frozen=True)
class Data:
    """A dataclass that is no model."""

    path: str
    batch: int = 32
    splits: tuple[float, float] = (0.9, 0.1)
    options: dict[str, Any] = field(default_factory=dict)


@dx.dataclass
class Transformer(dx.Module):
    """Blocks between an embedding and its transpose."""

    dim: int = dx.static(ge=1, help="size of the residual stream")
    embed: dx.Embed
    blocks: list[Block]
    head: dx.Embed | dx.Linear | None = None
    param_dtype: Dtype = dx.static(default=jnp.float32)
    labels: Mapping[str, int] = dx.static(default_factory=dict)
    note: str | None = None
    sizes: Sequence[int] = dx.static(default=(1, 2))
    data: Data | None = None


GOOD: dict[str, Any] = {
    "kind": "Transformer",
    "dim": 8,
    "param_dtype": "bfloat16",
    "embed": {
        "kind": "Embed",
        "num_embeddings": 16,
        "features": 8,
        "embedding_init": {"kind": "normal", "stddev": 0.5},
    },
    "head": {"$ref": "/embed"},
    "labels": {"a": 1},
    "blocks": [
        {"kind": "Block", "mixer": {"kind": "Attention", "dim": 8, "heads": 2, "dropout": 0.5}, "norm": "RMS"},
        {"kind": "Block", "mixer": {"kind": "Mlp", "dim": 8, "hidden": 16, "activation": "relu"}, "scales": [1, 2.5]},
    ],
}


def good_spec() -> dx.Spec[Transformer]:
    """What `GOOD` stands for."""
    return dx.spec(
        Transformer,
        8,
        dx.spec(dx.Embed, 16, 8, embedding_init=dx.initializers.normal(0.5)),
        [
            dx.spec(Block, dx.spec(Attention, 8, 2, 0.5), norm=Norm.RMS),
            dx.spec(Block, dx.spec(Mlp, 8, 16, dx.relu), scales=(1, 2.5)),
        ],
        head=dx.Ref("/embed"),
        param_dtype=jnp.bfloat16,
        labels={"a": 1},
    )


TOML = """\
kind = "Transformer"
dim = 8
param_dtype = "float31"
note = "a"


[embed]
kind = "Embed"
num_embeddings = 16

[head]
"$ref" = "/embedd"

[[blocks]]
kind = "Block"
nam = "first"
scales = [1.0, "two", 3.0]
[blocks.mixer]
kind = "Attention"
dim = "8"
heads = 128
hidden = 16

[[blocks]]
kind = "Block"
[blocks.mixer]
kind = "Mlp"
dim = 8
hidden = 16
activation = "rellu"
[blocks.mixer.kernel_init]
kind = "normal"
stddev = "0.02"

[[blocks]]
kind = "Block"
[blocks.mixer]
kind = "Attenton"

[[blocks]]
kind = "Block"
mixer = { "$ref" = "/blocks/3" }
"""

YAML = """\
kind: Transformer
dim: 8
param_dtype: float31
note: a


embed:
  kind: Embed
  num_embeddings: 16

head:
  $ref: /embedd

blocks:
  - kind: Block
    nam: first
    scales: [1.0, two, 3.0]
    mixer:
      kind: Attention
      dim: "8"
      heads: 128
      hidden: 16

  - kind: Block
    mixer:
      kind: Mlp
      dim: 8
      hidden: 16
      activation: rellu
      kernel_init:
        kind: normal
        stddev: "0.02"

  - kind: Block
    mixer:
      kind: Attenton

  - kind: Block
    mixer: { $ref: /blocks/3 }
"""

JSON = """\
{
  "kind": "Transformer",
  "dim": 8,
  "param_dtype": "float31",
  "note": "a",

  "embed": {
    "kind": "Embed",
    "num_embeddings": 16
  },
  "head": { "$ref": "/embedd" },
  "blocks": [
    {
      "kind": "Block",
      "nam": "first",
      "scales": [1.0, "two", 3.0],
      "mixer": {
        "kind": "Attention",
        "dim": "8",
        "heads": 128,
        "hidden": 16
      }
    },
    {
      "kind": "Block",
      "mixer": {
        "kind": "Mlp",
        "dim": 8,
        "hidden": 16,
        "activation": "rellu",
        "kernel_init": {
          "kind": "normal",
          "stddev": "0.02"
        }
      }
    },
    { "kind": "Block",
      "mixer": {
        "kind": "Attenton"
      }
    },
    { "kind": "Block",
      "mixer": { "$ref": "/blocks/3" }
    }
  ]
}
"""


def read_as(annotation: Any, data: object, context: Context) -> Any:
    """The value of plain data for an annotation; INVALID if the report of the context has problems."""
    context.catalog = catalog_for(())
    return checked_refs(context.catalog.root_reader(annotation).read(data, (), context), context)
