"""The options of a write and of a stream, checked. Pure, no I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from icefloe.session.exactly_once import JobId
from icefloe.spark.reading.read_options import (
    PLACE_OPTIONS,
    ReadOptions,
    invalid_input,
    parse_flag,
    require_known,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITE: Final = (
    "branch",
    "group",
    "dims",
    "chunks",
    "append_dim",
    "replace_where",
    "coords",
    "leave_missing",
    "transaction_id",
    "transaction_version",
    "message",
)
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Those of ``writeStream`` itself, which Spark hands to us as well."""

_STREAM: Final = (
    "starting",
    "starting_snapshot",
    "max_commits_per_trigger",
    "max_bytes_per_trigger",
    "commit_columns",
)
# As people who know other sources spell them.
_SPELLINGS: Final = {
    "startingsnapshot": "starting_snapshot",
    "maxcommitspertrigger": "max_commits_per_trigger",
    "maxbytespertrigger": "max_bytes_per_trigger",
    "appenddim": "append_dim",
    "replacewhere": "replace_where",
    "leavemissing": "leave_missing",
    "commitcolumns": "commit_columns",
    "transactionid": "transaction_id",
    "transactionversion": "transaction_version",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for.

    Parameters
    ----------
    place
        Where the repository is, as for a read.
    branch
        Gets the commit.
    group
        Gets the rows.
    dims
        Which columns are dimensions, in this order; for a new group.
    chunks
        Chunk lengths by dimension, for a new group; -1 means all of it.
    append_dim
        The dimension that rows are appended along.
    region
        Label selections by dimension: what is overwritten. The option is ``replace_where``, because
        ``region`` is where a bucket is.
    coords
        The labels of dimensions, where they are known beforehand.
    leave_missing
        Variables that rows do not tell of: what is appended to them is missing.
    transaction_id, transaction_version
        Which commit this is: it is made once.
    message
        What history says.
    """

    place: Mapping[str, str] = field(default_factory=dict)
    branch: str = "main"
    group: str = "/"
    dims: tuple[str, ...] | None = None
    chunks: Mapping[str, int] = field(default_factory=dict)
    append_dim: str | None = None
    region: Mapping[str, Any] | None = None
    coords: Mapping[str, Any] = field(default_factory=dict)
    leave_missing: tuple[str, ...] = ()
    transaction_id: str | None = None
    transaction_version: int = 0
    message: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read options as Spark hands them over.

        Raises
        ------
        InvalidInputError
            If one is unknown or cannot be read.
        """
        options = {
            name: value for name, value in _normalize_names(given).items() if name not in _OF_SPARK
        }
        for name in options:
            require_known(name, (*PLACE_OPTIONS, *_WRITE))
        version = options.get("transaction_version", "0")
        if not version.strip().isdecimal():
            raise invalid_input(f"option 'transaction_version' is a whole number, not {version!r}")
        if "transaction_version" in options and "transaction_id" not in options:
            raise invalid_input(
                "option 'transaction_version' counts the commits of a 'transaction_id'"
            )
        chunks = _object("chunks", options, '{"time": 24, "lat": -1}') or {}
        for name, length in chunks.items():
            if (
                isinstance(length, bool)
                or not isinstance(length, int)
                or not (length > 0 or length == -1)
            ):
                raise invalid_input(
                    f"chunks along {name!r} are a length, or -1 for all of it, not {length!r}"
                )
        return cls(
            place={name: options[name] for name in PLACE_OPTIONS if name in options},
            branch=options.get("branch", "main"),
            group="/" + options.get("group", "").strip("/"),
            dims=_names("dims", options["dims"]) if "dims" in options else None,
            chunks=chunks,
            append_dim=options.get("append_dim"),
            region=_object("replace_where", options, '{"time": {"start": "2020", "stop": "2021"}}'),
            coords=_object("coords", options, '{"lat": [50, 40], "lon": [0, 1]}') or {},
            leave_missing=_names("leave_missing", options.get("leave_missing", "[]")),
            transaction_id=options.get("transaction_id"),
            transaction_version=int(version),
            message=options.get("message"),
        )

    @property
    def job(self) -> JobId | None:
        """Which commit it is, if that was said."""
        if self.transaction_id is None:
            return None
        return JobId(self.transaction_id, self.transaction_version)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream follows a branch.

    Parameters
    ----------
    read
        What is read of each commit, and from where.
    starting
        ``earliest``: all commits of the branch; ``latest``: those that are still to come.
    starting_snapshot
        A snapshot instead: the commits after it.
    max_commits
        How many commits a micro-batch has at most.
    max_bytes
        How many bytes of rows or chunks, decoded, it has at most; but one commit in any case.
    commit_columns
        Whether rows say which commit they are of: ``_snapshot_id`` and ``_committed_at``.
    """

    read: ReadOptions
    starting: Literal["earliest", "latest"] = "earliest"
    starting_snapshot: str | None = None
    max_commits: int | None = None
    max_bytes: int | None = None
    commit_columns: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StreamOptions:
        """Read options as Spark hands them over."""
        options = _normalize_names(given)
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
            _limit("maxCommitsPerTrigger", own.get("max_commits_per_trigger")),
            _limit("maxBytesPerTrigger", own.get("max_bytes_per_trigger")),
            parse_flag("commit_columns", own.get("commit_columns", "false")),
        )

    @property
    def branch(self) -> str:
        """The branch that is followed."""
        return self.read.branch or "main"


def has_stream_options(given: Mapping[str, str]) -> bool:
    """Whether options have any that streams alone understand."""
    return not _normalize_names(given).keys().isdisjoint(_STREAM)


def _normalize_names(given: Mapping[str, str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    return {_SPELLINGS.get(name, name): value for name, value in options.items()}


def _limit(option: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not given.strip().isdecimal() or int(given) == 0:
        raise invalid_input(f"option {option!r} is a number above zero, not {given!r}")
    return int(given)


def _names(option: str, text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
    except ValueError as error:
        raise invalid_input(f"option {option!r} is a list of names, not {text!r}") from error
    names = [str(name).strip() for name in names]
    if not all(names) or len(set(names)) < len(names):
        raise invalid_input(f"option {option!r} is a list of names, each once, not {text!r}")
    return tuple(names)


def _object(name: str, options: Mapping[str, str], example: str) -> dict[str, Any] | None:
    if name not in options:
        return None
    try:
        found = json.loads(options[name])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise invalid_input(
            f"option {name!r} is a JSON object by dimension, such as {example}, not "
            f"{options[name]!r}"
        )
    return found
