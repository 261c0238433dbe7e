"""Plain data held against a JSON schema by another implementation."""

from __future__ import annotations

from typing import Any

import jsonschema

_DRAFT: Any = jsonschema.Draft7Validator
_TYPES = _DRAFT.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # no float is an int
_VALIDATOR = jsonschema.validators.extend(_DRAFT, type_checker=_TYPES)


def refused_by(schema: dict[str, Any], data: object) -> bool:
    """Whether a schema does not allow some data."""
    return not _VALIDATOR(schema).is_valid(data)
