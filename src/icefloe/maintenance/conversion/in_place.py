"""Conversion from v2 to v1 in the same root, with shared chunks.

Until the last step the repository is a valid one of generation v2, for readers too: converted
manifests get new ids, snapshot files are replaced by files of generation v1 with the same content,
which v2 may contain, and the files of branches and tags are ignored as long as ``repo`` exists. The
status ``read_only`` keeps writers away. Deleting ``repo`` then makes it a repository of generation
v1. An interrupted conversion can be repeated, or given up by setting the status to ``online``.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import ConflictError, ErrorKind, PreconditionFailedError
from icefloe.format.envelope import HEADER_SIZE, read_header
from icefloe.format.generation import V1, V2, find_generation
from icefloe.format.keys import CONFIG, OVERWRITTEN, REFS, REPO
from icefloe.maintenance.conversion.logs import fetch_log
from icefloe.maintenance.conversion.manifests import convert_manifest
from icefloe.maintenance.conversion.nodes import NodeConverter
from icefloe.maintenance.conversion.plan import plan_conversion
from icefloe.maintenance.limits import map_bounded
from icefloe.maintenance.progress import Phase, Step
from icefloe.maintenance.repository_reader import NO_CACHE
from icefloe.model.byte_range import Bounded
from icefloe.model.ids import ManifestId
from icefloe.model.repo_info import RepoAvailability, RepoStatus
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.maintenance.conversion.plan import ConversionPlan, Source
    from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage, Version

REASON = "conversion to generation v1: run it again, or set the status to online to give it up"


def downgrade_storage(
    make_source: Callable[[], Source], *, dry_run: bool
) -> tuple[RefsState, ConversionPlan]:
    """Convert a repository of generation v2 to v1 in place; return what was converted.

    ``make_source`` reads the current state. Raises as `plan_conversion` before anything is
    written, and `ReadOnlyError` if the status of the repository forbids changes.
    """
    source = make_source()
    refs = RepoFile(source.storage)
    if refs.fetch_status().limited_availability_reason != REASON:
        refs.require_online()
    plan = plan_conversion(source, V1, with_chunks=False)
    if dry_run:
        return source.state, plan
    version = _begin(refs, source.storage)
    current = make_source()
    if current.state != source.state:
        refs.save_status(RepoStatus(RepoAvailability.online))
        raise _changed_error(source.storage)
    _convert_files(source, plan)
    # Files of generation v1 that an upgrade left behind are not read.
    source.storage.delete_many([CONFIG, *(info.key for info in source.storage.list(REFS))])
    RefFiles.restore(source.storage, source.state)
    if source.storage.head(REPO).version != version:
        raise _changed_error(source.storage)
    source.storage.delete_many([REPO])
    source.storage.delete_many([info.key for info in source.storage.list(OVERWRITTEN)])
    return source.state, plan


def _begin(refs: RepoFile, storage: Storage) -> Version:
    """Keep writers away; return the version of ``repo`` that they cannot change any more."""
    if refs.fetch_status().limited_availability_reason != REASON:
        status = RepoStatus(RepoAvailability.read_only, limited_availability_reason=REASON)
        refs.save_status(status)
    return storage.head(REPO).version


def _convert_files(source: Source, plan: ConversionPlan) -> None:
    """Replace snapshots and transaction logs by files of generation v1."""
    manifests = _ManifestWriter(source.storage)
    old, new = (Assets(source.storage, generation, NO_CACHE) for generation in (V2, V1))
    workers = source.num_workers
    infos: dict[ManifestId, ManifestFileInfo] = {}
    pairs = map_bounded(manifests.convert, plan.manifests.values(), workers=workers)
    for number, (manifest_id, info) in enumerate(pairs, 1):
        infos[manifest_id] = info
        source.progress(Step(Phase.WRITE_MANIFESTS, number, len(plan.manifests)))
    converter = NodeConverter(V1, lambda manifest_id: infos[manifest_id].id)

    def write(item: tuple[SnapshotInfo, Snapshot]) -> None:
        info, snapshot = item
        log = new.encode_transaction_log(fetch_log(old, info))
        source.storage.put(log.key, log.data)
        file = new.encode_snapshot(_convert(info, snapshot, infos, converter)).file
        source.storage.put(file.key, file.data)

    for _ in map_bounded(write, source.read_snapshots(Phase.WRITE_SNAPSHOTS), workers=workers):
        pass


def _convert(
    info: SnapshotInfo,
    snapshot: Snapshot,
    manifests: Mapping[ManifestId, ManifestFileInfo],
    converter: NodeConverter,
) -> Snapshot:
    used = {file.id for file in snapshot.manifest_files}
    used.update([ref.id for node in snapshot.nodes for ref in node.manifests])
    files = sorted((manifests[used_id] for used_id in used), key=lambda file: file.id)
    return replace(
        snapshot,
        parent_id=info.parent_id,
        metadata=dict(info.metadata),
        nodes=tuple(converter.convert(node, None) for node in snapshot.nodes),
        manifest_files=tuple(files),
    )


class _ManifestWriter:
    """Writes manifests of generation v1 under ids that are derived from the old ones.

    Manifests are not replaced, because snapshots record their size.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._old = Assets(storage, V2, NO_CACHE)
        self._new = Assets(storage, V1, NO_CACHE)

    def convert(self, info: ManifestFileInfo) -> tuple[ManifestId, ManifestFileInfo]:
        """Return the id of a manifest, and its entry in generation v1."""
        key = V2.layout.manifests.format_key(info.id)
        header = read_header(self._storage.get(key, Bounded(0, HEADER_SIZE)).data, key)
        if find_generation(header.spec_version) is V1:
            return info.id, info
        digest = hashlib.sha256(b"manifest of v1" + info.id.raw).digest()
        new_id = ManifestId(digest[: V1.id_size])
        manifest = convert_manifest(self._old.fetch_manifest(info.id), new_id, None, V1.id_size)
        entry, file = self._new.encode_manifest(manifest)
        # An interrupted run wrote the same bytes.
        with contextlib.suppress(PreconditionFailedError):
            self._new.publish(file)
        return info.id, entry


def _changed_error(storage: Storage) -> ConflictError:
    return ConflictError(
        f"{storage.url} changed during the conversion: stop its writers, and convert again",
        kind=ErrorKind.REPO_INFO_UPDATED,
    )
