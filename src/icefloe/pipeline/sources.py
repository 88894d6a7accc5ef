"""Which files a job reads: names, patterns or tables, and which of them were read before."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.exactly_once import METADATA_KEY
from icefloe.virtual.files.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.repository import Repository
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
        list of those; or a Spark DataFrame with a column ``url``, ``path``, ``source`` or
        ``location``. What a pattern finds is sorted.
    session
        Its containers and credentials reach remote places.

    Raises
    ------
    InvalidInputError
        If there are none, a pattern finds nothing, or a table has no such column.
    """
    if hasattr(sources, "columns") and hasattr(sources, "select"):
        listed: Sequence[Any] = _of_table(sources)
    elif isinstance(sources, str | os.PathLike):
        listed = [sources]
    else:
        listed = list(sources)
    opened = Sources.of(session.connection.virtual)
    found = [url for one in listed for url in _expanded(os.fspath(one), opened)]
    if not found:
        raise InvalidInputError("there are no sources", kind=ErrorKind.NOT_ALLOWED)
    return list(dict.fromkeys(opened.open(url).url for url in found))


def record_of(urls: Sequence[str]) -> dict[str, Any]:
    """Describe sources for the metadata of a commit; what they begin with stands there once."""
    # Letter by letter, and then back to a slash: as paths, URLs would lose one of theirs.
    prefix = os.path.commonprefix(list(urls)).rpartition("/")[0]  # noqa: RUF071
    start = len(prefix) + 1 if prefix else 0
    return {
        "prefix": f"{prefix}/" if prefix else "",
        "names": [url[start:] for url in urls],
    }


def known_sources(repository: Repository, session: Session, group: str) -> set[str]:
    """Return the sources that commits before a session's say they brought into a group."""
    known: set[str] = set()
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        record = info.metadata.get(METADATA_KEY)
        if isinstance(record, dict) and record.get("group") == group and "sources" in record:
            known |= _urls(record["sources"])
            if record.get("job") != "append":
                break  # it made the group: what was there before is not there any more
    return known


def _urls(record: Mapping[str, Any]) -> set[str]:
    return {f"{record['prefix']}{name}" for name in record["names"]}


def _of_table(table: Any) -> list[str]:
    column = next((name for name in _COLUMNS if name in table.columns), None)
    if column is None:
        raise InvalidInputError(
            f"the table of sources has columns {', '.join(table.columns)}: name one of them "
            f"{', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    found: list[str | None] = table.select(column).toArrow()[column].to_pylist()
    if not all(isinstance(one, str) and one for one in found):
        raise InvalidInputError(
            f"the column {column} of the table of sources has rows without a name in them: leave "
            "those out",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return [one for one in found if one is not None]


def _expanded(named: str, sources: Sources) -> Iterable[str]:
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
        below = sources.open(fixed).list_below()
        found = sorted(f"{fixed}/{name}" for name, _ in below if matches.fullmatch(name))
    if not found:
        raise InvalidInputError(
            f"{named} finds no file: see whether it is spelled as the files are",
            kind=ErrorKind.OBJECT_NOT_FOUND,
        )
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
