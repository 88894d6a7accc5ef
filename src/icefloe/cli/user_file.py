"""The file in which users name their repositories.

The file is TOML, with a table ``repositories`` of names and URLs or paths. It is read only for
arguments that are neither URLs nor existing paths.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_user_file() -> Path:
    """Return the path of the user file: ``ICEFLOE_CONFIG``, or the default."""
    path = os.environ.get("ICEFLOE_CONFIG")
    if path:
        return Path(path)
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "icefloe" / "config.toml"


def read_names(path: Path) -> Mapping[str, str]:
    """Return the repositories by name; none if there is no file.

    Environment variables in URLs, such as ``$BUCKET``, are replaced. Raises `FormatError`, not an
    `InvalidInputError`, which would blame the argument.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FormatError(
            f"it cannot be read as TOML: {error}", file=f"user file {path}"
        ) from error
    names = document.get("repositories", {})
    if not isinstance(names, dict) or not all(isinstance(url, str) for url in names.values()):
        raise FormatError(
            "it has no table of names and URLs; expected lines such as: "
            '[repositories] weather = "s3://bucket/weather"',
            file=f"user file {path}",
        )
    return {name: os.path.expandvars(url) for name, url in names.items()}


def resolve_name(text: str) -> str:
    """Return the URL of a named repository; return URLs, paths and unknown names unchanged."""
    if not text or "://" in text or "/" in text or os.path.lexists(text):
        return text
    return read_names(find_user_file()).get(text, text)


def suggest_names(text: str) -> list[str]:
    """Return the names of the user file that are similar to a name that was not found."""
    return get_close_matches(text, read_names(find_user_file()), n=3)
