"""The models of docs/two_styles.md, declared and with an ``__init__``; the page is their only source."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

PAGE = Path(__file__).parent.parent / "docs" / "two_styles.md"
MODELS = ("A GPT", "A ResNet-18")
LINE_LENGTH = 120


@dataclass(frozen=True)
class Program:
    """The classes of a model.

    Attributes:
        source: their text, as the page shows it.
        library: the module that they take their layers from.
        name: of `library` in the text.
    """

    source: str
    library: str
    name: str

    def run(self) -> dict[str, Any]:
        """Executes the classes, in a module of their own."""
        module = types.ModuleType(f"{__name__}.{self.library.replace('.', '_')}_{abs(hash(self.source))}")
        sys.modules[module.__name__] = module
        vars(module).update({"jax": jax, "jnp": jnp, self.name: importlib.import_module(self.library)})
        exec(self.source, vars(module))
        return vars(module)

    @property
    def declarations(self) -> str:
        """The classes without ``__call__``, which is the same in both styles."""
        tree = ast.parse(self.source)
        for cls in tree.body:
            assert isinstance(cls, ast.ClassDef)
            cls.body = [part for part in cls.body if getattr(part, "name", None) != "__call__"]
        return formatted(ast.unparse(tree))


def programs(model: str) -> tuple[Program, Program]:
    """The declared classes of a model of the page, and those of the peer."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {model}\n")[1].split("\n### ")[0]
    declared, peer = re.findall(r"^```\w+\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return Program(declared, "declax", "dx"), Program(peer, "flax.nnx", "nnx")


def formatted(source: str) -> str:
    """The source as ``ruff format`` writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={LINE_LENGTH}", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def size(source: str) -> tuple[int, int]:
    """The characters and the lines of a program; empty lines between classes and methods do not count."""
    lines = [line for line in source.splitlines() if line.strip()]
    return sum(len(line) + 1 for line in lines), len(lines)
