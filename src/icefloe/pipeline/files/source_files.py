"""Resolves the sources of a job (paths, URLs, glob patterns, tables) to file URLs."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.files.source_versions import SourceVersion
from icefloe.storage.urls import require_shareable
from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.session import Session

_WILDCARD: Final = re.compile(r"[*?\[]")
_GLOB: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
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
    return list(find_versioned_sources(sources, session))


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


def find_versioned_sources(sources: Any, session: Session) -> dict[str, SourceVersion | None]:
    """Return the URLs of all source files, as `find_sources` does, with their versions.

    Matches in an object store have the version that its listing reports; others are None.
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
    versions: dict[str, SourceVersion | None] = {}
    for urls in matches.values():
        for url, version in urls.items():
            versions.setdefault(opener.open(url).url, version)
    return versions


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


def _expand_pattern(source: str, opener: Sources) -> dict[str, SourceVersion | None]:
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
    listing = ((name, SourceVersion.of_object(info)) for name, info in opener.list_folder(folder))
    versions = _add_directories(dict(listing), regex)
    return {
        f"{folder}/{name}": versions[name] for name in sorted(versions) if regex.fullmatch(name)
    }


def _add_directories(
    objects: Mapping[str, SourceVersion], regex: re.Pattern[str]
) -> dict[str, SourceVersion]:
    """Add the directories that a pattern matches: a Zarr store is a directory."""
    directories: dict[str, dict[str, SourceVersion]] = {}
    for name, version in objects.items():
        path = name.rpartition("/")[0]
        while path:
            if path in directories or regex.fullmatch(path):
                directories.setdefault(path, {})[name[len(path) + 1 :]] = version
            path = path.rpartition("/")[0]
    totals = {path: SourceVersion.of_directory(files) for path, files in directories.items()}
    return {**totals, **objects}


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
