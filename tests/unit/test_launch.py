"""`python -m declax.launch`: one program in several processes, which end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import declax.launch
from declax.launch.running import AFTER_FAILURE

WAITS = "import time; time.sleep(300)"


def command(options: str, *program: str | Path) -> list[str]:
    return [sys.executable, "-m", "declax.launch", *options.split(), *map(str, program)]


def launched(options: str, *program: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(options, *program), capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text("import os, signal, sys, time\nme = os.environ['DECLAX_PROCESS']\n" + textwrap.dedent(text))
        return path

    return write


def test_each_process_has_its_number_the_arguments_and_a_prefix(script):
    program = script("print(me, os.environ['DECLAX_PROCESSES'], sys.argv[1:])\nprint('w', file=sys.stderr)")
    done = launched("--processes 3", program, "--lr", "3", "-m")
    assert sorted(done.stdout.splitlines()) == [f"[{n}] {n} 3 ['--lr', '3', '-m']" for n in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{n}] w" for n in range(3)]
    assert done.returncode == 0


def test_a_module_is_a_program(script, monkeypatch):
    folder = script("print('a module', sys.argv[1:])").parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    done = launched("--processes 1 -m", "train", "x")
    assert done.stdout == "[0] a module ['x']\n", done.stderr


def test_the_processes_agree_on_a_port_that_others_do_not_reach(script):
    program = script("print(os.environ['JAX_COORDINATOR_ADDRESS'], os.environ['JAX_COORDINATOR_BIND_ADDRESS'])")
    lines = {line[4:] for line in launched("--processes 2", program).stdout.splitlines()}
    (line,) = lines
    address, bound = line.split()
    assert address == bound
    assert address.startswith("127.0.0.1:")
    others = launched("--processes 2", program).stdout
    assert address not in others


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("--processes 2 --devices 3", "3 None"),
        ("--processes 2", "None 1"),
        ("--processes 1", "None None"),
    ],
)
def test_devices_of_a_process(script, options, printed):
    """Virtual ones of the CPU, or a GPU each."""
    text = """
    if me == str(int(os.environ['DECLAX_PROCESSES']) - 1):
        flags = os.environ.get('XLA_FLAGS', '=None').rpartition('=')[2]
        print(flags, os.environ.get('JAX_LOCAL_DEVICE_IDS'))
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        command(options, script(text)), capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    assert done.stdout.partition(" ")[2] == printed + "\n"


def test_one_that_fails_ends_the_others_and_its_error_is_last(script):
    program = script(f"if me == '1': print('before', file=sys.stderr); raise ValueError('a bug')\n{WAITS}")
    started = time.monotonic()
    done = launched("--processes 3", program)
    assert time.monotonic() - started < 60
    assert done.returncode == 1
    _, last = done.stderr.split("process 1 of 3 ended with status 1:\n")
    assert last.startswith("before\nTraceback")
    assert last.endswith("ValueError: a bug\n")


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("sys.exit(7)", 7, "process 0 of 2 ended with status 7\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "process 0 of 2 was ended by SIGKILL\n"),
    ],
)
def test_the_exit_status_is_that_of_the_one_that_failed(script, line, status, said):
    done = launched("--processes 2", script(f"if me == '0': {line}\n{WAITS}"))
    assert (done.returncode, done.stderr) == (status, said)


WAITS_AT_ITS_END = """
import atexit, declax.launch

def wait():  # as JAX does
    open(sys.argv[1], 'w').close()
    time.sleep(3)

if me == '1': atexit.register(wait)
declax.launch._report_errors(int(os.environ[declax.launch.REPORTS]))
if me == '1': sys.exit({status})
while not os.path.exists(sys.argv[1]): time.sleep(0.1)
raise ValueError('no answer')
"""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("'bad config'", "process 1 of 2 ended with status 1:\nbad config\n"),
        ("3", "process 1 of 2 ended with status 3\n"),
        ("0", "ValueError: no answer\n"),
    ],
)
def test_one_that_exits_and_waits_for_the_others_is_named(script, tmp_path, status, said):
    """The others fail since they get no answer from it, and it ends later than they do."""
    done = launched("--processes 2", script(WAITS_AT_ITS_END.format(status=status)), tmp_path / "sign")
    assert done.stderr.endswith(said)
    assert done.returncode == {"3": 3}.get(status, 1)
    assert "[0] ValueError: no answer\n" in done.stderr


IGNORES = """
signal.signal(signal.SIGTERM, lambda *_: print('ignored', flush=True))
if me == '0':
    time.sleep(1)
    raise ValueError('a bug')
while True: time.sleep(1)
"""


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_time(script):
    started = time.monotonic()
    done = launched("--processes 2 --grace 1", script(IGNORES))
    assert time.monotonic() - started < 60
    assert "[1] ignored" in done.stdout
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: a bug\n")


