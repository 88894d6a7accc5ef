"""Describes files of the generations draft and sequence, whose kind is in their path alone.

A file is recognized by its name and the folder that contains it, as `Layout` defines them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.errors import InvalidInputError
from icefloe.format.draft.state import decode_state
from icefloe.format.generation import DRAFT, SEQUENCE
from icefloe.format.keys import STATE
from icefloe.format.sequence import keys as sequence_keys
from icefloe.format.sequence.ref import decode_ref
from icefloe.inspection.metadata_file import (
    describe_manifest,
    describe_snapshot,
    describe_snapshot_info,
)
from icefloe.model.ids import AttributesId, ManifestId, ObjectId, SnapshotId

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.format.draft.state import State
    from icefloe.format.generation import FileKind, Generation

    ReadFile = Callable[[str], bytes | memoryview]

Id = TypeVar("Id", bound=ObjectId)


def describe_layout_file(
    data: bytes | memoryview, file: str, *, refs: bool, read_file: ReadFile
) -> dict[str, Any] | None:
    """Describe a file of a generation without envelopes, or return None.

    ``read_file`` reads another file of the repository, given its path or URL: a snapshot may need
    attributes files.
    """
    if file.rpartition("/")[2] == STATE:
        return {"file_type": "state", **_describe_state(decode_state(data))}
    reference = _find_sequence_ref(file)
    if reference is not None:
        ref = decode_ref(data, file)
        return {
            "file_type": "reference",
            "generation": SEQUENCE.name,
            **reference,
            "snapshot": str(ref.snapshot_id),
            "timestamp": ref.timestamp.isoformat(),
            "deleted": ref.is_deleted,
            "parents": {str(child): str(parent) for child, parent in ref.parents.items()},
        }
    for generation in (DRAFT, SEQUENCE):
        description = _describe_immutable_file(data, file, generation, refs=refs, read=read_file)
        if description is not None:
            return description
    return None


def _describe_immutable_file(
    data: bytes | memoryview, file: str, generation: Generation, *, refs: bool, read: ReadFile
) -> dict[str, Any] | None:
    layout, header = generation.layout, {"generation": generation.name, "size_bytes": len(data)}
    root, object_id = _parse_file(file, layout.snapshots, SnapshotId, generation)
    if object_id is not None:

        def fetch_attributes(attributes_id: AttributesId) -> tuple[str, bytes | memoryview]:
            assert layout.attributes is not None  # noqa: S101 - for type checkers
            attributes_file = root + layout.attributes.format_key(attributes_id)
            return attributes_file, read(attributes_file)

        snapshot = generation.codec.decode_snapshot(data, file, object_id, fetch_attributes)
        return {"file_type": "snapshot", **header, **describe_snapshot(snapshot, generation)}
    _, manifest_id = _parse_file(file, layout.manifests, ManifestId, generation)
    if manifest_id is not None:
        manifest = generation.codec.decode_manifest(data, file, manifest_id)
        description = describe_manifest(manifest, generation, refs=refs)
        return {"file_type": "manifest", **header, **description}
    if layout.attributes is not None:
        _, attributes_id = _parse_file(file, layout.attributes, AttributesId, generation)
        if attributes_id is not None:
            rows = generation.codec.decode_attributes(data, file, attributes_id)
            return {"file_type": "attributes", **header, "id": str(attributes_id), "rows": rows}
    return None


def _parse_file(
    file: str, kind: FileKind, id_type: type[Id], generation: Generation
) -> tuple[str, Id | None]:
    """Return the root of the repository and the id of a file, None if it is not of the kind."""
    folder, _, name = file.rpartition("/")
    root = (folder + "/").removesuffix(kind.prefix)
    if root == folder + "/" or not name.endswith(kind.suffix):
        return root, None
    try:
        object_id = id_type.parse(name.removesuffix(kind.suffix))
    except InvalidInputError:
        return root, None
    return root, object_id if len(object_id.raw) == generation.id_size else None


def _find_sequence_ref(file: str) -> dict[str, Any] | None:
    """Return the branch and number, or the tag, of a reference file of the generation sequence."""
    parts = file.split("/")
    if len(parts) >= 3 and parts[-3] == sequence_keys.REFS.rstrip("/"):
        found = sequence_keys.parse_branch_key("/".join(parts[-3:]))
        return None if found is None else {"branch": found[0], "number": found[1]}
    if len(parts) >= 2:
        tag = sequence_keys.parse_tag_key("/".join(parts[-2:]))
        return None if tag is None else {"tag": tag}
    return None


def _describe_state(state: State) -> dict[str, Any]:
    info = state.info
    return {
        "generation": DRAFT.name,
        "id": state.id,
        "counter": state.counter,
        "store_root": state.store_root,
        "branches": {name: str(target) for name, target in sorted(info.branches.items())},
        "tags": {name: str(target) for name, target in sorted(info.tags.items())},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": iter([describe_snapshot_info(snapshot) for snapshot in info.snapshots]),
    }
