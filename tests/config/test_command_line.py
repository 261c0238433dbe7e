"""The command ``declax``, and `cli` of scripts, as their users see them."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import declax as dx
from declax.config._cli.arguments import load_target, read_words
from declax.config._cli.main import main
from declax.config._cli.output import write
from declax.config._cli.parsing import declax_parser

MODELS = '''
import dataclasses
import jax
import declax as dx
from collections.abc import Callable


@dx.dataclass
class Attention(dx.Layer):
    """Looks around."""
    dim: int = dx.static(ge=1, help="the width")
    heads: int = dx.static(default=4, ge=1, le=64)
    """How many ``views`` there are."""
    q = dx.Linear(dim, dim)


@dx.dataclass
class Mlp(dx.Module):
    dim: int
    hidden: int = 128
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)


@dx.dataclass
class Net(dx.Module):
    """A net of blocks."""
    blocks: list[Attention | Mlp]
    dtype: str = dx.static(default="float32", choices=("float32", "bfloat16"))

    def __call__(self, x):
        return self.blocks[0].q(x)


@dataclasses.dataclass
class Train:
    """One run.

    Args:
      steps: how many there are.
    """
    net: dx.Spec[Net]
    steps: int = 100
    rate: float = 0.1
    is_fast: bool = False
    name: str = "run"
    tags: list[str] = dataclasses.field(default_factory=list)
    label: str | None = None
'''
NET = 'dtype = "bfloat16"\n[[blocks]]\nkind = "Attention"\ndim = 8\n'
NET += '[[blocks]]\nkind = "Mlp"\ndim = 8\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with models and a configuration, which is the current one."""
    (tmp_path / "cli_models.py").write_text(MODELS)
    (tmp_path / "net.toml").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("cli_models", None)


@pytest.fixture
def run(folder, capsys):
    """Runs the command in the folder: the status, what it prints and what it complains of."""

    def call(*words):
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


WRONG = ["blocks[*].dmi=4", "blocks.0.heads=100", "blocks.1.kind=Mpl"]


def test_schema(run, folder):
    assert run("schema", "cli_models:Net", "-o", "net.schema.json") == (0, "", "")
    status, printed, _ = run("schema", "cli_models:Net")
    assert status == 0
    expected = dx.json_schema(load_target("cli_models:Net"))
    assert json.loads(printed) == json.loads((folder / "net.schema.json").read_text()) == expected


def test_check(run):
    status, _, told = run("check", "cli_models:Net", "net.toml", *WRONG)
    assert status == 1
    for piece in ("blocks.0.dmi", "did you mean 'dim'?", "at most 64", "'Mpl'", "did you mean 'Mlp'?"):
        assert piece in told
    assert "command line: blocks.1.kind=Mpl" in told
    status, printed, _ = run("check", "cli_models:Net", "net.toml")
    assert status == 0
    assert "net.toml: a Net, fingerprint" in printed


def test_places_in_the_file_are_told(run, folder):
    (folder / "net.toml").write_text(NET.replace("dim = 8\n[[", 'dim = "8"\n[['))
    status, _, told = run("check", "cli_models:Net", "net.toml")
    assert status == 1
    assert "net.toml:4" in told, told