def test_helpers_end_with_their_process(script):
    """Such as those that load data."""
    helper = f"import subprocess; print(subprocess.Popen([sys.executable, '-c', {WAITS!r}]).pid)"
    done = launched("--processes 1", script(helper))
    number = int(done.stdout.removeprefix("[0] "))
    for _ in range(100):
        if not _lives(number):
            return
        time.sleep(0.1)
    pytest.fail("the helper lives on")


def _lives(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


SAVES = """
def end(number, frame):
    print('saved after', signal.Signals(number).name, flush=True)
    sys.exit(int(sys.argv[1]))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, end)
print('ready', flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("status", [0, 3])
def test_signals_reach_all_processes(script, number, status):
    with subprocess.Popen(
        command("--processes 2", script(SAVES), str(status)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        lines = [running.stdout.readline() for _ in range(2)]
        running.send_signal(number)
        out, errors = running.communicate(timeout=60)
    assert sorted(lines) == ["[0] ready\n", "[1] ready\n"]
    ready = sorted(out.splitlines())
    assert ready[0] == f"[0] saved after {number.name}" or ready == [f"[1] saved after {number.name}"]
    if status == 0:
        assert len(ready) == 2
    assert running.returncode == status, errors


def test_a_signal_that_all_ignore_ends_them_after_the_grace_time(script):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n" + WAITS
    with subprocess.Popen(
        command("--processes 1 --grace 0.5", script(text)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=60)
    assert errors == "process 0 of 1 did not end in the grace time, and was killed\n"
    assert running.returncode == 137


def test_time_is_up(script):
    done = launched("--processes 2 --timeout 2", script(f"if me == '0': sys.exit()\n{WAITS}"))
    assert (done.returncode, done.stderr) == (124, "process 1 of 2 took longer than 2 s\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--processes 0 {}", "argument --processes: 0 is less than 1"),
        ("--processes two {}", "argument --processes: invalid _count value: 'two'"),
        ("--processes 2 --grace -1 {}", "argument --grace: -1 is less than 0"),
        ("--processes 2 missing.py", "there is no file 'missing.py'"),
        ("{}", "the following arguments are required: --processes"),
    ],
)
def test_a_wrong_command_line(script, options, said):
    done = launched(options.format(script("")))
    assert done.returncode == 2
    assert said in done.stderr


# --- initialize ---------------------------------------------------------------------

CONNECTED = """
import jax, numpy as np
import declax.launch
declax.launch.initialize()
rows = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ('data',)), jax.P('data'))
x = jax.make_array_from_process_local_data(rows, np.ones(jax.local_device_count()))
print(jax.process_index(), 'of', jax.process_count(), float(x.sum()), flush=True)
"""


@pytest.mark.slow
def test_initialize_connects_the_processes(script):
    done = launched("--processes 2 --devices 2", script(CONNECTED))
    found = [line for line in sorted(done.stdout.splitlines()) if " of 2 " in line and "Gloo" not in line]
    assert found == ["[0] 0 of 2 4.0", "[1] 1 of 2 4.0"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["0", "1"])
def test_an_error_while_others_compute_ends_all_at_once(script, bad):
    """JAX lets the one that fails wait for the others, which wait for it, and takes SIGTERM for a preemption."""
    program = script(CONNECTED + f"assert me != {bad!r}, 'a bug'\nfloat((x + 1).sum())\n")
    started = time.monotonic()
    done = launched("--processes 2 --devices 1", program)
    assert time.monotonic() - started < 30 + AFTER_FAILURE < 100, "JAX alone takes 30 seconds more"
    assert done.returncode == 1
    assert done.stderr.endswith("AssertionError: a bug\n")
    assert f"\nprocess {bad} of 2 ended with status 1:\nTraceback" in done.stderr


@pytest.mark.slow
def test_one_that_exits_while_others_compute_is_named(script):
    """JAX lets it wait for the others until the time is up, and aborts all."""
    short = CONNECTED.replace("initialize()", "initialize(shutdown_timeout_seconds=5)")
    program = script(short + "if me == '1': sys.exit('bad config')\nfloat((x + 1).sum())\n")
    done = launched("--processes 2 --devices 1", program)
    _, last = done.stderr.split("\nprocess 1 of 2 ")
    assert "bad config\n" in last
    assert done.returncode != 0


def test_initialize_does_nothing_in_a_program_that_runs_alone(monkeypatch):
    called = []
    monkeypatch.setattr("jax.distributed.initialize", lambda **options: called.append(options))
    declax.launch.initialize()
    assert called == []
    declax.launch.initialize(process_id=1, num_processes=2)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1234")
    declax.launch.initialize()
    assert called == [{"process_id": 1, "num_processes": 2}, {}]


def test_initialize_leaves_a_cluster_to_jax(monkeypatch):
    called = []
    monkeypatch.setattr("jax.distributed.initialize", lambda **options: called.append(options))
    for name in ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    declax.launch.initialize()
    assert called == [{}]
