"""Which container holds a location: the one with the longest matching prefix (seed `002`).

Pure, no I/O. What is decided here is *where* bytes would come from; `authorization` says whether
they may.
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
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.containers import (
    ObjectStoreConfig,
    VirtualChunkContainer,
    is_bucket,
    normalize_prefix,
)
from icefloe.storage.urls import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.containers import AnyObjectStoreConfig

_MAX_SHOWN: Final = 20
"""More containers than this do not help whoever reads an error."""


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """A container and what its prefix means.

    Attributes
    ----------
    prefix
        What its locations begin with.
    target
        What the prefix stands for, where that is another place.
    """

    container: VirtualChunkContainer
    prefix: Location
    target: Location | None = None

    @classmethod
    def of(cls, container: VirtualChunkContainer) -> KnownContainer | None:
        """Read the prefixes of a container; None where nothing can be read through it."""
        if container.problem is not None:
            return None
        target = container.target_prefix
        try:
            known = cls(
                container,
                parse_prefix(container.url_prefix),
                None if target is None else parse_prefix(target),
            )
            for place in (known.prefix, known.root):
                if place.path:
                    require_object(_below(place, "x"), container.url_prefix)
        except InvalidInputError:
            return None
        return known

    @property
    def root(self) -> Location:
        """Where everything in the container lies: its target, or else its prefix."""
        return self.prefix if self.target is None else self.target

    def holds(self, location: Location) -> bool:
        """Whether a location lies in the container.

        Compared part by part, as the parts are what is fetched: with the whole text an encoded
        slash in a host could pass for the end of it. And in whole segments: who opens
        ``s3://bucket/a`` does not mean ``s3://bucket/all-the-rest``.
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
        """Tell where the file of a location lies; ``url`` is how it was said, for errors."""
        place = location
        if self.target is not None:
            place = _below(self.target, self._rest(location))
            require_object(place, url)
        if not self.root.path and not is_bucket(place.authority):
            raise malformed_error(url, "what stands for the bucket cannot be the name of one")
        return place

    def _rest(self, location: Location) -> str:
        if not self.prefix.path:
            return f"{location.authority}{location.path}"
        return location.path[len(self.prefix.path) :]

    @property
    def shown(self) -> str:
        """The container for people."""
        prefix = redact_url(self.container.url_prefix)
        return prefix if self.container.name is None else f"{prefix} ({self.container.name})"


def _below(place: Location, rest: str) -> Location:
    path = place.path
    if rest:
        path = f"{path.removesuffix('/')}/{rest.removeprefix('/')}"
    return Location(place.scheme, place.authority, path)


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file that virtual chunks lie in, and the container that it is in.

    Attributes
    ----------
    location
        Where it is fetched from.
    """

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
        # Of two with one prefix, which only a careless writer can have made, one is left out.
        ordered = sorted(containers, key=lambda one: one.url_prefix, reverse=True)
        read = (KnownContainer.of(container) for container in ordered)
        known = list({one.prefix.text: one for one in read if one is not None}.values())
        # Compared as they are matched, decoded: of two prefixes of one location the longer one is
        # then always the more specific. Equal lengths are ordered so that no run differs.
        known.sort(key=lambda one: (-len(one.prefix.text), one.container.url_prefix))
        self.known: Final = tuple(known)
        names = Counter(one.container.name for one in known)
        # A name that a careless writer gave twice stands for neither, rather than for any.
        self.by_name: Final = {
            one.container.name: one
            for one in known
            if one.container.name is not None and names[one.container.name] == 1
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
                place, shown = known.place_of(absolute, location), redact_url(location)
                if known.target is not None:
                    shown = f"{shown} (that is, {redact_url(place.text)})"
                return VirtualFile(known, place, shown)
        raise self._no_container(
            f"no virtual chunk container holds {redact_url(location)}", absolute
        )

    def expand(self, location: str) -> str:
        """Turn ``vcc://name/path`` into an absolute location; others stay as they are."""
        if not is_relative(location):
            return location
        name, path = split_relative(location)
        known = self.by_name.get(name)
        if known is None:
            raise self._no_container(
                f"{redact_url(location)}: no virtual chunk container is named {name!r}", None
            )
        prefix = normalize_prefix(known.container.url_prefix)
        return f"{prefix}{path}" if prefix.endswith("/") else f"{prefix}/{path}"

    def find_by_name(self, name_or_prefix: str) -> KnownContainer | None:
        """Get a container by its name or its URL prefix, with or without ``/`` at the end."""
        by_name = self.by_name.get(name_or_prefix)
        if by_name is not None:
            return by_name
        asked = normalize_prefix(name_or_prefix)
        for prefix in (asked, f"{asked}/"):
            for one in self.known:
                if normalize_prefix(one.container.url_prefix) == prefix:
                    return one
        return None

    def format_known(self) -> str:
        """Name the containers that there are, for messages."""
        shown = [known.shown for known in self.known[:_MAX_SHOWN]]
        if len(self.known) > _MAX_SHOWN:
            shown.append(f"and {len(self.known) - _MAX_SHOWN} more")
        return ", ".join(shown) or "none"

    def _no_container(self, what: str, location: Location | None) -> InvalidInputError:
        wanted = _SOME_CONTAINER if location is None else _container_for(location)
        return InvalidInputError(
            f"invalid chunk location: {what}; there are: {self.format_known()}; edit the "
            f"repository configuration, config.set_virtual_chunk_container({wanted}), and open "
            "the repository with it",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


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
    prefix = redact_url(f"{location.scheme}://{location.authority}/")
    store = _STORES.get(location.scheme, "…")
    return f"VirtualChunkContainer({prefix!r}, {store})"


def is_local(store: AnyObjectStoreConfig) -> bool:
    """Whether a container holds files of this machine."""
    return isinstance(store, ObjectStoreConfig.LocalFileSystem)
