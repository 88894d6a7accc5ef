"""Options of a read. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from icefloe.spark.option_parsing import (
    input_error,
    parse_count,
    parse_dimension_object,
    parse_flag,
    parse_names,
    require_known_option,
    suggest_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Layout = Literal["rows", "chunks"]
Table = Literal[
    "snapshots", "history", "refs", "nodes", "manifests", "chunks", "files", "changes", "ops_log"
]

REPOSITORY_OPTIONS: Final = (
    "path",
    "region",
    "endpoint_url",
    "allow_http",
    "anonymous",
    "from_env",
    "authorize_virtual_chunk_access",
)
_REF_OPTIONS: Final = ("branch", "tag", "snapshot", "as_of")
_ARRAY_OPTIONS: Final = (
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
    **dict.fromkeys(("history", "nodes", "manifests", "chunks", "files"), _REF_OPTIONS),
    "changes": ("from", "to"),
}
"""Options of each metadata table, besides `REPOSITORY_OPTIONS`."""

_ALL_OPTIONS: Final = (*REPOSITORY_OPTIONS, *_REF_OPTIONS, *_ARRAY_OPTIONS, "table", "from", "to")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parsed options of a read; see `icefloe.spark.read`.

    ``repository`` has the `REPOSITORY_OPTIONS`: path, storage settings and kind of credentials.
    ``target_bytes`` and ``target_rows`` are the size of partitions, chosen automatically if None.
    ``from_ref`` and ``to_ref`` are the refs that the table ``changes`` compares.
    """

    repository: Mapping[str, str] = field(default_factory=dict)
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
    def parse(cls, raw_options: Mapping[str, str]) -> ReadOptions:
        """Parse options as Spark passes them: strings with case-insensitive names.

        Raises if an option is unknown, malformed, or would be ignored because of other options.
        """
        options = {name.lower(): value for name, value in raw_options.items()}
        for name in options:
            require_known_option(name, _ALL_OPTIONS)
        table = _parse_choice("table", options.get("table"), get_args(Table))
        layout = _parse_choice("layout", options.get("layout", "rows"), get_args(Layout))
        _require_effective(options, table, layout)
        _require_at_most_one_ref(options)
        names = parse_names("variables", options["variables"]) if "variables" in options else None
        return cls(
            repository={name: options[name] for name in REPOSITORY_OPTIONS if name in options},
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
    """Raise for options that would be ignored because of other options."""
    if table is not None:
        effective = (*REPOSITORY_OPTIONS, *TABLE_OPTIONS[table], "table")
        read = f"table={table!r}"
    else:
        effective = (*REPOSITORY_OPTIONS, *_REF_OPTIONS, *_ARRAY_OPTIONS)
        read = "a read without table='changes'"
        if layout == "chunks":
            ignored = {"nan_as_null", "target_rows"}
            effective = tuple(name for name in effective if name not in ignored)
            read = "layout='chunks'"
    for name in options:
        if name not in effective:
            raise input_error(f"option {name!r} has no effect on {read}: omit it")
    if table == "changes" and "from" not in options:
        raise input_error(
            "table='changes' needs the option 'from': the branch, tag or snapshot to compare with"
        )


def _require_at_most_one_ref(options: Mapping[str, str]) -> None:
    refs = [name for name in ("branch", "tag", "snapshot") if name in options]
    if len(refs) > 1:
        names = " and ".join(map(repr, refs))
        raise input_error(f"options {names} are mutually exclusive: keep one")
    if "as_of" in options and refs not in ([], ["branch"]):
        raise input_error(f"option 'as_of' is for branches: omit {refs[0]!r}")


def _parse_choice(name: str, value: str | None, choices: tuple[str, ...]) -> Any:
    if value is None or value in choices:
        return value
    raise input_error(f"there is no {name} {value!r}: {suggest_name(value, choices)}")


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise input_error(
            f"option 'as_of': expected a time such as 2026-01-31T12:00:00Z, got {text!r}"
        ) from error
    if time.tzinfo is None:
        raise input_error(f"as_of={text!r} has no time zone: add Z, or an offset such as +01:00")
    return time


def _parse_selection(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    example = '{"time": {"start": "2020-01-01", "stop": "2020-12-31"}}'
    return parse_dimension_object(name, options.get(name), example) or {}
