"""JSON inside Parquet values and footers: compact, ASCII, and as Python reads and writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from icefloe.errors import ErrorKind, FormatError, InvalidInputError

MAX_DEPTH: Final = 64
"""The maximum depth of user metadata."""


def dump_json(value: Any) -> bytes:
    """Encode a value as compact JSON; NaN and infinities are written as Python writes them."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def load_json(data: bytes, label: str, file: str) -> Any:
    """Decode JSON of a file; raise `FormatError` if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"its {label} is not valid JSON ({error!s:.100})", file=file) from error


def encode_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return user metadata as it is read back; raise `InvalidInputError` if it is not JSON."""
    if not isinstance(metadata, Mapping):
        raise _metadata_error(f"metadata must be a mapping of names to JSON, got {metadata!r:.80}")
    result = {}
    for name in metadata:
        if not isinstance(name, str):
            raise _metadata_error(f"the name of a metadata entry must be a str, got {name!r:.80}")
        try:
            name.encode()
            result[name] = _require_json(metadata[name], 0)
        except (TypeError, ValueError) as error:
            raise _metadata_error(
                f"the metadata entry {name!r:.80} cannot be stored: {error}"
            ) from error
    return {name: result[name] for name in sorted(result)}


def _metadata_error(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.BAD_METADATA)


def _require_json(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case float():
            if not math.isfinite(value):  # the metadata is also in `state.json`, for all readers
                raise ValueError(f"JSON has no number {value}")
            return value
        case str():
            value.encode()  # no lone surrogates: other generations cannot store them
            return value
        case int():
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{value:.0e} is not a 64-bit integer")
            return value
        case list() | tuple():
            return [_require_json(item, depth + 1) for item in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("keys must be strings")
            return {
                _require_json(key, depth): _require_json(item, depth + 1)
                for key, item in value.items()
            }
    raise TypeError(f"{type(value).__name__} is not a JSON type")
