"""The JSON schemas of generation sequence, as its specification gives them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema

_SCHEMAS = Path(__file__).parents[1] / "format" / "schemas"


@cache
def _load(kind: str) -> jsonschema.Draft7Validator:
    schema = json.loads((_SCHEMAS / f"sequence-{kind}.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def validate(data: bytes, kind: str) -> None:
    """Raise if a file is not JSON by the schema of a snapshot, a manifest or a ref."""
    _load(kind).validate(json.loads(data, parse_constant=_reject))


def _reject(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
