"""The record of a group's source files: a group attribute, and metadata of commits that add files.

The metadata of a commit lists the files that the commit added, and is lost when its snapshot
expires. The attribute lists all files, and is moved, copied and deleted with the group; compressed,
100,000 URLs of an archive take about 30 kB.
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

SOURCES_ATTRIBUTE: Final = "_nc_icefloe_sources"
"""Name of the group attribute; xarray hides attributes that begin with ``_nc``."""

_MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""Maximum decompressed size of the attribute: ten million URLs of 100 characters."""


def describe_sources(urls: Sequence[str]) -> dict[str, Any]:
    """Return the entry ``sources`` of commit metadata; it stores the common prefix of URLs once."""
    # Not commonpath, which would collapse the slashes of a URL.
    directory = os.path.commonprefix(list(urls)).rpartition("/")[0]  # noqa: RUF071
    prefix = f"{directory}/" if directory else ""
    return {"prefix": prefix, "names": [url.removeprefix(prefix) for url in urls]}


def read_known_sources(repository: Repository, session: Session, group: str) -> set[str]:
    """Return the URLs of all source files of a group.

    If `SOURCES_ATTRIBUTE` is not set, they are read from metadata of commits that did not expire.
    """
    value = get_group_attribute(session, group, SOURCES_ATTRIBUTE)
    if value is None:
        return _read_sources_from_history(repository, session, group)
    return _decode_urls(value, group)


def store_sources(session: Session, group: str, urls: Iterable[str]) -> None:
    """Set the attribute of a group to the URLs of all its source files."""
    set_group_attribute(session, group, SOURCES_ATTRIBUTE, _encode_urls(urls))


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


def _encode_urls(urls: Iterable[str]) -> str:
    # Sorted, URLs compress better, and equal sets have equal attributes. URLs have no line breaks.
    return base64.b64encode(zstandard.compress("\n".join(sorted(set(urls))).encode())).decode()


def _decode_urls(value: Any, group: str) -> set[str]:
    try:
        compressed = base64.b64decode(value)
        # The attribute is untrusted: the size that it declares must be known (not -1) and bounded.
        is_bounded = 0 <= zstandard.frame_content_size(compressed) <= _MAX_DECOMPRESSED_BYTES
        text = zstandard.decompress(compressed).decode() if is_bounded else None
    except (TypeError, ValueError, zstandard.ZstdError):
        text = None
    if text is None:
        raise argument_error(
            f"{group}: the attribute {SOURCES_ATTRIBUTE}, which lists the group's source files, is "
            "damaged; delete the attribute to read them from commit metadata instead"
        )
    return set(text.split("\n"))


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
                if job != "append":
                    break  # other jobs create the group: older commits do not apply
    return urls
