"""Parsing of options: text as Spark passes it, names in any case. Pure, no I/O.

Options are shown by ``df.explain``, in the web interface and in event logs. They name kinds of
credentials, never credentials; an open repository carries those.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECRETS: Final = ("secret", "password", "token", "access_key", "account_key", "credential", "sas")
"""Parts of names that users give credentials by; refused, because options are shown."""

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
"""Options of streams and writes in camel case, as other data sources spell them."""


def invalid_input(message: str) -> InvalidInputError:
    """Return the error for an invalid argument or option."""
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint for a message: the closest known name, or else all of them."""
    names = sorted(known)
    if close := get_close_matches(name, names, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(names)}" if names else "there are none"


def normalize_names(given: Mapping[str, str]) -> dict[str, str]:
    """Return options of streams and writes under their names in snake case."""
    options = {name.lower(): value for name, value in given.items()}
    return {_SPELLINGS.get(name, name): value for name, value in options.items()}


def require_known(name: str, known: Iterable[str]) -> None:
    """Raise if an option is unknown, with a special message for credentials."""
    if name in known:
        return
    if any(part in name for part in _SECRETS):
        raise invalid_input(
            f"option {name!r} is refused: options are shown in plans and logs. Set the "
            "environment of the executors, or pass an open repository to icefloe.spark.read, "
            "which carries its credentials out of sight"
        )
    raise invalid_input(f"there is no option {name!r}: {suggest_name(name, known)}")


def encode_options(**given: Any) -> dict[str, str]:
    """Return Python values as options; None is left out.

    Slices, times and numpy values in selections become JSON.
    """
    return {
        name: value if isinstance(value, str) else json.dumps(_to_json_value(value))
        for name, value in given.items()
        if value is not None
    }


def parse_flag(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``."""
    match text.strip().lower():
        case "true" | "1" | "yes":
            return True
        case "false" | "0" | "no":
            return False
        case _:
            raise invalid_input(f"option {name!r} is true or false, not {text!r}")


def parse_count(name: str, text: str | None) -> int | None:
    """Parse a positive integer."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise invalid_input(f"option {name!r} is a number above zero, not {text!r}")
    return int(text)


def parse_names(name: str, text: str) -> list[str]:
    """Parse a list of names: JSON, or separated by commas."""
    try:
        names = json.loads(text) if text.lstrip().startswith("[") else text.split(",")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise invalid_input(f"option {name!r} is a list of names, not {text!r}")
    names = [item.strip() for item in names]
    if not all(names):
        raise invalid_input(f"option {name!r} has an empty name in it: {text!r}")
    return names


def load_object(text: str) -> dict[str, Any] | None:
    """Return a JSON object, None if the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def parse_object(name: str, text: str | None, example: str) -> dict[str, Any] | None:
    """Parse a JSON object whose keys are dimensions."""
    if text is None:
        return None
    found = load_object(text)
    if found is None:
        raise invalid_input(
            f"option {name!r} is a JSON object by dimension, such as {example}, not {text!r}"
        )
    return found


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
            raise invalid_input(
                f"{value!r} cannot be written as an option: use text, numbers, times, lists and "
                "slices"
            )
