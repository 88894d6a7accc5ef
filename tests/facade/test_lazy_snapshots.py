"""The commits of `Repository.ancestry`, whose fields are read on access."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from icefloe import Repository, SnapshotInfo, in_memory_storage
from icefloe.errors import FormatError
from icefloe.format import encoded_history

if TYPE_CHECKING:
    from collections.abc import Callable

COMMITS = 40


@pytest.fixture(scope="module", params=[1, 2])
def repository(request: pytest.FixtureRequest) -> Repository:
    """Return a repository with some commits."""
    repository = Repository.create(in_memory_storage(), spec_version=request.param)
    for number in range(COMMITS):
        session = repository.writable_session("main")
        session.commit(f"commit {number}", {"number": number}, allow_empty=True)
    return repository


def get_fields(info: SnapshotInfo) -> list[Any]:
    return [getattr(info, field.name) for field in fields(info)]


def test_fields(repository: Repository) -> None:
    """Each commit has the fields of `Repository.lookup_snapshot`, in any order of access."""
    infos = list(repository.ancestry(branch="main"))
    assert len(infos) == COMMITS + 1
    for info in reversed(infos):
        expected = repository.lookup_snapshot(info.id)
        assert get_fields(info) == get_fields(expected)
        assert info == expected
        assert hash(info) == hash(expected)
        assert repr(info) == repr(expected)
    assert [info.id for info in infos[1:]] == [info.parent_id for info in infos[:-1]]


@pytest.mark.parametrize(
    "convert",
    [
        hash,
        repr,
        get_fields,
        copy.copy,
        copy.deepcopy,
        lambda info: pickle.loads(pickle.dumps(info)),  # noqa: S301
        lambda info: {info},
        lambda info: info._repr_html_(),
    ],
)
def test_the_first_access(repository: Repository, convert: Callable[[SnapshotInfo], Any]) -> None:
    """Whatever accesses the fields first reads them."""
    info = next(repository.ancestry(branch="main"))
    expected = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert convert(info) == convert(expected)
    assert info == expected


def test_it_is_immutable(repository: Repository) -> None:
    info = next(repository.ancestry(branch="main"))
    with pytest.raises(FrozenInstanceError):
        info.message = "another"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        info.missing  # type: ignore[attr-defined]  # noqa: B018
    assert info.message == f"commit {COMMITS - 1}"


def test_threads(repository: Repository) -> None:
    """Threads that access the same commits see the same fields."""
    infos = list(repository.ancestry(branch="main"))
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: list(map(get_fields, infos)), range(8))
    assert all(other == first for other in others)


def test_iteration_reads_no_fields() -> None:
    repository = Repository.create(in_memory_storage(), spec_version=2)
    repository.writable_session("main").commit("a commit", allow_empty=True)
    error = FormatError("is damaged", file="repo")
    with (
        patch.object(encoded_history, "_read_snapshot", side_effect=error),
        patch.object(encoded_history, "_read_snapshots", side_effect=error),
    ):
        infos = list(repository.ancestry(branch="main"))
        for _ in range(2):
            with pytest.raises(FormatError, match="is damaged"):
                infos[0].message  # noqa: B018
    assert [info.message for info in infos] == ["a commit", "Repository initialized"]
