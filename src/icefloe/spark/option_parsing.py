"""Parsing of options, which Spark passes as strings with case-insensitive names. Pure, no I/O.

Spark displays options in ``df.explain``, its web interface and event logs. Options therefore name a
kind of credentials and never contain credentials; an open repository contains its credentials.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECRET_NAME_PARTS: Final = frozenset(
    {"secret", "password", "token", "access_key", "account_key", "credential", "sas"}
)
"""Parts of option names that suggest credentials."""

_NAMES_BY_ALIAS: Final = {
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
"""Camel-case aliases, in lower case, of stream and write options, as in other data sources."""


def input_error(message: str) -> InvalidInputError:
    """Make the error for an invalid argument or option."""
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a hint for a message: the most similar of the available names, or else all of them."""
    available = sorted(names)
    if matches := get_close_matches(name, available, n=1, cutoff=0.5):
        return f"did you mean {matches[0]!r}?"
    return f"available: {', '.join(available) or 'none'}"


def normalize_names(raw_options: Mapping[str, str]) -> dict[str, str]:
    """Return options with lower-case names; camel-case aliases become snake case."""
    options = {name.lower(): value for name, value in raw_options.items()}
    return {_NAMES_BY_ALIAS.get(name, name): value for name, value in options.items()}


def require_known_option(name: str, names: Iterable[str]) -> None:
    """Raise if an option is unknown; if it looks like a credential, suggest alternatives."""
    if name in names:
        return
    if any(part in name for part in _SECRET_NAME_PARTS):
        raise input_error(
            f"option {name!r} is not allowed: Spark displays options in plans and logs. Set "
            "credentials in the environment of the executors, or pass an open repository to "
            "icefloe.spark.read"
        )
    raise input_error(f"there is no option {name!r}: {suggest_name(name, names)}")


def encode_options(**values: Any) -> dict[str, str]:
    """Encode Python values as options: strings unchanged, others as JSON; None is omitted."""
    return {
        name: value if isinstance(value, str) else json.dumps(_to_json_value(value))
        for name, value in values.items()
        if value is not None
    }


def parse_flag(name: str, text: str) -> bool:
    """Parse ``true``, ``1`` or ``yes``, and ``false``, ``0`` or ``no``."""
    match text.strip().lower():
        case "true" | "1" | "yes":
            return True
        case "false" | "0" | "no":
            return False
        case _:
            raise input_error(f"option {name!r}: expected true or false, got {text!r}")


def parse_count(name: str, text: str | None) -> int | None:
    """Parse a positive integer, or return None for None."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise input_error(f"option {name!r}: expected a positive integer, got {text!r}")
    return int(text)


def parse_names(name: str, text: str) -> list[str]:
    """Parse a list of names: a JSON array, or names separated by commas."""
    try:
        names = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise input_error(f"option {name!r}: expected a list of names, got {text!r}")
    names = [item.strip() for item in names]
    if not all(names):
        raise input_error(f"option {name!r} contains an empty name: {text!r}")
    return names


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not one."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_dimension_object(name: str, text: str | None, example: str) -> dict[str, Any] | None:
    """Parse a JSON object whose keys are dimensions, or return None for None."""
    if text is None:
        return None
    value = parse_json_object(text)
    if value is None:
        raise input_error(
            f"option {name!r}: expected a JSON object by dimension such as {example}, got {text!r}"
        )
    return value


def _to_json_value(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _to_json_value(item) for key, item in value.items()}
        case slice():
            parts = {"start": value.start, "stop": value.stop, "step": value.step}
            return {name: _to_json_value(part) for name, part in parts.items() if part is not None}
        case list() | tuple() | range():
            return [_to_json_value(item) for item in value]
        case str() | int() | float() | None:
            return value
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
        case _ if hasattr(value, "dtype") and value.dtype.kind in "mM":
            return value.astype(str).tolist()
        case _ if hasattr(value, "tolist"):
            return value.tolist()
        case _:
            raise input_error(
                f"{value!r} cannot be written as an option: use strings, numbers, times, lists and "
                "slices"
            )
