"""Which container holds a location: the one with the longest matching prefix (seed `002`).

Pure, no I/O. What is decided here is *where* bytes would come from; `authorization` says whether
they may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.containers import ObjectStoreConfig, VirtualChunkContainer
from icefloe.storage.urls import redacted_url
from icefloe.virtual.locations import (
    Location,
    is_relative,
    parse_location,
    parse_prefix,
    split_relative,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.containers import AnyObjectStoreConfig

_MAX_SHOWN: Final = 20
"""More containers than this do not help whoever reads an error."""


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """A container and what its prefix means."""

    container: VirtualChunkContainer
    prefix: Location

    def holds(self, location: Location) -> bool:
        """Whether a location lies in the container.

        Compared part by part, as the parts are what is fetched: with the whole text an encoded
        slash in a host could pass for the end of it.
        """
        prefix = self.prefix
        return (
            location.scheme == prefix.scheme
            and location.authority == prefix.authority
            and location.path.startswith(prefix.path)
        )

    @property
    def shown(self) -> str:
        """The container for people."""
        prefix = redacted_url(self.container.url_prefix)
        return prefix if self.container.name is None else f"{prefix} ({self.container.name})"


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file that virtual chunks lie in, and the container that it is in."""

    known: KnownContainer
    location: Location
    shown: str


class ContainerTable:
    """The containers of a repository, to be looked up by location.

    Parameters
    ----------
    containers
        Those that break the rules of containers are left out: nothing is read through them.
    """

    def __init__(self, containers: Iterable[VirtualChunkContainer]) -> None:
        known = [
            KnownContainer(container, parse_prefix(container.url_prefix))
            for container in containers
            if container.problem is None and _has_readable_prefix(container)
        ]
        # Compared as they are matched, decoded: of two prefixes of one location the longer one is
        # then always the more specific. Equal lengths are ordered so that no run differs.
        known.sort(key=lambda one: (-len(one.prefix.text), one.container.url_prefix))
        self.known: Final = tuple(known)
        self._by_name: Final = {
            one.container.name: one for one in known if one.container.name is not None
        }

    def find(self, location: str) -> VirtualFile:
        """Find the file that a location means, and its container.

        Raises
        ------
        InvalidInputError
            Of kind ``INVALID_VIRTUAL_REF`` where the location is no URL of an object, and of kind
            ``NO_CONTAINER_FOR_VIRTUAL_CHUNK`` where no container holds it.
        """
        absolute = parse_location(self.expand(location))
        for known in self.known:
            if known.holds(absolute):
                return VirtualFile(known, absolute, redacted_url(location))
        raise self._no_container(
            f"no virtual chunk container holds {redacted_url(location)}", absolute
        )

    def expand(self, location: str) -> str:
        """Turn ``vcc://name/path`` into an absolute location; others stay as they are."""
        if not is_relative(location):
            return location
        name, path = split_relative(location)
        known = self._by_name.get(name)
        if known is None:
            raise self._no_container(
                f"{redacted_url(location)}: no virtual chunk container is named {name!r}", None
            )
        return f"{known.container.url_prefix}{path}"

    def named(self, name_or_prefix: str) -> KnownContainer | None:
        """Get a container by its name or its URL prefix, with or without ``/`` at the end."""
        by_name = self._by_name.get(name_or_prefix)
        if by_name is not None:
            return by_name
        prefix = name_or_prefix if name_or_prefix.endswith("/") else f"{name_or_prefix}/"
        return next((one for one in self.known if one.container.url_prefix == prefix), None)

    def listed(self) -> str:
        """Name the containers that there are, for messages."""
        shown = [known.shown for known in self.known[:_MAX_SHOWN]]
        if len(self.known) > _MAX_SHOWN:
            shown.append(f"and {len(self.known) - _MAX_SHOWN} more")
        return ", ".join(shown) or "none"

    def _no_container(self, what: str, location: Location | None) -> InvalidInputError:
        wanted = _SOME_CONTAINER if location is None else _container_for(location)
        return InvalidInputError(
            f"invalid chunk location: {what}; there are: {self.listed()}; edit the repository "
            f"configuration, config.set_virtual_chunk_container({wanted}), and open the repository "
            "with it",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _has_readable_prefix(container: VirtualChunkContainer) -> bool:
    try:
        parse_prefix(container.url_prefix)
    except InvalidInputError:
        return False
    return True


_SOME_CONTAINER: Final = "VirtualChunkContainer('s3://bucket/', s3_store(), name='…')"

_STORES: Final = {
    "s3": "s3_store()",
    "gs": "gcs_store()",
    "gcs": "gcs_store()",
    "az": "azure_store(account='…')",
    "azure": "azure_store(account='…')",
    "abfs": "azure_store(account='…')",
    "http": "http_store()",
    "https": "http_store()",
}


def _container_for(location: Location) -> str:
    if location.scheme == "file":
        folder = location.path.rpartition("/")[0]
        return f"VirtualChunkContainer('file://{folder}/', local_filesystem_store({folder!r}))"
    prefix = redacted_url(f"{location.scheme}://{location.authority}/")
    store = _STORES.get(location.scheme, "…")
    return f"VirtualChunkContainer({prefix!r}, {store})"


def is_local(store: AnyObjectStoreConfig) -> bool:
    """Whether a container holds files of this machine."""
    return isinstance(store, ObjectStoreConfig.LocalFileSystem)
