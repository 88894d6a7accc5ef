"""What is read of ``zarr.json``, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.format.generation import V1, get_generation
from icefloe.model.node import ArrayNodeData, DimensionShape, GroupNodeData
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from icefloe.transaction.zarr_metadata import parse_node_metadata
from support.generations import GENERATION_NAMES, ICECHUNK_NAMES, WITHOUT_REPO_INFO
from support.zarr_nodes import array, contents, get, group, put


def _document(**changes: Any) -> bytes:
    """Return the metadata of an array of 10 elements in chunks of 3, with something changed."""
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    }
    document |= changes
    return json.dumps({key: value for key, value in document.items() if value != "absent"}).encode()


def _grid(chunk_shape: object) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}


def _keys(separator: str) -> dict[str, Any]:
    return {"name": "default", "configuration": {"separator": separator}}


def _edges(chunk_shapes: object) -> dict[str, Any]:
    return {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": chunk_shapes},
    }


def _parse(data: bytes, generation: str = "v1") -> ArrayNodeData:
    found = parse_node_metadata(data, key="a/zarr.json", generation=get_generation(generation))
    assert isinstance(found, ArrayNodeData)
    return found


_NO_DOCUMENT = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "not a JSON object"),
    (b'"group"', "not a JSON object"),
    (b"{}", "zarr_format"),
    (b'{"zarr_format": 2, "node_type": "group"}', "zarr_format is 2"),
    (b'{"zarr_format": "3", "node_type": "group"}', "zarr_format is '3'"),
    (b'{"zarr_format": 3}', "node_type is None"),
    (b'{"zarr_format": 3, "node_type": "table"}', "node_type is 'table'"),
]

_BAD_ARRAYS = [
    ({"shape": "absent"}, "shape"),
    ({"shape": 10}, "shape"),
    ({"shape": [1.5]}, "shape"),
    ({"shape": [-1]}, "shape"),
    ({"shape": [True]}, "shape"),
    ({"shape": [2**64]}, "shape"),
    ({"chunk_grid": "absent"}, "chunk grid None"),
    ({"chunk_grid": "regular"}, "chunk_shape"),
    ({"chunk_grid": {"name": "hexagonal"}}, "hexagonal"),
    ({"chunk_grid": {"name": "regular"}}, "chunk_shape"),
    ({"chunk_grid": {"name": "regular", "configuration": 3}}, "chunk_shape"),
    ({"chunk_grid": _grid([3, 3])}, "chunk_shape"),
    ({"chunk_grid": _grid([])}, "chunk_shape"),
    ({"chunk_grid": _grid(3)}, "chunk_shape"),
    ({"chunk_grid": _grid([0])}, "length 0"),
    ({"chunk_grid": _grid([-3])}, "chunk_shape"),
    ({"shape": [2**33], "chunk_grid": _grid([1])}, "larger chunks"),
    ({"dimension_names": ["t", "x"]}, "dimension_names"),
    ({"dimension_names": "t"}, "dimension_names"),
    ({"dimension_names": [3]}, "dimension_names"),
    ({"data_type": "absent"}, "data_type None"),
    ({"data_type": 5}, "data_type 5"),
    ({"data_type": {"configuration": {}}}, "data_type"),
    ({"codecs": "absent"}, "codecs None"),
    ({"codecs": "bytes"}, "codecs"),
    ({"codecs": []}, "codecs"),
    ({"attributes": [1]}, "attributes"),
    ({"chunk_key_encoding": "absent"}, "chunk_key_encoding"),
    ({"chunk_key_encoding": {"name": "v2"}}, "'default' with the separator '/'"),
    ({"chunk_key_encoding": _keys(".")}, "'default' with the separator '/'"),
]

_BAD_EDGES = [
    ({"chunk_grid": _edges(None)}, "chunk_shapes"),
    ({"chunk_grid": _edges([3, 3])}, "chunk_shapes"),
    ({"chunk_grid": _edges([[3, 3, "4"]])}, "chunk_shapes"),
    ({"chunk_grid": _edges([[[3, 2, 1]]])}, "chunk_shapes"),
    ({"chunk_grid": _edges([[-1]])}, "chunk_shapes"),
    ({"chunk_grid": _edges([0])}, "chunk_shapes"),
    ({"chunk_grid": _edges([True])}, "chunk_shapes"),
    ({"chunk_grid": _edges([[[1, 2**32]]])}, "larger chunks"),
    ({"chunk_grid": _edges([[1, 1]])}, "end before the length 10"),
    ({"chunk_grid": _edges([[[2, 4], 1]])}, "end before the length 10"),
]


@pytest.mark.parametrize("data, problem", _NO_DOCUMENT)
def test_no_metadata(data: bytes, problem: str) -> None:
    """What is no metadata of Zarr 3 is refused with the key and the problem."""
    with pytest.raises(InvalidInputError) as caught:
        parse_node_metadata(data, key="a/zarr.json", generation=V1)
    assert caught.value.kind is ErrorKind.BAD_METADATA
    assert "a/zarr.json" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("changes, problem", _BAD_ARRAYS)
def test_bad_arrays(changes: dict[str, Any], problem: str, generation: str) -> None:
    """An array whose grid cannot be stored is refused with the key and the problem."""
    with pytest.raises(InvalidInputError) as caught:
        _parse(_document(**changes), generation)
    assert caught.value.kind is ErrorKind.INVALID_ARRAY_METADATA
    assert "a/zarr.json" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("changes, problem", _BAD_EDGES)
def test_bad_rectilinear_grids(changes: dict[str, Any], problem: str) -> None:
    """A grid of different chunks that is none is refused in version 2."""
    with pytest.raises(InvalidInputError, match=r"a/zarr\.json") as caught:
        _parse(_document(**changes), "v2")
    assert caught.value.kind is ErrorKind.INVALID_ARRAY_METADATA
    assert problem in str(caught.value)


@pytest.mark.parametrize("generation", WITHOUT_REPO_INFO)
def test_rectilinear_grids_need_version_2(generation: str) -> None:
    """Others have no place for chunks of different lengths, and say what to do."""
    data = _document(shape=[9, 7, 8], chunk_grid=_edges([[2, 3, 4], 2, [[1, 3], 5]]))
    with pytest.raises(InvalidInputError, match=r"upgrade_|convert ") as caught:
        _parse(data, generation)
    assert caught.value.kind is ErrorKind.BAD_METADATA
    assert "a/zarr.json" in str(caught.value)
    assert [dimension.num_chunks for dimension in _parse(data, "v2").shape] == [3, 4, 4]
    assert [dimension.array_length for dimension in _parse(data, "v2").shape] == [9, 7, 8]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(2**9, 2**40)), max_size=4))
def test_regular_grids(dimensions: list[tuple[int, int]]) -> None:
    """A dimension has as many chunks as cover it: none if its length is 0."""
    shape, chunks = [length for length, _ in dimensions], [chunk for _, chunk in dimensions]
    found = _parse(_document(shape=shape, chunk_grid=_grid(chunks)))
    assert found.shape == tuple(
        DimensionShape(length, (length + chunk - 1) // chunk, chunk) for length, chunk in dimensions
    )
    assert found.dimension_names is None
    assert found.manifests == ()


def test_edges_of_what_can_be_stored() -> None:
    """Scalars, arrays of length 0, the largest grid, and dimensions with and without names."""
    assert _parse(_document(shape=[], chunk_grid=_grid([]))).shape == ()
    assert _parse(_document(shape=[0], chunk_grid=_grid([0]))).shape == (DimensionShape(0, 0, 0),)
    assert _parse(_document(shape=[0], chunk_grid=_grid([5]))).shape == (DimensionShape(0, 0, 5),)
    largest = _parse(_document(shape=[2**32 - 1], chunk_grid=_grid([1])))
    assert largest.shape[0].num_chunks == 2**32 - 1
    assert _parse(_document(dimension_names=["t"])).dimension_names == ("t",)
    assert _parse(_document(dimension_names=[None])).dimension_names == (None,)
    assert _parse(_document(dimension_names=[""])).dimension_names == ("",)
    assert _parse(_document(dimension_names=None)).dimension_names is None
    assert isinstance(parse_node_metadata(group(), key="zarr.json", generation=V1), GroupNodeData)


@settings(deadline=None, max_examples=60)
@given(
    st.binary(max_size=40) | st.text(max_size=20).map(str.encode),
    st.sampled_from(GENERATION_NAMES),
)
def test_arbitrary_bytes(data: bytes, generation: str) -> None:
    """Whatever the bytes are, they are metadata or an error of ours."""
    with contextlib.suppress(IcefloeError):
        parse_node_metadata(data, key="zarr.json", generation=get_generation(generation))


def test_refused_metadata_changes_nothing(generation: str) -> None:
    """A session that refused metadata is as it was, also where a node is at that place."""
    session = Repository.create(MemoryStorage(), generation=generation).writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((4,)))
    put(session.store, "a/c/1", b"x")
    before = contents(session.store)
    for key in ("a/zarr.json", "b/zarr.json", "zarr.json"):
        for data in (b"{", _document(shape=[-1]), _document(chunk_grid={"name": "x"})):
            with pytest.raises(InvalidInputError, match=key):
                put(session.store, key, data)
    assert contents(session.store) == before


def test_what_is_stored_is_what_was_given(generation: str) -> None:
    """Metadata come back byte for byte, and names of dimensions with them, from disk too.

    Generations that store the parts of a document normalize it first.
    """
    storage = MemoryStorage()
    repository = Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    documents = {
        "zarr.json": b'{ "zarr_format":3 ,"node_type": "group" ,"attributes":{"\\u00e9":NaN}}',
        "names/zarr.json": array((3, 3, 3), names=["t", None, ""]),
        "scalar/zarr.json": array(()),
        "empty/zarr.json": array((0, 3)),
    }
    codec = get_generation(generation).codec
    for key, data in documents.items():
        put(session.store, key, data)
        documents[key] = codec.normalize_document(data, key)
        if generation in ICECHUNK_NAMES:
            assert documents[key] == data
    put(session.store, "scalar/c", b"7")
    with pytest.raises(InvalidInputError) as caught:
        put(session.store, "empty/c/0/0", b"x")
    assert caught.value.kind is ErrorKind.INVALID_CHUNK_INDEX
    session.commit("stored")
    reader = Repository.open(storage).readonly_session("main")
    assert contents(reader.store) == {**documents, "scalar/c": b"7"}
    assert get(reader.store, "scalar/c/0") is None
