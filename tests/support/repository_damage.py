"""Repositories of every generation with one damaged file, and code that reads all of them.

Whatever the bytes of a file are, reading raises only errors of icefloe.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.errors import IcefloeError
from icefloe.format.generation import get_generation
from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.format_damage import flip_bit, mutate
from support.zarr_nodes import group, put

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

_EDGES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 255, 256, 2**31, 2**32, 2**40, 2**63, 2**64, 10**400, 0.5, 1e308,
    float("nan"), "", "x", "\x00", "\ud800", "0" * 20, "Z" * 26, [], {}, [[]], [0] * 16, {"": 0},
)  # fmt: skip


@cache
def make_files(generation: str) -> Mapping[str, bytes]:
    """Make files of a repository with all kinds of chunks, long attributes, branches, tags."""
    storage = MemoryStorage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=16)
    repository = Repository.create(storage, config, generation=generation)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, attributes={"title": "x" * 5000, "nan": None})
    inner = root.create_group("g", attributes={"units": "m"})
    inner.create_array("f", data=np.arange(12, dtype="f4").reshape(3, 4), chunks=(1, 2))
    inner.create_array("big", data=np.arange(60), chunks=(20,), compressors=None, fill_value=-1)
    root.create_array("scalar", shape=(), dtype="bool")[...] = True
    root.create_array("virtual", shape=(4,), chunks=(2,), dtype="u1", dimension_names=["x"])
    for index in range(2):
        session.store.set_virtual_ref(
            f"virtual/c/{index}", "s3://b/k", offset=index, length=2, validate_container=False
        )
    first = session.commit("first", {"who": "me"})
    repository.create_tag("t", first)
    repository.create_branch("dev", first)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="g/f")[0] = 7
    session.commit("second")
    mover = repository.rearrange_session("main")
    mover.move("/scalar", "/g/scalar")
    mover.commit("moved")
    return {info.key: bytes(storage.get(info.key).data) for info in storage.list()}


def list_chunks(generation: str) -> list[str]:
    """List the files of chunks."""
    return sorted(make_files(generation).keys() - set(list_metadata(generation)))


def list_metadata(generation: str) -> list[str]:
    """List the files that are not chunks."""
    prefix = get_generation(generation).layout.chunks.prefix
    return [key for key in make_files(generation) if not key.startswith(prefix)]


def read_damaged(generation: str, key: str, data: bytes) -> bool:
    """Read all of a repository with one file replaced; returns whether no step was refused."""
    storage = MemoryStorage()
    for name, original in make_files(generation).items():
        storage.put(name, data if name == key else original)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            repository = Repository.open(storage)
        except IcefloeError:
            return False
        results = [_is_accepted(step, repository) for step in _STEPS]
    return all(results)


def _is_accepted(step: Callable[[Repository], object], repository: Repository) -> bool:
    try:
        step(repository)
    except IcefloeError:
        return False
    return True


def _read_refs(repository: Repository) -> None:
    for branch in repository.list_branches():
        repository.lookup_branch(branch)
        list(repository.ancestry(branch=branch))
    for tag in repository.list_tags():
        repository.lookup_tag(tag)


def _read_tip(repository: Repository) -> None:
    session = repository.readonly_session("main")
    repository.list_manifest_files(session.snapshot_id)
    repository.inspect_snapshot(session.snapshot_id)
    store = session.store
    for key in _list_keys(store):
        store.get_sync(key)


def _read_values(repository: Repository) -> None:
    """Open nodes with Zarr, and read all values that are in the repository."""
    store = repository.readonly_session("main").store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Zarr about data types
        for path in _PATHS:
            if store._exists(f"{path}/zarr.json".removeprefix("/")):
                node: Any = zarr.open(store, path=path, mode="r", zarr_format=3)
                if isinstance(node, zarr.Array) and path != "virtual":
                    node[...]


def _list_keys(store: Any) -> list[str]:
    """List the keys of a store, except chunks that are in other files."""
    return [key for key in store._iter_keys("") if not key.startswith("virtual/c/")]


def _read_tag(repository: Repository) -> None:
    _list_keys(repository.readonly_session(tag="t").store)


def _compare(repository: Repository) -> None:
    repository.diff(from_tag="t", to_branch="main")


def _commit(repository: Repository) -> None:
    session = repository.writable_session("main")
    put(session.store, "new/zarr.json", group())
    session.commit("after the damage")


_PATHS = ("", "g", "g/f", "g/big", "g/scalar", "virtual")
_STEPS = (_read_refs, _read_tip, _read_values, _read_tag, _compare, _commit)


def damage_file(key: str, data: bytes, random: random.Random) -> bytes:
    """Change a file: a bit, its bytes, or what its JSON or its Parquet table says."""
    kind = random.random()
    if kind < 0.3:
        return flip_bit(data, random)
    if kind < 0.6:
        return mutate(data, random)
    if key.endswith(".json"):
        return _damage_json(data, random)
    return _damage_table(data, random) if key.endswith(".parquet") else mutate(data, random)


def _damage_json(data: bytes, random: random.Random) -> bytes:
    document = json.loads(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            break
        container, member = random.choice(places)
        match random.randrange(4):
            case 0:
                del container[member]
            case 1:
                other, place = random.choice(places)
                container[member] = json.loads(json.dumps(other[place]))
            case _:
                container[member] = copy.deepcopy(random.choice(_EDGES))
    return json.dumps(document).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    members: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for member, inner in list(members):
        found.append((value, member))
        if isinstance(inner, dict | list):
            found += _places(inner)
    return found


def _damage_table(data: bytes, random: random.Random) -> bytes:
    """Write a Parquet table again with other columns, rows, values or metadata."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(io.BytesIO(data))
    column = random.choice(table.column_names)
    at = table.column_names.index(column)
    match random.randrange(6):
        case 0:
            table = table.drop_columns([column])
        case 1:
            names = [f"{name}x" if name == column else name for name in table.column_names]
            table = table.rename_columns(names)
        case 2:
            if table.num_rows:
                table = table.take(random.choices(range(table.num_rows), k=table.num_rows + 1))
        case 3:
            table = table.set_column(at, column, pa.nulls(table.num_rows, table[column].type))
        case 4:
            other = random.choice(table.column_names)
            table = table.set_column(at, column, table[other])
        case _:
            name = b"icefloe"
            metadata = dict(table.schema.metadata or {})
            if name in metadata:
                metadata[name] = _damage_json(metadata[name], random)
            table = table.replace_schema_metadata(metadata)
    sink = io.BytesIO()
    try:
        parquet.write_table(table, sink, compression="zstd")
    except pa.ArrowInvalid:  # not even pyarrow writes it
        return mutate(data, random)
    return sink.getvalue()
