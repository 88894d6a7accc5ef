"""Reading refs: detection of the generation, and number of requests."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.assets import Assets
from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    FormatError,
    PermissionDeniedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.generation import SEQUENCE, V1, V2
from icefloe.format.keys import format_branch_key
from icefloe.format.ref_json import encode_ref
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.refs import create_refs, fetch_spec_version, is_repository, open_refs
from icefloe.storage import LocalStorage, MemoryStorage
from support.counting_refs_storage import CountingStorage
from support.golden_repositories import Golden, every_golden
from support.ref_keys import GENERATIONS_WITH_REF_FILES, PUBLISHING_KEYS
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icefloe.format.generation import Generation
    from icefloe.model.byte_range import ByteRange
    from icefloe.storage import Fetched, ObjectInfo


@every_golden
def test_opening(golden: Golden) -> None:
    """Opening, with main and the configuration: one request in version 2, three in version 1."""
    storage = CountingStorage(LocalStorage(golden.repository))
    opened = open_refs(storage)
    version = golden.expected["spec_version"]
    assert opened.refs.spec_version == opened.opening_refs.spec_version == version
    expected = {"get repo": 1}
    if version == 1:
        expected |= {"get refs/branch.main/ref.json": 1, "get config.yaml": 1}
    assert storage.requests == expected
    storage.requests.clear()
    assert str(opened.opening_refs.fetch_branch("main")) == golden.expected["branches"]["main"]
    assert opened.opening_refs.fetch_config() == opened.config
    assert opened.opening_refs.pin().fetch_config() == opened.config
    assert not storage.requests
    assert opened.refs.fetch_config() == opened.config
    assert storage.requests.total() == 1


@every_golden
def test_all_branches_at_opening(golden: Golden) -> None:
    """The list of all branches has main as read at opening."""
    storage = CountingStorage(LocalStorage(golden.repository))
    opened = open_refs(storage)
    storage.requests.clear()
    branches = opened.opening_refs.fetch_branches()
    assert {name: str(tip) for name, tip in branches.items()} == golden.expected["branches"]
    assert "get refs/branch.main/ref.json" not in storage.requests
    assert opened.refs.fetch_branches() == branches


def test_state_at_opening_does_not_change(generation: Generation) -> None:
    """``opening_refs`` does not change; ``refs`` reads the current state."""
    storage = MemoryStorage()
    create_refs(storage, generation=generation)
    opened = open_refs(storage)
    first = generation.initial_snapshot_id
    info = write_snapshot(storage, generation, first, "later")
    opened.opening_refs.commit("main", first, info)
    config = RepositoryConfig(inline_chunk_threshold_bytes=1)
    opened.opening_refs.save_config(config, expected=None)
    assert opened.opening_refs.fetch_branch("main") == first
    assert opened.opening_refs.fetch_branches() == {"main": first}
    assert opened.opening_refs.fetch_config() is None
    assert opened.refs.fetch_branch("main") == info.id
    assert opened.refs.fetch_config() == config


@every_golden
def test_references_pickle(golden: Golden) -> None:
    """Refs pickle, with the state at opening."""
    opened = open_refs(LocalStorage(golden.repository))
    copy = pickle.loads(pickle.dumps(opened))  # noqa: S301
    assert copy.config == opened.config
    for ours, theirs in ((opened.refs, copy.refs), (opened.opening_refs, copy.opening_refs)):
        assert theirs.fetch_branches() == ours.fetch_branches()


def test_requests_are_concurrent() -> None:
    """The files of versions 1 and 2 are requested at the same time, if requests take time."""

    class Meeting(MemoryStorage):
        """Responds to each of three requests only after all have arrived."""

        is_low_latency = False
        meeting = threading.Barrier(3, timeout=20)

        def get(
            self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
        ) -> Fetched:
            if key in ("repo", "refs/branch.main/ref.json", "config.yaml"):
                self.meeting.wait()
            return super().get(key, byte_range, max_bytes=max_bytes)

    for generation in (V1, V2):
        storage = Meeting()
        create_refs(storage, generation=generation)
        assert open_refs(storage).opening_refs.fetch_branch("main") == INITIAL_SNAPSHOT_ID


@every_golden
def test_spec_version(golden: Golden) -> None:
    """Version 2 takes one request, version 1 two."""
    storage = CountingStorage(LocalStorage(golden.repository))
    version = golden.expected["spec_version"]
    assert fetch_spec_version(storage) == version
    assert storage.requests.total() == (1 if version == 2 else 2)
    assert is_repository(storage)


def test_spec_version_without_a_repository() -> None:
    """Without a repository, a request for each generation returns None."""
    storage = CountingStorage(MemoryStorage())
    assert fetch_spec_version(storage) is None
    assert storage.requests.total() == 4
    assert not is_repository(storage)


@every_golden
def test_history(golden: Golden) -> None:
    """History takes one request in version 2 and one for each snapshot in version 1."""
    storage = CountingStorage(LocalStorage(golden.repository))
    refs = open_refs(storage).refs
    tip = SnapshotId.parse(golden.expected["branches"]["main"])
    storage.requests.clear()
    history = list(refs.fetch_ancestry(tip))
    assert storage.requests.total() == (1 if refs.spec_version == 2 else len(history))
    storage.requests.clear()
    assert refs.fetch_snapshot_info(tip) == history[0]
    assert storage.requests.total() == 1


def test_history_from_a_cache(generation: Generation) -> None:
    """Cached snapshots are not fetched again; generations v2 and draft need none of them."""

    class Kept(dict[SnapshotId, Snapshot]):
        """Cached snapshots."""

        def fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
            return self[snapshot_id]

        def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
            return self[snapshot_id].get_info()

    storage = CountingStorage(MemoryStorage())
    create_refs(storage, generation=generation)
    opened, assets = open_refs(storage), Assets(storage, generation)
    first_id = generation.initial_snapshot_id
    kept = Kept({first_id: assets.fetch_snapshot(first_id)})
    storage.requests.clear()
    refs = opened.opening_refs.with_assets(kept)
    (first,) = refs.fetch_ancestry(refs.fetch_branch("main"))
    assert first == refs.fetch_snapshot_info(first_id)
    assert first.message == "Repository initialized"
    assert not storage.requests


def test_nothing_is_listed(generation: Generation) -> None:
    """Opening, reading, tagging and committing work without listing, except in sequence."""

    class Unlistable(MemoryStorage):
        """Raises when listed, unless listing is allowed."""

        is_listable = False

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            if self.is_listable:
                return super().list(prefix)
            raise AbsentOrDeniedError(f"not allowed to list {prefix}")

    storage = Unlistable()
    storage.is_listable = generation is SEQUENCE
    create_refs(storage, generation=generation)
    refs = open_refs(storage).refs
    if generation is SEQUENCE:
        storage.is_listable = False
        with pytest.raises(PermissionDeniedError, match="r/main/"):
            refs.fetch_branch("main")
        with pytest.raises(RepositoryNotFoundError):
            open_refs(storage)
        return
    info = write_snapshot(storage, generation, refs.fetch_branch("main"), "a commit")
    refs.commit("main", generation.initial_snapshot_id, info)
    refs.create_tag("v1", info.id)
    assert refs.fetch_tag("v1") == info.id
    assert next(refs.fetch_ancestry(info.id)).message == "a commit"
    with pytest.raises(RefNotFoundError):
        refs.fetch_branch("unknown")


def test_unknown_names(generation: Generation) -> None:
    """The error suggests names, or how to list them, without an additional request."""
    storage = CountingStorage(MemoryStorage())
    refs = create_refs(storage, generation=generation)
    refs.create_tag("release-1", generation.initial_snapshot_id)
    knows_names = generation not in GENERATIONS_WITH_REF_FILES
    words = "did you mean {}" if knows_names else "{} returns the existing ones"
    storage.requests.clear()
    with pytest.raises(RefNotFoundError) as caught:
        refs.fetch_branch("mian")
    assert words.format("'main'" if knows_names else "list_branches()") in str(caught.value)
    assert caught.value.kind is ErrorKind.BRANCH_NOT_FOUND
    assert storage.requests.total() == 1
    with pytest.raises(RefNotFoundError) as caught:
        refs.fetch_tag("release1")
    assert words.format("'release-1'" if knows_names else "list_tags()") in str(caught.value)
    assert caught.value.kind is ErrorKind.TAG_NOT_FOUND


def test_unknown_names_in_a_long_list() -> None:
    """A long list of names is not part of the message."""
    refs = create_refs(MemoryStorage(), generation=V2)
    with pytest.raises(RefNotFoundError, match="; it has no tags"):
        refs.fetch_tag("xyz")
    for number in range(3):
        refs.create_tag(f"{number}", INITIAL_SNAPSHOT_ID)
    with pytest.raises(RefNotFoundError, match="available: 0, 1, 2"):
        refs.fetch_tag("xyz")
    for number in range(3, 11):
        refs.create_tag(f"{number}", INITIAL_SNAPSHOT_ID)
    with pytest.raises(RefNotFoundError, match=r"list_tags\(\) returns the 11 existing ones"):
        refs.fetch_tag("xyz")


def test_no_repository() -> None:
    """Without a repository, the error names the objects that are missing."""
    storage = CountingStorage(MemoryStorage())
    with pytest.raises(
        RepositoryNotFoundError,
        match=r"neither 'repo' nor 'refs/branch\.main/ref\.json' nor 'state\.json' nor 'r/main/'",
    ):
        open_refs(storage)
    assert storage.requests.total() == 5


def test_unfinished_conversion() -> None:
    """In the target of an unfinished conversion, the error says how to continue it."""
    storage = MemoryStorage()
    storage.put("conversion.json", b"{}")
    with pytest.raises(RepositoryNotFoundError, match="a conversion into it is unfinished; run"):
        open_refs(storage)


def test_a_deleted_repository(generation: Generation) -> None:
    """A repository that was deleted after opening raises, in some generations as a lost branch."""
    storage = MemoryStorage()
    refs = create_refs(storage, generation=generation)
    storage.delete_many([PUBLISHING_KEYS[generation]])
    if generation in GENERATIONS_WITH_REF_FILES:
        with pytest.raises(RefNotFoundError, match="no branch 'main'"):
            refs.fetch_branch("main")
    else:
        with pytest.raises(RepositoryNotFoundError, match="deleted or moved"):
            refs.fetch_branch("main")


def test_a_failing_storage_is_not_opened_as_version_1() -> None:
    """Version 1 is opened only if ``repo`` is absent: its files may remain from an upgrade."""

    class Failing(MemoryStorage):
        """Fails to read the file ``repo``."""

        def get(
            self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
        ) -> Fetched:
            if key == "repo":
                raise StorageError("unavailable")
            return super().get(key, byte_range, max_bytes=max_bytes)

    storage = Failing()
    storage.put(format_branch_key("main"), encode_ref(INITIAL_SNAPSHOT_ID))
    with pytest.raises(StorageError, match="unavailable"):
        open_refs(storage)


def test_ancestry_with_a_cycle() -> None:
    """A snapshot that is its own ancestor raises."""
    golden = Golden("v1-by-1.1.21")
    first = SnapshotId.parse(golden.expected["ids"]["first"])
    key = V1.layout.snapshots.format_key(first)
    data = (golden.repository / key).read_bytes()
    storage = MemoryStorage()
    circle = replace(decode_snapshot(data, key), parent_id=first)
    storage.put(key, encode_snapshot(circle, spec_version=1))
    storage.put(format_branch_key("main"), encode_ref(first))
    history = open_refs(storage).refs.fetch_ancestry(first)
    assert next(history).id == first
    with pytest.raises(FormatError, match="its own ancestor"):
        next(history)


@every_golden
def test_unknown_snapshot(golden: Golden) -> None:
    """The history of a missing snapshot raises, and the error names it."""
    unknown = SnapshotId(bytes(12))
    refs = open_refs(LocalStorage(golden.repository)).refs
    with pytest.raises(SnapshotNotFoundError, match=str(unknown)):
        next(refs.fetch_ancestry(unknown))
    with pytest.raises(SnapshotNotFoundError, match=str(unknown)):
        refs.fetch_snapshot_info(unknown)


@every_golden
def test_oversized_files_raise_unread(golden: Golden, tmp_path: Path) -> None:
    """A file that is larger than allowed for its kind raises before it is read."""
    version = golden.expected["spec_version"]
    key = "repo" if version == 2 else format_branch_key("main")
    (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
    with (tmp_path / key).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="1099511627776"):
        open_refs(LocalStorage(tmp_path))


@pytest.mark.parametrize("name", ["größe", "a b", "a~b", "~", "100%", "a#1", "x*y", "a|b", "深"])
def test_names_that_icechunk_wrote(tmp_path: Path, name: str) -> None:
    """Names that Icechunk encodes in keys of version 1 are found, listed and deleted."""
    icechunk: Any = import_module("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    tip = repository.lookup_branch("main")
    repository.create_branch(name, tip)
    repository.create_tag(name, tip)
    refs = open_refs(LocalStorage(tmp_path)).refs
    assert str(refs.fetch_branch(name)) == str(refs.fetch_tag(name)) == tip
    assert set(refs.fetch_branches()) == {"main", name}
    assert set(refs.fetch_tags()) == {name}
    refs.delete_branch(name)
    refs.delete_tag(name)
    assert set(repository.list_branches()) == {"main"}
    assert set(repository.list_tags()) == set()
    assert refs.fetch_deleted_tags() == {name}
