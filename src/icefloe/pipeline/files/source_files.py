"""Source files of a job, given by names, glob patterns or tables."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.argument_errors import invalid_argument
from icefloe.storage.urls import require_shareable
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.session import Session

_PATTERN: Final = re.compile(r"[*?\[]")
_GLOB: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
_REQUESTS: Final = 32
"""Concurrent requests for file sizes."""

_COLUMNS: Final = ("url", "path", "source", "location")


def find_sources(sources: Any, session: Session) -> list[str]:
    """Return the URLs of all source files, without duplicates, in the given order.

    Parameters
    ----------
    sources
        A path, URL or glob pattern (``*``, ``?``, ``[…]``, ``**`` for any depth), a list of these,
        or a table with a column ``url``, ``path``, ``source`` or ``location``: a Spark or pandas
        frame, or anything that Arrow can read. Matches of a pattern are sorted.
    session
        Provides containers and credentials for remote files.

    Raises
    ------
    InvalidInputError
        If there are no sources, a pattern matches nothing, or a table has no such column.
    """
    return list(find_sized_sources(sources, session))


def read_source_table(path: str) -> list[str]:
    """Return the sources that a local Parquet or CSV file lists.

    Raises `InvalidInputError` if it is not such a file, or has no source column.
    """
    from pyarrow import ArrowException, csv, parquet  # noqa: PLC0415 - an extra

    try:
        is_csv = path.lower().endswith((".csv", ".csv.gz"))
        table = csv.read_csv(path) if is_csv else parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise InvalidInputError(
            f"{path} is neither a Parquet file nor a CSV file (.csv) with a header: {error}",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
    return _read_names(table)


def fetch_sizes(found: Mapping[str, int | None], session: Session) -> dict[str, int]:
    """Return the sizes of all files, fetching those that `find_sized_sources` does not know.

    The size of a directory, such as a Zarr store, is the sum of its objects; a missing file has
    size 0.
    """
    opened = Sources.of(session.connection.virtual)
    unknown = [url for url, size in found.items() if size is None]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        sizes = list(pool.map(lambda url: opened.open(url).fetch_size(), unknown))
    fetched = dict(zip(unknown, sizes, strict=True))
    return {url: fetched[url] if size is None else size for url, size in found.items()}


def find_sized_sources(sources: Any, session: Session) -> dict[str, int | None]:
    """Return the URLs of all source files, as `find_sources` does, with their sizes in bytes.

    Sizes are known for matches in an object store, from its listing, and None otherwise.
    """
    opened = Sources.of(session.connection.virtual)
    found = {name: _expand_pattern(name, opened) for name in _list_names(sources)}
    if not found:
        raise invalid_argument("no sources were given")
    unmatched = [name for name, urls in found.items() if not urls]
    if unmatched:
        raise InvalidInputError(
            f"no file matches {', '.join(unmatched)}: check the spelling",
            kind=ErrorKind.OBJECT_NOT_FOUND,
        )
    every: dict[str, int | None] = {}
    for urls in found.values():
        for url, size in urls.items():
            every.setdefault(opened.open(url).url, size)
    return every


def _list_names(sources: Any) -> list[str]:
    if hasattr(sources, "columns"):
        return _read_names(sources)
    try:
        listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        return [os.fspath(source) for source in listed]
    except TypeError as error:
        raise invalid_argument(
            "sources must be paths, URLs or patterns, or a table of them, not "
            f"{reprlib.repr(sources)}"
        ) from error


def _read_names(table: Any) -> list[str]:
    """Return the source column of a table."""
    import pyarrow as pa  # noqa: PLC0415 - only for tables

    is_spark = hasattr(table, "toArrow")
    held = table if is_spark else pa.table(table)
    known = held.columns if is_spark else held.column_names
    column = next((name for name in _COLUMNS if name in known), None)
    if column is None:
        raise invalid_argument(
            f"the table of sources has columns {', '.join(known)}: name one of them "
            f"{', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}"
        )
    named = held.select([column])
    found: list[str | None] = (named.toArrow() if is_spark else named)[column].to_pylist()
    if not all(isinstance(name, str) and name for name in found):
        raise invalid_argument(
            f"the column {column} of the table of sources has empty rows: remove them"
        )
    return [name for name in found if name is not None]


def _expand_pattern(named: str, sources: Sources) -> dict[str, int | None]:
    require_shareable(named)
    pattern = _PATTERN.search(named)
    if pattern is None:
        return {named: None}
    if "://" not in named or named.startswith("file://"):
        path = named if "://" not in named else unquote(named.removeprefix("file://"))
        # A file name may contain glob characters.
        exists = os.path.lexists(path)
        found = [path] if exists else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
        return dict.fromkeys(found)
    fixed = named[: pattern.start()].rpartition("/")[0]
    if fixed.endswith(":/"):
        raise InvalidInputError(
            f"{named}: a bucket or host name cannot be a pattern", kind=ErrorKind.CANNOT_PARSE_URL
        )
    matches = re.compile(_GLOB.sub(_translate_token, named[len(fixed) + 1 :]))
    below = _with_folders((name, info.size_bytes) for name, info in sources.list_folder(fixed))
    return {f"{fixed}/{name}": below[name] for name in sorted(below) if matches.fullmatch(name)}


def _with_folders(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add directories, sized as the sum of their objects: a Zarr store is a directory."""
    found: dict[str, int] = {}
    for name, size in sizes:
        place = name
        while place:
            found[place] = found.get(place, 0) + size
            place = place.rpartition("/")[0]
    return found


def _translate_token(part: re.Match[str]) -> str:
    """Translate a part of a glob pattern to a regular expression; only ``**`` matches a slash."""
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
