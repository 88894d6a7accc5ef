"""The refs of the generation draft: the object ``state.json`` (docs/format/draft.md).

A change is a get and a conditional put, and raises the counter ``generation`` by one. There is no
ops log, metadata, status or feature flags, and commits cannot be amended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

from icefloe.assets import fetch_file
from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from icefloe.format.draft.state import (
    MAX_STATE_BYTES,
    State,
    decode_state,
    encode_state,
    make_repo_info,
    make_uid,
)
from icefloe.format.generation import DRAFT
from icefloe.format.keys import STATE
from icefloe.model.config import RepositoryConfig
from icefloe.refs import change_counter, config_file, ref_errors
from icefloe.refs.names import MAIN
from icefloe.refs.single_object import Current, SingleObjectRefs
from icefloe.refs.store_root import require_store_root
from icefloe.storage.interface import Create, UpdateIfMatch

if TYPE_CHECKING:
    from icefloe.model.repo_info import RepoInfo, UpdateType
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.storage_settings import StorageRetriesSettings
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage


class ConfigAtOpening(NamedTuple):
    """The configuration as read at opening, None if there is none."""

    config: RepositoryConfig | None


@dataclass(frozen=True, slots=True)
class _CurrentState(Current):
    state: State


class StateFile(SingleObjectRefs[_CurrentState]):
    """Reads and changes ``state.json`` and ``config.yaml``.

    With ``at_opening``, the configuration is not read again.
    """

    generation = DRAFT

    def __init__(
        self,
        storage: Storage,
        pinned: RepoInfo | None = None,
        at_opening: ConfigAtOpening | None = None,
    ) -> None:
        super().__init__(storage, pinned)
        self._at_opening = at_opening

    @classmethod
    def create(cls, storage: Storage, initial: Snapshot, config: RepositoryConfig | None) -> None:
        config_file.create_config(storage, config)
        branches = {MAIN: initial.id}
        snapshots = (initial.get_info(),)
        info = make_repo_info(snapshots, branches, {}, frozenset(), initial.flushed_at)
        state = State(make_uid(), 0, storage.store_root_url, info)
        storage.put(STATE, encode_state(state), Create())

    @classmethod
    def restore(cls, storage: Storage, state: RefsState) -> None:
        """Create ``state.json``, after the configuration, in one put."""
        config_file.restore_config(storage, state.config)
        info = make_repo_info(
            state.snapshots,
            state.branches,
            state.tags,
            state.deleted_tags,
            state.snapshots[0].flushed_at,
        )
        data = encode_state(State(make_uid(), 0, storage.store_root_url, info))
        storage.put(STATE, data, Create())

    def pin(self) -> Self:
        return type(self)(self._storage, self.fetch(), self._at_opening)

    def fetch_config(self) -> RepositoryConfig | None:
        if self._at_opening is not None:
            return self._at_opening.config
        return config_file.fetch_config(self._storage)

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        config_file.save_config(self._storage, config, expected=expected)

    def require_online(self) -> None:
        """Do nothing: the generation draft has no status."""

    def _run_check(self, check: CommitCheck, info: RepoInfo) -> None:  # noqa: ARG002
        check.check_age()  # there is no ops log

    def _fetch_update_retries(self, info: RepoInfo) -> StorageRetriesSettings:  # noqa: ARG002
        config = self.fetch_config() or RepositoryConfig()
        return config.effective_repo_update_retries.effective_default

    def _fetch(self) -> _CurrentState:
        try:
            fetched = fetch_file(self._storage, STATE, max_bytes=MAX_STATE_BYTES)
        except ObjectNotFoundError as error:
            raise ref_errors.deleted_repository_error(STATE, self._storage.url) from error
        state = decode_state(fetched.data)
        require_store_root(state.store_root, self._storage)
        return _CurrentState(state.info, fetched.info.version, state)

    def _replace(
        self,
        current: _CurrentState,
        kind: UpdateType,  # noqa: ARG002 - there is no ops log
        info: RepoInfo,
    ) -> RepoInfo | None:
        change_id = make_uid()
        state = replace(
            current.state,
            counter=current.state.counter + 1,
            info=_without_pruned_logs(info),
            recent_changes=(change_id, *current.state.recent_changes),
        )
        data = encode_state(state)
        try:
            change_counter.increment()
            self._storage.put(STATE, data, UpdateIfMatch(current.version))
        except PreconditionFailedError:
            return None
        except OutcomeUnknownError:
            # The next states contain the id of this change. If none does, the put may still be in
            # flight, or more changes followed than the state records.
            if change_id not in self._fetch().state.recent_changes:
                raise
        return state.info


def _without_pruned_logs(info: RepoInfo) -> RepoInfo:
    """Return the state without transaction logs of expired snapshots: there are no such logs."""
    snapshots = tuple(
        replace(snapshot, pruned_ancestor_tx_logs=())
        if snapshot.pruned_ancestor_tx_logs
        else snapshot
        for snapshot in info.snapshots
    )
    return replace(info, snapshots=snapshots)
