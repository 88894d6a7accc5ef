"""Streaming JSON encoder, so that a manifest with millions of references takes little memory.

Secrets in URLs are masked, and unprintable characters are escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from icefloe.url_secrets import mask_urls

_INDENT = "  "


def stream_json(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the parts of a JSON document; an iterator is written as a list, item by item.

    A list of scalars is on one line, and so is each item of an iterator (see `_stream_item`).
    ``depth`` is the level of indentation.
    """
    match value:
        case Iterator():
            items = (_stream_item(item, depth + 1) for item in value)
            yield from _stream_bracketed("[]", items, depth)
        case Mapping() if value:
            entries = (_stream_entry(name, item, depth + 1) for name, item in value.items())
            yield from _stream_bracketed("{}", entries, depth)
        case list() if any(isinstance(item, (Mapping, list)) for item in value):
            items = (stream_json(item, depth + 1) for item in value)
            yield from _stream_bracketed("[]", items, depth)
        case _:
            yield _dump_compact(value)


def _stream_item(value: Any, depth: int) -> Iterator[str]:
    """Yield an item of an iterator on one line, unless it is a mapping with iterators."""
    if isinstance(value, Mapping) and any(isinstance(item, Iterator) for item in value.values()):
        yield from stream_json(value, depth)
    else:
        yield _dump_compact(value)


def _stream_entry(name: str, value: Any, depth: int) -> Iterator[str]:
    yield _dump_compact(name) + ": "
    yield from stream_json(value, depth)


def _stream_bracketed(brackets: str, items: Iterator[Iterator[str]], depth: int) -> Iterator[str]:
    line_start = "\n" + _INDENT * (depth + 1)
    yield brackets[0]
    is_empty = True
    for item in items:
        yield line_start if is_empty else "," + line_start
        yield from item
        is_empty = False
    yield brackets[1] if is_empty else "\n" + _INDENT * depth + brackets[1]


def _dump_compact(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or an infinity
        return _dump_compact(_replace_non_finite(value))
    if "://" in text and (masked := _mask(value)) != value:
        return _dump_compact(masked)
    if text.isprintable():
        return text
    # Such as lone surrogates, and characters that control a terminal or the direction of text.
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def _mask(value: Any) -> Any:
    """Mask the secrets of URLs in all strings."""
    match value:
        case str():
            return mask_urls(value)
        case Mapping():
            return {_mask(name): _mask(item) for name, item in value.items()}
        case list() | tuple():
            return [_mask(item) for item in value]
    return value


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, with strings."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {name: _replace_non_finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_replace_non_finite(item) for item in value]
    return value
