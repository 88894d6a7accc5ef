"""Which files a job reads: names, patterns or tables."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.urls import require_shareable
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.session import Session

_PATTERN: Final = re.compile(r"[*?\[]")
_GLOB: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
_REQUESTS: Final = 32
"""How many files are asked for their size at a time."""

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
    return list(find_sized_sources(sources, session))


def read_source_table(path: str) -> list[str]:
    """Return what a Parquet or CSV file on this machine lists, in the column of sources.

    Raises
    ------
    InvalidInputError
        If it is no such file, or has no such column.
    """
    from pyarrow import ArrowException, csv, parquet  # noqa: PLC0415 - an extra

    try:
        is_csv = path.lower().endswith((".csv", ".csv.gz"))
        table = csv.read_csv(path) if is_csv else parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise InvalidInputError(
            f"{path}: is neither a Parquet file nor a CSV file (.csv) with a header: {error}",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
    return _read_names(table)


def fetch_sizes(found: Mapping[str, int | None], session: Session) -> dict[str, int]:
    """Ask for the sizes that `find_sized_sources` does not know, many at a time.

    A folder, such as a Zarr store, is as large as all in it; what is not there has no bytes.
    """
    opened = Sources.of(session.connection.virtual)
    unknown = [url for url, size in found.items() if size is None]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        sizes = list(pool.map(lambda url: opened.open(url).fetch_size(), unknown))
    asked = dict(zip(unknown, sizes, strict=True))
    return {url: asked[url] if size is None else size for url, size in found.items()}


def find_sized_sources(sources: Any, session: Session) -> dict[str, int | None]:
    """Return the files that are meant, as `find_sources` does, and their sizes in bytes.

    Those are known of what a pattern finds in an object store, from listing it, and else None.
    """
    opened = Sources.of(session.connection.virtual)
    found = {one: _expand_pattern(one, opened) for one in _list_names(sources)}
    if not found:
        raise InvalidInputError("there are no sources", kind=ErrorKind.NOT_ALLOWED)
    without = [one for one, urls in found.items() if not urls]
    if without:
        raise InvalidInputError(
            f"{', '.join(without)} {'finds' if len(without) == 1 else 'find'} no file: see whether "
            "it is spelled as the files are",
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
        return [os.fspath(one) for one in listed]
    except TypeError as error:
        raise InvalidInputError(
            "sources are paths, URLs or patterns of them, or a table of those, not "
            f"{reprlib.repr(sources)}",
            kind=ErrorKind.NOT_ALLOWED,
        ) from error


def _read_names(table: Any) -> list[str]:
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


def _expand_pattern(named: str, sources: Sources) -> dict[str, int | None]:
    require_shareable(named)
    pattern = _PATTERN.search(named)
    if pattern is None:
        return {named: None}
    if "://" not in named or named.startswith("file://"):
        path = named if "://" not in named else unquote(named.removeprefix("file://"))
        # A file may have such a name.
        exists = os.path.lexists(path)
        found = [path] if exists else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
        return dict.fromkeys(found)
    fixed = named[: pattern.start()].rpartition("/")[0]
    if fixed.endswith(":/"):
        raise InvalidInputError(
            f"{named}: the name of a bucket or host is no pattern: write it out",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    matches = re.compile(_translate_glob(named[len(fixed) + 1 :]))
    below = _with_folders((name, info.size_bytes) for name, info in sources.list_folder(fixed))
    return {f"{fixed}/{name}": below[name] for name in sorted(below) if matches.fullmatch(name)}


def _with_folders(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add the folders that objects are in, as large as all in them: a Zarr store is one."""
    found: dict[str, int] = {}
    for name, size in sizes:
        place = name
        while place:
            found[place] = found.get(place, 0) + size
            place = place.rpartition("/")[0]
    return found


def _translate_glob(pattern: str) -> str:
    """Turn a pattern into a regular expression in which only ``**`` goes past a slash."""
    return _GLOB.sub(_translate_token, pattern)


def _translate_token(part: re.Match[str]) -> str:
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
