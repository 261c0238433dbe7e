"""A run that Weights & Biases follows, without a connection: ``wandb sync runs/*/wandb/offline-run-*`` sends it later.

python examples/runs/tracked_wandb.py [FILE] [PATH=VALUE ...]
"""

from __future__ import annotations

import wandb

import declax as dx
from curve import Train, train


def main(run: dx.Run[Train]) -> float:
    with wandb.init(
        project="curve",
        mode="offline",
        dir=run.path,
        id=run.name,  # a run that is resumed goes on in wandb too
        name=run.name,
        resume="allow",
        config=dx.to_config(run.spec, full=True),
    ) as tracked:
        loss = train(run, lambda step, loss: tracked.log({"loss": loss}, step=step))
        tracked.summary["final_loss"] = loss
    return loss


if __name__ == "__main__":
    with dx.cli(Train, runs="runs") as this_run:
        print(f"{this_run.name}: loss {main(this_run):.4f}")
