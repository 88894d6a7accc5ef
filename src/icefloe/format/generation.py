"""Generations of the specification: the keys of their files, their encoding, and their features.

Code above this package asks the generation of a repository, and never compares spec versions.
`refs.opening` has the reference store of each generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.ids import (
    INITIAL_SNAPSHOT_ID,
    AttributesId,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
)

if TYPE_CHECKING:
    from icefloe.format.metadata_codec import MetadataCodec

Id = TypeVar("Id", bound=ObjectId)


@dataclass(frozen=True, slots=True)
class FileKind:
    """The keys of the files of one kind: ``prefix``, an id of ``id_type``, ``suffix``."""

    prefix: str
    suffix: str = ""
    id_type: type[ObjectId] = field(default=ObjectId, kw_only=True)

    def format_key(self, object_id: ObjectId | str) -> str:
        """Return the key of the file with this id, or the text form of an id.

        Raises `InvalidInputError` for the id of another kind of file.
        """
        if not isinstance(object_id, self.id_type) and not isinstance(object_id, str):
            raise InvalidInputError(
                f"expected a {self.id_type.__name__}, got {object_id!r:.80}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
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
    transaction_logs: FileKind | None = None
    attributes: FileKind | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A generation of the specification. Pickles by name.

    Parameters
    ----------
    name
        Its name: ``draft``, ``sequence``, ``v1`` or ``v2``.
    spec_version
        Its number in Icechunk's API; 0 for generations that Icechunk does not read.
    layout
        The keys of its immutable files.
    codec_class
        The class that encodes its metadata files, as ``module:class``. The module is imported when
        it is first needed.
    codec_arguments
        The arguments of that class.
    id_size
        The size of the ids of snapshots, manifests, attributes files and chunks.
    numbers_nodes
        Whether node ids are small integers, which are given at commits (`NodeId`).
    records_ancestors
        Whether a snapshot file lists its recent ancestors.
    has_parents_in_snapshots
        Whether the history is in snapshot files alone, each of which names its parent. Otherwise
        the reference store knows it.
    has_repo_info
        Whether the repository has metadata, a status, feature flags and an ops log, and commits
        can be amended.
    has_rectilinear_grids
        Whether chunks may differ in length along a dimension.
    can_delete_tags
        Whether tags can be deleted.
    """

    name: str
    spec_version: int
    layout: Layout
    codec_class: str
    codec_arguments: tuple[int, ...] = ()
    id_size: int = ObjectId.SIZE
    numbers_nodes: bool = False
    records_ancestors: bool = False
    has_parents_in_snapshots: bool = False
    has_repo_info: bool = False
    has_rectilinear_grids: bool = False
    can_delete_tags: bool = True

    @property
    def codec(self) -> MetadataCodec:
        """The encoding of its metadata files."""
        return _load_codec(self.codec_class, self.codec_arguments)

    def require_codec(self) -> None:
        """Raise `InvalidInputError` if a package that the encoding needs is not installed."""
        _load_codec(self.codec_class, self.codec_arguments)

    @property
    def has_transaction_logs(self) -> bool:
        """Whether each commit has a transaction log; otherwise snapshots are compared."""
        return self.layout.transaction_logs is not None

    @property
    def initial_snapshot_id(self) -> SnapshotId:
        """The id of the first snapshot of every repository."""
        return SnapshotId(INITIAL_SNAPSHOT_ID.raw.ljust(self.id_size, b"\0"))

    def make_id(self, kind: type[Id]) -> Id:
        """Make a new random id of a snapshot, manifest, attributes file or chunk."""
        return kind.random(self.id_size)

    def make_node_id(self) -> NodeId:
        """Make an id for a new node."""
        return NodeId.make_provisional() if self.numbers_nodes else NodeId.random()

    def describe_node_id(self, node_id: NodeId) -> int | str:
        """Return a node id as the files of the repository show it: a number, or base 32."""
        is_number = self.numbers_nodes and not node_id.is_provisional
        return node_id.number if is_number else str(node_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return get_generation, (self.name,)


_V1_LAYOUT: Final = Layout(
    snapshots=FileKind("snapshots/", id_type=SnapshotId),
    manifests=FileKind("manifests/", id_type=ManifestId),
    chunks=FileKind("chunks/", id_type=ChunkId),
    transaction_logs=FileKind("transactions/", id_type=SnapshotId),
)
DRAFT: Final = Generation(
    "draft",
    0,
    Layout(
        snapshots=FileKind("s/", ".parquet", id_type=SnapshotId),
        manifests=FileKind("i/", ".parquet", id_type=ManifestId),
        chunks=FileKind("c/", id_type=ChunkId),
        attributes=FileKind("a/", ".parquet", id_type=AttributesId),
    ),
    "icefloe.format.draft.codec:DraftCodec",
    numbers_nodes=True,
)
SEQUENCE: Final = Generation(
    "sequence",
    0,
    Layout(
        snapshots=FileKind("s/", ".json", id_type=SnapshotId),
        manifests=FileKind("m/", ".json", id_type=ManifestId),
        chunks=FileKind("c/", id_type=ChunkId),
        attributes=FileKind("a/", ".json", id_type=AttributesId),
    ),
    "icefloe.format.sequence.codec:SequenceCodec",
    id_size=16,
    numbers_nodes=True,
    records_ancestors=True,
    can_delete_tags=False,
)
_FLATBUFFERS_CODEC: Final = "icefloe.format.flatbuffers_codec:FlatbuffersCodec"
V1: Final = Generation("v1", 1, _V1_LAYOUT, _FLATBUFFERS_CODEC, (1,), has_parents_in_snapshots=True)
V2: Final = Generation(
    "v2", 2, _V1_LAYOUT, _FLATBUFFERS_CODEC, (2,), has_repo_info=True, has_rectilinear_grids=True
)
GENERATIONS: Final = {generation.name: generation for generation in (DRAFT, SEQUENCE, V1, V2)}


def get_generation(name: str) -> Generation:
    """Return the generation with a name."""
    try:
        return GENERATIONS[name]
    except (KeyError, TypeError):
        raise InvalidInputError(
            f"expected a generation, one of: {', '.join(GENERATIONS)}; got {name!r}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ) from None


@cache
def _load_codec(codec_class: str, arguments: tuple[int, ...]) -> MetadataCodec:
    module_name, _, class_name = codec_class.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise InvalidInputError(
            "repositories of the generation draft need pyarrow: pip install 'icefloe[draft]'",
            kind=ErrorKind.MISSING_DEPENDENCY,
        ) from error
    codec: MetadataCodec = getattr(module, class_name)(*arguments)
    return codec


def find_generation(spec_version: int) -> Generation:
    """Return the generation with a spec version."""
    return get_generation(f"v{spec_version}")
