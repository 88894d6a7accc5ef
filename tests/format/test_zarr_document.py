"""Splitting ``zarr.json`` into parts: what zarr-python reads is the same before and after."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.draft.codec import DraftCodec
from support import zarr_documents
from support.hypothesis_examples import examples
from support.sequence_strategies import CODEC, array_documents

if TYPE_CHECKING:
    from icefloe.format.metadata_codec import MetadataCodec


def write_document(document: bytes) -> MemoryStore:
    store = MemoryStore()
    buffer = default_buffer_prototype().buffer.from_bytes(document)
    asyncio.run(store.set("zarr.json", buffer))
    return store


def open_array(document: bytes) -> zarr.Array[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_array(write_document(document), mode="r")


def describe(array: zarr.Array[Any]) -> tuple[Any, ...]:
    metadata = array.metadata
    return (
        array.shape,
        array.dtype,
        np.asarray(array.fill_value, array.dtype).tobytes(),
        metadata.chunk_grid,
        metadata.chunk_key_encoding,  # type: ignore[union-attr]
        metadata.codecs,  # type: ignore[union-attr]
        metadata.dimension_names,  # type: ignore[union-attr]
        dict(array.attrs),
    )


@given(array_documents())
@settings(max_examples=examples(100, thorough=500), deadline=None)
def test_zarr_reads_the_same(document: dict[str, Any]) -> None:
    """A normalised document means the same to zarr-python, and is its own normal form."""
    data = json.dumps(document).encode()
    normalized = CODEC.normalize_document(data, "zarr.json")
    assert CODEC.normalize_document(normalized, "zarr.json") == normalized
    assert describe(open_array(normalized)) == describe(open_array(data))


NAN = np.array([0x7FC00001], np.uint32).view(np.float32)[0]


@pytest.mark.parametrize(
    "data_type, fill_value",
    [
        ("bool", True),
        ("int8", -128),
        ("uint64", 2**64 - 1),
        ("float16", 0.1),
        ("float32", 0.1),
        ("float32", NAN),
        ("float64", -0.0),
        ("float64", np.nan),
        ("float64", -np.inf),
        ("complex64", complex(np.nan, 0.1)),
        ("complex128", complex(np.inf, -0.0)),
        ("V4", b"abcd"),
    ],
)
def test_documents_of_zarr_are_kept(data_type: str, fill_value: Any) -> None:
    """The normal form has the same members as zarr-python writes, in the same order."""
    store = MemoryStore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(
            store,
            shape=(4, 4),
            chunks=(1, 2),
            shards=(2, 2),
            dtype=data_type,
            fill_value=fill_value,
            attributes={"é": [1, None]},
            dimension_names=["x", None],
        )
    data = asyncio.run(store.get("zarr.json", default_buffer_prototype()))
    assert data is not None
    normalized = CODEC.normalize_document(data.to_bytes(), "zarr.json")
    before, after = json.loads(data.to_bytes()), json.loads(normalized)
    assert before == after
    assert list(before) == list(after)


def test_documents_of_groups() -> None:
    """Groups keep their attributes; consolidated metadata that is null is dropped."""
    store = MemoryStore()
    zarr.create_group(store, attributes={"a": 1})
    data = asyncio.run(store.get("zarr.json", default_buffer_prototype()))
    assert data is not None
    assert json.loads(CODEC.normalize_document(data.to_bytes(), "zarr.json")) == json.loads(
        data.to_bytes()
    )
    with_null = b'{"zarr_format":3,"node_type":"group","consolidated_metadata":null}'
    expected = b'{"attributes":{},"zarr_format":3,"node_type":"group"}'
    assert CODEC.normalize_document(with_null, "zarr.json") == expected


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"data_type": {"name": "float32"}, "fill_value": 1}, {"data_type": "float32"}),
        ({"codecs": ["bytes", {"name": "crc32c", "configuration": None}]}, {}),
        ({"data_type": "r16", "fill_value": [1, 2]}, {"fill_value": "AQI="}),
        ({"data_type": "int16", "fill_value": 3.0}, {"fill_value": 3}),
        ({"data_type": "float64", "fill_value": "0x7ff8000000000000"}, {"fill_value": "NaN"}),
        ({"data_type": "float32", "fill_value": "0x3F800000"}, {"fill_value": 1.0}),
        ({"chunk_key_encoding": "default"}, {"chunk_key_encoding": {"name": "default"}}),
        ({"attributes": None}, {"attributes": {}}),
    ],
)
def test_spellings_are_normalized(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Other spellings of the same metadata have one normal form."""
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    data = zarr_documents.array(**{"codecs": codecs, **changes})
    document = json.loads(CODEC.normalize_document(data, "zarr.json"))
    assert document["storage_transformers"] == []
    assert {key: document[key] for key in expected} == expected
    open_array(json.dumps(document).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": "string", "fill_value": ""},
        {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}},
        {"data_type": "r7"},
        {"data_type": "r0"},
        {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline"}}},
        {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}},
        {"codecs": [{"name": "bytes", "must_understand": False}]},
        {"codecs": [{"name": "bytes", "other": 1}]},
        {"extra": {"must_understand": False}},
        {"shape": [0], "chunks": [0]},
        {
            "attributes": json.loads("[" * 250 + "]" * 250)
            and {"a": json.loads("[" * 250 + "]" * 250)}
        },
    ],
)
def test_what_the_schema_has_no_word_for(changes: dict[str, Any]) -> None:
    """Such arrays are refused, with the generation that can store them."""
    with pytest.raises(FormatError, match="--to v2") as caught:
        CODEC.normalize_document(zarr_documents.array(**changes), "a/zarr.json")
    assert caught.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
    assert caught.value.file == "a/zarr.json"


