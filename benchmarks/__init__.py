"""What declax costs, measured beside its peers and the floor. Start with ``python -m benchmarks.core``."""

import os

# Costs of the host side are measured: an accelerator would add its own, and hide them by running behind.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
