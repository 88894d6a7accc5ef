"""The record of a group's source files: a group attribute, and metadata of commits that add files.

The metadata of a commit lists the files that the commit added, and is lost when its snapshot
expires. The attribute lists all files with their versions, and is moved, copied and deleted with
the group. Compressed, 100,000 URLs of an archive take about 30 kB, and their versions 1 MB.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import zstandard

from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.source_versions import SourceVersion
from icefloe.session import Session, contents
from icefloe.session.exactly_once import METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.repository import Repository

SOURCES_ATTRIBUTE: Final = "_nc_icefloe_sources"
"""Name of the group attribute; xarray hides attributes that begin with ``_nc``."""

_MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""Maximum decompressed size of the attribute: ten million URLs of 100 characters."""


@dataclass(frozen=True, slots=True)
class KnownSource:
    """What the record of a group says about a file, apart from its URL.

    ``version`` is the version that was added, ``num_steps`` the number of its steps along the
    dimension that grows. They are None if the file was added without them.
    """

    version: SourceVersion | None = None
    num_steps: int | None = None


def describe_sources(urls: Sequence[str]) -> dict[str, Any]:
    """Return the entry ``sources`` of commit metadata; it stores the common prefix of URLs once."""
    # Not commonpath, which would collapse the slashes of a URL.
    directory = os.path.commonprefix(list(urls)).rpartition("/")[0]  # noqa: RUF071
    prefix = f"{directory}/" if directory else ""
    return {"prefix": prefix, "names": [url.removeprefix(prefix) for url in urls]}


def read_known_sources(
    repository: Repository, session: Session, group: str
) -> dict[str, KnownSource]:
    """Return all source files of a group by URL.

    If `SOURCES_ATTRIBUTE` is not set, the URLs are read from metadata of commits that did not
    expire, which has no versions.
    """
    value = get_group_attribute(session, group, SOURCES_ATTRIBUTE)
    if value is None:
        urls = _read_sources_from_history(repository, session, group)
        return dict.fromkeys(urls, KnownSource())
    return _decode_sources(value, group)


def store_sources(session: Session, group: str, sources: Mapping[str, KnownSource]) -> None:
    """Set the attribute of a group to all its source files by URL."""
    set_group_attribute(session, group, SOURCES_ATTRIBUTE, _encode_sources(sources))


def get_group_attribute(session: Session, group: str, name: str) -> Any:
    """Return an attribute of a group, or None if the group or attribute does not exist."""
    node = contents.get_node(session, parse_path(group))
    return None if node is None else (json.loads(node.user_data).get("attributes") or {}).get(name)


def set_group_attribute(session: Session, group: str, name: str, value: Any) -> None:
    """Set an attribute of a group, and keep its other attributes."""
    path = parse_path(group)
    document = json.loads(contents.require_node(session, path).user_data)
    document["attributes"] = {**(document.get("attributes") or {}), name: value}
    contents.set_metadata(session, path, json.dumps(document, separators=(",", ":")).encode())


def _encode_sources(sources: Mapping[str, KnownSource]) -> str:
    # Sorted, URLs compress better, and equal sets have equal attributes. URLs have no line breaks.
    items = sorted(sources.items())
    columns = [[url for url, _ in items]]
    if any(source != KnownSource() for source in sources.values()):  # otherwise as written earlier
        rows = [_encode_source(source) for _, source in items]
        columns += [list(column) for column in zip(*rows, strict=True)]
    text = "\0".join("\n".join(column) for column in columns)  # columns compress better than rows
    return base64.b64encode(zstandard.compress(text.encode())).decode()


def _encode_source(source: KnownSource) -> tuple[str, str, str]:
    version = source.version
    steps = "" if source.num_steps is None else str(source.num_steps)
    return ("", "", steps) if version is None else (str(version.size_bytes), version.tag, steps)


def _decode_sources(value: Any, group: str) -> dict[str, KnownSource]:
    try:
        compressed = base64.b64decode(value)
        # The attribute is untrusted: the size that it declares must be known (not -1) and bounded.
        if 0 <= zstandard.frame_content_size(compressed) <= _MAX_DECOMPRESSED_BYTES:
            text = zstandard.decompress(compressed).decode()
            urls, *columns = (column.split("\n") for column in text.split("\0"))
            if not columns:
                return dict.fromkeys(urls, KnownSource())
            sizes, tags, steps = columns
            return {
                url: _decode_source(*fields)
                for url, *fields in zip(urls, sizes, tags, steps, strict=True)
            }
    except (TypeError, ValueError, zstandard.ZstdError):
        pass
    raise argument_error(
        f"{group}: the attribute {SOURCES_ATTRIBUTE}, which lists the group's source files, is "
        "damaged; delete the attribute to read them from commit metadata instead"
    )


def _decode_source(size: str, tag: str, steps: str) -> KnownSource:
    version = SourceVersion(int(size), tag) if size else None
    return KnownSource(version, int(steps) if steps else None)


def _read_sources_from_history(repository: Repository, session: Session, group: str) -> set[str]:
    urls: set[str] = set()
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        # Commit metadata is untrusted: skip records of any other form.
        match info.metadata.get(METADATA_KEY):
            case {
                "job": job,
                "group": str(job_group),
                "sources": {"prefix": str(prefix), "names": list(names)},
            } if job_group == group:
                urls |= {f"{prefix}{name}" for name in names}
                if job not in {"append", "refresh"}:
                    break  # other jobs create the group: older commits do not apply
    return urls
