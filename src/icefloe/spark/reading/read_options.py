"""Options of a read. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from icefloe.spark.option_parsing import (
    invalid_input,
    parse_count,
    parse_flag,
    parse_names,
    parse_object,
    require_known,
    suggest_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Layout = Literal["rows", "chunks"]
Table = Literal[
    "snapshots", "history", "refs", "nodes", "manifests", "chunks", "files", "changes", "ops_log"
]

PLACE_OPTIONS: Final = (
    "path",
    "region",
    "endpoint_url",
    "allow_http",
    "anonymous",
    "from_env",
    "authorize_virtual_chunk_access",
)
_REF: Final = ("branch", "tag", "snapshot", "as_of")
_ARRAYS: Final = (
    "layout",
    "group",
    "variables",
    "sel",
    "isel",
    "nan_as_null",
    "target_bytes",
    "target_rows",
)
TABLE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("snapshots", "refs", "ops_log"), ()),
    **dict.fromkeys(("history", "nodes", "manifests", "chunks", "files"), _REF),
    "changes": ("from", "to"),
}
"""Options of each metadata table, besides `PLACE_OPTIONS`."""

_KNOWN: Final = (*PLACE_OPTIONS, *_REF, *_ARRAYS, "table", "from", "to")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read, parsed; `icefloe.spark.read` documents them.

    ``place`` (`PLACE_OPTIONS`) is where the repository is and which kind of credentials opens it;
    ``target_bytes`` and ``target_rows`` are the size of partitions, automatic by default;
    ``from_ref`` and ``to_ref`` are the refs that the table ``changes`` compares.
    """

    place: Mapping[str, str] = field(default_factory=dict)
    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: datetime | None = None
    table: Table | None = None
    layout: Layout = "rows"
    group: str = "/"
    variables: tuple[str, ...] | None = None
    sel: Mapping[str, Any] = field(default_factory=dict)
    isel: Mapping[str, Any] = field(default_factory=dict)
    nan_as_null: bool = True
    target_bytes: int | None = None
    target_rows: int | None = None
    from_ref: str | None = None
    to_ref: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Parse options as Spark passes them: text, names in any case.

        Raises if one is unknown, has no effect beside the others, or is malformed.
        """
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            require_known(name, _KNOWN)
        table = _parse_choice("table", options.get("table"), get_args(Table))
        layout = _parse_choice("layout", options.get("layout", "rows"), get_args(Layout))
        _require_effective(options, table, layout)
        _require_one_ref(options)
        names = parse_names("variables", options["variables"]) if "variables" in options else None
        return cls(
            place={name: options[name] for name in PLACE_OPTIONS if name in options},
            branch=options.get("branch"),
            tag=options.get("tag"),
            snapshot=options.get("snapshot"),
            as_of=_parse_time(options["as_of"]) if "as_of" in options else None,
            table=table,
            layout=layout,
            group="/" + options.get("group", "").strip("/"),
            variables=None if names is None else tuple(dict.fromkeys(names)),
            sel=_parse_selection("sel", options),
            isel=_parse_selection("isel", options),
            nan_as_null=parse_flag("nan_as_null", options.get("nan_as_null", "true")),
            target_bytes=parse_count("target_bytes", options.get("target_bytes")),
            target_rows=parse_count("target_rows", options.get("target_rows")),
            from_ref=options.get("from"),
            to_ref=options.get("to"),
        )


def _require_effective(options: Mapping[str, str], table: str | None, layout: str) -> None:
    """Raise for options that would be ignored beside the others."""
    if table is not None:
        effective = (*PLACE_OPTIONS, *TABLE_OPTIONS[table], "table")
        what = f"table={table!r}"
    else:
        effective = (*PLACE_OPTIONS, *_REF, *_ARRAYS)
        what = "a read without table='changes'"
        if layout == "chunks":
            ignored = {"nan_as_null", "target_rows"}
            effective = tuple(name for name in effective if name not in ignored)
            what = "layout='chunks'"
    for name in options:
        if name not in effective:
            raise invalid_input(f"option {name!r} has no meaning for {what}: leave it out")
    if table == "changes" and "from" not in options:
        raise invalid_input(
            "table='changes' needs option 'from': the branch, tag or snapshot to compare with"
        )


def _require_one_ref(options: Mapping[str, str]) -> None:
    given = [name for name in ("branch", "tag", "snapshot") if name in options]
    if len(given) > 1:
        names = " and ".join(map(repr, given))
        raise invalid_input(f"options {names} exclude each other: keep one")
    if "as_of" in options and given not in ([], ["branch"]):
        raise invalid_input(f"option 'as_of' looks back along a branch: leave {given[0]!r} out")


def _parse_choice(name: str, value: str | None, known: tuple[str, ...]) -> Any:
    if value is None or value in known:
        return value
    raise invalid_input(f"there is no {name} {value!r}: {suggest_name(value, known)}")


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid_input(
            f"option 'as_of' is a time such as 2026-01-31T12:00:00Z, not {text!r}"
        ) from error
    if time.tzinfo is None:
        raise invalid_input(f"as_of={text!r} has no time zone: add Z, or an offset such as +01:00")
    return time


def _parse_selection(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    example = '{"time": {"start": "2020-01-01", "stop": "2020-12-31"}}'
    return parse_object(name, options.get(name), example) or {}
