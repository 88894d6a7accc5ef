"""The same containers: what Icechunk reads of them we read, and what it refuses we refuse."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.store import LocalStore

from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.model.chunk_payload import Checksum, ETag, LastModified, VirtualChunkRef
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.storage import (
    gcs_store,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
    s3_store,
)
from support import SUPPORT, warm_python
from support.virtual_array import write_refs

if TYPE_CHECKING:
    from pathlib import Path

CHANGED_AT = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "outer/a.nc",
        "outer/inner/b.nc",
        "outer/inner/open/c.nc",
        "outer/a b/d e.nc",
        "s",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {path.name}")
        os.utime(path, (CHANGED_AT, CHANGED_AT))
    return tmp_path


def icechunks(python: Path | str, asked: dict[str, Any]) -> list[str]:
    script = SUPPORT / "icechunk_virtual_reader.py"
    done = subprocess.run(
        [python, script], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(asked: dict[str, Any]) -> list[str]:
    chunks = VirtualChunks(
        [
            VirtualChunkContainer(prefix, local_filesystem_store("/"))
            for prefix in asked["prefixes"]
        ],
        dict.fromkeys(asked["opened"]),
        in_memory_storage(),
    )
    found: list[str] = []
    for location, offset, length, etag, seconds in asked["references"]:
        checksum: Checksum | None = None
        if etag is not None:
            checksum = ETag(etag)
        elif seconds is not None:
            checksum = LastModified(seconds)
        try:
            chunks.validate(location)
        except InvalidInputError:
            found.append("refused")
            continue
        try:
            ref = VirtualChunkRef(location, offset, length, checksum)
            found.append(bytes(chunks.fetch(ref, 0, length)).decode())
        except IcefloeError as error:
            found.append(f"error: {error.kind}")
    return found


def _requested(folder: Path) -> dict[str, Any]:
    url = folder.as_uri()
    etag = str(obstore.head(LocalStore(folder), "outer/a.nc")["e_tag"]).strip('"')
    return {
        "prefixes": [f"{url}/outer/", f"{url}/outer/inner/", f"{url}/outer/inner/open/"],
        "opened": [f"{url}/outer/", f"{url}/outer/inner/open/"],
        "references": [
            # the most specific container decides
            [f"{url}/outer/a.nc", 0, 15, None, None],
            [f"{url}/outer/inner/b.nc", 0, 15, None, None],
            [f"{url}/outer/inner/open/c.nc", 3, 5, None, None],
            [f"{url}/outer/inner/../a.nc", 0, 15, None, None],
            [f"{url}/outer/a%20b/d%20e.nc", 0, 17, None, None],
            # no container
            [f"{url}/s", 0, 1, None, None],
            [f"{url}/outer/../s", 0, 1, None, None],
            [f"{url}/outer/%2e%2e/s", 0, 1, None, None],
            ["s3://bucket/key", 0, 1, None, None],
            # no location
            ["", 0, 1, None, None],
            ["relative", 0, 1, None, None],
            ["/absolute/path", 0, 1, None, None],
            ["s3:///key", 0, 1, None, None],
            # what the file must be
            [f"{url}/outer/a.nc", 0, 15, None, CHANGED_AT],
            [f"{url}/outer/a.nc", 0, 15, None, CHANGED_AT - 1],
            [f"{url}/outer/a.nc", 0, 15, etag, None],
            [f"{url}/outer/a.nc", 0, 15, "other", None],
            # what is not there
            [f"{url}/outer/missing.nc", 0, 1, None, None],
            [f"{url}/outer/a.nc", 10, 15, None, None],
        ],
    }


def _same(found: list[str], mine: list[str]) -> None:
    # Its messages by ours: the older wheel has no codes.
    words = {
        ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER: ("authorize",),
        ErrorKind.VIRTUAL_CHUNK_MODIFIED: ("has changed",),
        ErrorKind.VIRTUAL_CHUNK_FETCH: ("error fetching virtual reference",),
        ErrorKind.INVALID_OBJECT_SIZE: ("not enough data", "range was invalid"),
    }
    for theirs, our in zip(found, mine, strict=True):
        if our.startswith("error: "):
            assert any(word in theirs for word in words[ErrorKind(our.removeprefix("error: "))])
        else:
            assert theirs == our


def test_the_same_as_icechunk1(folder: Path, icechunk1: Path) -> None:
    """Stored, refused, read and failed alike."""
    asked = _requested(folder)
    mine = ours(asked)
    assert [result for result in mine if not result.startswith("error")] == [
        "content of a.nc",
        "tent ",
        "content of a.nc",
        "content of d e.nc"[:17],
        *["refused"] * 8,
        "content of a.nc",
        "content of a.nc",
    ]
    _same(icechunks(icechunk1, asked), mine)


def test_the_same_as_icechunk2(folder: Path, icechunk2: Path) -> None:
    """The same beside the later generation, but for the ETag of a local file.

    Its 2.3 takes the quotes off an ETag and then compares it with one that has them, so that none
    ever holds.
    """
    asked = _requested(folder)
    asked["references"] = [
        ref for ref in asked["references"] if ref[3] is None or ref[3] == "other"
    ]
    _same(icechunks(icechunk2, asked), ours(asked))


OTHERS = [
    VirtualChunkContainer("s3", s3_store(), "s3"),
    VirtualChunkContainer("s3://bucket", s3_store(), "bucket"),
    VirtualChunkContainer("s3://foo/bar.nc", s3_store(), "bar"),
    VirtualChunkContainer("modela", gcs_store(), "modela"),
    VirtualChunkContainer("modelb", gcs_store(), "modelb", target_prefix="gs://real/b/"),
]
"""Containers that Icechunk would not make; it ignores those that it cannot use."""


def _read_by_icechunk(
    python: Path, folder: Path, spec_version: int, *, relative: bool = True
) -> None:
    prefix = f"{folder.as_uri()}/outer/"
    config = RepositoryConfig()
    local = VirtualChunkContainer(prefix, local_filesystem_store(folder), "local")
    for container in (*OTHERS, local):
        config.set_virtual_chunk_container(container)
    path = folder / f"repository-{spec_version}"
    repository = Repository.create(
        local_filesystem_storage(path), config, spec_version=spec_version
    )
    location = "vcc://local/a.nc" if relative else f"{prefix}a.nc"
    write_refs(repository, "a", [f"{prefix}a.nc", location])
    script = SUPPORT / "icechunk_container_reader.py"
    done = warm_python.run(python, script, path, prefix, "a")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["containers"] == sorted(config.virtual_chunk_containers or {})
    assert found["data"] == "content of a.nc"[5:15] * 2


def test_icechunk1_reads_beside_containers_it_would_not_make(folder: Path, icechunk1: Path) -> None:
    """Icechunk 1.x, which has no relative locations, reads such a repository like any other."""
    _read_by_icechunk(icechunk1, folder, 1, relative=False)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_icechunk2_reads_beside_containers_it_would_not_make(
    folder: Path, icechunk2: Path, spec_version: int
) -> None:
    """The same for the later generation, in both versions of the format."""
    _read_by_icechunk(icechunk2, folder, spec_version)
