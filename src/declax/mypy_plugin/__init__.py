"""The mypy plugin: checks that annotations cannot express.

Enable it in mypy's configuration:

```ini
[mypy]
plugins = declax.mypy_plugin
```
"""

from __future__ import annotations

from declax.errors import MissingExtraError

try:
    from mypy.plugin import Plugin

    from declax.mypy_plugin.hooks import FINGERPRINT, DeclaxPlugin
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "mypy":
        raise
    raise MissingExtraError(
        "declax.mypy_plugin",
        "the plugin needs mypy, which is not installed",
        fix='pip install "declax[mypy]"',
    ) from None

__version__ = FINGERPRINT
"""The version of the plugin; a new one makes mypy's cache stale."""


def plugin(version: str) -> type[Plugin]:
    """The entry point for mypy: the plugin for a version of mypy.

    >>> plugin("2.0").__name__
    'DeclaxPlugin'
    """
    del version  # one plugin supports all versions
    return DeclaxPlugin
