"""The options of a read, checked: what may be said, and what each of them means. Pure, no I/O.

Options are shown by ``df.explain``, in the web interface and in event logs. So they name kinds of
credentials, never credentials; an open repository brings those (`icefloe.spark.read`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Layout = Literal["rows", "chunks"]
Table = Literal[
    "snapshots",
    "history",
    "refs",
    "nodes",
    "manifests",
    "chunks",
    "files",
    "changes",
    "ops_log",
]
LAYOUTS: Final[tuple[str, ...]] = get_args(Layout)
TABLES: Final[tuple[str, ...]] = get_args(Table)

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
_OF_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "snapshots": (),
    "history": _REF,
    "refs": (),
    "nodes": _REF,
    "manifests": _REF,
    "chunks": _REF,
    "files": _REF,
    "changes": ("from", "to"),
    "ops_log": (),
}
_KNOWN: Final = (*PLACE_OPTIONS, *_REF, *_ARRAYS, "table", "from", "to")
# Not options, but what people try: it would be shown wherever the plan is.
_SECRET: Final = ("secret", "password", "token", "access_key", "account_key", "credential", "sas")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for.

    Parameters
    ----------
    place
        Where the repository is and with which kind of credentials, as `PLACE_OPTIONS` name it.
    branch, tag, snapshot, as_of
        Which snapshot; the tip of ``main`` where nothing is said.
    table
        A metadata table instead of arrays.
    group, variables
        Which arrays; all variables of the group where none is named.
    sel, isel
        Selections by dimension: labels as the coordinates have them, or positions.
    nan_as_null
        Whether NaN counts as missing.
    target_bytes, target_rows
        How large partitions should be; chosen where neither is given.
    from_ref, to_ref
        The two ends of ``changes``.
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
        """Read options as Spark hands them over: text, their names in any case.

        Raises
        ------
        InvalidInputError
            If an option is unknown, has no meaning beside the others, or cannot be read.
        """
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            require_known(name, _KNOWN)
        table = _choice("table", options.get("table"), TABLES)
        layout = _choice("layout", options.get("layout", "rows"), LAYOUTS)
        _require_fitting(options, table, layout)
        _require_one_ref(options)
        return cls(
            place={name: options[name] for name in PLACE_OPTIONS if name in options},
            branch=options.get("branch"),
            tag=options.get("tag"),
            snapshot=options.get("snapshot"),
            as_of=_time(options["as_of"]) if "as_of" in options else None,
            table=table,
            layout=layout,
            group="/" + options.get("group", "").strip("/"),
            variables=_names(options["variables"]) if "variables" in options else None,
            sel=_selection("sel", options),
            isel=_selection("isel", options),
            nan_as_null=parse_flag("nan_as_null", options.get("nan_as_null", "true")),
            target_bytes=_count("target_bytes", options),
            target_rows=_count("target_rows", options),
            from_ref=options.get("from"),
            to_ref=options.get("to"),
        )


def table_options(table: str) -> tuple[str, ...]:
    """Tell the options of a metadata table, besides those that say where the repository is."""
    return _OF_TABLE[table]


def encode_options(**given: Any) -> dict[str, str]:
    """Write Python values as options; None is left out.

    Slices, times and numbers of numpy in selections become what `ReadOptions.parse` reads.
    """
    return {
        name: value if isinstance(value, str) else json.dumps(_plain(value))
        for name, value in given.items()
        if value is not None
    }


def parse_flag(name: str, value: str) -> bool:
    """Read ``true`` or ``false``."""
    match value.strip().lower():
        case "true" | "1" | "yes":
            return True
        case "false" | "0" | "no":
            return False
        case _:
            raise invalid_input(f"option {name!r} is true or false, not {value!r}")


def invalid_input(message: str) -> InvalidInputError:
    """Make the error of an argument that is wrong."""
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Say which name may have been meant, or else which there are."""
    names = sorted(known)
    if close := get_close_matches(name, names, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(names)}" if names else "there are none"