def test_completion_and_the_version_load_no_jax(folder):
    code = (
        "import sys; from declax.config._cli.main import main; status = main(sys.argv[1:]);"
        "sys.exit(status or 10 * ('jax' in sys.modules))"
    )
    for words in (["completion", "bash"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=folder, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place", ["cli_models", "{folder}/cli_models.py"])
def test_show_lists_parameters_with_their_help(run, folder, place):
    status, printed, _ = run("show", f"{place.format(folder=folder)}:Attention")
    assert status == 0
    assert "Looks around." in printed
    assert "dim: int, at least 1" in printed
    assert "the width" in printed
    assert "heads: int, at least 1, at most 64, default 4\n      How many views there are.\n" in printed
    assert "rngs" not in printed


@pytest.mark.parametrize("format_", ["toml", "json", "yaml"])
def test_show_writes_a_configuration_that_reads_the_same(run, folder, format_):
    if format_ == "yaml":
        pytest.importorskip("yaml")
    status, printed, _ = run("show", "cli_models:Net", "net.toml", "blocks.0.heads=2", "--format", format_)
    assert status == 0
    cls = load_target("cli_models:Net")
    expected = dx.spec_from_config(cls, "net.toml").replace({"blocks.0.heads": 2})
    (folder / f"again.{format_}").write_text(printed)
    assert dx.spec_from_config(cls, f"again.{format_}") == expected


def test_full_has_the_defaults(run):
    assert "hidden = 128" not in run("show", "cli_models:Net", "net.toml")[1]
    assert "hidden = 128" in run("show", "cli_models:Net", "net.toml", "--full")[1]


def test_a_sweep_shows_each_run(run):
    _, printed, _ = run("show", "cli_models:Net", "net.toml", "blocks.0.dim=8,16")
    assert printed.index("# blocks.0.dim=8") < printed.index("# blocks.0.dim=16")


def test_summary_and_build(run):
    status, printed, _ = run("summary", "cli_models:Net", "net.toml", "--input", "float32[2,8]")
    assert status == 0
    assert "blocks[0].q" in printed
    assert "output: " in printed
    assert "[2,8]" in printed
    status, built, _ = run("build", "cli_models:Net", "net.toml", "--seed", "3")
    assert status == 0
    assert "72 (288 B)" in built
    status, _, told = run("summary", "cli_models:Net", "net.toml", "--input", "float32")
    assert status == 2
    assert "not the type of an array" in told


def test_bytes_on_each_device(run):
    words = ("summary", "cli_models:Net", "net.toml", "--mesh", "data=4,model=2")
    _, printed, _ = run(*words, "--optimizer", "adam")
    assert "on each of 8 devices (data=4, model=2):" in printed
    assert "optimizer state" in printed
    _, printed, _ = run(*words, "--rules", "embed=,mlp=model", "--format", "json")
    sizes = json.loads(printed)["devices"]["sizes"]
    assert sizes["parameters"] == sizes["gradients"]
    for option, text in {
        ("--mesh", "data"): "--mesh: not names with values",
        ("--mesh", "data=x"): "these are not the sizes of mesh axes",
        ("--mesh", "data=0"): "these are not the sizes of mesh axes",
        ("--rules", "=x"): "--rules: not names with values",
        ("--optimizer", "adem"): "optax has no such optimizer",
    }.items():
        status, _, told = run(*words, *option)
        assert status == 2
        assert text in told


def test_plan(run, folder):
    """The table, its data, a file that `dx.Plan.read` reads, and what is whole and large on the standard error."""
    words = ("plan", "cli_models:Net", "net.toml", "--mesh", "data=4,model=2")
    status, printed, _ = run(*words, "--rules", "embed=,mlp=model")
    assert status == 0
    assert "replicated: no names" in printed
    assert "on each of 8 devices (data=4, model=2)" in printed
    assert "rules that no Variable uses: embed, mlp" in printed
    _, printed, _ = run(*words, "--optimizer", "adam", "--format", "json", "--out", str(folder / "plan.json"))
    found = json.loads(printed)
    read = dx.Plan.read(folder / "plan.json")
    assert [array["path"] for array in found["arrays"]] == [list(entry.path) for entry in read.entries]
    assert found["devices"] == {"bytes": read.nbytes, "of": read.whole}
    assert {entry.path[0] for entry in read.entries} == {"model", "optimizer"}
    status, printed, told = run(*words, "blocks.0.dim=124", "--strategy", "fsdp")
    assert status == 0
    assert "fsdp" in printed
    status, _, told = run(
        "plan", "cli_models:Net", "net.toml", "blocks.0.dim=101", "--mesh", "data=4", "--strategy=fsdp"
    )
    assert status == 0
    assert told.startswith("fsdp: ")
    assert "pad 101 to 104" in told
    for option, text in {
        (): "plan: the mesh is missing",
        ("--mesh", "data=4", "--strategy", "zero"): "invalid choice: 'zero'",
    }.items():
        status, _, told = run("plan", "cli_models:Net", "net.toml", *option)
        assert status == 2
        assert text in told


def test_plan_with_kinds_of_memory(run, folder):
    """By the name of a kind of Variables; the first one that takes a Variable decides."""
    words = ("plan", "cli_models:Net", "net.toml", "--mesh", "data=4", "--out", str(folder / "plan.json"))
    for memory, moved in {
        "OptVariable=pinned_host": {"optimizer"},
        "Param=device, Variable=pinned_host": {"optimizer"},
        "Param=pinned_host": {"model"},
        "": set(),
    }.items():
        status, printed, _ = run(*words, "--optimizer", "adam", "--memory", memory)
        assert status == 0
        assert ("in pinned_host" in printed) == bool(moved)
        read = dx.Plan.read(folder / "plan.json")
        assert {entry.path[0] for entry in read.entries if entry.memory_kind == "pinned_host"} == moved
    _, script, _ = run("completion", "bash")
    assert any("plan -" in line and "--memory" in line for line in script.splitlines())
    for memory, optimizer, text in (
        ("OptVarable=pinned_host", "adam", "did you mean 'OptVariable'?"),
        ("OptVariable=pinned_host", None, "fix:      --optimizer adam"),
        ("OptVariable=pined_host", "adam", "did you mean 'pinned_host'?"),
        ("OptVariable=x", "adam", "fix:      --memory OptVariable=pinned_host"),
        ("OptVariable", "adam", "--memory: not names with values"),
    ):
        status, _, told = run(*words, "--memory", memory, *(() if optimizer is None else ("--optimizer", optimizer)))
        assert status == 2
        assert text in told


def test_plan_and_summary_name_the_option_for_rules(run, folder):
    (folder / "named_models.py").write_text(
        "import declax as dx\n\n\n@dx.dataclass\nclass Named(dx.Layer):\n    dim: int = dx.field()\n"
        '    up = dx.Linear(dim, dim, kernel_metadata={"out_sharding": ("embed", "mlp")})\n'
    )
    (folder / "named.toml").write_text("dim = 8\n")
    for command in ("plan", "summary"):
        status, _, told = run(command, "named_models:Named", "named.toml", "--mesh", "data=4")
        assert status == 2
        assert "fix:      --rules embed=,mlp=        # behind the = one of the mesh axes data, or nothing" in told


def test_check_merges_files_and_looks_at_all_runs(run, folder):
    (folder / "bad.toml").write_text("[[blocks]]\nkind = 'Attention'\ndmi = 8\nheads = 2\n")
    (folder / "other.toml").write_text("[[blocks]]\nkind = 'Attention'\ndim = 8\nheads = 2\n")
    status, printed, told = run("check", "cli_models:Net", "net.toml", "bad.toml")
    assert (status, printed) == (1, "")
    assert "bad.toml:3:1 blocks.0.dmi" in told
    assert "did you mean 'dim'?" in told
    status, printed, told = run("check", "cli_models:Net", "net.toml", "other.toml", "blocks.0.heads=4,100,5")
    assert status == 1
    assert [line.partition(":")[0] for line in printed.splitlines()] == [
        f"net.toml, other.toml, blocks.0.heads={heads}" for heads in (4, 5)
    ]
    assert told.count("the configuration has one problem") == 1


def test_a_missing_file_is_a_wrong_command_line(run, folder):
    status, _, told = run("check", "cli_models:Net", "nett.toml")
    assert status == 2
    assert "there is no such file" in told
    assert "did you mean 'net.toml'?" in told


@pytest.mark.parametrize("text", ["# of a script\nsteps = 4", '{"steps": 4}', "steps: 4"])
def test_a_configuration_from_the_standard_input(run, train, monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status, printed, _ = run("show", "cli_models:Train", "run.toml", "-", "--format", "json")
    assert (status, json.loads(printed)["steps"]) == (0, 4)


def test_schema_takes_no_values(run):
    status, _, told = run("schema", "cli_models:Net", "steps=3", "bogus.toml")
    assert status == 2
    assert "schema takes a class only" in told


SIZES = """
import declax as dx
from declax.errors import ConstructionError


@dx.dataclass
class Even(dx.Module):
    dim: int

    def __post_init__(self):
        if self.dim % 2:
            raise ConstructionError("Even.dim", "it is odd")


@dx.dataclass
class Net(dx.Module):
    parts: list[Even]
"""


@pytest.mark.parametrize("command", ["summary", "build"])
def test_an_error_of_a_part_says_where_it_is_written(run, folder, command):
    (folder / "cli_sizes.py").write_text(SIZES)
    (folder / "net.toml").write_text("[[parts]]\ndim = 2\n[[parts]]\ndim = 3\n")
    try:
        status, _, told = run(command, "cli_sizes:Net", "net.toml")
        assert status == 1
        assert "it is odd" in told
        assert "JAX_TRACEBACK_FILTERING" not in told
        assert "in the configuration at parts.1 (Even)" in told
        assert "its arguments are written in net.toml:3:1" in told
        assert "written in command line: parts=[{}]" in run(command, "cli_sizes:Net", "parts=[{}]", "parts.0.dim=5")[2]
    finally:
        sys.modules.pop("cli_sizes", None)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("name=3", "3"),
        ("name=1e5", "1e5"),
        ("name=true", "true"),
        ("name=null", "null"),
        ("name='3'", "3"),
        ("name=1979-05-27", "1979-05-27"),
        ("label=null", None),
        ("label=3", "3"),
        ("rate=.5", 0.5),
        ("steps=007", 7),
        ("is_fast=True", True),
        ("tags=[a, 'b,c']", ["a", "b,c"]),
        ("tags=['3', b]", ["3", "b"]),
        ('net.blocks=[{kind = "Mlp", dim = 3}]', 3),
    ],
)
def test_a_value_is_of_the_type_of_its_field(run, train, word, value):
    name = word.partition("=")[0]
    found = dx.cli(train, ["run.toml", word])
    assert (found.net["blocks.0.dim"] if name == "net.blocks" else getattr(found, name)) == value


@pytest.mark.parametrize(
    ("word", "piece"),
    [
        ("rate=high", "write a number"),
        ("rate='.5'", "write .5 without quotes"),
        ("steps=1e5", "write 100000"),
        ("steps=1.5", "got:      the float 1.5"),
        ("net.dtype=16", "the string '16'"),
        ("rate=0.1,x", "the string 'x'"),
    ],
)
def test_a_value_that_fits_in_neither_way_is_reported_as_it_reads(run, train, word, piece):
    status, _, told = run("check", "cli_models:Train", "run.toml", word, "name=3")
    assert status == 1
    assert "the configuration has one problem" in told
    assert piece in told


@pytest.mark.parametrize(
    ("word", "piece"),
    [
        ('part={kind = "Linear", in_features = 3, out_featuers = 4}', "Linear has no parameter 'out_featuers'"),
        ('part={kind = "Linear", in_features = "x", out_features = 4}', "the string 'x'"),
        ('anything={"$ref" = "/part"}', "the reference has no target"),
        ("anything=[1, {kind = 'Linaer'}]", "did you mean 'Linear'?"),
    ],
)
def test_a_table_with_a_mistake_is_no_text(folder, capsys, word, piece):
    """A file with this table is wrong too."""

    @dataclasses.dataclass
    class Settings:
        part: dx.Spec[dx.Linear] | str = "none"
        anything: Any = None

    with pytest.raises(SystemExit):
        dx.cli(Settings, [word])
    assert piece in capsys.readouterr().err


def test_a_sweep_reports_a_wrong_override_once(run, train, capsys):
    status, printed, told = run(
        "check", "cli_models:Train", "run.toml", "rate=high", "steps=1,2,x", "net.blocks.0.dim=4,5"
    )
    assert status == 1
    assert not printed
    assert "the configuration has 2 problems" in told
    assert told.count("rate=high") == told.count("steps=1,2,x") == 1
    with pytest.raises(SystemExit):
        dx.cli(train, ["run.toml", "rate=high", "steps=1,2"], sweep=True)
    assert capsys.readouterr().err.count("rate=high") == 1


def test_overrides_of_a_broken_file_are_no_further_mistakes(run, folder):
    (folder / "net.toml").write_text(NET.replace('"Attention"', "["))
    status, _, told = run("check", "cli_models:Net", "net.toml", "blocks.0.dim=4", "dtype=x")
    assert status == 1
    assert "the configuration has one problem" in told
    assert "net.toml:4:1 (the root): not valid TOML: Invalid value" in told


# ----------------------------------------------------------------- parts


@pytest.mark.parametrize("name", ["model", "trainer.model", "yml", "net.toml_part"])
def test_words_that_are_parts(name):
    assert read_words(["m:Net", name, "a.TOML", "b/c"])[1:3] == (("a.TOML", "b/c"), name)


def test_parts_of_settings(run, train):
    status, printed, told = run("summary", "cli_models:Train", "run.toml", "net")
    assert (status, told) == (0, "")
    assert "total" in printed
    status, printed, told = run("summary", "cli_models:Train", "run.toml", "net.dtype=bfloat16")
    assert status == 0
    assert "Train has no arrays outside its parts. Add the name of a part: net" in told
    status, printed, told = run("build", "cli_models:Train", "run.toml")
    assert (status, printed) == (2, "")
    assert "Train is not a model" in told
    assert "add the name of a part: net" in told
    status, printed, _ = run("build", "cli_models:Net", "net.toml", "blocks.0", "--seed", "3")
    assert status == 0
    assert "q " in printed
    assert "blocks" not in printed
    assert run("show", "cli_models:Train", "run.toml", "net.blocks[0]", "steps=x")[0] == 1
    assert run("show", "cli_models:Train", "run.toml", "net.blocks[0]") == (0, 'kind = "Mlp"\ndim = 4\n', "")


@pytest.mark.parametrize(
    ("words", "status", "piece"),
    [
        (["summary", "cli_models:Net", "net.toml", "blocks"], 1, "not a part"),
        (["summary", "cli_models:Net", "net.toml", "blocks.7"], 1, "there is no '7' at blocks"),
        (["build", "cli_models:Net", "net.toml", "block.0"], 1, "did you mean 'blocks'?"),
        (["show", "cli_models:Net", "net.toml", "blocks.0", "blocks.1"], 2, "more than one part"),
        (["check", "cli_models:Net", "net.toml", "blocks.0"], 2, "no such file"),
        (["show", "cli_models:Train", "run.toml", "models"], 1, "there is no 'models' at (the root)"),
    ],
)
def test_what_is_no_part(run, train, words, status, piece):
    found, _, told = run(*words)
    assert found == status
    assert piece in told


# ----------------------------------------------------------------- JSON


def test_json_and_nothing_else(run, train, folder):
    (folder / "cli_models.py").write_text(MODELS + "print('imported')\n")
    sys.modules.pop("cli_models")
    status, printed, told = run("summary", "cli_models:Train", "run.toml", "net", "--format", "json")
    assert (status, told) == (0, "imported\n")
    assert json.loads(printed) == {"modules": [], "totals": {}}
    _, printed, _ = run("build", "cli_models:Net", "net.toml", "--format", "json")
    assert json.loads(printed)["totals"] == {"Param": {"elements": 72, "bytes": 288}}
    arrays = json.loads(printed)["modules"][0]["entries"]
    assert arrays[0] == {"name": "bias", "kind": "Param", "shape": [8], "dtype": "float32"}
    _, printed, _ = run("summary", "cli_models:Net", "net.toml", "--format", "json", "--input", "float32[2,8]")
    assert json.loads(printed)["output"] == "f32[2,8]"
    _, printed, _ = run("show", "cli_models:Net", "--format", "json")
    assert json.loads(printed) == dx.json_schema(load_target("cli_models:Net"))
    _, printed, _ = run("check", "cli_models:Net", "net.toml", "--format", "json")
    assert json.loads(printed)["kind"] == "Net"


def test_json_of_sweeps_and_of_errors(run, train):
    words = ["cli_models:Net", "net.toml", "--format", "json"]
    _, printed, _ = run("show", *words, "blocks.0.dim=4,8", "blocks.1.dim=2")
    runs = json.loads(printed)
    assert [found["run"] for found in runs] == ["blocks.0.dim=4", "blocks.0.dim=8"]
    assert runs[1]["result"] == dx.to_config(
        dx.spec_from_config(load_target(words[0]), "net.toml").replace({"blocks.1.dim": 2})
    )
    for command in ("show", "check", "summary", "build"):
        status, printed, told = run(command, *words, "dtype=x")
        assert (status, told) == (1, "")
        (problem,) = json.loads(printed)["error"]["problems"]
        assert (problem["code"], problem["path"]) == ("no-choice", ["dtype"])
        assert problem["place"]["file"] == "command line: dtype=x"
        status, printed, told = run(command, "--format", "json")
        assert (status, told) == (2, "")
        assert "the class is missing" in json.loads(printed)["error"]["message"]
    with pytest.raises(SystemExit):
        dx.cli(train, ["run.toml", "--show", "--format=json", "steps=7,8"], sweep=True)


@pytest.mark.parametrize(
    ("words", "piece", "fix"),
    [
        (["--format=json"], "the following arguments are required: COMMAND", "declax --help"),
        (["sho", "--format=json"], "argument COMMAND: invalid choice: 'sho'", "did you mean 'show'?"),
        (["show", "--format", "json", "--ful"], "unrecognized arguments: --ful", "declax --help"),
        (
            ["build", "--seed", "x", "--format", "json"],
            "argument --seed: invalid int value: 'x'",
            "declax build --help",
        ),
        (["show", "--format", "json"], "the class is missing", "module:Class"),
        (["--format", "json", "show"], "the class is missing", "module:Class"),
        (["--format=json", "sho", "cli_models:Net"], "argument COMMAND: invalid choice: 'sho'", "did you mean 'show'?"),
    ],
)
def test_wrong_command_lines_are_json_too(run, words, piece, fix):
    status, printed, told = run(*words)
    assert (status, told) == (2, "")
    message = json.loads(printed)["error"]["message"]
    assert message.startswith(f"the command line: {piece}")
    assert fix in message


def test_a_script_words_wrong_command_lines_in_the_same_way(train, capsys):
    with pytest.raises(SystemExit) as ended:
        dx.cli(train, ["run.toml", "--ful"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("the command line: unrecognized arguments: --ful")
    with pytest.raises(SystemExit) as ended:
        dx.cli(train, ["run.toml", "--show", "--format", "json", "--ful"])
    assert "unrecognized" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_script_shows_a_sweep_as_one_document(train, capsys):
    with pytest.raises(SystemExit):
        dx.cli(train, ["run.toml", "--show", "--format=json", "steps=7,8"], sweep=True)
    assert [run["result"]["steps"] for run in json.loads(capsys.readouterr().out)] == [7, 8]


# ----------------------------------------------------------------- the terminal


@pytest.mark.parametrize("words", [["show", "declax:Linear"], ["--help"], ["show", "--help"]])
def test_a_pipe_that_is_closed_ends_the_command(folder, words):
    code = "import os, sys; os.close(1); os.dup2(int(sys.argv[1]), 1); sys.argv[1:2] = [];"
    code += "from declax.config._cli.main import main; sys.exit(main())"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code, str(writing), *words], pass_fds=[writing], stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_version(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"declax {dx.__version__}\n"


def test_the_help_of_each_command_has_examples_that_can_be_parsed(capsys):
    parser = declax_parser()
    for name, command in parser.commands.items():
        with pytest.raises(SystemExit):
            main([name, "--help"])
        _, _, examples = capsys.readouterr().out.partition("examples:\n")
        assert examples
        for line in examples.splitlines():
            program, *words = shlex.split(line.replace('eval "$(', "").replace(')"', ""))
            assert program == "declax"
            assert parser.parse_words(words).command == name
        assert command.format_help().endswith(examples)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("style", ["help", "error", "table", "toml", "json", ""])
def test_colours_where_rich_is_installed(monkeypatch, style):
    pytest.importorskip("rich")
    text = "usage: --x=3\n  fix:      'a b'\n"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def written(stream):
        write(text, style, stream)
        return stream.getvalue()

    assert written(io.StringIO()) == text
    assert ("\x1b[" in written(Terminal())) == bool(style)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in written(Terminal())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert written(Terminal()) == text


def test_long_lines_are_wrapped(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    write("first\n    expected: " + "word " * 8, "error", stream)
    lines = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()
    assert lines[0].rstrip() == "first"
    assert all(len(line) <= 30 for line in lines)
    assert len(lines) > 2


def test_a_file_with_quotes_is_told_of_them(run, train, folder):
    (folder / "run.toml").write_text((folder / "run.toml").read_text().replace("steps = 3", "steps = '3'"))
    assert "write 3 without quotes" in run("check", "cli_models:Train", "run.toml", "rate=x")[2]


def test_a_misspelt_table_is_placed_at_the_command_line(run):
    told = run("check", "cli_models:Net", "net.toml", "modl.x=3")[2]
    assert "command line: modl.x=3 modl: " in told


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["show", "net.toml"], "the class is missing"),
        (["check", "cli_models:Nett", "net.toml"], "did you mean 'Net'?"),
        (["check", "cli_modelz:Net", "net.toml"], "did you mean 'cli_models'?"),
        (["check", "cli_modelz:Net", "net.toml"], "there is no module 'cli_modelz'"),
        (["check", "nothing.py:Net", "net.toml"], "the file does not exist"),
        (["check", ".cli_models:Net", "net.toml"], ".cli_models:Net: the import fails: TypeError: "),
        (["check", "cli_models:Net", "cli_models:Mlp"], "more than one class"),
        (["check", "cli_models:Net", "net.tml"], "did you mean 'net.toml'?"),
    ],
)
def test_wrong_command_lines(run, words, piece):
    status, _, told = run(*words)
    assert status in (1, 2)
    assert piece in told


def test_options_may_stand_between_words(run, train, capsys):
    status, printed, _ = run("show", "cli_models:Net", "--format", "json", "net.toml", "--full", "blocks.0.heads=2")
    assert status == 0
    assert '"heads": 2' in printed
    for words in (
        ["show", "cli_models:Net", "--ful", "x=1", "--fast"],
        ["completion", "bash", "a", "b"],
        ["schema", "--format", "json"],
    ):
        status, printed, told = run(*words)
        assert status == 2
        assert "the command line: unrecognized arguments: " in told + printed
    with pytest.raises(SystemExit):
        dx.cli(train, ["run.toml", "--show", "steps=7"])
    assert "steps = 7" in capsys.readouterr().out


def test_classes_of_files(folder):
    assert load_target("cli_models.py:Net").__name__ == "Net"
    (folder / "broken.py").write_text("raise KeyError('inside')")
    with pytest.raises(dx.ConfigError, match=r"broken\.py:1:1: error: the import fails: KeyError: 'inside'") as caught:
        load_target("broken.py:Net")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "broken" not in sys.modules


BROKEN = {
    "syntax": (
        "import declax as dx\nclass Net(dx.Layer)\n    pass\n",
        "broken.py:2:20: error: the import fails: SyntaxError: ",
    ),
    "indentation": ("if True:\n    x = 1\n  y = 2\n", "broken.py:3:8: error: the import fails: IndentationError: "),
    "package": (
        "import nowhere_at_all\n",
        "broken.py:1:1: error: the import fails: ModuleNotFoundError: No module named",
    ),
    "name": (
        "from jax.numpy import nope\n",
        "broken.py:1:1: error: the import fails: ImportError: cannot import name 'nope'",
    ),
    "function": (
        "def f():\n    return 1 / 0\nf()\n",
        "broken.py:2:12: error: the import fails: ZeroDivisionError: division by zero",
    ),
    "other file": ("x = 1\nimport worse\n", "worse.py:1:3: error: the import fails: SyntaxError: "),
    "exit": ("import sys\nsys.exit(3)\n", "broken.py:2:1: error: the import fails: SystemExit: 3"),
    "class": (
        "import declax as dx\n@dx.dataclass\nclass Net(dx.Layer):\n    dim: int = dx.field(ge=1, wrong=2)\n",
        "broken.py:4:16: error: the import fails: TypeError: ",
    ),
    "declaration": (
        "import declax as dx\n@dx.dataclass\nclass Net(dx.Layer):\n    dim: int = dx.field()\n    two = max(dim, 2)\n",
        "broken.py:5:11: error: the import fails: ExpressionError: Net: dim < 2: a field has no value until",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("words", [["check", "broken.py"], ["check", "broken:Net", "net.toml"]], ids=len)
def test_a_file_that_cannot_be_imported_is_one_line_with_its_place(run, folder, name, words):
    text, expected = BROKEN[name]
    (folder / "broken.py").write_text(text)
    (folder / "worse.py").write_text("x (")
    status, printed, told = run(*words)
    assert (status, printed) == (1, "")
    first, *others = told.splitlines()
    assert first.startswith(expected), told
    assert all(line.startswith("  ") for line in others), told
    status, printed, told = run(*words, "--format", "json")
    assert (status, told) == (1, "")
    (problem,) = json.loads(printed)["error"]["problems"]
    place = ":".join(str(problem["place"][key]) for key in ("file", "line", "column"))
    assert place == expected.partition(": error")[0]
    assert problem["message"] in first


@pytest.mark.parametrize("command", ["show", "summary", "build", "schema", "check"])
def test_each_command_says_in_the_same_way_that_a_file_cannot_be_imported(run, folder, command):
    (folder / "broken.py").write_text("import declax as dx\nraise ValueError('inside')\n")
    told = "broken.py:2:1: error: the import fails: ValueError: inside. [config]\n"
    assert run(command, "broken.py:Net", *(["net.toml"] if command != "schema" else [])) == (1, "", told)


SAME = """
from typing import Annotated, TypeAlias
import jax
import declax as dx
Row: TypeAlias = Annotated[jax.Array, dx.shape("n")]

@dx.dataclass
class Same(dx.Layer):
    def __call__(self, x: Row) -> Row:
        return x
"""


def test_a_file_that_cannot_be_imported_does_not_hide_the_next_one(run, folder):
    (folder / "broken.py").write_text("1 / 0")
    (folder / "fine.py").write_text(SAME)
    status, printed, told = run("check", "broken.py", "fine.py")
    assert (status, printed) == (1, "Same.__call__: proven for all n ≥ 1\n")
    assert told == "broken.py:1:1: error: the import fails: ZeroDivisionError: division by zero. [config]\n"


# ----------------------------------------------------------------- scripts


@pytest.fixture
def train(folder):
    (folder / "run.toml").write_text("steps = 3\n[net]\n[[net.blocks]]\nkind = 'Mlp'\ndim = 4\n")
    return load_target("cli_models:Train")


def test_cli_reads_a_file_and_overrides(train):
    found = dx.cli(train, ["run.toml", "rate=0.5", "net.blocks.0.hidden=7"])
    assert (found.steps, found.rate) == (3, 0.5)
    assert isinstance(found.net, dx.Spec)
    assert found.net.build(rngs=dx.Rngs(0)).blocks[0].hidden == 7


def test_cli_has_a_default_file(train):
    assert dx.cli(train, ["rate=0.5"], default="run.toml").steps == 3


def test_cli_fills_tables_that_the_file_leaves_out(train, folder):
    (folder / "empty.toml").write_text("")
    found = dx.cli(train, ["empty.toml", "net.dtype=bfloat16", "net.blocks=[{kind = 'Mlp', dim = 4}]"])
    assert found.net["dtype"] == "bfloat16"
    assert found.net["blocks.0.dim"] == 4


def test_cli_builds_with_rngs(folder):
    net = dx.cli(load_target("cli_models:Net"), ["net.toml"], rngs=dx.Rngs(0))
    assert net.blocks[0].q.kernel.shape == (8, 8)


def test_cli_sweeps_where_it_may(train, capsys):
    runs = dx.cli(train, ["run.toml", "rate=0.5,0.25"], sweep=True)
    assert [(run.name, run.config.rate) for run in runs] == [("rate=0.5", 0.5), ("rate=0.25", 0.25)]
    assert runs[0].spec["rate"] == 0.5
    with pytest.raises(SystemExit) as ended:
        dx.cli(train, ["run.toml", "rate=0.5,0.25"])
    assert ended.value.code == 2
    words = capsys.readouterr().err
    assert "allows one run, but the values make 2" in words
    assert "sweep=True" in words


def test_cli_says_all_that_is_wrong_and_ends_with_1(train, capsys):
    with pytest.raises(SystemExit) as ended:
        dx.cli(train, ["run.toml", "rat=0.5", "steps=x"])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "did you mean 'rate'?" in told
    assert "command line: steps=x" in told
    for words, piece in (
        (["run.toml", "othr.toml"], "no such file"),
        (["cli_models:Train"], "a script takes no class"),
    ):
        with pytest.raises(SystemExit) as ended:
            dx.cli(train, words)
        assert ended.value.code == 2
        assert piece in capsys.readouterr().err


def test_cli_makes_no_array_without_a_part_that_takes_rngs(folder, monkeypatch):
    """A script may call jax.distributed.initialize after it."""

    @dx.dataclass
    class Settings(dx.Module):
        model: dx.Spec[dx.Linear] = dx.field()

    monkeypatch.setattr(jax.random, "key", pytest.fail)
    argv = ["model.in_features=2", "model.out_features=3"]
    assert dx.cli(Settings, argv).model == dx.spec(dx.Linear, 2, 3)


def test_cli_seeds_parts_that_take_rngs(folder):
    net = load_target("cli_models:Net")

    def kernel(*words, **options):
        return dx.cli(net, ["net.toml", *words], **options).blocks[0].q.kernel[...]

    zero, three = kernel(rngs=dx.Rngs(0)), kernel(rngs=dx.Rngs(3))
    assert (kernel() == zero).all()
    assert (kernel("--seed", "3") == three).all()
    assert (zero != three).any()
    runs = dx.cli(net, ["net.toml", "blocks.1.hidden=1,2"], sweep=True)
    assert all((run.config.blocks[0].q.kernel[...] == zero).all() for run in runs)


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (["--help"], ["fields of Train", "steps: int, default 100\n      how many there are.\n"]),
        (["run.toml", "--show"], ["steps = 3"]),
        (["run.toml", "--show", "--format", "yaml"], ["steps: 3"]),
    ],
)
def test_cli_answers_questions(train, capsys, words, pieces):
    with pytest.raises(SystemExit) as ended:
        dx.cli(train, words)
    assert not ended.value.code
    printed = capsys.readouterr().out
    for piece in pieces:
        assert piece in printed


def test_python_m_declax(folder):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())])),
    }
    command = [sys.executable, "-m", "declax", "show", "cli_models:Mlp"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "hidden: int, default 128" in done.stdout


# ----------------------------------------------------------------- flags, hints and differences


@pytest.mark.parametrize("flags", [["--steps", "7"], ["--steps=7"], ["steps=7"], ["--net.blocks.0.dim=4", "--steps=7"]])
def test_flags_are_words(train, flags):
    assert dx.cli(train, ["run.toml", *flags]).steps == 7


def test_flags_of_parts(run, train):
    status, printed, _ = run("show", "cli_models:Net", "net.toml", "--blocks.0.heads", "2", "--format", "json")
    assert (status, json.loads(printed)["blocks"][0]["heads"]) == (0, 2)
    assert run("show", "cli_models:Net", "net.toml", "--blocks.0.heads")[0] == 2


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["chekc", "cli_models:Net"], "did you mean 'check'?"),
        (["check", "cli_models:Net", "net.toml", "blocks[0:2].dim=3"], "a path has an index or a star, and no slice"),
        (["check", "cli_models:Net", "net.toml", "blocks.0.dim", "4"], "blocks.0.dim=..."),
        (["diff", "cli_models:Net", "net.toml"], "diff compares two"),
        (["diff", "cli_models:Net", "net.toml", "nothing"], "no such file or folder"),
    ],
)
def test_hints_of_command_lines(run, words, piece):
    status, _, told = run(*words)
    assert status == 2
    assert piece in told


