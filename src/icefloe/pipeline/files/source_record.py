"""Which files a group was made of: kept with the group, and told by every commit.

What a commit says is gone when its snapshot expires. So the group itself carries the names of all
its files, in an attribute: they last as long as the group, and go along when it is moved, copied or
deleted. Names in an archive are much alike: compressed, 100,000 of them take some 30 kB.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, Final

import zstandard

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.nodes import path_of
from icefloe.session import contents
from icefloe.session.exactly_once import METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icefloe.repository import Repository
    from icefloe.session import Session

ATTRIBUTE: Final = "_nc_icefloe_sources"
"""Of the group. What begins with ``_nc`` xarray takes for NetCDF's own, and does not show."""


_MAX_BYTES: Final = 1 << 30
"""Ten million names of a hundred letters."""


def describe_sources(urls: Sequence[str]) -> dict[str, Any]:
    """Describe sources for the metadata of a commit; what they begin with stands there once."""
    # Letter by letter, and then back to a slash: as paths, URLs would lose one of theirs.
    prefix = os.path.commonprefix(list(urls)).rpartition("/")[0]  # noqa: RUF071
    start = len(prefix) + 1 if prefix else 0
    return {
        "prefix": f"{prefix}/" if prefix else "",
        "names": [url[start:] for url in urls],
    }


def read_known_sources(repository: Repository, session: Session, group: str) -> set[str]:
    """Return the sources that were brought into a group, as a session sees it.

    Somebody may have replaced the attributes of the group: then commits tell, as far as they are
    still there.
    """
    kept = get_group_attribute(session, group, ATTRIBUTE)
    return _read_history(repository, session, group) if kept is None else _decode_urls(kept, group)


def store_sources(session: Session, group: str, urls: Iterable[str]) -> None:
    """Let a group carry the names of all its sources from now on."""
    set_group_attribute(session, group, ATTRIBUTE, _encode_urls(urls))


def get_group_attribute(session: Session, group: str, name: str) -> Any:
    """Return an attribute of a group, None if it has none of that name."""
    node = contents.get_node(session, path_of(group))
    return None if node is None else (json.loads(node.user_data).get("attributes") or {}).get(name)


def set_group_attribute(session: Session, group: str, name: str, value: Any) -> None:
    """Set an attribute of a group; the others stay."""
    path = path_of(group)
    document = json.loads(contents.require_node(session, path).user_data)
    document["attributes"] = {**(document.get("attributes") or {}), name: value}
    contents.set_metadata(session, path, json.dumps(document, separators=(",", ":")).encode())


def _encode_urls(urls: Iterable[str]) -> str:
    # Sorted, equal sets give equal attributes, and neighbours have most in common. No URL has a
    # line break in it.
    return base64.b64encode(zstandard.compress("\n".join(sorted(set(urls))).encode())).decode()


def _decode_urls(kept: Any, group: str) -> set[str]:
    try:
        packed = base64.b64decode(kept)
        # Anybody can write attributes: a few bytes must not become all memory that there is.
        is_bounded = 0 <= zstandard.frame_content_size(packed) <= _MAX_BYTES
        names = zstandard.decompress(packed).decode() if is_bounded else None
    except (TypeError, ValueError, zstandard.ZstdError):
        names = None
    if names is None:
        raise InvalidInputError(
            f"{group}: its attribute {ATTRIBUTE}, which names the files in it, is damaged; if it "
            "is deleted, the history of the branch tells them",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return set(names.split("\n"))


def _read_history(repository: Repository, session: Session, group: str) -> set[str]:
    known: set[str] = set()
    for info in repository.ancestry(snapshot_id=session.snapshot_id):
        # Anybody can write metadata: what is not as `describe_sources` writes it tells nothing.
        match info.metadata.get(METADATA_KEY):
            case {
                "job": job,
                "group": str(where),
                "sources": {"prefix": str(prefix), "names": list(names)},
            } if where == group:
                known |= {f"{prefix}{name}" for name in names}
                if job != "append":
                    break  # it made the group: what was there before is not there any more
    return known
