"""Writes and appends: idempotent, all or nothing, never overwriting other data."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FilesDisagreeError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.virtual import VirtualDataset, append, combine, parse, write
from support.netcdf_archives import (
    Place,
    assert_same,
    open_group,
    read_files,
    write_repository,
    write_rich_netcdf4,
    write_simple,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


def days(place: Place, numbers: range) -> VirtualDataset:
    """Parse files of two days each, written on first use."""
    return combine([parse(day(place, number)) for number in numbers], "time")


def day(place: Place, number: int) -> Path:
    path = place.folder / f"{number}.nc"
    return path if path.exists() else write_simple(path, first=2 * number)


def append_and_commit(repository: icefloe.Repository, dataset: VirtualDataset, **more: Any) -> int:
    session = repository.writable_session("main")
    added = append(dataset, session, dim="time", **more)
    if session.has_uncommitted_changes:
        session.commit("appended")
    return added


def test_append_twice(place: Place, generation: str) -> None:
    """The second run adds nothing and leaves nothing to commit."""
    repository = write_repository(place, days(place, range(2)), generation)
    assert append_and_commit(repository, days(place, range(2, 4))) == 4
    before = repository.lookup_branch("main")
    assert append_and_commit(repository, days(place, range(2, 4))) == 0
    assert append_and_commit(repository, days(place, range(1, 3))) == 0
    assert repository.lookup_branch("main") == before
    assert_same(open_group(repository), read_files([day(place, number) for number in range(4)]))


def test_append_what_starts_before_the_end(place: Place) -> None:
    """Files that are stored already are skipped; the others are appended."""
    repository = write_repository(place, days(place, range(3)))
    assert append_and_commit(repository, days(place, range(1, 5))) == 4
    assert_same(open_group(repository), read_files([day(place, number) for number in range(5)]))


def test_append_a_file_of_many_things(place: Place) -> None:
    """Groups, bounds and other time units are read back as in the files."""
    one = write_rich_netcdf4(place.folder / "1.nc")
    two = write_rich_netcdf4(place.folder / "2.nc", first_day=4, since="days since 2020-01-05")
    repository = write_repository(place, parse(one))
    assert append_and_commit(repository, parse(two)) == 4
    found, expected = open_group(repository), read_files([one, two])
    np.testing.assert_array_equal(found["t2m"], expected["t2m"])
    np.testing.assert_array_equal(found["time_bnds"][:, 0], found["time"])
    assert found["time"].values[-1] == np.datetime64("2020-01-08")
    np.testing.assert_array_equal(
        open_group(repository, "ocean")["sst"], read_files([one, two], "ocean")["sst"]
    )
    assert append_and_commit(repository, parse(two)) == 0


def test_into_a_group(place: Place) -> None:
    """Parent groups are created; a group that is not empty is not overwritten."""
    repository = place.repository()
    session = repository.writable_session("main")
    write(days(place, range(2)), session, group="/a/b")
    assert append(days(place, range(2, 3)), session, dim="time", group="a/b") == 2
    session.commit("in a group")
    assert_same(
        open_group(repository, "a/b"), read_files([day(place, number) for number in range(3)])
    )
    session = repository.writable_session("main")
    with pytest.raises(AlreadyExistsError, match=r"/a contains /a/b, /a/b/rain, .*append to it"):
        write(days(place, range(1)), session, group="a")
    with pytest.raises(NodeNotFoundError):
        append(days(place, range(1)), session, dim="time", group="c")
    assert not session.has_uncommitted_changes


def test_same_coordinates_with_other_references(place: Place) -> None:
    """An error names the file, unless the user asks to replace the stored steps."""
    repository = write_repository(place, days(place, range(3)))
    other = write_simple(place.folder / "other.nc", first=2, dtype="f4")
    shutil.copy(write_simple(place.folder / "tmp.nc", first=77), other)
    write_simple(other, first=2)
    with pytest.raises(FilesDisagreeError) as caught:
        append_and_commit(repository, parse(other))
    assert "other.nc: rain: the repository has steps 2 to 3 along time already" in str(caught.value)
    assert "if_present='replace'" in str(caught.value)
    session = repository.writable_session("main")
    assert append(parse(other), session, dim="time", if_present="replace") == 0
    session.commit("replaced")
    locations = {
        ref.rpartition("/")[2]
        for ref in repository.readonly_session("main").all_virtual_chunk_locations()
    }
    assert locations == {"0.nc", "other.nc", "2.nc"}
    assert open_group(repository).sizes["time"] == 6
    session = repository.writable_session("main")
    assert append(parse(other), session, dim="time", if_present="replace") == 0
    assert not session.has_uncommitted_changes


def test_a_file_that_changed_is_not_the_same_file(place: Place) -> None:
    """References have the modification time as checksum, which appends and reads check."""
    repository = write_repository(place, days(place, range(2)))
    path = day(place, 1)
    later = path.stat().st_mtime + 100
    os.utime(path, (later, later))
    with pytest.raises(FilesDisagreeError, match="another version of it"):
        append_and_commit(repository, parse(path))
    with pytest.raises(StorageError) as caught:
        open_group(repository)
    assert caught.value.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert "1.nc" in str(caught.value)
    assert append_and_commit(repository, parse(path), if_present="replace") == 0
    open_group(repository)


def append_error(repository: icefloe.Repository, dataset: VirtualDataset) -> str:
    session = repository.writable_session("main")
    with pytest.raises(FilesDisagreeError) as caught:
        append(dataset, session, dim="time")
    assert not session.has_uncommitted_changes
    return str(caught.value)


def test_what_does_not_fit_the_repository(place: Place) -> None:
    """The dataset is checked like combined files, before anything is written."""
    repository = write_repository(place, days(place, range(2)))
    folder = place.folder

    def other(**different: Any) -> str:
        path = write_simple(folder / "other.nc", **{"first": 4, **different})
        return append_error(repository, parse(path))

    assert "rain: has dtype float64, but float32 in the repository" in other(dtype="f8")
    assert "rain: has chunks of 1 x 4, but 2 x 4 in the repository" in other(chunks=(1, 4))
    assert "units = 'm', but 'mm' in the repository" in other(attributes={"units": "m"})
    assert "x: differs in 4 of 4 values" in other(x=np.arange(4.0) + 9)
    assert "has no rain, unlike the repository" in other(name="snow")
    assert "has snow, unlike the repository" in other(name="snow")
    both = other(dtype="f8", chunks=(1, 2), attributes={"units": "m"})
    assert all(word in both for word in ("float64", "1 x 2", "'m'"))
    text = other(first=-2)
    assert (
        "goes from 2019-12-30 to 2019-12-31, which does not continue the steps of the repository "
        "(2020-01-01 to 2020-01-04)" in text
    )
    assert "time: overlaps the repository from 2020-01-03 on, but" in other(times=np.array([2, 4]))
    assert "time: has 2020-01-03, which the repository has too" in other(times=np.array([3, 2]))
    assert "time: has 2020-01-04, which the repository has too" in other(times=np.array([7, 3]))
    assert "not integers in the repository's units 'days since" in other(
        units="hours since 2020-01-05 06:00"
    )


def test_where_a_chunk_is_not_full(place: Place) -> None:
    """References cannot be appended within a chunk."""
    repository = write_repository(place, parse(write_simple(place.folder / "a.nc", days=3)))
    message = append_error(repository, parse(write_simple(place.folder / "b.nc", first=3)))
    assert "b.nc: rain: would start at step 3 along time, within a chunk of 2 steps" in message


def test_contiguous_months_are_cut_to_fit(place: Place) -> None:
    """A contiguous array is split into the stored chunk shape."""
    paths = [
        write_simple(place.folder / "a.nc", days=4, zlib=False),
        write_simple(place.folder / "b.nc", first=4, days=6, zlib=False),
        write_simple(place.folder / "c.nc", first=10, days=8, zlib=False),
    ]
    repository = write_repository(place, combine([parse(path) for path in paths[:2]], "time"))
    assert append_and_commit(repository, parse(paths[2])) == 8
    assert_same(open_group(repository), read_files(paths))


def test_without_a_coordinate(place: Place) -> None:
    """Stored steps are found by their references alone."""
    plain = [parse(day(place, number)).without("time") for number in range(3)]
    repository = write_repository(place, combine(plain[:2], "time"))
    assert append_and_commit(repository, plain[1]) == 0
    assert append_and_commit(repository, plain[2]) == 2
    assert append_and_commit(repository, combine(plain, "time")) == 0
    assert open_group(repository).sizes["time"] == 6


def test_locations_without_a_container(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They are refused before anything is written, unless validation is off."""
    elsewhere = write_simple(tmp_path_factory.mktemp("elsewhere") / "a.nc")
    session = place.repository().writable_session("main")
    with pytest.raises(
        InvalidInputError, match=r"rain: .*no virtual chunk container matches"
    ) as caught:
        parse(elsewhere).write(session)
    assert caught.value.kind is ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    assert not session.has_uncommitted_changes
    parse(elsewhere).write(session, validate_containers=False)
    assert session.has_uncommitted_changes