def test_differences_by_path_and_by_effect(run, folder):
    (folder / "wide.toml").write_text(NET.replace("hidden = 3", "hidden = 5") if "hidden = 3" in NET else NET)
    status, printed, _ = run("diff", "cli_models:Net", "net.toml", "net.toml")
    assert status == 0
    assert "the same values" in printed
    assert "the same arrays" in printed
    status, printed, _ = run("diff", "cli_models:Net", "net.toml", "net.toml", "blocks.1.hidden=9", "--format", "json")
    assert json.loads(printed)["values"] == []


def test_differences_of_files_folders_and_checkpoints(run, folder, monkeypatch):
    (folder / "small.toml").write_text("in_features = 3\nout_features = 4\n")
    (folder / "runs/a").mkdir(parents=True)
    (folder / "runs/a/config.toml").write_text("in_features = 3\nout_features = 5\nuse_bias = false\n")
    dx.save(folder / "saved", {"model": dx.Linear(3, 4, rngs=dx.Rngs(0))})
    words = ["diff", "declax:Linear", "small.toml", "runs/a", "--input", "float32[2,3]"]
    status, printed, _ = run(*words)
    assert status == 0
    for line in (
        "out_features: 4 -> 5", "use_bias: true -> false", "parameters: 16 -> 15", "kernel.value: f32[3,4] -> f32[3,5]",
        "bias.value: f32[4] -> nothing", "output: f32[2,4] -> f32[2,5]",
    ):  # fmt: skip
        assert line in printed
    found = json.loads(run(*words, "--format", "json")[1])
    assert {"path": "/out_features", "before": 4, "after": 5} in found["values"]
    status, printed, _ = run("diff", "declax:Linear", "small.toml", "saved")
    assert "the same arrays" in printed
    assert "the same values" in printed


