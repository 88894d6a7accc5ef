"""Options of a write. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icefloe.session.exactly_once import JobId
from icefloe.spark.option_parsing import (
    invalid_input,
    normalize_names,
    parse_names,
    parse_object,
    require_known,
)
from icefloe.spark.reading.read_options import PLACE_OPTIONS

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
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of ``writeStream`` itself, which Spark passes on."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write, parsed; `icefloe.spark.write` documents them.

    ``place`` is as for a read; ``coords`` are labels of dimensions, if known beforehand. The option
    of ``region`` is ``replace_where``, because ``region`` is the region of a bucket.
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
        """Parse options as Spark passes them; raise if one is unknown or malformed."""
        named = normalize_names(given).items()
        options = {name: value for name, value in named if name not in _SPARK_OPTIONS}
        for name in options:
            require_known(name, (*PLACE_OPTIONS, *_WRITE))
        version = options.get("transaction_version", "0")
        if not version.strip().isdecimal():
            raise invalid_input(f"option 'transaction_version' is a whole number, not {version!r}")
        if "transaction_version" in options and "transaction_id" not in options:
            raise invalid_input(
                "option 'transaction_version' counts the commits of a 'transaction_id'"
            )
        where, example = options.get("replace_where"), '{"time": {"start": "2020", "stop": "2021"}}'
        return cls(
            place={name: options[name] for name in PLACE_OPTIONS if name in options},
            branch=options.get("branch", "main"),
            group="/" + options.get("group", "").strip("/"),
            dims=_parse_distinct("dims", options["dims"]) if "dims" in options else None,
            chunks=_parse_chunks(options.get("chunks")),
            append_dim=options.get("append_dim"),
            region=parse_object("replace_where", where, example),
            coords=parse_object("coords", options.get("coords"), '{"lat": [50, 40]}') or {},
            leave_missing=_parse_distinct("leave_missing", options.get("leave_missing", "[]")),
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
    chunks = parse_object("chunks", text, '{"time": 24, "lat": -1}') or {}
    for name, length in chunks.items():
        if isinstance(length, bool) or not isinstance(length, int) or length < -1 or not length:
            raise invalid_input(
                f"chunks along {name!r} are a length, or -1 for all of it, not {length!r}"
            )
    return chunks


def _parse_distinct(name: str, text: str) -> tuple[str, ...]:
    names = parse_names(name, text)
    if len(set(names)) < len(names):
        raise invalid_input(f"option {name!r} is a list of names, each once, not {text!r}")
    return tuple(names)
