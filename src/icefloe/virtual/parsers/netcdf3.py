"""Parser of NetCDF3 files: classic format, 64-bit offsets and 64-bit data (CDF-1, -2 and -5).

Used instead of VirtualiZarr's parser, which reads with kerchunk, scipy and fsspec and needs
separate credentials. Only the header is read: it contains the offsets of all variables.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import FormatError, NodeNotFoundError
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.file_refs import FileRefBuilder
from icefloe.virtual.parse_errors import damaged_error, file_format_error
from icefloe.virtual.parsers.array_metadata import (
    build_array_metadata,
    encode_fill_value,
    get_array_template,
)

if TYPE_CHECKING:
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_TYPE_CODES: Final = ("i1", "S1", ">i2", ">i4", ">f4", ">f8", "u1", ">u2", ">u4", ">i8", ">u8")
_TYPES: Final = dict(enumerate(map(np.dtype, _TYPE_CODES), start=1))
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_STREAMING: Final = 2**32 - 1
"""Number of records in the header of a file that was written as a stream."""
_FIRST_BYTES: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str
    dims: tuple[int, ...]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int


def parse(source: OpenSource, request: ParseRequest) -> VirtualDataset:
    """Parse a file without loading variables; raises `FormatError` if it is damaged."""
    if request.group:
        raise NodeNotFoundError(
            f"{source.url}: there is no group {request.group!r}: NetCDF3 files have no groups"
        )
    size = request.source.size_bytes or 0
    length = min(_FIRST_BYTES, size)
    while True:
        try:
            return _HeaderParser(source.fetch(0, length), request).parse()
        except _EndOfBytesError:
            if length >= min(size, _MAX_HEADER_BYTES):
                reason = f"is truncated: its header does not end within its {size} bytes"
                raise file_format_error(source.url, reason) from None
            length = min(length * 8, size)


class _EndOfBytesError(Exception):
    """The header is longer than the fetched bytes."""


class _HeaderParser:
    def __init__(self, data: bytes, request: ParseRequest) -> None:
        self._data = data
        self._position = 4
        self._request = request
        version = data[3]
        # CDF-2 has 64-bit offsets, CDF-5 also 64-bit counts.
        self._count_format = ">q" if version == 5 else ">i"
        self._offset_format = ">i" if version == 1 else ">q"

    def parse(self) -> VirtualDataset:
        num_records = self._read_number(self._count_format)
        dims = [
            (self._read_text(), self._read_number(self._count_format))
            for _ in range(self._read_list_length(_DIMENSION))
        ]
        attributes = self._read_attributes()
        variables = [self._read_variable() for _ in range(self._read_list_length(_VARIABLE))]
        if any(not 0 <= dim < len(dims) for variable in variables for dim in variable.dims):
            raise self._damaged_error("a variable has a dimension that does not exist")

        def is_record(variable: _Variable) -> bool:
            return bool(variable.dims) and dims[variable.dims[0]][1] == 0

        def count_row_bytes(variable: _Variable) -> int:
            sizes = [dims[dim][1] for dim in variable.dims[1:]]
            return int(np.prod(sizes, dtype=np.int64)) * variable.dtype.itemsize

        records = [variable for variable in variables if is_record(variable)]
        # The variables of a record are padded to four bytes, unless there is only one.
        sizes = [count_row_bytes(variable) for variable in records]
        stride = sizes[0] if len(sizes) == 1 else sum(-(-size // 4) * 4 for size in sizes)
        if num_records in {_STREAMING, -1}:
            begin = min((variable.begin for variable in records), default=0)
            num_records = max(0, (self._request.source.size_bytes or 0) - begin) // (stride or 1)
        builder = FileRefBuilder(self._request.source, self._request.checksum)
        arrays = {}
        for variable in variables:
            if self._request.is_dropped(variable.name):
                continue
            lengths = [dims[dim][1] for dim in variable.dims]
            if is_record(variable):
                shape, chunk = [num_records, *lengths[1:]], [1, *lengths[1:]]
                offsets = variable.begin + stride * np.arange(num_records, dtype=np.int64)
                coords = np.zeros((num_records, len(shape)), np.uint32)
                coords[:, 0] = np.arange(num_records)
            else:
                shape = chunk = lengths
                offsets = np.array([variable.begin], np.int64)
                coords = np.zeros((1, len(shape)), np.uint32)
            size = int(np.prod(chunk, dtype=np.int64)) * variable.dtype.itemsize
            refs = builder.build(coords, offsets, np.full(len(offsets), size))
            template = get_array_template(variable.dtype, [], None, len(shape))
            names = [dims[dim][0] for dim in variable.dims]
            metadata = build_array_metadata(
                template, shape=shape, chunk_shape=chunk, dims=names, attributes=variable.attributes
            )
            refs = refs if size else builder.build_empty(len(shape))
            arrays[variable.name] = VirtualArray(metadata, refs)
        return VirtualDataset((self._request.source,), {"": attributes}, dict(arrays))

    def _read_variable(self) -> _Variable:
        name = self._read_text()
        dims = tuple(self._read_number(self._count_format) for _ in range(self._read_length()))
        attributes = self._read_attributes()
        dtype = self._read_type()
        self._read_number(self._count_format)  # the size, unreliable for large variables
        begin = self._read_number(self._offset_format)
        if begin < 0:
            raise self._damaged_error(f"the variable {name} has a negative offset")
        if "_FillValue" in attributes:
            attributes["_FillValue"] = encode_fill_value(attributes["_FillValue"], dtype)
        return _Variable(name, dims, attributes, dtype, begin)

    def _read_attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for _ in range(self._read_list_length(_ATTRIBUTE)):
            name = self._read_text()
            dtype = self._read_type()
            length = self._read_length()
            data = self._read_bytes(length * dtype.itemsize, is_padded=True)
            if dtype.kind == "S":
                attributes[name] = data.decode("utf-8", "replace").rstrip("\0")
            else:
                values = np.frombuffer(data, dtype).tolist()
                attributes[name] = values[0] if length == 1 else values
        return attributes

    def _read_list_length(self, expected_tag: int) -> int:
        tag, count = self._read_number(">i"), self._read_length()
        if tag not in {expected_tag, 0} or (tag == 0 and count):
            raise self._damaged_error(f"its header has tag {tag}, expected {expected_tag}")
        return count

    def _read_type(self) -> np.dtype[Any]:
        number = self._read_number(">i")
        if number not in _TYPES:
            raise self._damaged_error(f"it has values of the unknown type {number}")
        return _TYPES[number]

    def _read_text(self) -> str:
        return self._read_bytes(self._read_length(), is_padded=True).decode("utf-8", "replace")

    def _read_length(self) -> int:
        number = self._read_number(self._count_format)
        if number < 0:
            raise self._damaged_error("its header has a negative length")
        return number

    def _read_number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._read_bytes(struct.calcsize(layout)))[0])

    def _read_bytes(self, length: int, *, is_padded: bool = False) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise _EndOfBytesError
        data = self._data[self._position : end]
        self._position = end + (-length % 4 if is_padded else 0)
        return data

    def _damaged_error(self, problem: str) -> FormatError:
        return damaged_error(self._request.url, problem)
