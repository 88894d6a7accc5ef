"""Arrays of every kind through zarr, a commit and a reopened repository; the wheel reads them too.

Whatever zarr wrote comes back byte for byte, from icefloe and from the real Icechunk: generation v1
from the wheel of this environment, v2 where that is Icechunk 2.x.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.dtype import data_type_registry
from zarr.core.sync import _collect_aiterator, sync

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.generation import get_generation
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.zarr_keys import MetadataKey, parse_key
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, local_filesystem_storage
from support import zarr_documents
from support.generations import GENERATION_NAMES, ICECHUNK_NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from zarr.abc.store import Store

    from icefloe.session import Session
    from icefloe.store import IcechunkStore

# Data types that the Zarr specification does not list yet; shards that are compressed as a whole.
pytestmark = pytest.mark.filterwarnings("ignore:(The data type|Combining a `sharding_indexed`)")

# Two versions of each, with different types; what an index yields is anything.
icechunk: Any = import_module("icechunk")
zarr: Any = import_module("zarr")
WHEEL_READS_V2 = int(icechunk.__version__.split(".")[0]) >= 2
KNOWS_RECTILINEAR = "array.rectilinear_chunks" in zarr.config


class Place:
    """A repository on disk, to be changed in sessions and compared with what others read."""

    def __init__(self, folder: Path, generation: str, config: RepositoryConfig | None) -> None:
        self.generation = generation
        self._folder = folder
        self._config = config
        Repository.create(local_filesystem_storage(folder), config, generation=generation)

    def session(self) -> Session:
        repository = Repository.open(local_filesystem_storage(self._folder), self._config)
        return repository.writable_session("main")

    def reader(self) -> IcechunkStore:
        repository = Repository.open(local_filesystem_storage(self._folder))
        return repository.readonly_session("main").store

    def wheel(self) -> Store | None:
        """Return the store of the real Icechunk, None where it does not read this generation."""
        if self.generation not in ICECHUNK_NAMES or (
            self.generation == "v2" and not WHEEL_READS_V2
        ):
            return None
        storage = icechunk.local_filesystem_storage(str(self._folder))
        store: Store = icechunk.Repository.open(storage).readonly_session("main").store
        return store

    def commit(self, session: Session) -> list[Any]:
        """Commit, and return the roots that every reader sees; all must have the same bytes."""
        before = contents(session.store)
        session.commit("arrays")
        assert contents(session.store) == before
        ours = self.reader()
        assert contents(ours) == before
        wheel = self.wheel()
        if wheel is None:
            return [zarr.open_group(ours, mode="r")]
        assert contents(wheel) == before
        return [zarr.open_group(ours, mode="r"), zarr.open_group(wheel, mode="r")]


def contents(store: Store) -> dict[str, bytes]:
    """Read all keys and values of a store."""
    keys = sync(_collect_aiterator(store.list()))
    values = {key: sync(store.get(key, default_buffer_prototype())) for key in keys}
    return {key: value.to_bytes() for key, value in values.items() if value is not None}


@pytest.fixture(params=[*product(GENERATION_NAMES, ["plain"]), ("v2", "packed")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    generation, kind = request.param
    config = RepositoryConfig(inline_chunk_threshold_bytes=32)
    if kind == "packed":
        config.packing = PackingConfig()
    return Place(tmp_path / "repository", generation, config)


def _numbers(dtype: str) -> NDArray[Any]:
    return np.arange(30).reshape(5, 6).astype(dtype)


FIELDS = np.dtype([("x", "i4"), ("y", "f8")])
SAMPLES: dict[str, tuple[Any, NDArray[Any]]] = {
    "bool": ("bool", _numbers("u1") % 2 == 0),
    **{
        name: (name, _numbers(name))
        for name in [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    },
    **{name: (name, _numbers(name) / 7) for name in ("float16", "float32", "float64")},
    **{name: (name, _numbers(name) * (1 + 2j)) for name in ("complex64", "complex128")},
    "fixed_length_utf32": ("U7", np.array(["", "ä", "深い", "seven77"] * 3).reshape(4, 3)),
    "string": (
        "string",
        np.array(["", "ä", "x" * 500, "深い"] * 3, dtype=object).reshape(4, 3),
    ),
    "raw_bytes": ("V5", np.array([b"12345", b"\x00bcd\x00"] * 4, "V5").reshape(4, 2)),
    "null_terminated_bytes": ("S5", np.array([b"12345", b"x", b""] * 4, "S5").reshape(4, 3)),
    "variable_length_bytes": (
        "variable_length_bytes",
        np.array([b"", b"\x00", b"y" * 300] * 4, dtype=object).reshape(4, 3),
    ),
    "structured": (FIELDS, np.array([(1, 2.5), (3, np.inf)] * 4, FIELDS).reshape(4, 2)),
    "numpy.datetime64": (
        "M8[s]",
        np.array(["2026-01-01", "NaT", "1900-05-06"] * 4, "M8[s]").reshape(4, 3),
    ),
    "numpy.timedelta64": ("m8[us]", np.array([0, 1, -7, "NaT"], "m8[us]").reshape(2, 2)),
}
SAMPLES["struct"] = SAMPLES["structured"]
CORE = {name for name in SAMPLES if re.fullmatch(r"bool|u?int\d+|float\d+|complex\d+", name)}
STORED_BY_OLDER = {
    "draft": CORE | {"string", "variable_length_bytes"},
    "sequence": CORE | {"raw_bytes"},
}


def test_every_data_type(place: Place) -> None:
    """All data types that this zarr knows; older generations refuse those they have no word for."""
    names = list(data_type_registry.contents)
    assert len(names) > 20
    session = place.session()
    root = zarr.group(session.store)
    for name in list(names):
        dtype, data = SAMPLES[name]
        if dtype == "variable_length_bytes":
            dtype = data_type_registry.contents[name]()
        if name not in STORED_BY_OLDER.get(place.generation, SAMPLES):
            with pytest.raises(FormatError, match="--to v2") as caught:
                root.create_array(name, shape=data.shape, chunks=(2, 2), dtype=dtype)
            assert caught.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
            names.remove(name)
            continue
        array = root.create_array(name, shape=data.shape, chunks=(2, 2), dtype=dtype)
        array[...] = data
    for reader in place.commit(session):
        for name in names:
            np.testing.assert_array_equal(reader[name][...], SAMPLES[name][1], err_msg=name)


SPECIAL_VALUES: dict[str, list[Any]] = {
    "float16": [np.nan, np.inf, -np.inf, -0.0, 6e-8],
    "float32": [np.nan, np.inf, -np.inf, -0.0, 1e-45],
    "float64": [np.nan, np.inf, -np.inf, -0.0, 5e-324],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [0, 2**64 - 1],
    "complex64": [complex(np.nan, -np.inf), 1j],
}


def test_fill_values(place: Place) -> None:
    """Fill values that JSON has no number for, in arrays of which no chunk was written."""
    session = place.session()
    root = zarr.group(session.store)
    for dtype, values in SPECIAL_VALUES.items():
        for number, value in enumerate(values):
            root.create_array(
                f"{dtype}-{number}", shape=(3,), chunks=(2,), dtype=dtype, fill_value=value
            )
    for reader in place.commit(session):
        for dtype, values in SPECIAL_VALUES.items():
            for number, value in enumerate(values):
                found = reader[f"{dtype}-{number}"][:]
                expected = np.full(3, value, dtype)
                assert found.tobytes() == expected.tobytes() or np.isnan(expected).all()
                np.testing.assert_array_equal(found, expected)


CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": None},
    "zstd": {"compressors": ZstdCodec(level=3, checksum=True)},
    "gzip": {"compressors": GzipCodec(level=6)},
    "blosc": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "big-endian": {"serializer": BytesCodec(endian="big")},
    "transpose": {"filters": [TransposeCodec(order=(1, 0))]},
    "shards": {"shards": (20, 12)},
    "shards-index-first": {
        "chunks": (20, 12),
        "serializer": ShardingCodec(chunk_shape=(5, 4), index_location="start"),
        "compressors": None,
    },
    "compressed-shards": {
        "chunks": (20, 12),
        "serializer": ShardingCodec(chunk_shape=(10, 6), codecs=[BytesCodec(), GzipCodec()]),
        "compressors": ZstdCodec(),
    },
}


def test_codecs_and_shards(place: Place) -> None:
    """Chunks of every codec, written whole, in part and again, before and after a commit."""
    expected = np.random.default_rng(1).integers(0, 50, (33, 29)).astype("i4")
    session = place.session()
    root = zarr.group(session.store)
    for name, settings in CODECS.items():
        array = root.create_array(
            name, shape=expected.shape, dtype="i4", **({"chunks": (5, 4)} | settings)
        )
        array[...] = expected
        array[7:13, 3:9] = -1
    expected[7:13, 3:9] = -1
    for reader in place.commit(session):
        for name in CODECS:
            np.testing.assert_array_equal(reader[name][...], expected, err_msg=name)
    session = place.session()
    root = zarr.open_group(session.store)
    for name in CODECS:
        array = root[name]
        array[32, 28] = 7
        array[::9, ::7] = 8
        array.oindex[[1, 30], :] = 9
        np.testing.assert_array_equal(array[10:12, 5:20], _again(expected)[10:12, 5:20])
    for reader in place.commit(session):
        for name in CODECS:
            array = reader[name]
            np.testing.assert_array_equal(array[...], _again(expected), err_msg=name)
            np.testing.assert_array_equal(array[17, 3:21:5], _again(expected)[17, 3:21:5])


def _again(before: NDArray[Any]) -> NDArray[Any]:
    after = before.copy()
    after[32, 28] = 7
    after[::9, ::7] = 8
    after[[1, 30], :] = 9
    return after


def test_scalars_and_arrays_without_elements(place: Place) -> None:
    """Arrays without dimensions have one chunk, those with a dimension of length 0 have none."""
    session = place.session()
    root = zarr.group(session.store)
    root.create_array("scalar", shape=(), dtype="f8")[...] = 2.5
    root.create_array("unwritten", shape=(), dtype="f8", fill_value=1.5)
    has_strings = place.generation != "sequence"
    if has_strings:
        root.create_array("string", shape=(), dtype="string")[...] = "word"
    for number, shape in enumerate([(0,), (0, 3), (3, 0, 2)]):
        root.create_array(f"none-{number}", shape=shape, chunks=(1,) * len(shape), dtype="i4")
    for reader in place.commit(session):
        assert reader["scalar"][()] == 2.5
        assert reader["unwritten"][()] == 1.5
        assert not has_strings or reader["string"][()] == "word"
        assert [reader[f"none-{number}"][...].shape for number in range(3)] == [
            (0,),
            (0, 3),
            (3, 0, 2),
        ]
    assert "scalar/c" in contents(place.reader())
    assert "unwritten/c" not in contents(place.reader())


def test_dimension_names_and_attributes(place: Place) -> None:
    """Metadata comes back as it was given, and is updated without its chunks."""
    attributes = {"units": "K", "größe": [1, 2.5, None, {"a": True}], "nested": {"深い": "x"}}
    session = place.session()
    root = zarr.group(session.store, attributes={"title": "all"})
    array = root.create_array(
        "a", shape=(4, 4, 4), dtype="i2", dimension_names=("x", None, "深い"), attributes=attributes
    )
    array[...] = 3
    place.commit(session)
    session = place.session()
    zarr.open_array(session.store, path="a").attrs.update({"units": "°C", "more": 1})
    zarr.open_group(session.store).attrs["title"] = "changed"
    status = session.status()
    assert status.updated_arrays == {"/a"}
    assert status.updated_groups == {"/"}
    assert not status.updated_chunks
    for reader in place.commit(session):
        assert dict(reader.attrs) == {"title": "changed"}
        assert dict(reader["a"].attrs) == attributes | {"units": "°C", "more": 1}
        assert reader["a"].metadata.dimension_names == ("x", None, "深い")
        assert (reader["a"][...] == 3).all()


@pytest.mark.parametrize("write_empty_chunks", [True, False])
def test_empty_chunks(generation: str, *, write_empty_chunks: bool) -> None:
    """Chunks of fill values are kept with write_empty_chunks, and deleted otherwise."""
    repository = Repository.create(in_memory_storage(), generation=generation)
    with zarr.config.set({"array.write_empty_chunks": write_empty_chunks}):
        session = repository.writable_session("main")
        array = zarr.create_array(session.store, shape=(4,), chunks=(2,), dtype="i4")
        array[:] = [1, 2, 3, 4]
        array[:] = [0, 0, 0, 4]
        expected = {"zarr.json", "c/1", *(["c/0"] if write_empty_chunks else [])}
        assert contents(session.store).keys() == expected
        session.commit("one chunk is empty")
        session = repository.writable_session("main")
        assert contents(session.store).keys() == expected
        array = zarr.open_array(session.store)
        array[:] = 0
        kept = {"zarr.json", "c/0", "c/1"} if write_empty_chunks else {"zarr.json"}
        assert contents(session.store).keys() == kept
        assert (array[:] == 0).all()


def test_resize_and_append(place: Place) -> None:
    """Chunks that a smaller shape cuts off are gone, also after it has grown again."""
    session = place.session()
    array = zarr.group(session.store).create_array("a", shape=(10, 4), chunks=(2, 2), dtype="i4")
    data = np.arange(40).reshape(10, 4).astype("i4")
    array[...] = data
    place.commit(session)

    session = place.session()
    array = zarr.open_array(session.store, path="a")
    array.resize((5, 4))
    assert "a/c/4/1" not in contents(session.store)
    for reader in place.commit(session):
        np.testing.assert_array_equal(reader["a"][...], data[:5])

    session = place.session()
    array = zarr.open_array(session.store, path="a")
    array.resize((12, 6))
    expected = np.zeros((12, 6), "i4")
    expected[:5, :4] = data[:5]
    # The chunk at the edge keeps what it had beyond it, as on every Zarr store.
    expected[5, :4] = data[5]
    np.testing.assert_array_equal(array[...], expected)
    array.append(np.full((3, 6), 7, "i4"))
    array.append(np.full((15, 1), 8, "i4"), axis=1)
    expected = np.concatenate([expected, np.full((3, 6), 7, "i4")])
    expected = np.concatenate([expected, np.full((15, 1), 8, "i4")], axis=1)
    for reader in place.commit(session):
        np.testing.assert_array_equal(reader["a"][...], expected)


def test_overwriting_and_deleting(place: Place) -> None:
    """What is overwritten or deleted leaves nothing behind, and what is beside it stays."""
    session = place.session()
    root = zarr.group(session.store)
    for path in ["a", "a2", "g/b", "g/deep/c", "g2/d"]:
        zarr.create_array(session.store, name=path, shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    place.commit(session)

    session = place.session()
    root = zarr.open_group(session.store)
    replaced = root.create_array("a", shape=(2, 2), chunks=(1, 2), dtype="f4", overwrite=True)
    assert (replaced[...] == 0).all()
    del root["g/deep"]
    root.create_group("g2", overwrite=True)
    root.create_group("g/deep")
    names = ["a", "a2", "g", "g/b", "g/deep", "g2"]
    assert sorted(name for name, _ in root.members(max_depth=None)) == names
    for reader in place.commit(session):
        assert sorted(name for name, _ in reader.members(max_depth=None)) == names
        assert reader["a"].shape == (2, 2)
        assert (reader["a2"][:] == 1).all()
    assert not any(key.startswith("a/c") for key in contents(place.reader()))

    session = place.session()
    zarr.create_array(session.store, name="g", shape=(2,), dtype="i4", overwrite=True)[:] = 5
    for reader in place.commit(session):
        assert sorted(name for name, _ in reader.members(max_depth=None)) == ["a", "a2", "g", "g2"]
        assert (reader["g"][:] == 5).all()


def test_groups_and_members(place: Place) -> None:
    """Groups in groups, 40 deep and 60 wide; ``members`` finds each once."""
    session = place.session()
    root = zarr.group(session.store)
    deep = "/".join(f"d{depth}" for depth in range(40))
    zarr.create_group(session.store, path=deep)
    for number in range(60):
        root.create_group(f"wide/w{number}")
    depths = ["/".join(deep.split("/")[: depth + 1]) for depth in range(40)]
    expected = {*depths, "wide", *(f"wide/w{number}" for number in range(60))}
    for reader in [root, *place.commit(session)]:
        found = [name for name, _ in reader.members(max_depth=None)]
        assert len(found) == len(expected)
        assert set(found) == expected
        assert {name for name, _ in reader["wide"].groups()} == {f"w{n}" for n in range(60)}
        assert list(reader["wide"].arrays()) == []


def test_opening_with_and_without_consolidated_metadata(generation: str) -> None:
    """Consolidated metadata is not supported; requiring it raises Zarr's error."""
    session = Repository.create(in_memory_storage(), generation=generation).writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), dtype="i4")[:] = 4
    assert not session.store.supports_consolidated_metadata
    for wanted in (None, False):
        root = zarr.open_group(session.store, mode="r", use_consolidated=wanted)
        assert root.metadata.consolidated_metadata is None
        assert [name for name, _ in root.members()] == ["a"]
    with pytest.raises(ValueError, match="onsolidated"):
        zarr.open_group(session.store, mode="r", use_consolidated=True)
    with pytest.raises(TypeError, match="doesn't support consolidated"):
        zarr.consolidate_metadata(session.store)
    opened = zarr.open(session.store, path="a", mode="r")
    assert isinstance(opened, zarr.Array)


RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [[3, 1, 6], [[2, 3], 4]]},
}


def test_rectilinear_grids(tmp_path: Path, generation: str) -> None:
    """Version 2 stores grids of unequal chunks, numbered by their edges; version 1 refuses."""
    place = Place(tmp_path / "repository", generation, None)
    session = place.session()
    zarr.group(session.store)
    document = cpu.Buffer.from_bytes(zarr_documents.array((10, 10), chunk_grid=RECTILINEAR))
    if not get_generation(generation).has_rectilinear_grids:
        with pytest.raises(InvalidInputError) as caught:
            sync(session.store.set("a/zarr.json", document))
        assert caught.value.kind is ErrorKind.BAD_METADATA
        assert contents(session.store).keys() == {"zarr.json"}
        return
    sync(session.store.set("a/zarr.json", document))
    assert session.transaction.get_grid(parse_path("a/zarr.json")) == (3, 4)
    for x, y in np.ndindex(3, 4):
        sync(session.store.set(f"a/c/{x}/{y}", cpu.Buffer.from_bytes(bytes([x, y] * 50))))
    with pytest.raises(ValueError, match="outside the grid"):
        sync(session.store.set("a/c/3/0", document))
    before = contents(session.store)
    session.commit("a rectilinear array")
    assert contents(place.reader()) == before
    wheel = place.wheel()
    if wheel is not None:
        assert contents(wheel) == before


