"""``declax rename``: what it changes, what it lists, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

import checkers
from declax.config._cli.main import main
from plugin_cases import environment, write
from small_declax import SMALL_DECLAX

READING = """
    from typing import Any, Callable, Sequence, TypeVar

    T = TypeVar("T")

    def from_config(cls: Callable[..., T], source: Any, /) -> T:
        raise NotImplementedError

    def cli(cls: Callable[..., T], argv: Sequence[str] | None = None, *, default: str | None = None) -> T:
        raise NotImplementedError
"""
LIBRARY = {
    **SMALL_DECLAX,
    "declax/__init__.py": textwrap.dedent(SMALL_DECLAX["declax/__init__.py"])
    + "from declax.config.loading import from_config as from_config\n"
    + "from declax.config._cli.scripts import cli as cli\n",
    "declax/config/__init__.py": "",
    "declax/config/_cli/__init__.py": "",
    "declax/config/_cli/scripts.py": READING,
    "declax/config/loading.py": READING,
}

# A use that has to change is written «hidden»; `# look` ends a line that has to be listed.
PROJECT = {
    "models.py": '''
        """Models, of which hidden is said nothing."""
        import declax as dx

        hidden = 3


        @dx.dataclass
        class Block(dx.Layer):
            """A block, with hidden features.

            Args:
              dim: the width; hidden is another one.
              «hidden» (int): the width of hidden: what is inside.
            """

            dim: int = dx.field()
            «hidden»: int = dx.field(  # é
                default=4,¤
            )
            up = dx.Linear(dim, «hidden»)

            def area(self, hidden: int) -> int:
                return self.«hidden» * self.dim * hidden


        @dx.dataclass
        class Deep(Block):
            «hidden»: int = 8
            down = dx.Linear(4 * Block.«hidden», Block.dim)

            def area(self, hidden: int) -> int:
                return super().«hidden» + self.«hidden»


        @dx.dataclass
        class Net(dx.Layer):
            blocks: list[Block]
            stem: Block
            by: dict[str, Block]
            head: Block | None = None
            lin = dx.Linear(2, 3)


        @dx.dataclass
        class Other(dx.Layer):
            hidden: int = dx.field()
    ''',
    "package/__init__.py": "from models import Block as Block\n",
    "package/use.py": """
        import copy
        import dataclasses
        import functools
        from typing import Protocol
        import declax as dx
        import models
        from models import Block, Deep, Net, Other


        class HasHidden(Protocol):
            @property
            def hidden(self) -> int: ...


        def size(x: HasHidden, y, block: Block) -> int:
            print("é", block.«hidden», models.hidden)
            print(y.hidden)  # look
            return x.hidden  # look


        def uses(block: Block | None, other: Block | Other, blocks: list[Deep], cls: type[Block]) -> None:
            match block:
                case Block(dim, «hidden» = (found)):
                    print(f"{found} {block.«hidden»:3d}")
                case {"hidden": Other(hidden=1)}:  # look
                    pass
            print(other.hidden)  # look
            if block is None:
                return
            block.«hidden» += blocks[0].«hidden» + sum(b.«hidden» for b in blocks)
            getattr(block, "«hidden»"), setattr(block, '«hidden»', 3), getattr(Other(1), "hidden")
            Block(2, «hidden»=3), cls(2, «hidden»=3), models.Deep(2, «hidden»=3), Other(hidden=3)
            made = functools.partial(Block, «hidden»=3)
            made(«hidden»=4)
            dx.replace(block, «hidden»=4), dataclasses.replace(block, «hidden»=3), dx.replace(Other(1), hidden=4)
            keywords = {"hidden": 3}  # look
            block.area(hidden=3), dict(hidden=3), Block(**keywords)  # look


        def configured() -> None:
            @dx.dataclass
            class Local(Block):
                «hidden»: int = dx.field(default=9¤)

            Local(2).«hidden»
            spec = dx.spec(Block, 2, «hidden»=3)
            spec.replace(«hidden»=4)
            net = dx.spec(Net)
            net.replace({"blocks.0.«hidden»": 3, "stem.«hidden»": 3, "by.hidden.«hidden»": 3, "lin.x": 4})
            net["stem.«hidden»"]
            net["lin.hidden"]  # look
            dx.from_config(Block, {"dim": 2, "«hidden»": 3})
            dx.from_config(Net, {"blocks": [{"kind": "Deep", "«hidden»": 3}, {"kind": "Other", "hidden": 2}],
                                 "stem": {"«hidden»": 2}, "by": {"hidden": {"«hidden»": 3}}, "lin": {"hidden": 3}})
            dx.cli(Net, ["stem.hidden=3"], default="net.json")  # look
    """,
    "net.json": '{"stem": {"«hidden»": 4}, "by": {"hidden": {"«hidden»": 3}}, "lin": {"hidden": 1}}',
    "deep/net.yaml": """
        kind: Net
        "blocks":
          - {kind: Deep, '«hidden»': 3}
          - kind: Other
            hidden: 3  # é
        head:
          «hidden»: 3
    """,
    "runs/net.toml": """
        stem.«hidden» = 3
        [by.hidden]
        dim = 2
        "«hidden»".x = 3
        "«hidden»" . y = 3
        [[blocks]]
        [blocks.«hidden».z]
        [blocks.«hidden».w]
        ref = { "$ref" = "/stem/hidden" }  # look
    """,
    "single.toml": 'kind = "Block"\r\n«hidden» = 3\r\n',
    "broken.toml": "hidden = \n",
    "unknown.toml": "[part]\nhidden = 3  # look\n",
    "net.schema.json": '{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"hidden": {}}}',
    "plain.md": "hidden",
    "old.ipynb": '{"cells": ["block.hidden"]}',
    ".hidden/models.py": "hidden = (",
}


UNPLACED = ("broken", "net.schema", "old")
"""What begins the lines of files as a whole."""


def before(text: str) -> str:
    return text.replace("«", "").replace("»", "").replace("¤", "")


def after(text: str) -> str:
    changed = text.replace("«hidden»: int = 8", 'width: int = dx.field(default=8, renamed_from="hidden")')
    return (
        changed.replace("«hidden»", "width")
        .replace(",¤", ', renamed_from="hidden",')
        .replace("¤", ', renamed_from="hidden"')
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, which is the current one; its declax has no JAX."""
    write(tmp_path / "site", LIBRARY)
    found = tmp_path / "project"
    found.mkdir()
    monkeypatch.chdir(found)
    ini = f"[mypy]\nmypy_path = {tmp_path / 'site'}\ncache_dir = {checkers.CACHE / 'rename'}\n"
    (found / "mypy.ini").write_text(ini, encoding="utf-8")
    return found


