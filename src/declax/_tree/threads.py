"""The lock of those who compare Variables with what they have read, and write them.

A call reads its leaves and commits under this lock, so that no thread sees half of a step.
"""

from __future__ import annotations

import threading
from typing import Final

committing: Final = threading.RLock()
"""Held while Variables are read or compared, and written; never while JAX runs.

Reentrant, since the garbage collector may run code that writes at any moment.
"""
