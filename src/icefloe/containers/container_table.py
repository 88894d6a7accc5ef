"""Lookup of the container of a location: the one with the longest matching prefix.

Determines where bytes come from; `authorization` determines whether they may be read. Pure, no I/O.
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
from icefloe.url_secrets import mask_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.model.containers import AnyObjectStoreConfig, VirtualChunkContainer

_MAX_LISTED: Final = 20
"""Number of containers that an error lists."""


@dataclass(frozen=True, slots=True)
class ParsedContainer:
    """A container with its parsed prefixes; ``target`` replaces ``prefix`` in locations."""

    config: VirtualChunkContainer
    prefix: Location
    target: Location | None = None

    @classmethod
    def parse(cls, config: VirtualChunkContainer) -> ParsedContainer | None:
        """Parse the prefixes of a container; returns None if the container is invalid."""
        if config.problem is not None:
            return None
        target = config.target_prefix
        try:
            parsed_target = None if target is None else parse_prefix(target)
            container = cls(config, parse_prefix(config.url_prefix), parsed_target)
            for prefix in (container.prefix, container.root):
                if prefix.path:
                    require_object(_join(prefix, "x"), config.url_prefix)
        except InvalidInputError:
            return None
        return container

    @property
    def root(self) -> Location:
        """Common prefix of the files: the target if there is one, otherwise the prefix."""
        return self.prefix if self.target is None else self.target

    def contains(self, location: Location) -> bool:
        """Return whether a location is in the container.

        Compares parsed components, not the URL text, in which an encoded slash could be mistaken
        for the end of the host. Compares whole path segments: ``s3://bucket/a`` does not contain
        ``s3://bucket/abc``.
        """
        prefix = self.prefix
        if location.scheme != prefix.scheme:
            return False
        if not prefix.path:
            return True  # the prefix of all buckets
        return location.authority == prefix.authority and (
            location.path == prefix.path
            or location.path.startswith(prefix.path.removesuffix("/") + "/")
        )

    def resolve(self, location: Location, url: str) -> Location:
        """Replace the prefix of a location by the target; errors show ``url``."""
        resolved = location
        if self.target is not None:
            start, path = len(self.prefix.path), location.path
            resolved = _join(self.target, path[start:] if start else f"{location.authority}{path}")
            require_object(resolved, url)
        if not self.root.path and not is_bucket(resolved.authority):
            raise malformed_error(url, "its bucket is not a valid bucket name")
        return resolved

    @property
    def label(self) -> str:
        """Prefix and name, for messages."""
        prefix = redact_url(self.config.url_prefix)
        return prefix if self.config.name is None else f"{prefix} ({self.config.name})"


def _join(prefix: Location, suffix: str) -> Location:
    path = prefix.path
    if suffix:
        path = f"{path.removesuffix('/')}/{suffix.removeprefix('/')}"
    return Location(prefix.scheme, prefix.authority, path)


@dataclass(frozen=True, slots=True)
class VirtualFile:
    """A file that contains virtual chunks, its container, and its resolved location."""

    container: ParsedContainer
    location: Location
    label: str

    def make_error(
        self, problem: str, kind: ErrorKind = ErrorKind.VIRTUAL_CHUNK_FETCH
    ) -> StorageError:
        """Return an error about the file."""
        return StorageError(f"{self.label}: {problem}", kind=kind)


class ContainerTable:
    """The containers of a repository, looked up by location.

    Invalid containers are skipped: nothing is read from them.
    """

    def __init__(self, containers: Iterable[VirtualChunkContainer]) -> None:
        # Two containers with the same prefix are invalid: only one of them is used.
        ordered = sorted(containers, key=lambda config: config.url_prefix, reverse=True)
        parsed = (ParsedContainer.parse(config) for config in ordered)
        by_prefix = {item.prefix.text: item for item in parsed if item is not None}
        unique = sorted(by_prefix.values(), key=lambda item: item.config.url_prefix)
        # Longest decoded prefix first, which is the most specific; then a deterministic order.
        self.containers: Final = tuple(sorted(unique, key=lambda item: -len(item.prefix.text)))
        names = Counter(item.config.name for item in self.containers)
        # A duplicate name is invalid and refers to no container.
        self.by_name: Final = {
            item.config.name: item
            for item in self.containers
            if item.config.name is not None and names[item.config.name] == 1
        }

    def find(self, location: str) -> VirtualFile:
        """Return the file and the container of a location.

        Raises `InvalidInputError` of kind ``INVALID_VIRTUAL_REF`` if the location is not the URL of
        an object, and of kind ``NO_CONTAINER_FOR_VIRTUAL_CHUNK`` if no container matches it.
        """
        absolute = parse_location(self.expand(location))
        for container in self.containers:
            if container.contains(absolute):
                resolved, label = container.resolve(absolute, location), redact_url(location)
                if container.target is not None:
                    label = f"{label} (resolved to {redact_url(resolved.text)})"
                return VirtualFile(container, resolved, label)
        problem = f"no virtual chunk container matches {redact_url(location)}"
        raise self._no_container_error(problem, _format_example(absolute))

    def expand(self, location: str) -> str:
        """Expand ``vcc://name/path`` to an absolute location; returns other locations unchanged."""
        if not is_relative(location):
            return location
        name, path = split_relative(location)
        container = self.by_name.get(name)
        if container is None:
            problem = f"{redact_url(location)}: no virtual chunk container is named {name!r}"
            raise self._no_container_error(problem, _EXAMPLE_CONTAINER)
        prefix = normalize_prefix(container.config.url_prefix)
        return f"{prefix}{path}" if prefix.endswith("/") else f"{prefix}/{path}"

    def find_by_name(self, name_or_prefix: str) -> ParsedContainer | None:
        """Return a container by its name or its URL prefix, with or without a trailing ``/``.

        A prefix that contains a secret is also found by the masked prefix that errors show.
        """
        by_name = self.by_name.get(name_or_prefix)
        if by_name is not None:
            return by_name
        normalized = normalize_prefix(name_or_prefix)
        for prefix in (normalized, f"{normalized}/"):
            for container in self.containers:
                if normalize_prefix(container.config.url_prefix) == prefix:
                    return container
        masked = [
            item for item in self.containers if mask_url(item.config.url_prefix) == name_or_prefix
        ]
        return masked[0] if len(masked) == 1 else None

    def format_containers(self) -> str:
        """Return the labels of the containers as one text, for messages."""
        labels = [container.label for container in self.containers[:_MAX_LISTED]]
        if len(self.containers) > _MAX_LISTED:
            labels.append(f"and {len(self.containers) - _MAX_LISTED} more")
        return ", ".join(labels) or "none"

    def _no_container_error(self, problem: str, example: str) -> InvalidInputError:
        return InvalidInputError(
            f"invalid chunk location: {problem}; available: {self.format_containers()}; to add "
            "a container, edit the repository configuration with config."
            f"set_virtual_chunk_container({example}), and open the "
            "repository with that configuration",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


_EXAMPLE_CONTAINER: Final = "VirtualChunkContainer('s3://bucket/', s3_store(), name='…')"

_STORES: Final = {
    "s3": "s3_store()",
    **dict.fromkeys(("gs", "gcs"), "gcs_store()"),
    **dict.fromkeys(("az", "azure", "abfs"), "azure_store(account='…')"),
    **dict.fromkeys(("http", "https"), "http_store()"),
}


def _format_example(location: Location) -> str:
    if location.scheme == "file":
        folder = location.path.rpartition("/")[0]
        return f"VirtualChunkContainer('file://{folder}/', local_filesystem_store({folder!r}))"
    prefix = redact_url(f"{location.scheme}://{location.authority}/")
    store = _STORES.get(location.scheme, "…")
    return f"VirtualChunkContainer({prefix!r}, {store})"


def is_local(store: AnyObjectStoreConfig) -> bool:
    """Return whether a store is the local file system."""
    return isinstance(store, ObjectStoreConfig.LocalFileSystem)
