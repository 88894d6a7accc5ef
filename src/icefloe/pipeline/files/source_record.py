"""The record of a group's source files: an attribute of the group, and metadata of each commit.

Commit metadata is lost when its snapshot expires. The attribute, which lists all files, is moved,
copied and deleted with the group; compressed, 100,000 names of an archive take about 30 kB.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, Final

import zstandard

from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.session import Session, contents
from icefloe.session.exactly_once import METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icefloe.repository import Repository

ATTRIBUTE: Final = "_nc_icefloe_sources"
"""Name of the group attribute; xarray hides attributes that begin with ``_nc``."""

_MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""Maximum decompressed size of the attribute: ten million names of 100 characters."""


def describe_sources(urls: Sequence[str]) -> dict[str, Any]:
    """Return the commit metadata of sources, with their common prefix stored once."""
    # Not commonpath, which would collapse the slashes of a URL.
    prefix = os.path.commonprefix(list(urls)).rpartition("/")[0]  # noqa: RUF071
    start = len(prefix) + 1 if prefix else 0
    return {"prefix": f"{prefix}/" if prefix else "", "names": [url[start:] for url in urls]}


def read_known_sources(repository: Repository, session: Session, group: str) -> set[str]:
    """Return the sources of a group in a session.

    If the attribute was deleted, the sources are read from the metadata of commits.
    """
    value = get_group_attribute(session, group, ATTRIBUTE)
    if value is None:
        return _read_history(repository, session, group)
    return _decode_urls(value, group)


def store_sources(session: Session, group: str, urls: Iterable[str]) -> None:
    """Store the names of all sources in an attribute of the group."""
    set_group_attribute(session, group, ATTRIBUTE, _encode_urls(urls))


def get_group_attribute(session: Session, group: str, name: str) -> Any:
    """Return an attribute of a group, or None if the group or attribute does not exist."""
    node = contents.get_node(session, parse_path(group))
    return None if node is None else (json.loads(node.user_data).get("attributes") or {}).get(name)


def set_group_attribute(session: Session, group: str, name: str, value: Any) -> None:
    """Set an attribute of a group, and keep the others."""
    path = parse_path(group)
    document = json.loads(contents.require_node(session, path).user_data)
    document["attributes"] = {**(document.get("attributes") or {}), name: value}
    contents.set_metadata(session, path, json.dumps(document, separators=(",", ":")).encode())


def _encode_urls(urls: Iterable[str]) -> str:
    # Sorted URLs compress better, and equal sets have equal attributes. URLs have no line breaks.
    return base64.b64encode(zstandard.compress("\n".join(sorted(set(urls))).encode())).decode()


def _decode_urls(value: Any, group: str) -> set[str]:
    try:
        compressed = base64.b64decode(value)
        # Untrusted: bound the decompressed size.
        is_bounded = 0 <= zstandard.frame_content_size(compressed) <= _MAX_DECOMPRESSED_BYTES
        text = zstandard.decompress(compressed).decode() if is_bounded else None
    except (TypeError, ValueError, zstandard.ZstdError):
        text = None
    if text is None:
        raise argument_error(
            f"{group}: the attribute {ATTRIBUTE}, which lists its source files, is damaged; "
            "delete it to use the history of the branch instead"
        )
    return set(text.split("\n"))


def _read_history(repository: Repository, session: Session, group: str) -> set[str]:
    urls: set[str] = set()
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        # Untrusted: skip what `describe_sources` did not write.
        match info.metadata.get(METADATA_KEY):
            case {
                "job": job,
                "group": str(job_group),
                "sources": {"prefix": str(prefix), "names": list(names)},
            } if job_group == group:
                urls |= {f"{prefix}{name}" for name in names}
                if job != "append":
                    break  # this commit created the group
    return urls
