"""What a file of arrays is to a repository: Zarr metadata, and where the bytes of each chunk are.

Values, immutable by convention, that pickle and know nothing of repositories or of the place they
came from. References are columns (`icefloe.model.manifest`), never an object for each chunk. Paths
of groups and arrays are relative to the root of the dataset: ``""`` is the root, ``a/b`` below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from icefloe.model.chunk_payload import MAX_U32, Checksum, ETag, LastModified

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest
    from icefloe.session import Session

ChecksumChoice: TypeAlias = Literal["auto", "etag", "last-modified"] | None
"""What references remember of their file, so that a changed one is not read."""

_LOADED_CODECS = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
)
_LOADED_STRING_CODECS = ({"name": "vlen-utf8", "configuration": {}}, _LOADED_CODECS[1])
_MIN_CHUNK_LENGTH = 1024
"""Of loaded arrays: those that grow one step at a time would otherwise have a chunk for each."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a dataset was parsed from, as it was at that moment."""

    url: str
    size_bytes: int | None = None
    etag: str | None = None
    last_modified: datetime | None = None

    def checksum(self, choice: ChecksumChoice = "auto") -> Checksum | None:
        """Tell what its chunks are to remember.

        ``auto`` is the entity tag of an object in a store, and the time of the last change of a
        file of this machine, whose tags not every reader makes in the same way.
        """
        is_local = self.url.startswith("file:")
        strong = self.etag is not None and not self.etag.startswith("W/")
        if self.etag is not None and (
            choice == "etag" or (choice == "auto" and strong and not is_local)
        ):
            return ETag(self.etag)
        if choice is None or self.last_modified is None:
            return None
        # Rounded up: Icechunk compares with the time of the file to its last digit.
        seconds = math.ceil(self.last_modified.timestamp())
        # A web server that does not say when a file changed is told as 1970.
        return LastModified(seconds) if 0 < seconds <= MAX_U32 else None


