"""Describes what is near a repository that was not found, for errors."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.cli.user_file import find_user_file, suggest_names
from icefloe.format.keys import REPO, STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_NAMES: Final = 8
_MAX_ENTRIES: Final = 200
# A file or directory that each generation has in its root.
_MARKS: Final = (REPO, "refs", STATE, "r")


def describe_alternatives(repository: str) -> str:
    """Describe repositories with similar names, and the contents of a local directory."""
    return "; ".join(_list_alternatives(repository))


def _list_alternatives(repository: str) -> Iterator[str]:
    if "://" in repository:
        return
    names = suggest_names(repository)
    if names:
        yield f"the user file {find_user_file()} has similar names: {', '.join(names)}"
    folder = Path(repository).absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        with os.scandir(folder) as entries:
            found = sorted(Path(entry.path) for entry in islice(entries, _MAX_ENTRIES))
    except OSError:
        return
    repositories = [path.name for path in found if any((path / mark).exists() for mark in _MARKS)]
    if repositories:
        yield f"{folder} contains repositories: {_join(repositories)}"
    else:
        yield f"{folder} contains: {_join([path.name for path in found])}"


def _join(names: list[str]) -> str:
    more = ["…"] if len(names) > _MAX_NAMES else []
    return ", ".join([*names[:_MAX_NAMES], *more]) or "nothing"
