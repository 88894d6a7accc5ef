"""Creating a repository (seed `003`, Initialize New Repository)."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, PreconditionFailedError
from icefloe.format import config_yaml
from icefloe.format.envelope import SPEC_VERSIONS
from icefloe.format.keys import CONFIG, REPO, branch_key, snapshot_key, transaction_log_key
from icefloe.format.ref_json import encode_ref
from icefloe.format.repo_info import encode_repo_info
from icefloe.format.snapshot import encode_snapshot
from icefloe.format.transaction_log import encode_transaction_log
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, NodeId
from icefloe.model.repo_info import (
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoInitialized,
    RepoStatus,
)
from icefloe.model.snapshot import INITIAL_MESSAGE, INITIAL_METADATA, Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs.opening import is_repository, open_refs
from icefloe.refs.problems import MAIN
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def create_refs(
    storage: Storage, *, spec_version: int, config: RepositoryConfig | None = None
) -> Refs:
    """Create an empty repository; of several who try, one succeeds.

    The first snapshot, which has the same id everywhere, is written if it is not there, so that
    what a creator left who died half-way serves the next one. Then the branch main, or the file
    ``repo``, is created if absent: that is the moment the repository exists. The configuration
    comes before it, so that no repository exists without the one that it was created with.
    """
    if spec_version not in SPEC_VERSIONS:
        raise InvalidInputError(
            f"there is no version {spec_version} of the format; choose 1 or 2",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if is_repository(storage):
        raise _exists_already(storage)
    initial = _write_initial_snapshot(storage, spec_version)
    if spec_version == 1 and config is not None:
        with contextlib.suppress(PreconditionFailedError):
            storage.put(CONFIG, config_yaml.dumps(config), Create())
    try:
        if spec_version == 1:
            storage.put(branch_key(MAIN), encode_ref(initial.id), Create())
        else:
            storage.put(REPO, encode_repo_info(_initial_info(initial, config)), Create())
    except PreconditionFailedError as error:
        raise _exists_already(storage) from error
    # Two creators of different versions do not meet in one conditional write. Readers look for
    # `repo` first, so version 2 it is, and whoever made version 1 learns it here.
    opened = open_refs(storage)
    if opened.refs.spec_version != spec_version:
        raise _exists_already(storage)
    # A configuration may have been there, of a creator who died or who lost.
    if config is not None and opened.config != config:
        opened.refs.save_config(config, expected=opened.config)
    return opened.refs


def _exists_already(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"there is a repository at {storage.url} already: open it instead",
        kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
    )


def _write_initial_snapshot(storage: Storage, spec_version: int) -> Snapshot:
    snapshot = Snapshot(
        INITIAL_SNAPSHOT_ID, None, datetime.now(UTC), INITIAL_MESSAGE, INITIAL_METADATA, (), ()
    )
    if spec_version > 1:
        nobody: frozenset[NodeId] = frozenset()
        nothing = ChunkIndexColumns.of({})
        log = TransactionLog(snapshot.id, nobody, nobody, nobody, nobody, nobody, nobody, nothing)
        with contextlib.suppress(PreconditionFailedError):
            data = encode_transaction_log(log, spec_version=spec_version)
            storage.put(transaction_log_key(log.id), data, Create())
    with contextlib.suppress(PreconditionFailedError):
        data = encode_snapshot(snapshot, spec_version=spec_version)
        storage.put(snapshot_key(snapshot.id), data, Create())
        return snapshot
    return Assets(storage, spec_version).fetch_snapshot(snapshot.id)


def _initial_info(snapshot: Snapshot, config: RepositoryConfig | None) -> RepoInfo:
    return RepoInfo(
        spec_version=2,
        branches={MAIN: snapshot.id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=(snapshot.info(),),
        status=RepoStatus(RepoAvailability.online, snapshot.flushed_at),
        latest_updates=(OpsLogEntry(RepoInitialized(), snapshot.flushed_at),),
        config=config,
    )
