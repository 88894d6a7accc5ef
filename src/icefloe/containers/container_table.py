"""Which container holds a location: the one with the longest matching prefix.

Pure, no I/O. This decides *where* bytes come from; `authorization` decides whether they may be
read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.containers.locations import (
    Location,
    is_relative,
    malformed_error,
    parse_location,
    parse_prefix,
    require_object,
    split_relative,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.model.containers import ObjectStoreConfig, is_bucket, normalize_prefix
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer

_MAX_SHOWN: Final = 20
"""Number of containers that an error lists."""


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """A container with its parsed prefixes; ``target`` replaces ``prefix`` in locations."""

    container: VirtualChunkContainer
    prefix: Location
    target: Location | None = None

    @classmethod
    def of(cls, container: VirtualChunkContainer) -> KnownContainer | None:
        """Parse the prefixes of a container; returns None if nothing can be read through it."""
        if container.problem is not None:
            return None
        target = container.target_prefix
        try:
            parsed_target = None if target is None else parse_prefix(target)
            known = cls(container, parse_prefix(container.url_prefix), parsed_target)
            for place in (known.prefix, known.root):
                if place.path:
                    require_object(_below(place, "x"), container.url_prefix)
        except InvalidInputError:
            return None
        return known

    @property
    def root(self) -> Location:
        """Common prefix of its files: the target, or else the prefix."""
        return self.prefix if self.target is None else self.target

    def holds(self, location: Location) -> bool:
        """Return whether a location is in the container.

        Compares the parsed components, which are what is fetched: in the whole text, an encoded
        slash in a host could pass for its end. Compares whole segments: ``s3://bucket/a`` does not
        hold ``s3://bucket/all-the-rest``.
        """
        prefix = self.prefix
        if location.scheme != prefix.scheme:
            return False
        if not prefix.path:
            return True  # every bucket
        return location.authority == prefix.authority and (
            location.path == prefix.path
            or location.path.startswith(prefix.path.removesuffix("/") + "/")
        )

    def place_of(self, location: Location, url: str) -> Location:
        """Return the address of a location's file; ``url`` is the original text, for errors."""
        place = location
        if self.target is not None:
            start, path = len(self.prefix.path), location.path
            place = _below(self.target, path[start:] if start else f"{location.authority}{path}")
            require_object(place, url)
        if not self.root.path and not is_bucket(place.authority):
            raise malformed_error(url, "its bucket is not a valid bucket name")
        return place

    @property
    def label(self) -> str:
        """Prefix and name, for messages."""
        prefix = redact_url(self.container.url_prefix)
        return prefix if self.container.name is None else f"{prefix} ({self.container.name})"


def _below(place: Location, rest: str) -> Location:
    path = place.path
    if rest:
        path = f"{path.removesuffix('/')}/{rest.removeprefix('/')}"
    return Location(place.scheme, place.authority, path)


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file that contains virtual chunks, its container, and the address to fetch from."""

    known: KnownContainer
    location: Location
    label: str

    def error(self, problem: str, kind: ErrorKind = ErrorKind.VIRTUAL_CHUNK_FETCH) -> StorageError:
        """Return an error about the file."""
        return StorageError(f"{self.label}: {problem}", kind=kind)


class ContainerTable:
    """The containers of a repository, looked up by location.

    Invalid containers are left out: nothing is read through them.
    """

    def __init__(self, containers: Iterable[VirtualChunkContainer]) -> None:
        # Of two with the same prefix, which is invalid, one is left out.
        ordered = sorted(containers, key=lambda container: container.url_prefix, reverse=True)
        parsed = (KnownContainer.of(container) for container in ordered)
        by_prefix = {known.prefix.text: known for known in parsed if known is not None}
        known = sorted(by_prefix.values(), key=lambda known: known.container.url_prefix)
        # Longest decoded prefix first, which is the most specific; then a deterministic order.
        self.known: Final = tuple(sorted(known, key=lambda known: -len(known.prefix.text)))
        names = Counter(known.container.name for known in self.known)
        # A duplicate name, which is invalid, refers to no container.
        self.by_name: Final = {
            known.container.name: known
            for known in self.known
            if known.container.name is not None and names[known.container.name] == 1
        }

    def find(self, location: str) -> VirtualFile:
        """Return the file and the container of a location.

        Raises `InvalidInputError` of kind ``INVALID_VIRTUAL_REF`` if the location is not the URL of
        an object, and of kind ``NO_CONTAINER_FOR_VIRTUAL_CHUNK`` if no container holds it.
        """
        absolute = parse_location(self.expand(location))
        for known in self.known:
            if known.holds(absolute):
                place, shown = known.place_of(absolute, location), redact_url(location)
                if known.target is not None:
                    shown = f"{shown} (that is, {redact_url(place.text)})"
                return VirtualFile(known, place, shown)
        what = f"no virtual chunk container holds {redact_url(location)}"
        raise self._no_container_error(what, _format_container(absolute))

    def expand(self, location: str) -> str:
        """Turn ``vcc://name/path`` into an absolute location; other locations stay unchanged."""
        if not is_relative(location):
            return location
        name, path = split_relative(location)
        known = self.by_name.get(name)
        if known is None:
            what = f"{redact_url(location)}: no virtual chunk container is named {name!r}"
            raise self._no_container_error(what, _SOME_CONTAINER)
        prefix = normalize_prefix(known.container.url_prefix)
        return f"{prefix}{path}" if prefix.endswith("/") else f"{prefix}/{path}"

    def find_by_name(self, name_or_prefix: str) -> KnownContainer | None:
        """Return a container by its name or its URL prefix, with or without a trailing ``/``."""
        by_name = self.by_name.get(name_or_prefix)
        if by_name is not None:
            return by_name
        normalized = normalize_prefix(name_or_prefix)
        for prefix in (normalized, f"{normalized}/"):
            for known in self.known:
                if normalize_prefix(known.container.url_prefix) == prefix:
                    return known
        return None

    def format_known(self) -> str:
        """List the containers, for messages."""
        shown = [known.label for known in self.known[:_MAX_SHOWN]]
        if len(self.known) > _MAX_SHOWN:
            shown.append(f"and {len(self.known) - _MAX_SHOWN} more")
        return ", ".join(shown) or "none"

    def _no_container_error(self, what: str, example: str) -> InvalidInputError:
        return InvalidInputError(
            f"invalid chunk location: {what}; there are: {self.format_known()}; add one with "
            f"config.set_virtual_chunk_container({example}), and open the repository with that "
            "configuration",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


_SOME_CONTAINER: Final = "VirtualChunkContainer('s3://bucket/', s3_store(), name='…')"

_STORES: Final = {
    "s3": "s3_store()",
    **dict.fromkeys(("gs", "gcs"), "gcs_store()"),
    **dict.fromkeys(("az", "azure", "abfs"), "azure_store(account='…')"),
    **dict.fromkeys(("http", "https"), "http_store()"),
}


def _format_container(location: Location) -> str:
    if location.scheme == "file":
        folder = location.path.rpartition("/")[0]
        return f"VirtualChunkContainer('file://{folder}/', local_filesystem_store({folder!r}))"
    prefix = redact_url(f"{location.scheme}://{location.authority}/")
    store = _STORES.get(location.scheme, "…")
    return f"VirtualChunkContainer({prefix!r}, {store})"


def is_local(store: AnyObjectStoreConfig) -> bool:
    """Return whether a container holds local files."""
    return isinstance(store, ObjectStoreConfig.LocalFileSystem)
