"""Resolves the sources of a job (paths, URLs, glob patterns, tables) to file URLs."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.argument_errors import argument_error
from icefloe.storage.urls import require_shareable
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.session import Session

_WILDCARD: Final = re.compile(r"[*?\[]")
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
        DataFrame, or a `pyarrow.Table`. Matches of a pattern are sorted.
    session
        Provides containers and credentials for remote files.

    Raises
    ------
    InvalidInputError
        If there are no sources, a pattern has no match, or a table has none of the columns.
    """
    return list(find_sized_sources(sources, session))


def read_source_table(path: str) -> list[str]:
    """Return the sources that a local Parquet or CSV file lists.

    Raises `InvalidInputError` if the file has another format or no source column.
    """
    from pyarrow import ArrowException, csv, parquet  # noqa: PLC0415 - an extra

    try:
        is_csv = path.lower().endswith((".csv", ".csv.gz"))
        table = csv.read_csv(path) if is_csv else parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as Parquet, or as CSV with a header (.csv): {error}",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        ) from error
    return _read_names(table)


def fetch_sizes(known_sizes: Mapping[str, int | None], session: Session) -> dict[str, int]:
    """Return the sizes of all files; fetch those that are None.

    The size of a directory, such as a Zarr store, is the sum of its objects; a missing file has
    size 0.
    """
    opener = Sources.of(session.connection.virtual)
    unknown = [url for url, size in known_sizes.items() if size is None]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        sizes = list(pool.map(lambda url: opener.open(url).fetch_size(), unknown))
    fetched = dict(zip(unknown, sizes, strict=True))
    return {url: fetched[url] if size is None else size for url, size in known_sizes.items()}


def find_sized_sources(sources: Any, session: Session) -> dict[str, int | None]:
    """Return the URLs of all source files, as `find_sources` does, with their sizes in bytes.

    Matches in an object store have the size that its listing reports; other sizes are None.
    """
    opener = Sources.of(session.connection.virtual)
    matches = {name: _expand_pattern(name, opener) for name in list_source_names(sources)}
    if not matches:
        raise argument_error("sources is empty: pass at least one path, URL or pattern")
    unmatched = [name for name, urls in matches.items() if not urls]
    if unmatched:
        raise InvalidInputError(
            f"no file matches {', '.join(unmatched)}: check the spelling",
            kind=ErrorKind.OBJECT_NOT_FOUND,
        )
    sizes: dict[str, int | None] = {}
    for urls in matches.values():
        for url, size in urls.items():
            sizes.setdefault(opener.open(url).url, size)
    return sizes


def list_source_names(sources: Any) -> list[str]:
    """Return the paths, URLs and patterns of sources; see `find_sources`."""
    if hasattr(sources, "columns"):
        return _read_names(sources)
    try:
        items = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        return [os.fspath(source) for source in items]
    except TypeError as error:
        raise argument_error(
            "sources must be paths, URLs or patterns, or a table of them, not "
            f"{reprlib.repr(sources)}"
        ) from error


def _read_names(table: Any) -> list[str]:
    """Return the source column of a table."""
    import pyarrow as pa  # noqa: PLC0415 - only for tables

    is_spark = hasattr(table, "toArrow")
    source_table = table if is_spark else pa.table(table)
    columns = source_table.columns if is_spark else source_table.column_names
    column = next((name for name in _COLUMNS if name in columns), None)
    if column is None:
        raise argument_error(
            f"the table of sources has columns {', '.join(columns)}: rename one of them "
            f"to {', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}"
        )
    selection = source_table.select([column])
    names: list[str | None] = (selection.toArrow() if is_spark else selection)[column].to_pylist()
    if not all(isinstance(name, str) and name for name in names):
        raise argument_error(
            f"the column {column} of the table of sources has values that are empty or not "
            "strings: remove them"
        )
    return [name for name in names if name is not None]


def _expand_pattern(source: str, opener: Sources) -> dict[str, int | None]:
    require_shareable(source)
    pattern = _WILDCARD.search(source)
    if pattern is None:
        return {source: None}
    if "://" not in source or source.startswith("file://"):
        path = source if "://" not in source else unquote(source.removeprefix("file://"))
        # A file name may contain glob characters.
        exists = os.path.lexists(path)
        paths = [path] if exists else sorted(glob.glob(path, recursive=True))  # noqa: PTH207
        return dict.fromkeys(paths)
    folder = source[: pattern.start()].rpartition("/")[0]
    if folder.endswith(":/"):
        raise InvalidInputError(
            f"{source}: a bucket or host name cannot be a pattern", kind=ErrorKind.CANNOT_PARSE_URL
        )
    regex = re.compile(_GLOB.sub(_translate_token, source[len(folder) + 1 :]))
    sizes = _add_directories((name, info.size_bytes) for name, info in opener.list_folder(folder))
    return {f"{folder}/{name}": sizes[name] for name in sorted(sizes) if regex.fullmatch(name)}


def _add_directories(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add directories, sized as the sum of their objects: a Zarr store is a directory."""
    totals: dict[str, int] = {}
    for name, size in sizes:
        path = name
        while path:
            totals[path] = totals.get(path, 0) + size
            path = path.rpartition("/")[0]
    return totals


def _translate_token(part: re.Match[str]) -> str:
    """Translate a token of a glob pattern to a regular expression; only ``**`` matches a slash."""
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
