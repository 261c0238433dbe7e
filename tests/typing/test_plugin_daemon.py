"""After each edit of a base class, the daemon reports what a run without a cache of the programs reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_cases import config, environment, write
from small_declax import SMALL_DECLAX

pytestmark = pytest.mark.slow

PROGRAMS = {
    "parts.py": """
        import declax as dx


        @dx.dataclass
        class Part(dx.Layer):
            size: int = dx.field()
            use_bias: bool = dx.field(default=False)
            _: dx.KW_ONLY
            name: object = dx.data(default=None)
            bias: dx.Param[float] = dx.variable((size,), initializer=None, when=use_bias)
            scale: dx.Param[float] = dx.variable((), initializer=None, stream=None)
    """,
    "bases.py": """
        import declax as dx
        from parts import Part


        @dx.dataclass
        class Root(dx.Layer):
            pass


        @dx.dataclass
        class Base(Root):
            width: int = dx.field()
            _: dx.KW_ONLY
            rate: float = dx.field(default=0.1)
            is_wide: bool = dx.field(default=True)
            size: int = 8
            label: object = dx.data(default="a")
            made: object = dx.data(default=None)
            hidden = 4 * width
            count = 4
            part = Part(width)
            other = dx.when(is_wide, Part(width))

            def record(self) -> None:
                self.sow(int, "seen", 1)


        @dx.dataclass
        class Mixin(dx.Layer):
            mixed = 1
    """,
    "middle.py": """
        import declax as dx
        from bases import Base
        from parts import Part


        @dx.dataclass
        class Middle(Base):
            wide = Part(Base.width)
            drop: Part = Part(Base.width, name=Base.rate)
            gate = dx.when(Base.is_wide, Part(Base.hidden))
            if Base.size > 3:
                kept = Part(Base.width)


        @dx.dataclass
        class Last(Middle):
            part = Part(Base.width)
            first = Part(Base.width)
    """,
    "uses.py": """
        import declax as dx
        from bases import Base
        from middle import Last, Middle
        from parts import Part


        def make() -> Middle:
            return Middle(3)


        def keyless() -> None:
            Last(3).record()


        def edit(middle: Middle) -> Middle:
            return dx.replace(middle, width=4)


        def give(middle: Middle) -> Middle:
            return Middle(3, made=middle)


        def name(middle: Middle) -> Part:
            return Part(3, name=middle)


        def describe() -> Middle:
            return dx.spec(Middle, 3, label="b").build()


        def read(middle: Middle) -> object:
            return dx.state(middle).part.scale


        def read_last(last: Last) -> object:
            return dx.state(last).label


        def read_sown(middle: Middle) -> object:
            return dx.state(middle).seen


        def read_class() -> int:
            print(Middle.size + 1)
            return 3


        def read_count() -> int:
            print(Base.count + 1)
            return 3


        class Other(Middle):
            pass


        def make_other(middle: Middle) -> Other:
            return Other(3, made=middle)
    """,
}

RATE = "rate: float = dx.field(default=0.1)"
WIDE = "is_wide: bool = dx.field(default=True)"
WIDTH = "width: int = dx.field()"
LABEL = 'label: object = dx.data(default="a")'
MADE = "made: object = dx.data(default=None)"
PART = "    part = Part(width)"
ROOT = "class Root(dx.Layer):\n    pass"
EDITS = (
    ("bases.py", RATE, "rate: float = 0.1"),
    ("bases.py", RATE, "rate: str = dx.field(default='0.1')"),
    ("bases.py", RATE, "speed: float = dx.field(default=0.1)"),
    ("bases.py", RATE, "known = 3"),
    ("bases.py", WIDE, "is_wide: bool = True"),
    ("bases.py", WIDE, "is_wide: bool = False"),
    ("bases.py", WIDTH, "width: int  # bare"),
    ("bases.py", WIDTH, "width: int = 3"),
    ("bases.py", WIDTH, "width: str = dx.field()"),
    ("bases.py", WIDTH, "width: int = dx.field(init=False)"),
    ("bases.py", WIDTH, "width: int = dx.field("),
    ("bases.py", "size: int = 8", "size: int = dx.field(default=8)"),
    ("bases.py", "count = 4", "count = 4 * width"),
    ("bases.py", LABEL, 'label: object = dx.static(default="a")'),
    ("bases.py", LABEL, 'label: str = dx.static(default="a")'),
    ("bases.py", LABEL, "known = 3"),
    ("bases.py", MADE, "made: object = dx.static(default=None)"),
    ("bases.py", "hidden = 4 * width", "hidden = Base"),
    ("bases.py", PART, "    part = Part(width, True)"),
    ("bases.py", PART, "    part = dx.Linear(width, 3)"),
    ("bases.py", PART, "    part: Part = Part(width, use_bias=True)"),
    ("bases.py", PART, "    part: object = dx.static(default=None)"),
    ("bases.py", PART, "    # no part"),
    ("bases.py", "other = dx.when(is_wide, Part(width))", "other = dx.Linear(width, 3)"),
    ("bases.py", '"seen"', '"known"'),
    ("bases.py", "class Base(Root):", "class Base(dx.Module):"),
    ("bases.py", "@dx.dataclass\nclass Base(Root)", "# no dataclass\nclass Base(Root)"),
    ("bases.py", ROOT, "class Root(dx.Module):\n    pass"),
    ("bases.py", ROOT, "class Root(dx.Layer):\n    up = dx.Linear(2, 3)"),
    ("bases.py", ROOT, "class Root(dx.Layer):\n    seen: int = dx.static(default=3)"),
    ("parts.py", "default=False", "default=True"),
    ("parts.py", "when=use_bias", "when=None"),
    ("parts.py", "stream=None", "stream='params'"),
    ("parts.py", "name: object = dx.data(default=None)", "name: object = dx.static(default=None)"),
    ("parts.py", "name: object", "title: object"),
    ("parts.py", "    scale: dx.Param[float]", "    factor: dx.Param[float]"),
    ("parts.py", "class Part(dx.Layer)", "class Part(dx.Module)"),
    ("parts.py", "@dx.dataclass\n", "# no dataclass\n"),
)


class Daemon:
    """A daemon over the programs in a folder, and runs that know nothing of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now = int(time.time())

    def edit(self, name: str, old: str, new: str) -> None:
        """Replaces a text of a file. The daemon compares the times of changes in whole seconds."""
        path = self._folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new), encoding="utf-8")
        self._now += 2
        os.utime(path, (self._now, self._now))

    def recheck(self) -> list[str]:
        return self._errors("mypy.dmypy", "--status-file", "status.json", "run", "--", "--cache-dir", "of_daemon")

    def check_anew(self) -> list[str]:
        for path in (self._folder / "anew").rglob("*"):
            if f"{path.name.partition('.')[0]}.py" in PROGRAMS:
                path.unlink()
        return self._errors("mypy", "--cache-dir", "anew")

    def stop(self) -> None:
        self._run("mypy.dmypy", "--status-file", "status.json", "stop")

    def _errors(self, *given: str) -> list[str]:
        output = self._run(*given, "--config-file", "mypy.ini", *PROGRAMS)
        return sorted(line for line in output.splitlines() if ": error: " in line)

    def _run(self, module: str, *given: str) -> str:
        words = [sys.executable, "-m", module, *given]
        done = subprocess.run(words, cwd=self._folder, env=environment(), capture_output=True, text=True, check=False)
        assert "INTERNAL ERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    write(folder / "small", SMALL_DECLAX)
    write(folder / "programs", PROGRAMS)
    config(folder / "programs", "sqlite_cache = False", first=folder / "small")
    made = Daemon(folder / "programs")
    try:
        assert made.recheck() == made.check_anew() == []
        yield made
    finally:
        made.stop()


def test_the_daemon_reports_what_a_new_run_reports(daemon: Daemon) -> None:
    wrong = 0
    for name, old, new in EDITS:
        daemon.edit(name, old, new)
        reported, wanted = daemon.recheck(), daemon.check_anew()
        assert reported == wanted, (name, old, new)
        wrong += bool(wanted)
        daemon.edit(name, new, old)
        assert daemon.recheck() == [], (name, new, old)
    assert len(EDITS) >= 30
    assert wrong >= 30


def test_a_base_that_a_class_got_from_another_edit(daemon: Daemon) -> None:
    daemon.edit("middle.py", "class Last(Middle)", "class Last(Mixin, Middle)")
    daemon.edit("middle.py", "import Base\n", "import Base, Mixin\n")
    assert daemon.recheck() == daemon.check_anew() == []
    daemon.edit("bases.py", "mixed = 1", "up = dx.Linear(2, 3)")
    reported = daemon.recheck()
    assert reported == daemon.check_anew()
    assert "Last(...): up.kernel draws a key" in "".join(reported)
