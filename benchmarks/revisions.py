"""Times one statement with this checkout and with an earlier commit, in turns.

Two processes, one with each version, run in alternating rounds. Times are processor times, so that other programs do
not count:

    python -m benchmarks.revisions 42d4af0 --setup "rngs = dx.Rngs(0)" --statement "dx.Linear(4, 4, rngs=rngs)"
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Samples, interleave, ratio

ROOT = Path(__file__).resolve().parents[1]

_WORKER = """
import gc, sys, time
import declax as dx

setup, statement = sys.argv[1:]
names = {"dx": dx}
exec(setup, names)
code = compile("for _ in range(repeats):\\n    " + statement, "<statement>", "exec")

def sample(repeats):
    names["repeats"] = repeats
    begun = time.process_time_ns()
    exec(code, names)
    return (time.process_time_ns() - begun) / repeats

sample(20)
gc.disable()
repeats = max(1, int(5e6 / min(sample(5) for _ in range(10))))
for line in sys.stdin:
    print(min(sample(repeats) for _ in range(5)), flush=True)
    gc.collect()
"""


class Worker:
    """A process that times a statement with one version of declax."""

    def __init__(self, source: Path, setup: str, statement: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(source), "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
        command = [sys.executable, "-c", _WORKER, setup, statement]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=env, cwd=source, stdin=pipe, stdout=pipe, text=True)

    def sample(self) -> float:
        """The nanoseconds of one execution: the best of five parts of about 5 ms."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def measure(commit: str, setup: str, statement: str, rounds: int) -> Samples:
    """The samples of this checkout, under "now", and of a commit, under its name."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
        sources = {"now": ROOT / "src", commit: Path(folder) / "src"}
        workers = {name: Worker(source, setup, statement) for name, source in sources.items()}
        samples = interleave({name: worker.sample for name, worker in workers.items()}, rounds)
        for worker in workers.values():
            worker.close()
    return samples


def main() -> None:
    """Reads the arguments, and prints the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", help="the version to compare with")
    parser.add_argument("--setup", default="rngs = dx.Rngs(0)", help="runs once in each process, which has dx")
    parser.add_argument("--statement", default="dx.Linear(4, 4, rngs=rngs)", help="the statement to time")
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    found = ratio(measure(given.commit, given.setup, given.statement, given.rounds), "now", given.commit)
    print(f"{given.statement}: {found.median:.2f} of {given.commit} ({found.low:.2f} to {found.high:.2f})")


if __name__ == "__main__":
    main()
