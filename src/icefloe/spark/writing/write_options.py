"""Options of a write. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icefloe.session.exactly_once import JobId
from icefloe.spark.option_parsing import (
    input_error,
    normalize_names,
    parse_dimension_object,
    parse_names,
    require_known_option,
)
from icefloe.spark.reading.read_options import REPOSITORY_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITE_OPTIONS: Final = (
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
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of ``writeStream`` itself, which Spark also passes to the data source."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Parsed options of a write; see `icefloe.spark.write`.

    ``repository`` is as in `ReadOptions`; ``coords`` are labels of dimensions, if known in advance.
    The option for ``region`` is ``replace_where``, because ``region`` is the region of a bucket.
    """

    repository: Mapping[str, str] = field(default_factory=dict)
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
    def parse(cls, raw_options: Mapping[str, str]) -> WriteOptions:
        """Parse options as Spark passes them; raise if one is unknown or malformed."""
        items = normalize_names(raw_options).items()
        options = {name: value for name, value in items if name not in _SPARK_OPTIONS}
        for name in options:
            require_known_option(name, (*REPOSITORY_OPTIONS, *_WRITE_OPTIONS))
        version = options.get("transaction_version", "0")
        if not version.strip().isdecimal():
            raise input_error(f"option 'transaction_version': expected an integer, got {version!r}")
        if "transaction_version" in options and "transaction_id" not in options:
            raise input_error("option 'transaction_version' needs the option 'transaction_id'")
        coords = options.get("coords")
        region, example = options.get("replace_where"), '{"time": {"start": "2020"}}'
        return cls(
            repository={name: options[name] for name in REPOSITORY_OPTIONS if name in options},
            branch=options.get("branch", "main"),
            group="/" + options.get("group", "").strip("/"),
            dims=_parse_unique_names("dims", options["dims"]) if "dims" in options else None,
            chunks=_parse_chunks(options.get("chunks")),
            append_dim=options.get("append_dim"),
            region=parse_dimension_object("replace_where", region, example),
            coords=parse_dimension_object("coords", coords, '{"lat": [50, 40]}') or {},
            leave_missing=_parse_unique_names("leave_missing", options.get("leave_missing", "[]")),
            transaction_id=options.get("transaction_id"),
            transaction_version=int(version),
            message=options.get("message"),
        )

    @property
    def job(self) -> JobId | None:
        """Identity of the commit, if it has one."""
        if self.transaction_id is None:
            return None
        return JobId(self.transaction_id, self.transaction_version)


def _parse_chunks(text: str | None) -> dict[str, int]:
    chunks = parse_dimension_object("chunks", text, '{"time": 24, "lat": -1}') or {}
    for name, length in chunks.items():
        if isinstance(length, bool) or not isinstance(length, int) or length < -1 or not length:
            raise input_error(
                f"option 'chunks': expected a positive length or -1 along {name!r}, got {length!r}"
            )
    return chunks


def _parse_unique_names(name: str, text: str) -> tuple[str, ...]:
    names = parse_names(name, text)
    if len(set(names)) < len(names):
        raise input_error(f"option {name!r} contains duplicate names: {text!r}")
    return tuple(names)