@dataclass(frozen=True, slots=True)
class _Array:
    """What virtual and loaded arrays have in common.

    Parameters
    ----------
    metadata
        The array's ``zarr.json``, version 3, as JSON values.
    """

    metadata: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return tuple(self.metadata["shape"])

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The lengths of a chunk, None where chunks differ in shape."""
        grid = self.metadata["chunk_grid"]
        return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """The names of the dimensions."""
        names = self.metadata.get("dimension_names")
        return (None,) * len(self.shape) if names is None else tuple(names)

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes."""
        found: dict[str, Any] = self.metadata.get("attributes", {})
        return found

    def with_shape(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return the metadata of an array of another length."""
        return {**self.metadata, "shape": list(shape)}


@dataclass(frozen=True, slots=True)
class VirtualArray(_Array):
    """An array whose chunks stay where they are.

    Parameters
    ----------
    refs
        Where each chunk is; a chunk without a row was never written. Small chunks that a file of
        references holds itself are here as inline bytes.
    """

    refs: ArrayManifest

    def __repr__(self) -> str:
        return f"<VirtualArray {_described(self)}: {len(self.refs)} references>"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedArray(_Array):
    """An array whose values were read, to be stored in the repository itself.

    Parameters
    ----------
    values
        As they are in the file: neither scaled nor masked, and times as numbers.
    """

    values: NDArray[Any]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], values: NDArray[Any]) -> LoadedArray:
        """Make one from the metadata of the array in its file, whose codecs are not kept."""
        is_string = values.dtype.kind in "OTU"
        stored: dict[str, Any] = {
            **metadata,
            "shape": list(values.shape),
            "chunk_grid": _loaded_grid(values.shape),
            "codecs": [*(_LOADED_STRING_CODECS if is_string else _LOADED_CODECS)],
        }
        if is_string:
            stored |= {"data_type": "string", "fill_value": ""}
        elif values.dtype.kind in "iuf" and values.dtype.name != metadata["data_type"]:
            # Times that were joined may need a larger type; a mark for missing ones would be of
            # the old type, and coordinates have none missing.
            attributes = {**metadata.get("attributes", {})}
            attributes.pop("_FillValue", None)
            stored |= {"data_type": values.dtype.name, "fill_value": 0, "attributes": attributes}
        return cls(stored, values)

    def with_values(self, values: NDArray[Any]) -> LoadedArray:
        """Return an array with other values."""
        return type(self).of(self.metadata, values)

    def __repr__(self) -> str:
        return f"<LoadedArray {_described(self)}>"


AnyArray: TypeAlias = VirtualArray | LoadedArray


@dataclass(frozen=True, slots=True)
class VirtualDataset:
    """The groups and arrays of one file, or of many that were combined.

    Parameters
    ----------
    sources
        The files that it came from.
    groups
        The attributes of each group, by path; the root is there.
    arrays
        By path.
    """

    sources: tuple[SourceFile, ...]
    groups: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    arrays: dict[str, AnyArray] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the root group."""
        return self.groups[""]

    @property
    def shown(self) -> str:
        """Where it came from, for messages."""
        if not self.sources:
            return "a dataset without a file"
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return f"{self.sources[0].url}{more}"

    @property
    def num_refs(self) -> int:
        """How many chunk references there are."""
        return sum(len(one.refs) for one in self.arrays.values() if isinstance(one, VirtualArray))

    def lengths(self) -> dict[str, int]:
        """Tell the length of each dimension of the root group's arrays."""
        return {
            name: length
            for path, array in self.arrays.items()
            if "/" not in path
            for name, length in zip(array.dimension_names, array.shape, strict=True)
            if name is not None
        }

    def without(self, *paths: str) -> VirtualDataset:
        """Leave arrays out."""
        kept = {path: array for path, array in self.arrays.items() if path not in paths}
        return replace(self, arrays=kept)

    def write(
        self, session: Session, *, group: str = "/", validate_containers: bool = True
    ) -> None:
        """Write it into a new group; see `icefloe.virtual.write`."""
        _writer().write(self, session, group=group, validate_containers=validate_containers)

    def append(
        self,
        session: Session,
        *,
        dim: str,
        group: str = "/",
        if_present: Literal["check", "replace"] = "check",
        validate_containers: bool = True,
    ) -> int:
        """Append it to a group along a dimension; see `icefloe.virtual.append`."""
        appended: int = _writer().append(
            self,
            session,
            dim=dim,
            group=group,
            if_present=if_present,
            validate_containers=validate_containers,
        )
        return appended

    def __repr__(self) -> str:
        lines = [f"<VirtualDataset of {self.shown}: {self.num_refs} references>"]
        lines += [f"  {path}: {array!r}" for path, array in self.arrays.items()]
        return "\n".join(lines)


def find_coordinate(dataset: VirtualDataset, path: str, dim: str) -> str | None:
    """Find the coordinate of a dimension of an array: in its group, or in one above it."""
    group = path.rpartition("/")[0]
    while True:
        found = f"{group}/{dim}" if group else dim
        array = dataset.arrays.get(found)
        if array is not None and array.dimension_names == (dim,):
            return found
        if not group:
            return None
        group = group.rpartition("/")[0]


def changed_at(seconds: float) -> datetime:
    """Make the time of a file's last change."""
    return datetime.fromtimestamp(seconds, UTC)


def _loaded_grid(shape: tuple[int, ...]) -> dict[str, Any]:
    """Cut a loaded array into chunks: one, long enough for the array to grow along its start."""
    chunk = [max(1, length) for length in shape]
    if chunk:
        rest = 1
        for length in chunk[1:]:
            rest *= length
        chunk[0] = max(chunk[0], _MIN_CHUNK_LENGTH // rest, 1)
    return {"name": "regular", "configuration": {"chunk_shape": chunk}}


def format_data_type(metadata: Mapping[str, Any]) -> str:
    """Write a data type for people."""
    data_type = metadata["data_type"]
    return data_type if isinstance(data_type, str) else str(data_type)


def _described(array: _Array) -> str:
    dims = ", ".join(
        f"{name}: {length}" for name, length in zip(array.dimension_names, array.shape, strict=True)
    )
    return f"{format_data_type(array.metadata)} ({dims})"


def _writer() -> Any:
    # Above this layer: it knows sessions, and whoever calls this has one.
    return import_module("icefloe.virtual.writer")


def are_equal(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Whether two arrays hold the same values; missing ones equal each other."""
    if one.shape != other.shape:
        return False
    same = one == other
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        same |= (one != one) & (other != other)  # noqa: PLR0124 - only NaN differs from itself
    return bool(same.all())
