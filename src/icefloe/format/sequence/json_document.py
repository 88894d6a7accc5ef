"""Typed access to the untrusted JSON of metadata files, and the JSON of ids and times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Never, TypeVar

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.timestamps import to_microseconds
from icefloe.model.ids import ObjectId

Id = TypeVar("Id", bound=ObjectId)

ID_SIZE = 16
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def format_id(object_id: ObjectId) -> list[int]:
    """Format an id as the list of its bytes."""
    if len(object_id.raw) != ID_SIZE:
        raise InvalidInputError(f"{object_id!r} must have {ID_SIZE} bytes")
    return list(object_id.raw)


def format_time(value: datetime) -> str:
    """Format a time by RFC 3339, in UTC with microseconds."""
    to_microseconds(value)  # raises if the time has no time zone or is before 1970
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to the parsed JSON of a file; other types and values raise `FormatError`."""

    file: str

    def fail(self, problem: str) -> Never:
        """Raise for this file."""
        raise FormatError(problem, file=self.file)

    def get_member(self, owner: dict[str, Any], name: str, label: str) -> Any:
        """Return a required member of an object."""
        try:
            return owner[name]
        except KeyError:
            self.fail(f"{label} has no member {name!r}")

    def read_object(self, value: Any, label: str) -> dict[str, Any]:
        """Return an object."""
        if not isinstance(value, dict):
            self.fail(f"{label} must be an object, got {value!r:.80}")
        return value

    def read_list(self, value: Any, label: str) -> list[Any]:
        """Return a list."""
        if not isinstance(value, list):
            self.fail(f"{label} must be a list, got {value!r:.80}")
        return value

    def read_text(self, value: Any, label: str) -> str:
        """Return a string without lone surrogates."""
        if not isinstance(value, str):
            self.fail(f"{label} must be a string, got {value!r:.80}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                self.fail(f"{label} {value!r:.80} has a lone surrogate")
        return value

    def read_integer(self, value: Any, label: str, limit: int) -> int:
        """Return an integer between 0 and ``limit``."""
        if type(value) is not int or not 0 <= value <= limit:
            self.fail(f"{label} must be an integer from 0 to {limit}, got {value!r:.40}")
        return value

    def read_integers(self, value: Any, label: str, limit: int) -> list[int]:
        """Return a list of integers between 0 and ``limit``."""
        for item in self.read_list(value, label):
            if type(item) is not int or not 0 <= item <= limit:
                self.fail(f"{label} must be integers from 0 to {limit}, got {item!r:.40}")
        return list(value)

    def read_bytes(self, value: Any, label: str) -> bytes:
        """Return bytes from a list of integers."""
        return bytes(self.read_integers(value, label, 255))

    def read_id(self, value: Any, kind: type[Id], label: str) -> Id:
        """Return an id from the list of its bytes."""
        raw = self.read_bytes(value, label)
        if len(raw) != ID_SIZE:
            self.fail(f"{label} must have {ID_SIZE} bytes, got {len(raw)}")
        return kind(raw)

    def parse_id(self, value: Any, kind: type[Id], label: str) -> Id:
        """Return an id from its text form."""
        try:
            parsed = kind.parse(value)
        except InvalidInputError as error:
            self.fail(f"{label}: {error.message}")
        if len(parsed.raw) != ID_SIZE:
            self.fail(f"{label} must have {ID_SIZE} bytes, got {len(parsed.raw)}")
        return parsed

    def read_time(self, value: Any, label: str) -> datetime:
        """Return a time; digits after the microseconds are dropped."""
        match = _TIME.fullmatch(self.read_text(value, label))
        if match is None:
            self.fail(f"{label} {value!r:.80} is not a time of RFC 3339")
        day, time, fraction, zone = match.groups()
        text = f"{day}T{time}.{(fraction or '').ljust(6, '0')}{zone.upper()}"
        try:
            parsed = datetime.fromisoformat(text).astimezone(UTC)
            to_microseconds(parsed)
        except (ValueError, OverflowError) as error:  # or InvalidInputError, a ValueError
            self.fail(f"{label} {value!r:.80} is not a time after 1970 ({error})")
        return parsed
