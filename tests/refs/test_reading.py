"""Reading references: which generation it is, and how many requests that takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from golden_repositories import Golden, every_golden
from icefloe.errors import FormatError, NotFoundError
from icefloe.format.keys import branch_key, snapshot_key
from icefloe.format.ref_json import encode_ref
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.model.ids import SnapshotId
from icefloe.refs import open_refs
from icefloe.storage import LocalStorage, MemoryStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.model.byte_range import ByteRange
    from icefloe.storage import Fetched, ObjectInfo


class CountingStorage(LocalStorage):
    """Counts the requests that read."""

    requests: int = 0

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        self.requests += 1
        return super().get(key, byte_range, max_bytes=max_bytes)

    def head(self, key: str) -> ObjectInfo:
        self.requests += 1
        return super().head(key)


@every_golden
def test_opening_takes_at_most_two_requests(golden: Golden) -> None:
    """Version 2 is known after one request, version 1 after two."""
    storage = CountingStorage(golden.repository)
    refs = open_refs(storage)
    assert refs.spec_version == golden.expected["spec_version"]
    assert storage.requests == (1 if refs.spec_version == 2 else 2)
    storage.requests = 0
    tip = SnapshotId.parse(golden.expected["branches"]["main"])
    history = list(refs.fetch_ancestry(tip))
    assert storage.requests == (1 if refs.spec_version == 2 else len(history))


def test_no_repository() -> None:
    """A place without a repository says so, and what was looked for."""
    with pytest.raises(NotFoundError, match=r"neither 'repo' nor 'refs/branch\.main/ref\.json'"):
        open_refs(MemoryStorage())


def test_ancestry_that_goes_in_a_circle() -> None:
    """A snapshot that is its own ancestor is an error, not an endless history."""
    golden = Golden("v1-by-1.1.21")
    first = SnapshotId.parse(golden.expected["ids"]["first"])
    key = snapshot_key(first)
    data = (golden.repository / key).read_bytes()
    storage = MemoryStorage()
    circle = replace(decode_snapshot(data, key), parent_id=first)
    storage.put(key, encode_snapshot(circle, spec_version=1))
    storage.put(branch_key("main"), encode_ref(first))
    history = open_refs(storage).fetch_ancestry(first)
    assert next(history).id == first
    with pytest.raises(FormatError, match="its own ancestor"):
        next(history)


@every_golden
def test_unknown_snapshot(golden: Golden) -> None:
    """The history of a snapshot that is not there raises, and names it."""
    unknown = SnapshotId(bytes(12))
    with pytest.raises(NotFoundError, match=str(unknown)):
        next(open_refs(LocalStorage(golden.repository)).fetch_ancestry(unknown))


@every_golden
def test_oversized_files_are_refused_unread(golden: Golden, tmp_path: Path) -> None:
    """A file far larger than its kind can be is an error, before memory is spent on it."""
    version = golden.expected["spec_version"]
    key = "repo" if version == 2 else branch_key("main")
    (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
    with (tmp_path / key).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="1099511627776"):
        open_refs(LocalStorage(tmp_path)).fetch_branch("main")
