"""Repositories with many commits, made in seconds and without icefloe.

Icechunk makes one commit of generation v1; its snapshot and transaction log are copied under other
ids for the commits after it. Icechunk's upgrade then makes the repository of generation v2.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

os.environ["ICECHUNK_LOG"] = "off"  # an upgrade logs an error if there is no file of configuration

import icechunk
import zarr
import zstandard

from metadata_files import unpack

ID_SIZE = 12
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
COMMIT_MICROSECONDS = 1  # an upgrade refuses times in the future
ITEMS = 10


def build_history(folder: Path, commits: int) -> None:
    """Create a repository of v1 with arrays ``a`` and ``b``, in which each commit changes ``a``."""
    storage = icechunk.local_filesystem_storage(str(folder))
    repository = icechunk.Repository.create(storage, spec_version=1)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    for name in "ab":
        array = group.create_array(name, shape=(ITEMS,), chunks=(1,), dtype="i4", compressors=None)
        array[:] = 1
    session.commit("arrays")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 2
    session.commit("chunk")
    copy_commits(folder, commits - 2)
    require_history(folder, commits)


def upgrade_history(source: Path, target: Path, commits: int) -> None:
    """Copy a repository of v1 and upgrade the copy to v2."""
    link_files(source, target)
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(target)))
    icechunk.upgrade_icechunk_repository(repository, dry_run=False)
    require_history(target, commits)


def require_history(folder: Path, commits: int) -> None:
    """Check that Icechunk reads the history."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    length = sum(1 for _ in repository.ancestry(branch="main"))
    assert length == commits + 1, length


def copy_commits(folder: Path, count: int) -> None:
    """Append copies of the last commit to the branch ``main``."""
    ref = folder / "refs" / "branch.main" / "ref.json"
    name = json.loads(ref.read_text())["snapshot"]
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    last, previous, *_ = opened.ancestry(branch="main")
    assert previous.id
    first_time = int(last.written_at.timestamp()) * 1_000_000 + last.written_at.microsecond
    header, snapshot = unpack((folder / "snapshots" / name).read_bytes())
    log_header, log = unpack((folder / "transactions" / name).read_bytes())
    parent = decode_id(name)
    id_place, log_id_place = find_once(snapshot, parent), find_once(log, parent)
    parent_place = find_once(snapshot, decode_id(previous.id))
    time_place = find_once(snapshot, first_time.to_bytes(8, "little"))
    compressor = zstandard.ZstdCompressor(3)
    random_ids = random.Random(0)
    for number in range(1, count + 1):
        snapshot_id = random_ids.randbytes(ID_SIZE)
        time = first_time + number * COMMIT_MICROSECONDS
        snapshot[id_place] = log[log_id_place] = snapshot_id
        snapshot[parent_place] = parent
        snapshot[time_place] = time.to_bytes(8, "little")
        name = encode_id(snapshot_id)
        (folder / "snapshots" / name).write_bytes(header + compressor.compress(snapshot))
        (folder / "transactions" / name).write_bytes(log_header + compressor.compress(log))
        parent = snapshot_id
    ref.write_text(json.dumps({"snapshot": name}))


def find_once(content: bytearray, part: bytes) -> slice:
    """Return the only place of some bytes."""
    assert content.count(part) == 1
    start = content.find(part)
    return slice(start, start + len(part))


def decode_id(text: str) -> bytes:
    """Return the bytes of an id in Crockford's base 32."""
    number = 0
    for letter in text:
        number = number << 5 | ALPHABET.index(letter)
    return (number >> (5 * len(text) - 8 * ID_SIZE)).to_bytes(ID_SIZE, "big")


def encode_id(data: bytes) -> str:
    """Return an id in Crockford's base 32."""
    number = int.from_bytes(data, "big") << 4
    return "".join(ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))


def link_files(source: Path, target: Path) -> None:
    """Copy a repository by linking its files, which both libraries replace and never change."""
    for folder, _, names in os.walk(source):
        copy = target / Path(folder).relative_to(source)
        copy.mkdir(parents=True)
        for name in names:
            os.link(Path(folder, name), copy / name)
