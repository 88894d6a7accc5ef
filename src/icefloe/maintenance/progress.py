"""How far a long operation is, for whoever watches it: a command line, or a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """What a long operation is doing."""

    READ_SNAPSHOTS = "reading snapshots"
    READ_MANIFESTS = "reading manifests"
    DELETE_SNAPSHOTS = "snapshots"
    DELETE_TRANSACTION_LOGS = "transaction_logs"
    DELETE_MANIFESTS = "manifests"
    DELETE_CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class Step:
    """So many files of so many are dealt with in a phase; a total may grow while it goes on."""

    phase: Phase
    done: int
    total: int


Progress: TypeAlias = Callable[[Step], None]


def ignore_progress(step: Step) -> None:
    """Tell nobody."""
