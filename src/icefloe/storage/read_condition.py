"""What an object must still be for a read to be answered: the conditions of HTTP, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """Sent along with a read; what is None is not asked for.

    A server may ignore conditions: who depends on one compares what the answer tells of the object.

    Attributes
    ----------
    if_match
        The entity tag that the object must have, with its quotes.
    if_unmodified_since
        The time after which the object must not have changed, in whole seconds.
    """

    if_match: str | None = None
    if_unmodified_since: datetime | None = None
