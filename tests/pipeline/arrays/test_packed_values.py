"""Decoding by scale, offset and missing values gives what xarray decodes."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest
import xarray

from icefloe.errors import InvalidInputError
from icefloe.pipeline.arrays.array_document import ArrayDocument
from icefloe.pipeline.arrays.packed_values import unpack_array


def document(dtype: str, attributes: dict[str, Any], fill: Any = 0) -> ArrayDocument:
    return ArrayDocument(
        "/a",
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [5],
            "data_type": np.dtype(dtype).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5]}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "fill_value": fill,
            "attributes": attributes,
        },
    )


def decode_with_xarray(numbers: Any, attributes: dict[str, Any]) -> Any:
    """Decode with xarray, in double precision."""
    exact = {
        name: np.float64(value) if name in {"scale_factor", "add_offset"} else value
        for name, value in attributes.items()
    }
    variable = xarray.Variable(("x",), numbers, exact)
    return xarray.conventions.decode_cf_variable("a", variable).to_numpy()


@pytest.mark.parametrize(
    "dtype, attributes",
    [
        ("i2", {"scale_factor": 0.01, "add_offset": 273.15}),
        ("i2", {"scale_factor": 0.01, "_FillValue": np.int16(-5)}),
        ("i2", {"add_offset": 3.0, "missing_value": np.int16(7)}),
        ("i2", {"scale_factor": 2.0, "_FillValue": np.int16(-5), "missing_value": np.int16(-5)}),
        ("u1", {"scale_factor": 0.5, "_FillValue": np.uint8(251)}),
        ("i1", {"scale_factor": 0.5, "_Unsigned": "true", "_FillValue": np.int8(-5)}),
        ("u1", {"scale_factor": 0.5, "_Unsigned": "false", "_FillValue": np.uint8(251)}),
        ("i4", {"scale_factor": 1e-3, "add_offset": -1.5}),
    ],
)
def test_values_are_those_of_xarray(dtype: str, attributes: dict[str, Any]) -> None:
    numbers = np.array([0, 1, 7, 251, -5]).astype(dtype)
    stored = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in attributes.items()
    }
    array, decoder = unpack_array(document(dtype, stored), "f8")
    assert decoder is not None
    np.testing.assert_allclose(
        decoder.decode(numbers), decode_with_xarray(numbers, attributes), rtol=1e-15
    )
    assert array.dtype == np.float64
    assert array.document["attributes"] == {}
    assert np.isnan(array.parse_metadata().fill_value)


def test_missing_floats_are_read_as_zarr_writes_them() -> None:
    fill = base64.standard_b64encode(struct.pack("<d", np.float32(1e20))).decode()
    attributes = {"scale_factor": 2.0, "_FillValue": fill}
    _, decoder = unpack_array(document("f4", attributes, 0.0))
    assert decoder is not None
    found = decoder.decode(np.array([1, 1e20, np.nan], "f4"))
    np.testing.assert_array_equal(found, [2, np.nan, np.nan])


def test_a_number_without_dimensions_is_unpacked_too() -> None:
    _, decoder = unpack_array(document("i2", {"scale_factor": 2.0, "_FillValue": 3}))
    assert decoder is not None
    assert decoder.decode(np.array(4, "i2")) == 8
    assert np.isnan(decoder.decode(np.array(3, "i2")))


@pytest.mark.parametrize("dtype, values", [("i1", "f4"), ("u2", "f4"), ("i4", "f8"), ("f4", "f8")])
def test_the_type_of_values_is_the_smallest_that_holds_the_numbers(dtype: str, values: str) -> None:
    array, decoder = unpack_array(document(dtype, {"scale_factor": 1.0}))
    assert decoder is not None
    assert array.dtype == decoder.decode(np.zeros(5, dtype)).dtype == np.dtype(values)


@pytest.mark.parametrize("attributes", [{}, {"_FillValue": 3}, {"units": "K"}])
def test_what_is_not_packed_stays(attributes: dict[str, Any]) -> None:
    array = document("i2", attributes)
    assert unpack_array(array) == (array, None)


def test_values_that_are_no_floats_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"/a: .*must be float32 or float64, not int16"):
        unpack_array(document("i2", {"scale_factor": 2.0}), "i2")
