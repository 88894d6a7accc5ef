"""Generations of the specification: the keys of their files, their encoding, and their features.

Code above this package asks the generation of a repository, and never compares spec versions.
`refs.opening` has the reference store of each generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.flatbuffers_codec import FlatbuffersCodec

if TYPE_CHECKING:
    from icefloe.format.metadata_codec import MetadataCodec
    from icefloe.model.ids import ObjectId


@dataclass(frozen=True, slots=True)
class FileKind:
    """The keys of the files of one kind: ``prefix``, the id, ``suffix``."""

    prefix: str
    suffix: str = ""

    def format_key(self, object_id: ObjectId | str) -> str:
        """Return the key of the file with this id, or the text form of an id."""
        return f"{self.prefix}{object_id}{self.suffix}"

    def parse_name(self, key: str) -> str:
        """Return the part of a key between prefix and suffix; empty for other keys."""
        if not key.startswith(self.prefix) or not key.endswith(self.suffix):
            return ""
        return key[len(self.prefix) : len(key) - len(self.suffix)]


@dataclass(frozen=True, slots=True)
class Layout:
    """The kinds of immutable files of a generation."""

    snapshots: FileKind
    manifests: FileKind
    chunks: FileKind
    transaction_logs: FileKind


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A generation of the specification. Pickles by name.

    Parameters
    ----------
    name
        Its name: ``v1`` or ``v2``.
    spec_version
        Its number in Icechunk's API.
    layout, codec
        The keys and the encoding of its immutable files.
    has_parents_in_snapshots
        Whether a snapshot file names its parent. Otherwise the reference store lists all snapshots.
    has_repo_info
        Whether the repository has metadata, a status, feature flags and an ops log, and commits
        can be amended.
    has_rectilinear_grids
        Whether chunks may differ in length along a dimension.
    """

    name: str
    spec_version: int
    layout: Layout
    codec: MetadataCodec
    has_parents_in_snapshots: bool
    has_repo_info: bool
    has_rectilinear_grids: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return get_generation, (self.name,)


_V1_LAYOUT: Final = Layout(
    snapshots=FileKind("snapshots/"),
    manifests=FileKind("manifests/"),
    chunks=FileKind("chunks/"),
    transaction_logs=FileKind("transactions/"),
)
V1: Final = Generation(
    "v1",
    1,
    _V1_LAYOUT,
    FlatbuffersCodec(1),
    has_parents_in_snapshots=True,
    has_repo_info=False,
    has_rectilinear_grids=False,
)
V2: Final = Generation(
    "v2",
    2,
    _V1_LAYOUT,
    FlatbuffersCodec(2),
    has_parents_in_snapshots=False,
    has_repo_info=True,
    has_rectilinear_grids=True,
)
GENERATIONS: Final = {generation.name: generation for generation in (V1, V2)}


def get_generation(name: str) -> Generation:
    """Return the generation with a name."""
    try:
        return GENERATIONS[name]
    except (KeyError, TypeError):
        raise InvalidInputError(
            f"expected a generation, one of: {', '.join(GENERATIONS)}; got {name!r}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ) from None


def find_generation(spec_version: int) -> Generation:
    """Return the generation with a spec version."""
    return get_generation(f"v{spec_version}")
