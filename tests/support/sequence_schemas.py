"""The JSON schemas of generation sequence, as its specification gives them."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEMAS = Path(__file__).parents[1] / "format" / "schemas"


_FORMATS = jsonschema.FormatChecker(formats=())


@_FORMATS.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def _make_range_check(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, int) or low <= value <= high


for _bits in (8, 16, 32, 64):
    _FORMATS.checks(f"uint{_bits}")(_make_range_check(0, 2**_bits - 1))
    _FORMATS.checks(f"int{_bits}")(_make_range_check(-(2 ** (_bits - 1)), 2 ** (_bits - 1) - 1))


@cache
def _load(kind: str) -> jsonschema.Draft7Validator:
    # `check_schema` would refuse the empty list of items in the definition of flags.
    return jsonschema.Draft7Validator(
        json.loads((_SCHEMAS / f"sequence-{kind}.json").read_text()),
        format_checker=_FORMATS,
    )


def validate(data: bytes, kind: str) -> None:
    """Raise if a file is not JSON by the schema of a snapshot, a manifest or a ref."""
    _load(kind).validate(json.loads(data, parse_constant=_reject))


def _reject(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
