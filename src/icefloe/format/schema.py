"""The flatbuffers tables of generations v1 and v2: each field with its slot in the vtable."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """A field of a table: its name, for messages, and its slot."""

    name: str
    slot: int


class MetadataItem:
    """One entry of user metadata."""

    NAME = Field("name", 0)
    VALUE = Field("value", 1)


class Manifest:
    """The root of a manifest file."""

    ID = Field("id", 0)
    ARRAYS = Field("arrays", 1)
    LOCATION_DICTIONARY = Field("location_dictionary", 2)
    COMPRESSION_ALGORITHM = Field("compression_algorithm", 3)


class ArrayManifest:
    """The chunk references of one array."""

    NODE_ID = Field("node_id", 0)
    REFS = Field("refs", 1)


class ChunkRef:
    """One chunk reference: exactly one of inline, chunk_id, location, compressed_location."""

    INDEX = Field("index", 0)
    INLINE = Field("inline", 1)
    OFFSET = Field("offset", 2)
    LENGTH = Field("length", 3)
    CHUNK_ID = Field("chunk_id", 4)
    LOCATION = Field("location", 5)
    CHECKSUM_ETAG = Field("checksum_etag", 6)
    CHECKSUM_LAST_MODIFIED = Field("checksum_last_modified", 7)
    COMPRESSED_LOCATION = Field("compressed_location", 8)


class Snapshot:
    """The root of a snapshot file."""

    ID = Field("id", 0)
    PARENT_ID = Field("parent_id", 1)
    NODES = Field("nodes", 2)
    FLUSHED_AT = Field("flushed_at", 3)
    MESSAGE = Field("message", 4)
    METADATA = Field("metadata", 5)
    MANIFEST_FILES = Field("manifest_files", 6)
    MANIFEST_FILES_V2 = Field("manifest_files_v2", 7)


class ManifestFileInfoV2:
    """A manifest file that a snapshot needs."""

    ID = Field("id", 0)
    SIZE_BYTES = Field("size_bytes", 1)
    NUM_CHUNK_REFS = Field("num_chunk_refs", 2)


class NodeSnapshot:
    """A group or an array."""

    ID = Field("id", 0)
    PATH = Field("path", 1)
    USER_DATA = Field("user_data", 2)
    NODE_DATA_TYPE = Field("node_data_type", 3)
    NODE_DATA = Field("node_data", 4)


class ArrayNodeData:
    """What is particular to an array."""

    SHAPE = Field("shape", 0)
    DIMENSION_NAMES = Field("dimension_names", 1)
    MANIFESTS = Field("manifests", 2)
    SHAPE_V2 = Field("shape_v2", 3)


class DimensionShapeV2:
    """The length of one dimension."""

    ARRAY_LENGTH = Field("array_length", 0)
    NUM_CHUNKS = Field("num_chunks", 1)


class DimensionName:
    """The name of one dimension."""

    NAME = Field("name", 0)


class ManifestRef:
    """A pointer from an array to a manifest."""

    OBJECT_ID = Field("object_id", 0)
    EXTENTS = Field("extents", 1)


class TransactionLog:
    """The root of a transaction log file."""

    ID = Field("id", 0)
    NEW_GROUPS = Field("new_groups", 1)
    NEW_ARRAYS = Field("new_arrays", 2)
    DELETED_GROUPS = Field("deleted_groups", 3)
    DELETED_ARRAYS = Field("deleted_arrays", 4)
    UPDATED_ARRAYS = Field("updated_arrays", 5)
    UPDATED_GROUPS = Field("updated_groups", 6)
    UPDATED_CHUNKS = Field("updated_chunks", 7)
    MOVED_NODES = Field("moved_nodes", 8)


class ArrayUpdatedChunks:
    """The changed chunks of one array."""

    NODE_ID = Field("node_id", 0)
    CHUNKS = Field("chunks", 1)


class ChunkIndices:
    """The coordinates of one chunk."""

    COORDS = Field("coords", 0)


class MoveOperation:
    """A node that went elsewhere."""

    FROM = Field("from", 0)
    TO = Field("to", 1)
    NODE_ID = Field("node_id", 2)
    NODE_TYPE = Field("node_type", 3)


class Repo:
    """The root of the file ``repo``."""

    SPEC_VERSION = Field("spec_version", 0)
    TAGS = Field("tags", 1)
    BRANCHES = Field("branches", 2)
    DELETED_TAGS = Field("deleted_tags", 3)
    SNAPSHOTS = Field("snapshots", 4)
    STATUS = Field("status", 5)
    METADATA = Field("metadata", 6)
    LATEST_UPDATES = Field("latest_updates", 7)
    REPO_BEFORE_UPDATES = Field("repo_before_updates", 8)
    CONFIG = Field("config", 9)
    ENABLED_FEATURE_FLAGS = Field("enabled_feature_flags", 10)
    DISABLED_FEATURE_FLAGS = Field("disabled_feature_flags", 11)


class Ref:
    """A branch or a tag."""

    NAME = Field("name", 0)
    SNAPSHOT_INDEX = Field("snapshot_index", 1)


class SnapshotInfo:
    """A commit, for history."""

    ID = Field("id", 0)
    PARENT_OFFSET = Field("parent_offset", 1)
    FLUSHED_AT = Field("flushed_at", 2)
    MESSAGE = Field("message", 3)
    METADATA = Field("metadata", 4)
    PRUNED_ANCESTOR_TX_LOGS = Field("pruned_ancestor_tx_logs", 5)


class RepoStatus:
    """Whether the repository takes writes."""

    AVAILABILITY = Field("availability", 0)
    SET_AT = Field("set_at", 1)
    LIMITED_AVAILABILITY_REASON = Field("limited_availability_reason", 2)


class Update:
    """One entry of the ops log."""

    UPDATE_TYPE_TYPE = Field("update_type_type", 0)
    UPDATE_TYPE = Field("update_type", 1)
    UPDATED_AT = Field("updated_at", 2)
    BACKUP_PATH = Field("backup_path", 3)