def test_consolidated_metadata_is_refused() -> None:
    """Consolidated metadata would be stale after the next commit; there is no place for it."""
    with pytest.raises(FormatError, match="consolidated metadata"):
        CODEC.normalize_document(
            zarr_documents.group(consolidated_metadata={"metadata": {}}), "zarr.json"
        )


@pytest.mark.parametrize(
    "data_type, fill_value",
    [
        ("uint8", 256),
        ("uint8", -1),
        ("uint8", 1.5),
        ("uint8", True),
        ("uint8", "1"),
        ("bool", 1),
        ("float32", 1e300),
        ("float64", 10**400),
        ("float32", "0x7ff8000000000000"),
        ("float32", "nan"),
        ("float32", True),
        ("complex64", [1]),
        ("complex64", 1),
        ("r16", [1]),
        ("r16", [1, 256]),
        ("r16", "!"),
        ("r16", 2),
        ("uint8", None),
    ],
)
def test_fill_values_of_other_types(data_type: str, fill_value: Any) -> None:
    """A fill value that is not a value of the data type is refused."""
    data = zarr_documents.array(data_type=data_type, fill_value=fill_value)
    with pytest.raises(InvalidInputError) as caught:
        CODEC.normalize_document(data, "zarr.json")
    assert caught.value.kind is ErrorKind.INVALID_ARRAY_METADATA


@pytest.mark.parametrize("codec", [CODEC, DraftCodec()], ids=["sequence", "draft"])
@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": "\ud800"},
        {"codecs": [{"name": "\ud800"}]},
        {"dimension_names": ["x", "\ud800"]},
    ],
    ids=["data type", "codec", "dimension"],
)
def test_names_with_lone_surrogates(codec: MetadataCodec, changes: dict[str, Any]) -> None:
    """Names that UTF-8 does not have are refused: the snapshot could not be read back."""
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        codec.normalize_document(zarr_documents.array(**changes), "zarr.json")


@pytest.mark.parametrize("codec", [CODEC, DraftCodec()], ids=["sequence", "draft"])
def test_extensions_that_must_be_understood(codec: MetadataCodec) -> None:
    """The default of ``must_understand`` is true, so that the member can be dropped."""
    data = zarr_documents.array(codecs=[{"name": "bytes", "must_understand": True}])
    normalized = json.loads(codec.normalize_document(data, "zarr.json"))
    assert normalized["codecs"] == [{"name": "bytes"}]