def test_a_write_that_fails_leaves_no_trace(place: Place) -> None:
    """The session keeps its earlier changes and nothing of the dataset."""
    dataset = days(place, range(2))
    session = place.repository().writable_session("main")
    zarr.create_group(session.store, path="mine", attributes={"a": 1})
    broken = VirtualDataset(
        dataset.sources,
        dataset.groups,
        {**dataset.arrays, "zz": type(dataset.arrays["rain"])({"shape": [1]}, None)},  # type: ignore[arg-type]
    )
    with pytest.raises(Exception, match="zarr_format"):
        write(broken, session, group="new", validate_containers=False)
    assert set(zarr.open_group(session.store, mode="r")) == {"mine"}


def test_sessions_that_take_no_writes(place: Place) -> None:
    """Also objects that are not sessions."""
    repository = write_repository(place, days(place, range(1)))
    dataset = days(place, range(1, 2))
    with pytest.raises(ReadOnlyError, match="read-only"):
        dataset.append(repository.readonly_session("main"), dim="time")
    with pytest.raises(InvalidInputError, match="a writable session, got a IcechunkStore"):
        dataset.write(repository.writable_session("main").store)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="if_present='no': expected 'check'"):
        dataset.append(repository.writable_session("main"), dim="time", if_present="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no variable has the dimension 'day'"):
        dataset.append(repository.writable_session("main"), dim="day")


