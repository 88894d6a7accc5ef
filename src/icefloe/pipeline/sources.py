"""Which files a job reads: names, patterns or tables."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.files.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.session import Session

_PATTERN: Final = re.compile(r"[*?\[]")
_GLOB: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
_COLUMNS: Final = ("url", "path", "source", "location")


def find_sources(sources: Any, session: Session) -> list[str]:
    """Return the files that are meant, as URLs, each once, in the order given.

    Parameters
    ----------
    sources
        A path or URL, or a pattern of them (``*``, ``?``, ``[…]``, and ``**`` for any depth); a
        list of those; or a table with a column ``url``, ``path``, ``source`` or ``location``: of
        Spark, pandas, Arrow or whatever else can be read as Arrow. What a pattern finds is sorted.
    session
        Its containers and credentials reach remote places.

    Raises
    ------
    InvalidInputError
        If there are none, a pattern finds nothing, or a table has no such column.
    """
    listed = _named(sources)
    opened = Sources.of(session.connection.virtual)
    found = {one: _expanded(one, opened) for one in listed}
    if not found:
        raise InvalidInputError("there are no sources", kind=ErrorKind.NOT_ALLOWED)
    without = [one for one, urls in found.items() if not urls]
    if without:
        raise InvalidInputError(
            f"{', '.join(without)} {'finds' if len(without) == 1 else 'find'} no file: see whether "
            "it is spelled as the files are",
            kind=ErrorKind.OBJECT_NOT_FOUND,
        )
    return list(dict.fromkeys(opened.open(url).url for urls in found.values() for url in urls))


def _named(sources: Any) -> list[str]:
    if hasattr(sources, "columns"):
        return _of_table(sources)
    try:
        listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        return [os.fspath(one) for one in listed]
    except TypeError as error:
        raise InvalidInputError(
            "sources are paths, URLs or patterns of them, or a table of those, not "
            f"{reprlib.repr(sources)}",
            kind=ErrorKind.NOT_ALLOWED,
        ) from error


def _of_table(table: Any) -> list[str]:
    """Take the names out of a table, of Spark or of anything that Arrow takes over."""
    import pyarrow as pa  # noqa: PLC0415 - who names files does not need it

    is_spark = hasattr(table, "toArrow")
    held = table if is_spark else pa.table(table)
    known = held.columns if is_spark else held.column_names
    column = next((name for name in _COLUMNS if name in known), None)
    if column is None:
        raise InvalidInputError(
            f"the table of sources has columns {', '.join(known)}: name one of them "
            f"{', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    named = held.select([column])
    found: list[str | None] = (named.toArrow() if is_spark else named)[column].to_pylist()
    if not all(isinstance(one, str) and one for one in found):
        raise InvalidInputError(
            f"the column {column} of the table of sources has rows without a name in them: leave "
            "those out",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return [one for one in found if one is not None]


def _expanded(named: str, sources: Sources) -> list[str]:
    pattern = _PATTERN.search(named)
    if pattern is None:
        return [named]
    if "://" not in named or named.startswith("file://"):
        path = named.removeprefix("file://")
        # A file may have such a name.
        exists = os.path.lexists(path)
        found = [path] if exists else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
    else:
        fixed = named[: pattern.start()].rpartition("/")[0]
        matches = re.compile(_translated(named[len(fixed) + 1 :]))
        below = (name for name, _ in sources.open(fixed).list_below())
        found = sorted(
            f"{fixed}/{name}" for name in _with_folders(below) if matches.fullmatch(name)
        )
    return found


def _with_folders(names: Iterable[str]) -> set[str]:
    """Add the folders that objects are in: a Zarr store is one."""
    found: set[str] = set()
    for name in names:
        place = name
        while place and place not in found:
            found.add(place)
            place = place.rpartition("/")[0]
    return found


def _translated(pattern: str) -> str:
    """Turn a pattern into a regular expression in which only ``**`` goes past a slash."""
    return _GLOB.sub(_translated_part, pattern)


def _translated_part(part: re.Match[str]) -> str:
    match part.group():
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case text if text.startswith("[") and len(text) > 1:
            return f"[^/{text[2:]}" if text[1] == "!" else text
        case text:
            return re.escape(text)
