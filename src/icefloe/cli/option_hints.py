"""Command-line options in place of the Python arguments that errors of the library suggest."""

from __future__ import annotations

import re
from typing import Final

_OPTIONS: Final = {
    'on_error="skip"': "--on-error skip",
    "create=True": "--create",
    "spark=None": "--no-spark",
    "order='coordinates'": "--order coordinates",
}
_LIST_OPTIONS: Final = {
    "containers": "--container",
    "authorize_virtual_chunk_access": "--container",
    "drop_variables": "--drop",
    "variables": "--variable",
}
_LIST: Final = re.compile(rf"\b({'|'.join(_LIST_OPTIONS)})=(\[.*?\]|\{{.*?\}}|'.*?')")


def suggest_options(message: str) -> str:
    """Replace Python arguments in an error message by the options of the same meaning."""
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    return _LIST.sub(_format_list, message)


def _format_list(found: re.Match[str]) -> str:
    """Repeat an option for each item of a list, each key of a dict, or each name of a string."""
    items = re.findall(r"'([^']*)'", found[2])
    if found[2].startswith("'"):
        items = items[0].split(",")
    return " ".join(f"{_LIST_OPTIONS[found[1]]} {item}" for item in items) or found[0]
