"""HTTP preconditions of a read, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """Preconditions sent with a read.

    A server may ignore them: a caller that depends on one compares the metadata of the response.

    Attributes
    ----------
    if_match
        Entity tag that the object must have, with quotes.
    if_unmodified_since
        Time since which the object must not have changed, in whole seconds.
    """

    if_match: str | None = None
    if_unmodified_since: datetime | None = None
