"""What depth costs where a sharded model is made: 48 blocks against 4, each in a new process, alternating."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

BAR = 1.3

PROGRAM = """
import sys, time
import jax
import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    norm = dx.LayerNorm(dim)
    mix = dx.Linear(dim, 3 * dim)
    up = dx.Linear(dim, 4 * dim)
    down = dx.Linear(4 * dim, dim)


@dx.dataclass
class Net(dx.Layer):
    depth: int = dx.field()
    dim: int = dx.field(default=64)
    embed = dx.Embed(256, dim)
    blocks = dx.repeat(depth, Block(dim))


mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
jax.block_until_ready(jax.device_put(jax.numpy.ones(8), jax.NamedSharding(mesh, jax.P("data"))))
started = time.perf_counter()
model = dx.init_sharded(Net, int(sys.argv[1]), rngs=dx.Rngs(0), mesh=mesh, shardings=dx.fsdp)
jax.block_until_ready(jax.tree.leaves(dx.state(model)))
print(time.perf_counter() - started)
"""


def seconds(depth: int) -> float:
    flags = "--xla_force_host_platform_device_count=8"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", PROGRAM, str(depth)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Prints the ratio of medians, and the seconds for 4 blocks; exits with 1 above the bar."""
    pairs = [(seconds(4), seconds(48)) for _ in range(5)]
    few, many = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"48 blocks take {many / few:.2f} (bar {BAR}) of the {few:.2f} s of 4 blocks")
    sys.exit(many > BAR * few)


if __name__ == "__main__":
    main()
