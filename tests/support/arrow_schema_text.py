"""Arrow schemas as they are printed, parsed to their fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

Fields = dict[str, tuple[str, bool]]
"""The type and whether it may be null, by the path of a field; items of lists are ``item``."""

_TOKEN = re.compile(r"\s*([\w]+|[<>,:\[\]])")


def parse_schema(text: str) -> tuple[Fields, dict[str, str]]:
    """Parse a printed schema; return its fields, and the descriptions of top-level fields."""
    fields: Fields = {}
    descriptions: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if found := re.match(r"(\w+): (.*)", line):
            name = found[1]
            tokens = iter(_TOKEN.findall(found[2]))
            _parse_type(name, _Tokens(tokens), fields)
        elif found := re.match(r"  description: '(.*)'(?: \+ (\d+))?$", line):
            descriptions[name] = found[1] + "?" * int(found[2] or 0)
    return fields, descriptions


class _Tokens:
    def __init__(self, tokens: Iterator[str]) -> None:
        self._tokens = [*tokens, ""]

    def peek(self) -> str:
        return self._tokens[0]

    def take(self, expected: str | None = None) -> str:
        token = self._tokens.pop(0)
        assert expected is None or token == expected, f"expected {expected}, got {token}"
        return token


def _parse_type(path: str, tokens: _Tokens, fields: Fields) -> None:
    name = tokens.take()
    place = len(fields)
    fields[path] = (name, True)
    if tokens.peek() == "<":
        tokens.take("<")
        while tokens.peek() != ">":
            child = tokens.take()
            tokens.take(":")
            _parse_type(f"{path}.{child}", tokens, fields)
            if tokens.peek() == ",":
                tokens.take(",")
        tokens.take(">")
    if tokens.peek() == "[":
        name += "".join(tokens.take() for _ in range(3))
    nullable = tokens.peek() != "not"
    if not nullable:
        tokens.take("not")
        tokens.take("null")
    fields[path] = (name, nullable)
    assert place < len(fields)


def describe_schema(schema: pa.Schema) -> tuple[Fields, dict[str, str]]:
    """Return the same of an Arrow schema."""
    fields: Fields = {}
    for field in schema:
        _describe(field.name, field, fields)
    descriptions = {
        field.name: field.metadata[b"description"].decode()
        for field in schema
        if field.metadata and b"description" in field.metadata
    }
    return fields, descriptions


def _describe(path: str, field: pa.Field, fields: Fields) -> None:
    kind = field.type
    if pa.types.is_struct(kind):
        fields[path] = ("struct", field.nullable)
        for child in kind.fields:
            _describe(f"{path}.{child.name}", child, fields)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        size = f"fixed_size_list[{kind.list_size}]" if pa.types.is_fixed_size_list(kind) else "list"
        fields[path] = (size, field.nullable)
        _describe(f"{path}.item", kind.value_field, fields)
    else:
        fields[path] = (str(kind), field.nullable)
