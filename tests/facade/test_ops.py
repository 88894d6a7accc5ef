"""The ops log in the words of users."""

from __future__ import annotations

import pickle
from dataclasses import fields
from datetime import UTC, datetime

import pytest

from icefloe import Repository, RepoStatus, Update, UpdateType, in_memory_storage
from icefloe.model import repo_info as model
from icefloe.model.ids import SnapshotId
from icefloe.types import SpecVersion

KINDS = [getattr(UpdateType, name) for name in UpdateType.__annotations__]
TIME = datetime(2026, 1, 2, tzinfo=UTC)
ID = SnapshotId(bytes(range(12)))


@pytest.mark.parametrize("stored", KINDS, ids=lambda kind: kind.__name__)
def test_every_stored_kind_has_a_public_one(stored: type) -> None:
    """With the same fields, ids as text; it pickles, and is known by its class."""
    values = {field.name: _example(str(field.type)) for field in fields(stored)}
    update = Update.of(model.OpsLogEntry(stored(**values), TIME, "repo.1"))
    public = getattr(UpdateType, stored.__name__)
    assert type(update.kind) is public
    assert isinstance(update.kind, UpdateType)
    for name, value in values.items():
        shown = str(value) if isinstance(value, SnapshotId) else value
        assert getattr(update.kind, name) == shown
    assert pickle.loads(pickle.dumps(update)) == update  # noqa: S301
    assert repr(update.kind).startswith(f"UpdateType.{stored.__name__}(")


def _example(hint: str) -> object:
    examples: dict[str, object] = {
        "str": "name",
        "int": 3,
        "Id": ID,
        "bool | None": None,
        "RepoStatus": RepoStatus(model.RepoAvailability.read_only, TIME, "moving"),
    }
    return examples[hint]


def test_what_was_done_is_told_newest_first() -> None:
    """Each entry but the newest names a copy of the state after it."""
    repository = Repository.create(in_memory_storage(), spec_version=SpecVersion.v2)
    repository.create_branch("dev", repository.lookup_branch("main"))
    repository.set_metadata({"a": 1})
    log = list(repository.ops_log())
    assert [update.kind for update in log] == [
        UpdateType.MetadataChanged(),
        UpdateType.BranchCreated("dev"),
        UpdateType.RepoInitialized(),
    ]
    assert [update.backup_path is None for update in log] == [True, False, False]
    match log[1].kind:
        case UpdateType.BranchCreated(name):
            assert name == "dev"
        case _:
            pytest.fail("a branch was created")
