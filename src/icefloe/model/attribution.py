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
        labels = {"client": self.client, "workload": self.workload, "principal": self.principal}
        for field, label in labels.items():
            if label is None:
                continue
            if len(label) > _MAX_LENGTH:
                raise _label_error(field, label, f"it is longer than {_MAX_LENGTH} characters")
            if field == "client":
                if not _CLIENT.fullmatch(label):
                    rule = "use token characters, as 'name' or 'name/version'"
                    raise _label_error(field, label, rule)
            elif not _LABEL.fullmatch(label) or not _FORBIDDEN_CHARACTERS.isdisjoint(label):
                rule = 'it has a forbidden character; use printable ASCII without ( ) \\ ; = "'
                raise _label_error(field, label, rule)

    def user_agent(self, library: str) -> str:
        """Return the value of the ``User-Agent`` header."""
        labels = [
            f"{name}={value}"
            for name, value in (("workload", self.workload), ("principal", self.principal))
            if value is not None
        ]
        parts = [self.client, library, f"({'; '.join(labels)})" if labels else None]
        return " ".join(part for part in parts if part)


def _label_error(field: str, label: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{field}={label!r:.200} is not a valid label: {problem}", kind=ErrorKind.STORAGE_CONFIG
    )
