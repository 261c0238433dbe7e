"""What devices exchange in a step of each recipe of examples/parallel, by the programs that XLA compiles.

The blocks are a loop, whose body counts once. XLA reduces arrays together that are ready together: gradients of the
blocks in the loop, the other gradients with the loss after it.
"""

from __future__ import annotations

EXCHANGES = {
    "data": {"all-reduce": 2},
    # The new values of six kernels and the table; XLA moves tokens for the gradient of the table.
    "zero1": {"all-gather": 8, "all-reduce": 2, "all-to-all": 1},
    # Six kernels of a block are gathered for the forward pass and again for the backward pass, and the table twice.
    "fsdp": {"all-gather": 14, "all-reduce": 2},
    # After the attention and after the feed-forward network, forward and backward.
    "tensor": {"all-reduce": 4},
    # Those of both, of which the partial sums of the table are reduced apart; XLA permutes the rows of the table, to
    # gather them along both axes of the mesh.
    "both": {"all-gather": 14, "all-reduce": 7, "collective-permute": 2},
    # Keys and values go to the next device, and their gradients back; the last is the border of the labels. Sums are
    # over both axes of the mesh, one after the other.
    "sequence": {"collective-permute": 5, "all-reduce": 4},
    # Tokens and results, forward and backward.
    "experts": {"all-to-all": 4, "all-reduce": 2},
    # To the next stage and back; results to all stages, and the gradient of the input.
    "pipeline": {"collective-permute": 2, "all-reduce": 4},
    # Those of "fsdp" in a slice; the shards of the gradients between slices.
    "slices": {"all-gather": 14, "all-reduce": 6},
}
