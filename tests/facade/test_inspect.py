"""What a repository tells of its files is what Icechunk tells of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from icefloe import (
    FormatError,
    InvalidInputError,
    Repository,
    StorageError,
    Update,
    local_filesystem_storage,
)
from support import SUPPORT, warm_python
from support.golden_repositories import Golden, every_golden

if TYPE_CHECKING:
    from pathlib import Path

_answers: dict[str, dict[str, Any]] = {}


def inspect_with_icechunk(python: Path, golden: Golden) -> dict[str, Any]:
    if golden.name not in _answers:
        script = SUPPORT / "icechunk_inspector.py"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ICECHUNK_LOG", "error")
            done = warm_python.run(python, script, golden.repository)
        done.check_returncode()
        _answers[golden.name] = json.loads(done.stdout)
    return _answers[golden.name]


def open_golden(golden: Golden) -> Repository:
    return Repository.open(local_filesystem_storage(golden.repository))


@every_golden
def test_snapshots_and_logs(golden: Golden, icechunk2: Path) -> None:
    """All keys and values are Icechunk's, chunks sorted."""
    expected, repository = inspect_with_icechunk(icechunk2, golden), open_golden(golden)
    for id_, snapshot in expected["snapshots"].items():
        assert repository.inspect_snapshot(id_) == snapshot
    for id_, log in expected["logs"].items():
        for array in log["updated_chunks"]:
            array["chunks"].sort()  # old writers put them down in any order
        assert repository.inspect_transaction_log(id_) == log


@every_golden
def test_manifests(golden: Golden, icechunk2: Path) -> None:
    """All but how locations are compressed, which Icechunk tells wrongly of version 1."""
    expected, repository = inspect_with_icechunk(icechunk2, golden), open_golden(golden)
    assert expected["manifests"]
    for id_, manifest in expected["manifests"].items():
        compression = manifest.pop("compression")
        if golden.name.startswith("v1"):
            assert compression["num_compressed_refs"] == 0
        assert repository.inspect_manifest(id_) == manifest


def test_repo_info_and_the_ops_log(icechunk2: Path) -> None:
    """The repo info, and every entry of the log with its fields as text."""
    golden = Golden("v2-by-2.3.0")
    expected, repository = inspect_with_icechunk(icechunk2, golden), open_golden(golden)
    assert repository.inspect_repo_info() == expected["repo_info"]
    assert [shown(update) for update in repository.ops_log()] == expected["ops"]


def shown(update: Update) -> list[Any]:
    kind = update.kind
    names = [field.name for field in fields(kind) if field.name != "status"]
    values = {name: str(getattr(kind, name)) for name in names}
    return [type(kind).__name__, values, update.updated_at.isoformat(), update.backup_path]


@every_golden
def test_the_graph_has_icechunks_commits(golden: Golden, icechunk2: Path) -> None:
    """With tags besides, which may lead to commits that no branch does."""

    def ids(text: str) -> set[str]:
        words = (word for line in text.splitlines() for word in line.split())
        return {word for word in words if len(word) == 8 and word.isalnum() and word.isupper()}

    theirs = ids(inspect_with_icechunk(icechunk2, golden)["graph"])
    assert theirs <= ids(str(open_golden(golden).ancestry_graph(plain=True)))


def test_version_1_has_neither_repo_info_nor_ops_log() -> None:
    """And says so as Icechunk does."""
    repository = open_golden(Golden("v1-by-1.1.21"))
    for ask in (repository.inspect_repo_info, lambda: list(repository.ops_log())):
        with pytest.raises(FormatError) as raised:
            ask()
        assert raised.value.kind == "unsupported-spec-version"


def test_what_is_not_there() -> None:
    """The error for a missing file has its key, and an invalid id is refused."""
    repository = open_golden(Golden("v2-by-2.3.0"))
    with pytest.raises(StorageError, match="manifests/1CECHNKREP0F1RSTCMTG") as raised:
        repository.inspect_manifest("1CECHNKREP0F1RSTCMTG")
    assert raised.value.kind == "object-not-found"
    with pytest.raises(InvalidInputError):
        repository.inspect_snapshot("xx")


def test_async_twins() -> None:
    """Every question can be asked from an event loop."""
    repository: Any = open_golden(Golden("v2-by-2.3.0"))
    tip = repository.lookup_branch("main")

    async def ask() -> None:
        assert await repository.inspect_snapshot_async(tip) == repository.inspect_snapshot(tip)
        assert await repository.inspect_repo_info_async() == repository.inspect_repo_info()
        updates = [update async for update in repository.ops_log_async()]
        assert updates == list(repository.ops_log())
        graph = await repository.ancestry_graph_async(branch="main", plain=True)
        assert str(graph) == str(repository.ancestry_graph(branch="main", plain=True))

    asyncio.run(ask())
