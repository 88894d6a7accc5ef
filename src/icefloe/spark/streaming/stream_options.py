"""Options of a stream that follows a branch. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from icefloe.spark.option_parsing import input_error, normalize_names, parse_count, parse_flag
from icefloe.spark.reading.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_STREAM_OPTIONS: Final = (
    "starting",
    "starting_snapshot",
    "max_commits_per_trigger",
    "max_bytes_per_trigger",
    "commit_columns",
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parsed options of a stream; ``read`` are the options for reading each commit.

    ``starting`` is ``earliest`` (all commits of the branch) or ``latest`` (future commits only);
    ``starting_snapshot`` is instead a snapshot to start after. ``max_commits`` and ``max_bytes``
    (of decoded values) limit a micro-batch, which has at least one commit. ``commit_columns`` adds
    the columns ``_snapshot_id`` and ``_committed_at``.
    """

    read: ReadOptions
    starting: Literal["earliest", "latest"] = "earliest"
    starting_snapshot: str | None = None
    max_commits: int | None = None
    max_bytes: int | None = None
    commit_columns: bool = False

    @classmethod
    def parse(cls, raw_options: Mapping[str, str]) -> StreamOptions:
        """Parse options as Spark passes them."""
        options = normalize_names(raw_options)
        own = {name: options.pop(name) for name in _STREAM_OPTIONS if name in options}
        read = ReadOptions.parse(options)
        for name in ("tag", "snapshot", "as_of", "table"):
            if name in options:
                raise input_error(
                    f"option {name!r} has no effect on a stream, which reads a branch: omit it"
                )
        starting = own.get("starting", "earliest")
        if starting not in {"earliest", "latest"}:
            raise input_error(
                f"option 'starting': expected earliest or latest, got {starting!r}; for a "
                "snapshot, use 'startingSnapshot'"
            )
        if "starting" in own and "starting_snapshot" in own:
            raise input_error(
                "options 'starting' and 'startingSnapshot' are mutually exclusive: keep one"
            )
        return cls(
            read,
            "latest" if starting == "latest" else "earliest",
            own.get("starting_snapshot"),
            parse_count("maxCommitsPerTrigger", own.get("max_commits_per_trigger")),
            parse_count("maxBytesPerTrigger", own.get("max_bytes_per_trigger")),
            parse_flag("commit_columns", own.get("commit_columns", "false")),
        )

    @property
    def branch(self) -> str:
        """Branch to follow."""
        return self.read.branch or "main"


def has_stream_options(raw_options: Mapping[str, str]) -> bool:
    """Whether options include any that only streams have."""
    return not normalize_names(raw_options).keys().isdisjoint(_STREAM_OPTIONS)
