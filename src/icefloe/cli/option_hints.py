"""Translates Python arguments in error messages of the library to command-line options."""

from __future__ import annotations

import re
from typing import Final

_OPTIONS: Final = {
    'on_error="skip"': "--on-error skip",
    'changed="replace"': "--changed replace",
    'changed="keep"': "--changed keep",
    "insert=True": "--insert",
    "virtual=False": "--native",
    "create=True": "--create",
    "spark=None": "--no-spark",
    "order='coordinates'": "--order coordinates",
    "use reset_branch": "use `icefloe reset`",
    ", open the repository if it is one, or pass check_clean_root=False": "",
}
_LIST_OPTIONS: Final = {
    "containers": "--container",
    "authorize_virtual_chunk_access": "--container",
    "drop_variables": "--drop",
    "variables": "--variable",
}
_NAMES: Final = re.compile(r"(?<![\w/.])(task_bytes|max_chunks|transaction_id|partition_by)\b(?!=)")
"""Parameters that messages name without a value."""

_LIST: Final = re.compile(rf"\b({'|'.join(_LIST_OPTIONS)})=(\[.*?\]|\{{.*?\}}|'.*?')")


def suggest_options(message: str) -> str:
    """Replace Python arguments in an error message by the equivalent options."""
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    message = _NAMES.sub(lambda match: f"--{match[0].replace('_', '-')}", message)
    return _LIST.sub(_format_list, message)


def _format_list(match: re.Match[str]) -> str:
    """Repeat an option for each item of a list, each key of a dict, or each name of a string."""
    items = re.findall(r"'([^']*)'", match[2])
    if match[2].startswith("'"):
        items = items[0].split(",")
    return " ".join(f"{_LIST_OPTIONS[match[1]]} {item}" for item in items) or match[0]
