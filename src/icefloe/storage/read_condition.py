"""HTTP preconditions of a read, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """Preconditions sent with a read.

    A server may ignore them, so callers must also compare the metadata of the response.
    """

    if_match: str | None = None  # entity tag, with quotes
    if_unmodified_since: datetime | None = None  # in whole seconds
