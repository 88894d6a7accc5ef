"""User metadata of snapshots: the member ``properties`` (``docs/format/sequence.md``).

Values are JSON. One member is reserved for icefloe; it has what the snapshot schema has no place
for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U64

RESERVED: Final = "__icefloe"
_MAX_DEPTH: Final = 64
_MIN_INTEGER: Final = -(2**63)


def encode_properties(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metadata as JSON; raise `InvalidInputError` if it is not a mapping of names to JSON."""
    if not isinstance(metadata, Mapping):
        raise _metadata_error(f"metadata must be a mapping of names to JSON, got {metadata!r:.80}")
    for name in metadata:
        if not isinstance(name, str):
            raise _metadata_error(f"the name of a metadata entry must be a str, got {name!r:.80}")
        if name == RESERVED:
            raise _metadata_error(f"the metadata entry {RESERVED!r} is reserved")
        if not _is_unicode(name):
            raise _metadata_error(
                f"the name of the metadata entry {name!r:.80} has a lone surrogate"
            )
    result = {}
    for name in sorted(metadata):
        try:
            result[str(name)] = _copy(metadata[name], 0)
        except (TypeError, ValueError) as error:
            raise _metadata_error(
                f"the metadata entry {name!r} cannot be stored: {error}"
            ) from error
    return result


def _copy(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case int():
            if not _MIN_INTEGER <= value <= MAX_U64:
                raise ValueError("an integer has more than 64 bits")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"JSON has no number {value}")
            return float(value)
        case str():
            if not _is_unicode(value):
                raise ValueError("a string has a lone surrogate")
            return str(value)
        case list() | tuple():
            return [_copy(item, depth + 1) for item in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("keys must be strings")
            return {_copy(key, 0): _copy(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _metadata_error(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.BAD_METADATA)
