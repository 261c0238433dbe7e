"""The version of the installed distribution."""

from importlib import metadata
from typing import Final

__version__: Final = metadata.version("declax")
