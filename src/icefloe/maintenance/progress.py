"""Progress reports of long operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Phase(StrEnum):
    """A phase of a long operation."""

    READ_SNAPSHOTS = "reading snapshots"
    READ_MANIFESTS = "reading manifests"
    COPY_CHUNKS = "copying chunks"
    WRITE_MANIFESTS = "writing manifests"
    WRITE_SNAPSHOTS = "writing snapshots"
    DELETE_SNAPSHOTS = "snapshots"
    DELETE_TRANSACTION_LOGS = "transaction_logs"
    DELETE_MANIFESTS = "manifests"
    DELETE_ATTRIBUTES = "attributes"
    DELETE_CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class Step:
    """The number of files that a phase has processed, of a total that may still grow."""

    phase: Phase
    done: int
    total: int


Progress: TypeAlias = Callable[[Step], None]


def ignore_progress(step: Step) -> None:
    """Discard a progress step."""