def require_known(name: str, known: Iterable[str]) -> None:
    """Refuse an option that is none of those that are known, and secrets above all."""
    if name in known:
        return
    if any(part in name for part in _SECRET):
        raise invalid_input(
            f"option {name!r} is refused: options are shown in plans and logs. Set the "
            "environment of the executors, or pass an open repository to icefloe.spark.read, "
            "which carries its credentials out of sight"
        )
    raise invalid_input(f"there is no option {name!r}: {suggest_name(name, known)}")


def _require_fitting(options: Mapping[str, str], table: str | None, layout: str) -> None:
    """Refuse options that the others make meaningless, rather than leaving them out unsaid."""
    if table is not None:
        fitting = (*PLACE_OPTIONS, *_OF_TABLE[table], "table")
        what = f"table={table!r}"
    else:
        fitting = (*PLACE_OPTIONS, *_REF, *_ARRAYS)
        what = "a read without table='changes'"
        if layout == "chunks":
            fitting = tuple(name for name in fitting if name not in {"nan_as_null", "target_rows"})
            what = "layout='chunks'"
    for name in options:
        if name not in fitting:
            raise invalid_input(f"option {name!r} has no meaning for {what}: leave it out")
    if table == "changes" and "from" not in options:
        raise invalid_input(
            "table='changes' needs option 'from': the branch, tag or snapshot to compare with"
        )


def _require_one_ref(options: Mapping[str, str]) -> None:
    given = [name for name in ("branch", "tag", "snapshot") if name in options]
    if len(given) > 1:
        raise invalid_input(
            f"options {' and '.join(map(repr, given))} exclude each other: keep one"
        )
    if "as_of" in options and given not in ([], ["branch"]):
        raise invalid_input(f"option 'as_of' looks back along a branch: leave {given[0]!r} out")


def _choice(name: str, value: str | None, known: tuple[str, ...]) -> Any:
    if value is None or value in known:
        return value
    raise invalid_input(f"there is no {name} {value!r}: {suggest_name(value, known)}")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid_input(
            f"option 'as_of' is a time such as 2026-01-31T12:00:00Z, not {text!r}"
        ) from error
    if time.tzinfo is None:
        raise invalid_input(f"as_of={text!r} has no time zone: add Z, or an offset such as +01:00")
    return time


def _names(text: str) -> tuple[str, ...]:
    names = _json("variables", text) if text.lstrip().startswith("[") else text.split(",")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid_input(f"option 'variables' is a list of names, not {text!r}")
    names = [name.strip() for name in names]
    if not all(names):
        raise invalid_input(f"option 'variables' has an empty name in it: {text!r}")
    return tuple(dict.fromkeys(names))


def _selection(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    if name not in options:
        return {}
    found = _json(name, options[name])
    if not isinstance(found, dict):
        raise invalid_input(
            f"option {name!r} is a JSON object of selections by dimension, such as "
            f'{{"time": {{"start": "2020-01-01", "stop": "2020-12-31"}}}}, not {options[name]!r}'
        )
    return found


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise invalid_input(
            f"option {name!r} is JSON, and this is none: {text!r} ({error})"
        ) from error


def _count(name: str, options: Mapping[str, str]) -> int | None:
    if name not in options:
        return None
    if not options[name].strip().isdecimal() or int(options[name]) == 0:
        raise invalid_input(f"option {name!r} is a number above zero, not {options[name]!r}")
    return int(options[name])


def _plain(value: Any) -> Any:
    """Make JSON from what people select with."""
    match value:
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case slice():
            parts = {"start": value.start, "stop": value.stop, "step": value.step}
            return {name: _plain(part) for name, part in parts.items() if part is not None}
        case list() | tuple() | range():
            return [_plain(one) for one in value]
        case str() | int() | float() | None:
            return value
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
        case _ if hasattr(value, "dtype") and value.dtype.kind in "mM":
            return value.astype(str).tolist()
        case _ if hasattr(value, "tolist"):
            return value.tolist()
        case _:
            raise invalid_input(
                f"{value!r} cannot be written as an option: use text, numbers, times, lists and "
                "slices"
            )
