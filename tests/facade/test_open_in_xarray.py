"""Opening a state of a repository in Xarray in one line."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import (
    InvalidInputError,
    NodeNotFoundError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.xarray import open_dataset, open_datatree, to_icechunk
from icefloe.xarray_engine import IcechunkBackendEntrypoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a repository with two commits, the first of them with the tag ``v1``."""
    folder = tmp_path_factory.mktemp("repositories") / "weather"
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(folder, durable=False), generation="v2"
    )
    _commit(repository, 0)
    repository.create_tag("v1", repository.lookup_branch("main"))
    _commit(repository, 10)
    return str(folder)


def _commit(repository: icefloe.Repository, number: int) -> None:
    session = repository.writable_session("main")
    dataset = xr.Dataset({"t": ("x", np.arange(3) + number)})
    to_icechunk(dataset, session, mode="a")
    to_icechunk(-dataset, session, group="maps/world", mode="a")
    session.commit(f"{number}")


def test_states(path: str) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
    first = repository.lookup_tag("v1")
    places: list[Any] = [path, repository, repository.storage, repository.readonly_session("main")]
    assert [open_dataset(place).t.values.tolist() for place in places] == [[10, 11, 12]] * 4
    states: list[dict[str, Any]] = [{"tag": "v1"}, {"snapshot": first}]
    for options in states:
        assert open_dataset(path, **options).t.values.tolist() == [0, 1, 2]
        assert repository.to_xarray("maps/world", **options).t.values.tolist() == [0, -1, -2]
    first_time = repository.lookup_snapshot(first).written_at
    assert open_dataset(path, branch="main", as_of=first_time).t.values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "pipeline, expected",
    [
        ("|icechunk:", [10, 11, 12]),
        ("|icechunk:@branch.main", [10, 11, 12]),
        ("|icechunk:@tag.v1/", [0, 1, 2]),
        ("|icechunk:@tag.v1/maps/world", [0, -1, -2]),
        ("|icechunk:maps/world/", [-10, -11, -12]),
        ("|icechunk:@tag.v1|zarr3:maps/world", [0, -1, -2]),
    ],
)
def test_url_pipelines(path: str, pipeline: str, expected: list[int]) -> None:
    assert open_dataset(f"file://{path}{pipeline}").t.values.tolist() == expected
    assert IcechunkBackendEntrypoint().guess_can_open(f"{path}{pipeline}")


def test_engine(path: str) -> None:
    """Xarray finds the engine by its name, with the options of a state."""
    dataset = xr.open_dataset(path, engine="icechunk", tag="v1", group="maps/world", chunks={})
    assert dataset.t.values.tolist() == [0, -1, -2]
    tree = xr.open_datatree(path, engine="icechunk", tag="v1")
    assert set(tree.groups) == {"/", "/maps", "/maps/world"}
    assert set(open_datatree(path, group="maps").groups) == {"/", "/world"}
    assert set(xr.open_groups(path, engine="icechunk")) == {"/", "/maps", "/maps/world"}
    # Without a name, for a directory.
    assert xr.open_dataset(path).t.values.tolist() == [10, 11, 12]
    assert not IcechunkBackendEntrypoint().guess_can_open(f"{path}/snapshots")


def test_two_states_of_one_branch_in_dask(tmp_path: Path) -> None:
    """Their arrays have different names in dask's graph, so both can be in one computation."""
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path))
    _commit(repository, 0)
    before = open_dataset(repository, chunks={})
    _commit(repository, 10)
    after = open_dataset(repository, chunks={})
    assert (after - before).t.values.tolist() == [10, 10, 10]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"group": "map/world"}, NodeNotFoundError, "no group /map/world .*mean /maps/world"),
        ({"group": "t"}, NodeNotFoundError, "/t .* is an array, not a group"),
        ({"tag": "v2"}, RefNotFoundError, "no tag 'v2'"),
        ({"place": "{path}|icechunk:@tag.v1", "branch": "main"}, InvalidInputError, "leave out"),
        ({"place": "{path}|icechunk:maps", "group": "maps"}, InvalidInputError, "leave out"),
        ({"place": "{path}|icechunk:@v.1"}, InvalidInputError, "@v.1 is none of @branch"),
        ({"place": "{path}|icechunk:a|b"}, InvalidInputError, r"not URL\|icechunk:"),
        ({"place": "{path}/nothing"}, RepositoryNotFoundError, "no repository"),
        ({"place": 3}, InvalidInputError, "got 3"),
    ],
)
def test_wrong_arguments(
    path: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    place = arguments.pop("place", path)
    place = place.format(path=path) if isinstance(place, str) else place
    with pytest.raises(error, match=message):
        open_dataset(place, **arguments)


def test_open_sessions_and_repositories(path: str) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
    session = repository.readonly_session("main")
    with pytest.raises(InvalidInputError, match="reads one state"):
        open_dataset(session, tag="v1")
    with pytest.raises(NodeNotFoundError):
        open_dataset(session, group="nothing")
    calls: list[Callable[..., Any]] = [open_dataset, open_datatree]
    for call in calls:
        with pytest.raises(InvalidInputError, match=r"open already.*Repository\.open"):
            call(repository, authorize_virtual_chunk_access={})


def test_xarray_stays_fast_to_import() -> None:
    """The engine, which Xarray imports at its first use, imports neither zarr nor icefloe's API."""
    program = (
        "import sys, icefloe.xarray_engine\n"
        "print(sorted({'zarr', 'icefloe.repository', 'dask', 'obstore'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