def save(project: Mapping[str, str]) -> None:
    for name, text in project.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode())


def saved(project: Mapping[str, str]) -> dict[str, str]:
    return {name: Path(name).read_bytes().decode() for name in project}


def lines_with(project: Mapping[str, str], mark: str) -> set[str]:
    """The places of the lines with a mark, as ``file:line``."""
    return {
        f"{name}:{number}"
        for name, text in project.items()
        for number, line in enumerate(text.splitlines(), 1)
        if mark in line
    }


def test_a_field_is_renamed_in_the_whole_project(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = {name: textwrap.dedent(text).lstrip("\n") for name, text in PROJECT.items()}
    old = {name: before(text) for name, text in project.items()}
    new = {name: after(text) for name, text in project.items()}
    save(old)

    assert main(["rename", "models.py:Block.hidden", "width"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("6 files would change; add --write\n")
    assert "-    up = dx.Linear(dim, hidden)\n+    up = dx.Linear(dim, width)\n" in said
    assert saved(project) == old

    assert main(["rename", "package:Block.hidden", "width", "--write", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert saved(project) == new
    assert found["is_written"]
    assert sorted(found["files"]) == sorted(name for name in project if old[name] != new[name])
    assert found["difference"] == said.partition("\nlook at these:\n")[0]

    of_mypy: list[str] = []
    listed: list[str] = []
    for line in found["look_at"]:
        (of_mypy if line.startswith("mypy, after the change: ") else listed).append(line)
    assert {":".join(line.split(":")[:2]) for line in listed if not line.startswith(UNPLACED)} == (
        lines_with(project, "# look")
    )
    assert [line for line in listed if line.startswith(UNPLACED)] == [
        "broken.toml: not read: not valid TOML: Invalid value",
        "net.schema.json: a schema with the name: write it again by declax schema",
        "old.ipynb: a notebook with the name; notebooks are not changed",
    ]
    assert [line.partition(" error: ")[2] for line in of_mypy] == [
        'Item "Block" of "Block | Other" has no attribute "hidden"  [union-attr]',
        'Unexpected keyword argument "hidden" for "Block"  [call-arg]',  # of Block(**keywords)
    ]


FORMS = """
    from __future__ import annotations

    import dataclasses
    from declax import InitVar, Layer, Linear, Param, Rngs, dataclass, static, submodule, variable, when
    import declax as d

    @dataclass
    class A(Layer):
        bare: int
        twice: int = static(default=3, renamed_from="once")
        size: InitVar[int] = d.field()
        kernel: Param[float] = variable((bare, 3), initializer=None)
        part = Linear(bare, size)
        other: float = -1.5

        @submodule
        def made(self, rngs: Rngs) -> Linear:
            return self.part

        def __post_init__(self, size: int) -> None:
            print(size, self.made, self.bare)

    @dataclasses.dataclass
    class Settings:
        steps: int = 100
"""


NO_OPTION = (
    "this declaration has no renamed_from: old configurations need the new name, and old checkpoints"
    " dx.load(..., rename=...)"
)
NEW_NAME = "has no renamed_from: files with the old name need the new one"


@pytest.mark.parametrize(
    ("field", "lines", "listed"),
    [
        ("A.bare", ['x: int = d.field(renamed_from="bare")', "variable((x, 3)", "Linear(x, size)", "self.x"], ""),
        (
            "A.twice",
            ['x: int = static(default=3, renamed_from="twice")'],
            'forms.py:10:36: renamed_from="once" is replaced: migrate files with that name first',
        ),
        (
            "A.size",
            ["x: InitVar[int] = d.field()", "Linear(bare, x)", "(self, x: int)", "print(x, self"],
            f"forms.py:11:5: an InitVar {NEW_NAME}",
        ),
        ("A.kernel", ['x: Param[float] = variable((bare, 3), initializer=None, renamed_from="kernel")'], ""),
        (
            "A.part",
            ["x = Linear(bare, size)", "return self.x"],
            f"forms.py:13:5: {NO_OPTION}",
        ),
        ("A.other", ['x: float = d.field(default=-1.5, renamed_from="other")'], ""),
        (
            "A.made",
            ["def x(self, rngs", "self.x, self.bare"],
            f"forms.py:17:5: {NO_OPTION}",
        ),
        (
            "Settings.steps",
            ["x: int = 100"],
            f"forms.py:25:5: a field of a standard dataclass {NEW_NAME}",
        ),
    ],
)
def test_each_form_of_a_field(
    folder: Path, capsys: pytest.CaptureFixture[str], field: str, lines: list[str], listed: str
) -> None:
    old = textwrap.dedent(FORMS).lstrip("\n")
    save({"forms.py": old})
    assert main(["rename", f"forms.py:{field}", "x", "--write", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    new = saved({"forms.py": ""})["forms.py"]
    assert [line for line in lines if line not in new] == []
    assert re.findall(rf"\b{field.partition('.')[2]}\b", re.sub(r'renamed_from="\w+"', "", new)) == []
    assert found["look_at"] == ([listed] if listed else [])


def test_declax_is_imported_where_no_name_leads_to_field(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save({"b.py": "from declax import Layer, dataclass\n\n@dataclass\nclass B(Layer):\n    size: int\n"})
    assert main(["rename", "b:B.size", "width", "--write"]) == 0
    assert saved({"b.py": ""})["b.py"] == (
        "import declax as dx\nfrom declax import Layer, dataclass\n\n@dataclass\nclass B(Layer):\n"
        '    width: int = dx.field(renamed_from="size")\n'
    )
    assert "look at" not in capsys.readouterr().out


REFUSED = """
    import declax as dx

    width = 3

    @dx.dataclass
    class Base(dx.Layer):
        size: int = dx.field()
        up = dx.Linear(size, width)

        def area(self) -> int:
            return self.size

    @dx.dataclass
    class Deep(Base):
        depth: int = dx.field()
        size: int = dx.field()

    class Plain:
        size: int = 3
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["m.py:Base.size"],
            "the command line: rename needs a field and its new name. [declax]\n  got:      m.py:Base",
        ),
        (["m.py", "x"], "m.py: this names no field. [config]\n  expected: a field such as models.py:Block.hidden"),
        (["n.py:Base.size", "x"], "n.py:Base.size: there is no module 'n.py' below this folder. [config]\n"),
        (
            ["m.py:Bas.size", "x"],
            "Bas.size: the module m has no class 'Bas'. [config]\n  expected: Base, Deep, Plain\n",
        ),
        (["m.py:Base.siz", "x"], "Base.siz: the class has no such field. [config]\n  expected: size, up\n"),
        (["m.py:Base.area", "x"], "Base.area: this is no field and no part. [config]\n  expected: size, up\n"),
        (["m.py:Plain.size", "x"], "Plain.size: this is no field and no part. [config]\n"),
        (["m.py:Base.rngs", "x"], "Base.rngs: rngs is the name by which layers get their random streams, and stays."),
        (["m.py:Deep.size", "x"], "Deep.size: m.Base declares this name first. [config]\n  fix:      declax rename m:"),
        (["m.py:Base.size", "class"], "Base.size: this cannot be the new name. [config]\n  expected: another name of"),
        (["m.py:Base.size", "a(b"], "Base.size: this cannot be the new name. [config]\n  expected: another name of"),
        (["m.py:Base.size", "depth"], "Base.size: m.Deep has 'depth' already. [config]\n  fix:      choose another"),
        (["m.py:Base.size", "sow"], "Base.size: declax._module.module.Module has 'sow' already. [config]\n"),
        (["m.py:Base.size", "width"], "Base.size: the class body reads another 'width', at m.py:8:26. [config]\n"),
    ],
)
def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    text = textwrap.dedent(REFUSED).lstrip("\n")
    save({"m.py": text})
    assert main(["rename", *words, "--write"]) in (1, 2)
    assert capsys.readouterr().err.startswith(said)
    assert saved({"m.py": ""})["m.py"] == text


def test_a_project_that_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"m.py": "x = (size\n"})
    assert main(["rename", "m.py:Base.size", "x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "the project: mypy cannot read it. [declax]\n  why:      m.py:1: error: '(' was never closed"
    )
    monkeypatch.setitem(sys.modules, "mypy.build", None)
    assert main(["rename", "m.py:Base.size", "x"]) == 2
    assert "it reads the project with mypy, which is not installed" in capsys.readouterr().err


def test_files_that_are_not_read_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save({"m.py": textwrap.dedent(REFUSED), "a/n.py": "", "b/n.py": "import m  # size\n"})
    save({"x-y/__init__.py": "", "x-y/m.py": "", "train-net.py": "import m\nm.Deep(1, depth=2, size=3)\n"})
    Path("c.py").write_bytes("size = 'é'\n".encode("latin-1"))
    assert main(["rename", "m.py:Deep.depth", "x", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["m.py", "train-net.py"]
    listed = [line for line in found["look_at"] if not line.startswith("x-y")]
    assert listed == [
        "b/n.py: not read, since a/n.py is the module n too",
        "c.py: not read, since it is not UTF-8: invalid continuation byte",
    ]
    of_mypy = [line for line in found["look_at"] if line.startswith("x-y")]
    assert [line.partition(": not read: ")[0] for line in of_mypy] == ["x-y/__init__.py", "x-y/m.py"]
    assert all("not a valid Python package name" in line for line in of_mypy)


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real package, whose first run reads JAX."""
    page = (checkers.ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:python|toml) \{file=(\S+)\}\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    save(dict(blocks))
    paths = ":".join(map(str, checkers.search_paths()))
    save({"mypy.ini": f"[mypy]\nmypy_path = {paths}\ncache_dir = {checkers.CACHE / 'rename'}\n"})
    assert {"nets.py", "net.toml"} <= dict(blocks).keys()
    words = [sys.executable, "-m", "declax", "rename", "nets.py:Mlp.hidden", "inner"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