def test_groups_with_times_of_their_own(place: Place) -> None:
    """The same name in two groups is two dimensions, each appended at its own end."""
    paths = []
    for number in range(2):
        path = write_simple(place.folder / f"{number}.nc", first=2 * number)
        hourly = xr.Dataset(
            {"gust": ("time", np.arange(3.0) + number, {"units": "m/s"})},
            {"time": ("time", np.arange(3) + 3 * number, {"units": "hours since 2020-01-01"})},
        )
        encoding = {"gust": {"chunksizes": (3,)}}
        hourly.to_netcdf(path, mode="a", group="hourly", engine="h5netcdf", encoding=encoding)
        paths.append(path)
    repository = write_repository(place, parse(paths[0]))
    assert append_and_commit(repository, parse(paths[1])) == 3
    found, expected = open_group(repository), read_files(paths)
    assert_same(found.drop_attrs(deep=False), expected.drop_attrs(deep=False))
    assert_same(open_group(repository, "hourly"), read_files(paths, "hourly"))
    assert append_and_commit(repository, combine([parse(path) for path in paths], "time")) == 0


def test_two_at_once(place: Place) -> None:
    """Of two sessions that append the same file, one commits; the other then skips it."""
    repository = write_repository(place, days(place, range(2)))
    sessions = [repository.writable_session("main") for _ in range(2)]
    for session in sessions:
        assert append(days(place, range(2, 3)), session, dim="time") == 2
    sessions[0].commit("first")
    with pytest.raises(icefloe.ConflictError):
        sessions[1].commit("second")
    assert append_and_commit(repository, days(place, range(2, 3))) == 0
    assert open_group(repository).sizes["time"] == 6
