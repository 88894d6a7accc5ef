"""User metadata of snapshots and repositories: which names and JSON values can be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from icefloe.errors import InvalidTypeError
from icefloe.model.chunk_payload import MAX_U64

MAX_DEPTH: Final = 64
"""The maximum nesting of a value."""

_MIN_INTEGER: Final = -(2**63)


def copy_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metadata as JSON, sorted by name.

    Raises `InvalidTypeError` if it is not a mapping of names to JSON.
    """
    require_names(metadata)
    result = {}
    for name in sorted(metadata):
        try:
            result[str(name)] = copy_json(metadata[name])
        except (TypeError, ValueError) as error:
            raise unstorable_entry_error(name, error) from error
    return result


def require_names(metadata: Mapping[str, Any]) -> None:
    """Raise `InvalidTypeError` if metadata is not a mapping of names to values."""
    if not isinstance(metadata, Mapping):
        raise metadata_error(f"metadata must be a mapping of names to JSON, got {metadata!r:.80}")
    for name in metadata:
        if not isinstance(name, str):
            raise metadata_error(f"the name of a metadata entry must be a str, got {name!r:.80}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise metadata_error(
                f"the name of the metadata entry {name!r:.80} has a lone surrogate"
            ) from error


def copy_json(value: Any, depth: int = 0, *, allow_nan: bool = False) -> Any:
    """Copy a JSON value, with tuples as lists; raise `TypeError` or `ValueError` for others."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case int():
            if not _MIN_INTEGER <= value <= MAX_U64:
                raise ValueError("an integer has more than 64 bits")
            return int(value)
        case float():
            if not allow_nan and not math.isfinite(value):
                raise ValueError(f"JSON has no number {value}")
            return float(value)
        case str():
            value.encode()  # raises a ValueError for lone surrogates
            return str(value)
        case list() | tuple():
            return [copy_json(item, depth + 1, allow_nan=allow_nan) for item in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("keys must be strings")
            return {
                copy_json(key): copy_json(item, depth + 1, allow_nan=allow_nan)
                for key, item in value.items()
            }
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def metadata_error(problem: str) -> InvalidTypeError:
    """Return the error of metadata that cannot be stored."""
    return InvalidTypeError(problem)


def unstorable_entry_error(name: str, reason: Exception) -> InvalidTypeError:
    """Return the error of a metadata entry that cannot be stored."""
    return metadata_error(f"the metadata entry {name!r:.80} cannot be stored: {reason}")
