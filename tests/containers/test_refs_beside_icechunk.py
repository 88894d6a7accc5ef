"""What was referred to by Arrow table and by columns, the real Icechunk reads; and the reverse."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from support import SUPPORT, warm_python
from support.referring_repositories import local_repository, session_with

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(range(200))
CHANGED_AT = 1_700_000_000


@pytest.fixture(params=["icechunk1", "icechunk2"])
def python(request: pytest.FixtureRequest) -> Path:
    """Return an interpreter with Icechunk 1.x or 2.x."""
    found: Path = request.getfixturevalue(request.param)
    return found


def read_with(python: Path, folder: Path, url: str) -> dict[str, Any]:
    script = SUPPORT / "icechunk_refs_reader.py"
    done = warm_python.run(python, script, folder / "repository", url.rpartition("/")[0] + "/")
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("way", ["table", "columns"])
def test_icechunk_reads_them(python: Path, tmp_path: Path, way: str) -> None:
    """Chunks in any order, with and without checksums, come to Icechunk as they do to us."""
    repository, url = local_repository(tmp_path, DATA)
    os.utime(tmp_path / "files" / "data.bin", (CHANGED_AT, CHANGED_AT))
    session = session_with({"a": (3, 4)}, repository)
    order = np.random.default_rng(0).permutation(12)
    offsets = 7 + 11 * np.arange(12)
    seconds = np.where(np.arange(12) % 2, CHANGED_AT, CHANGED_AT + 5)
    if way == "table":
        table = pa.table(
            {
                "index_0": order // 4,
                "index_1": order % 4,
                "location": pa.array([url] * 12).dictionary_encode(),
                "offset": offsets[order],
                "length": np.ones(12, np.int64),
                "last_modified": pa.array(seconds, pa.timestamp("s", tz="UTC")),
            }
        )
        session.store.set_virtual_refs_table("a", table)
    else:
        session.store.set_virtual_refs_arr(
            "a",
            (3, 4),
            np.array([url] * 12, np.dtypes.StringDType()),
            offsets,
            np.ones(12, np.uint8),
            checksum=seconds,
        )
    session.commit("referred")
    found = read_with(python, tmp_path, url)
    assert found["locations"] == [url] * 12
    assert found["bytes"] == [DATA[offset] for offset in offsets]
    ours = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert np.asarray(ours[:]).reshape(-1).tolist() == found["bytes"]


def test_icechunk_sees_the_checksum(python: Path, tmp_path: Path) -> None:
    """A checksum that came in a column keeps Icechunk from reading a file that changed."""
    repository, url = local_repository(tmp_path, DATA)
    session = session_with({"a": (2,)}, repository)
    table = pa.table(
        {
            "index_0": [0, 1],
            "location": [url, url],
            "offset": [0, 1],
            "length": [1, 1],
            "etag": [None, "an older one"],
        }
    )
    session.store.set_virtual_refs_table("a", table)
    session.commit("referred")
    assert "has changed" in read_with(python, tmp_path, url)["error"]