@pytest.mark.skipif(
    not KNOWS_RECTILINEAR, reason="RECTILINEAR GRIDS THROUGH ZARR ARE NOT TESTED: zarr has none"
)
def test_rectilinear_arrays(tmp_path: Path) -> None:
    """Zarr writes, resizes and reads an array of unequal chunks."""
    place = Place(tmp_path / "repository", "v2", None)
    data = np.arange(100).reshape(10, 10)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        session = place.session()
        root = zarr.group(session.store)
        chunks: Any = [[3, 1, 6], [2, 2, 2, 4]]
        array = root.create_array("a", shape=data.shape, chunks=chunks, dtype="i8")
        array[...] = data
        stored = json.loads(contents(session.store)["a/zarr.json"])
        assert stored["chunk_grid"]["name"] == "rectilinear"
        for reader in place.commit(session):
            np.testing.assert_array_equal(reader["a"][...], data)
        session = place.session()
        array = zarr.open_array(session.store, path="a")
        array.resize((12, 5))
        array[10:, :] = -1
        expected = np.concatenate([data[:, :5], np.full((2, 5), -1)])
        for reader in place.commit(session):
            np.testing.assert_array_equal(reader["a"][...], expected)


def parse_path(key: str) -> Any:
    parsed = parse_key(key)
    assert isinstance(parsed, MetadataKey)
    return parsed.path
