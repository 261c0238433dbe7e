# Only what declax, its pages and examples use.
from collections.abc import Callable
from typing import Any

def get(
    tree: Any, key: Any, default: Any | None = None, filtering: Callable[[tuple[Any, ...], Any], bool] | None = None
) -> Any: ...
