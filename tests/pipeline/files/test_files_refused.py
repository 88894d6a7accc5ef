"""Bad files: all are reported with the variable and the reason, and nothing is committed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import xarray

import icefloe
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.opening import open_repository
from icefloe.pipeline.report import JobFailedError
from support.netcdf_files import (
    assert_same,
    dataset,
    files_dataset,
    write_file,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(params=[virtualize, ingest], ids=["virtualize", "ingest"])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


def with_attribute(variable: str, name: str, value: Any) -> Callable[[Path], Any]:
    """Make a function that sets an attribute of a file."""

    def edit(path: Path) -> None:
        with h5py.File(path, "a") as file:
            file[variable].attrs[name] = value

    return edit


def with_times(*values: int) -> Callable[[Path], Any]:
    """Make a function that sets the times of a file."""

    def edit(path: Path) -> None:
        with h5py.File(path, "a") as file:
            file["time"][:] = values

    return edit


def as_netcdf3(path: Path) -> None:
    """Replace a file by a truncated NetCDF3 file."""
    made = xarray.Dataset({"t2m": ("time", np.ones(500))}, {"time": np.arange(500) + 4})
    made.to_netcdf(path, format="NETCDF3_64BIT", engine="netcdf4")
    path.write_bytes(path.read_bytes()[:3000])


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "readme.txt").write_text("no arrays")


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "units": (
        with_attribute("t2m", "units", "degC"),
        r"t2m: has attribute units = 'degC', but 'K' in file:.*part-000.nc",
    ),
    "scale": (
        with_attribute("t2m", "scale_factor", 0.5),
        r"t2m: has attribute scale_factor = 0.5, but 0.01 in",
    ),
    "missing": (
        with_attribute("t2m", "_FillValue", np.int16(7)),
        r"t2m: has attribute _FillValue = 7, but -32768 in",
    ),
    "calendar": (
        with_attribute("time", "calendar", "360_day"),
        r"time: has calendar '360_day', but 'standard' in file:.*part-000.nc",
    ),
    "unsorted": (
        with_times(5, 4, 6),
        "time: is not strictly increasing or decreasing within the file",
    ),
    "repeated": (
        with_times(4, 4, 5),
        "time: is not strictly increasing or decreasing within the file",
    ),
    "overlap": (
        with_times(2, 3, 4),
        r"time: ranges from 2024-01-03 to 2024-01-05, and overlaps .* 2024-01-03 of .*part-000",
    ),
    "no steps": (lambda path: write_file(path, 3, 0), "time: has no steps"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:5000]), "cut off|truncated"),
    "cut off netcdf3": (as_netcdf3, "is truncated: it has 3000 bytes, but a chunk ends"),
    "empty": (lambda path: path.write_bytes(b""), "is empty, which cannot be parsed"),
    "web page": (lambda path: path.write_text("<html>Sign in</html>"), "is an HTML page"),
    "folder": (as_folder, "is a directory, but neither a Zarr hierarchy"),
    "gone": (lambda path: path.unlink(), "there is no such file or directory"),
}


def test_bad_files_are_told_all_at_once(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """One file of each kind among valid files; ``skip`` excludes them and the commit lists them."""
    paths = write_files(folder, 3, days=3)
    reasons = {}
    for number, (edit, reason) in enumerate(BAD.values()):
        bad = write_file(folder / f"bad-{number:02}.nc", 3, 3)
        edit(bad)
        reasons[bad.as_uri()] = reason
    sources = [*paths, *(folder / uri.rpartition("/")[2] for uri in reasons)]
    with pytest.raises(JobFailedError) as caught:
        job(None, repository, sources)
    told = {failure.source: failure.reason for failure in caught.value.failures}
    assert told.keys() == reasons.keys()
    for uri, reason in reasons.items():
        assert re.search(reason, told[uri]), told[uri]
    assert 'fix them, or exclude them with on_error="skip"' in str(caught.value)
    assert len(list(repository.ancestry(branch="main"))) == 1
    report = job(None, repository, sources, on_error="skip")
    assert {failure.source: failure.reason for failure in report.left_out} == told
    info = next(iter(repository.ancestry(branch="main")))
    assert dict(info.metadata["icefloe"]["left_out"]) == told
    assert_same(dataset(repository), files_dataset(paths))


def test_what_can_be_known_before_is_told_before_anything_is_written(
    job: Any, folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    paths = write_files(folder, 2)
    job(None, repository, paths, group="g")
    before = {info.key for info in repository.storage.list("")}
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (
            paths,
            {"parse_options": {"nope": 1}},
            icefloe.InvalidInputError,
            "drop_variables.*'nope'",
        ),
        (paths, {"branch": "none"}, icefloe.IcefloeError, "none"),
        (paths, {"group": "none", "append": True}, icefloe.NodeNotFoundError, "/none"),
        (paths, {"group": "g"}, icefloe.AlreadyExistsError, "/g has .*append to it"),
        (paths, {"group": "g/t2m"}, icefloe.AlreadyExistsError, "is an array"),
        (
            f"{folder}/*.grib",
            {"group": "new"},
            icefloe.InvalidInputError,
            r"no file matches .*grib",
        ),
        ([], {"group": "new"}, icefloe.InvalidInputError, "sources is empty"),
    ]
    for sources, options, error, text in wrong:
        with pytest.raises(error, match=text):
            job(None, repository, sources, **options)
    with pytest.raises(icefloe.InvalidInputError, match="dimension 'depth' to append along; avail"):
        append(None, repository, paths, group="g", dim="depth")
    assert {info.key for info in repository.storage.list("")} == before
    with pytest.raises(icefloe.RepositoryNotFoundError, match=r"no repository at .*nowhere"):
        open_repository(tmp_path / "nowhere")


def test_files_that_no_container_covers_are_named(
    folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    """Readers could not read references to these files."""
    paths = write_files(folder, 2)
    elsewhere = [write_file(tmp_path / "other" / f"{first}.nc", first) for first in (4, 6)]
    with pytest.raises(JobFailedError, match="container") as caught:
        virtualize(None, repository, [*paths, *elsewhere])
    assert [failure.source for failure in caught.value.failures] == [
        path.as_uri() for path in elsewhere
    ]
    virtualize(None, repository, [*paths, *elsewhere], on_error="skip")
    assert_same(dataset(repository), files_dataset(paths))


def test_append_names_all_files_that_do_not_match(
    folder: Path, repository: icefloe.Repository
) -> None:
    """Also if they differ from each other in more ways than are kept apart."""
    ingest(None, repository, [write_file(folder / "0.nc", 0, 1)])
    others = [write_file(folder / f"{day}.nc", day, 1, more=[f"v{day}"]) for day in range(1, 21)]
    with pytest.raises(JobFailedError) as raised:
        append(None, repository, others)
    assert [failure.source for failure in raised.value.failures] == [p.as_uri() for p in others]


def test_names_that_do_not_occur_suggest_the_nearest(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Also the names of variables to drop, of which a mistyped one would stay unnoticed."""
    paths = write_files(folder, 2, more=["snow"])

    def drop(*names: str, **options: Any) -> Any:
        return job(None, repository, paths, parse_options={"drop_variables": names}, **options)

    for names in (["rian"], ["snow", "rian"]):
        with pytest.raises(icefloe.InvalidInputError) as refused:
            drop(*names, on_error="skip")
        assert str(refused.value) == (
            "drop_variables=['rian']: no file has such a variable; did you mean 'rain'?"
        )
    paths[0].unlink()  # a file that cannot be parsed may have the variable
    with pytest.raises(JobFailedError, match="there is no such file"):
        drop("rian")
    del paths[0]
    drop("/snow/")
    assert "snow" not in dataset(repository)
    with pytest.raises(icefloe.NodeNotFoundError, match=r"; did you mean /rain\?$"):
        rechunk(None, repository, "/rian", {"time": 1})
