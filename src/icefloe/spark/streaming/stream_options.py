"""Options of a stream that follows a branch. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from icefloe.spark.option_parsing import invalid_input, normalize_names, parse_count, parse_flag
from icefloe.spark.reading.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_STREAM: Final = (
    "starting",
    "starting_snapshot",
    "max_commits_per_trigger",
    "max_bytes_per_trigger",
    "commit_columns",
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a stream, parsed; ``read`` is what is read of each commit, and from where.

    ``starting`` is ``earliest`` (all commits of the branch) or ``latest`` (future commits only);
    ``starting_snapshot`` is a snapshot to start after, instead. ``max_commits`` and ``max_bytes``
    (of decoded values) limit a micro-batch, which has at least one commit. With
    ``commit_columns`` rows have the columns ``_snapshot_id`` and ``_committed_at``.
    """

    read: ReadOptions
    starting: Literal["earliest", "latest"] = "earliest"
    starting_snapshot: str | None = None
    max_commits: int | None = None
    max_bytes: int | None = None
    commit_columns: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StreamOptions:
        """Parse options as Spark passes them."""
        options = normalize_names(given)
        own = {name: options.pop(name) for name in _STREAM if name in options}
        read = ReadOptions.parse(options)
        for name in ("tag", "snapshot", "as_of", "table"):
            if name in options:
                raise invalid_input(
                    f"option {name!r} has no meaning for a stream: it follows a branch"
                )
        starting = own.get("starting", "earliest")
        if starting not in {"earliest", "latest"}:
            raise invalid_input(
                f"option 'starting' is earliest or latest, not {starting!r}; a snapshot goes into "
                "'startingSnapshot'"
            )
        if "starting" in own and "starting_snapshot" in own:
            raise invalid_input(
                "options 'starting' and 'startingSnapshot' exclude each other: keep one"
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
        """Branch that is followed."""
        return self.read.branch or "main"


def has_stream_options(given: Mapping[str, str]) -> bool:
    """Whether options include any that only streams have."""
    return not normalize_names(given).keys().isdisjoint(_STREAM)
