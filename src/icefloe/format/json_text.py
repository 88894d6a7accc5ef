"""JSON of metadata files: parsing of untrusted text, and compact formatting.

Extended JSON has ``NaN`` and ``Infinity`` too, which Zarr libraries write in ``zarr.json``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Never

from icefloe.errors import FormatError


def parse_json(data: bytes | memoryview, file: str) -> Any:
    """Parse a file; duplicate members and numbers that are not finite are errors."""
    try:
        return parse_text(bytes(data).decode())
    except (ValueError, RecursionError) as error:  # or UnicodeDecodeError, a ValueError
        raise FormatError(f"not valid JSON ({error!s:.200})", file=file) from error


def parse_text(text: str) -> Any:
    """Parse JSON; raise `ValueError` or `RecursionError` if it is not valid."""
    return json.loads(
        text,
        object_pairs_hook=_build_object,
        parse_constant=_reject_constant,
        parse_float=_parse_float,
    )


def parse_extended_json(data: bytes | str, label: str, file: str) -> Any:
    """Parse extended JSON in a file; ``label`` says what it is, for errors."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{label}: not valid JSON ({error!s:.200})", file=file) from error


def format_json(value: Any) -> bytes:
    """Format a value compactly; raise `ValueError` for numbers that JSON does not have."""
    return _format(value, allow_nan=False)


def format_extended_json(value: Any) -> bytes:
    """Format a value compactly, as extended JSON."""
    return _format(value, allow_nan=True)


def format_ascii_json(value: Any) -> bytes:
    """Format a value compactly, as extended JSON in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode()


def is_nested_deeply(value: Any, max_depth: int) -> bool:
    """Whether objects and lists are nested more than ``max_depth`` levels deep."""
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def _format(value: Any, *, allow_nan: bool) -> bytes:
    try:
        text = json.dumps(value, allow_nan=allow_nan, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        # UTF-8 has no lone surrogates, JSON has escapes for them.
        return json.dumps(value, allow_nan=allow_nan, separators=(",", ":")).encode()


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"an object has two members {duplicate!r:.80}")
    return result


def _reject_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text:.40} is too large")
    return value
