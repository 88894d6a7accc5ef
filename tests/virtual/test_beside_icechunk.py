"""Icechunk reads our virtual repositories, and we read those of VirtualiZarr."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icefloe.virtual import append, combine, parse
from support import SUPPORT, virtualizarr_and_icechunk
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


def run(python: Path | str, *arguments: str | Path) -> None:
    script = SUPPORT / "virtualizarr_and_icechunk.py"
    done = subprocess.run([python, script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_wheel_reads_what_we_write(place: Place) -> None:
    """NetCDF4 files, combined and appended, are read by the installed Icechunk."""
    paths = [
        write_rich_netcdf4(place.folder / f"{number}.nc", first_day=4 * number)
        for number in range(3)
    ]
    version = "v1" if sys.version_info < (3, 12) else "v2"
    repository = write_repository(
        place, combine([parse(path) for path in paths[:2]], "time"), version
    )
    session = repository.writable_session("main")
    append(parse(paths[2]), session, dim="time")
    session.commit("one more")
    virtualizarr_and_icechunk.read(place.folder, "repository", paths)
    assert_same(open_group(repository), read_files(paths))


def test_both_directions_with_icechunk2(place: Place, icechunk2: Path) -> None:
    """We read and append to what VirtualiZarr and Icechunk 2.x write; they read the result."""
    paths = [write_simple(place.folder / f"{number}.nc", first=2 * number) for number in range(3)]
    run(icechunk2, "write", place.folder, "theirs", *paths[:2])
    prefix = f"{place.folder.as_uri()}/"
    import icefloe  # noqa: PLC0415

    theirs = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(place.folder / "theirs")),
        authorize_virtual_chunk_access={prefix: icefloe.Credentials.LocalFileSystemAccess()},
    )
    found = open_group(theirs)
    expected = read_files(paths[:2])
    for name in expected.variables:
        assert (found[name].values == expected[name].values).all()
    session = theirs.writable_session("main")
    assert append(parse(paths[2]), session, dim="time") == 2
    session.commit("ours behind theirs")
    write_repository(place, combine([parse(path) for path in paths], "time"), "v2")
    run(icechunk2, "read", place.folder, "theirs,repository", *paths)