# ----------------------------------------------------------------- sizes that do not fit

EXAMPLES = """
import dataclasses
import declax as dx
import jax
import jax.numpy as jnp

@dx.dataclass
class Fit(dx.Layer):
    embed: dx.Embed
    blocks: list[dx.Linear]

    @classmethod
    def example_inputs(cls):
        return jax.ShapeDtypeStruct((8, 16), "int32")

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x

@dx.dataclass
class Sized(dx.Layer):
    dim: int = dx.field()
    up: dx.Linear

    def example_inputs(self):
        return (jnp.ones((2, self.dim)),)

    def __call__(self, x):
        return self.up(x)

@dataclasses.dataclass
class Run:
    model: dx.Spec[Fit]
    steps: int = 3
"""
FIT = """[embed]
num_embeddings = 10
features = 32
[[blocks]]
in_features = 32
out_features = 4
"""


@pytest.fixture
def fits(folder):
    (folder / "fit_models.py").write_text(EXAMPLES)
    (folder / "fit.toml").write_text(FIT)
    (folder / "run_fit.toml").write_text(
        FIT.replace("[embed]", "[model.embed]").replace("[[blocks]]", "[[model.blocks]]")
    )


@pytest.mark.parametrize(("target", "file", "prefix"), [("Fit", "fit.toml", ""), ("Run", "run_fit.toml", "model.")])
def test_sizes_that_do_not_fit_are_found_by_example_inputs(run, fits, target, file, prefix):
    words = ["check", f"fit_models.py:{target}", file]
    assert run(*words)[0] == 0
    status, _, told = run(*words, f"{prefix}embed.features=48")
    assert status == 1
    assert "48" in told


def test_inputs_of_the_command_line_and_of_the_model(run, fits):
    words = ["check", "fit_models.py:Fit", "fit.toml", "--input", "int32[8,16]"]
    assert run(*words)[0] == 0
    assert run(*words, "embed.features=48")[0] == 1
    assert run("check", "fit_models.py:Sized", "dim=3", "up.in_features=3", "up.out_features=4")[0] == 0
    assert run("check", "fit_models.py:Sized", "dim=3", "up.in_features=5", "up.out_features=4")[0] == 1
    assert "output: f32[8,16,4]" in run("summary", "fit_models.py:Fit", "fit.toml")[1]
