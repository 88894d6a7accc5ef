"""Labels in the ``User-Agent`` header, by which the owner of a bucket can attribute requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

_MAX_LENGTH: Final = 128
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CLIENT: Final = re.compile(rf"{_WORD}(/{_WORD})?")
_LABEL: Final = re.compile(r"[\x20-\x7e]+")
_FORBIDDEN_CHARACTERS: Final = frozenset('()\\;="')


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Labels for the ``User-Agent`` of a repository's requests.

    Parameters
    ----------
    client
        The program, ``name`` or ``name/version``.
    workload
        The job or pipeline.
    principal
        The user or service.

    Raises
    ------
    InvalidInputError
        If a label has more than 128 characters, or characters that are invalid in the header.
    """

    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        if self.client is not None and not (
            len(self.client) <= _MAX_LENGTH and _CLIENT.fullmatch(self.client)
        ):
            raise _label_error("client", self.client, "'name' or 'name/version'")
        for field, label in (("workload", self.workload), ("principal", self.principal)):
            if label is not None and not (
                len(label) <= _MAX_LENGTH
                and _LABEL.fullmatch(label)
                and _FORBIDDEN_CHARACTERS.isdisjoint(label)
            ):
                raise _label_error(field, label, 'printable ASCII without ( ) \\ ; = "')

    def user_agent(self, library: str) -> str:
        """Return the value of the ``User-Agent`` header."""
        labels = [
            f"{name}={value}"
            for name, value in (("workload", self.workload), ("principal", self.principal))
            if value is not None
        ]
        parts = [self.client, library, f"({'; '.join(labels)})" if labels else None]
        return " ".join(part for part in parts if part)


def _label_error(field: str, label: str, allowed: str) -> InvalidInputError:
    return InvalidInputError(
        f"{field}={label!r} is not a valid label: use at most {_MAX_LENGTH} characters, {allowed}",
        kind=ErrorKind.STORAGE_CONFIG,
    )
