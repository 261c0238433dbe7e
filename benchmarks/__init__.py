"""Benchmarks of declax beside its peers and plain JAX. Start with ``python -m benchmarks.core``."""

import os

# Costs of the host side are measured: an accelerator would add its own, and hide them by running behind.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
