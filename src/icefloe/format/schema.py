"""The flatbuffers tables of generations v1 and v2.

Classes and fields are named as in the flatbuffers schemas of the Icechunk format.
"""

from __future__ import annotations

from typing import NamedTuple

UOFFSET = "<u4"
"""The type of a pointer to a string, a vector or a table."""

_OBJECT_ID = ("<u1", 12)
_NODE_ID = ("<u1", 8)


class Field(NamedTuple):
    """A field of a table: its name in messages, its slot in the vtable, and its type.

    A struct, such as an id, has several ``items`` of one type.
    """

    name: str
    slot: int
    dtype: str = UOFFSET
    items: int = 1


class MetadataItem:
    NAME = Field("name", 0)
    VALUE = Field("value", 1)


class Manifest:
    ID = Field("id", 0, *_OBJECT_ID)
    ARRAYS = Field("arrays", 1)
    LOCATION_DICTIONARY = Field("location_dictionary", 2)
    COMPRESSION_ALGORITHM = Field("compression_algorithm", 3, "<u1")


class ArrayManifest:
    NODE_ID = Field("node_id", 0, *_NODE_ID)
    REFS = Field("refs", 1)


class ChunkRef:
    """A chunk reference has exactly one of inline, chunk_id, location and compressed_location."""

    INDEX = Field("index", 0)
    INLINE = Field("inline", 1)
    OFFSET = Field("offset", 2, "<u8")
    LENGTH = Field("length", 3, "<u8")
    CHUNK_ID = Field("chunk_id", 4, *_OBJECT_ID)
    LOCATION = Field("location", 5)
    CHECKSUM_ETAG = Field("checksum_etag", 6)
    CHECKSUM_LAST_MODIFIED = Field("checksum_last_modified", 7, "<u4")
    COMPRESSED_LOCATION = Field("compressed_location", 8)


class Snapshot:
    ID = Field("id", 0, *_OBJECT_ID)
    PARENT_ID = Field("parent_id", 1, *_OBJECT_ID)
    NODES = Field("nodes", 2)
    FLUSHED_AT = Field("flushed_at", 3, "<u8")
    MESSAGE = Field("message", 4)
    METADATA = Field("metadata", 5)
    MANIFEST_FILES = Field("manifest_files", 6)
    MANIFEST_FILES_V2 = Field("manifest_files_v2", 7)


class ManifestFileInfoV2:
    ID = Field("id", 0, *_OBJECT_ID)
    SIZE_BYTES = Field("size_bytes", 1, "<u8")
    NUM_CHUNK_REFS = Field("num_chunk_refs", 2, "<u4")


class NodeSnapshot:
    ID = Field("id", 0, *_NODE_ID)
    PATH = Field("path", 1)
    USER_DATA = Field("user_data", 2)
    NODE_DATA_TYPE = Field("node_data_type", 3, "<u1")
    NODE_DATA = Field("node_data", 4)


class ArrayNodeData:
    SHAPE = Field("shape", 0)
    DIMENSION_NAMES = Field("dimension_names", 1)
    MANIFESTS = Field("manifests", 2)
    SHAPE_V2 = Field("shape_v2", 3)


class DimensionShapeV2:
    ARRAY_LENGTH = Field("array_length", 0, "<u8")
    NUM_CHUNKS = Field("num_chunks", 1, "<u4")


class DimensionName:
    NAME = Field("name", 0)


class ManifestRef:
    OBJECT_ID = Field("object_id", 0, *_OBJECT_ID)
    EXTENTS = Field("extents", 1)


class TransactionLog:
    ID = Field("id", 0, *_OBJECT_ID)
    NEW_GROUPS = Field("new_groups", 1)
    NEW_ARRAYS = Field("new_arrays", 2)
    DELETED_GROUPS = Field("deleted_groups", 3)
    DELETED_ARRAYS = Field("deleted_arrays", 4)
    UPDATED_ARRAYS = Field("updated_arrays", 5)
    UPDATED_GROUPS = Field("updated_groups", 6)
    UPDATED_CHUNKS = Field("updated_chunks", 7)
    MOVED_NODES = Field("moved_nodes", 8)


class ArrayUpdatedChunks:
    NODE_ID = Field("node_id", 0, *_NODE_ID)
    CHUNKS = Field("chunks", 1)


class ChunkIndices:
    COORDS = Field("coords", 0)


class MoveOperation:
    FROM = Field("from", 0)
    TO = Field("to", 1)
    NODE_ID = Field("node_id", 2, *_NODE_ID)
    NODE_TYPE = Field("node_type", 3, "<u1")


class Repo:
    SPEC_VERSION = Field("spec_version", 0, "<u1")
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
    NAME = Field("name", 0)
    SNAPSHOT_INDEX = Field("snapshot_index", 1, "<u4")


class SnapshotInfo:
    ID = Field("id", 0, *_OBJECT_ID)
    PARENT_OFFSET = Field("parent_offset", 1, "<i4")
    FLUSHED_AT = Field("flushed_at", 2, "<u8")
    MESSAGE = Field("message", 3)
    METADATA = Field("metadata", 4)
    PRUNED_ANCESTOR_TX_LOGS = Field("pruned_ancestor_tx_logs", 5)


class RepoStatus:
    AVAILABILITY = Field("availability", 0, "<u1")
    SET_AT = Field("set_at", 1, "<u8")
    LIMITED_AVAILABILITY_REASON = Field("limited_availability_reason", 2)


class Update:
    UPDATE_TYPE_TYPE = Field("update_type_type", 0, "<u1")
    UPDATE_TYPE = Field("update_type", 1)
    UPDATED_AT = Field("updated_at", 2, "<u8")
    BACKUP_PATH = Field("backup_path", 3)
