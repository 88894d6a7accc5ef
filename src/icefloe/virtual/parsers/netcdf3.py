"""NetCDF3 files: the classic format, with 64-bit offsets and 64-bit data (CDF-1, -2 and -5).

The header tells where everything is. VirtualiZarr reads it by way of kerchunk, scipy and fsspec,
which would need credentials of their own; the format is short enough to be read here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, FormatError, NodeNotFoundError
from icefloe.virtual.dataset import VirtualArray, VirtualDataset
from icefloe.virtual.file_refs import FileRefs
from icefloe.virtual.parsers.array_metadata import (
    array_metadata,
    array_template,
    fill_value_attribute,
)

if TYPE_CHECKING:
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_TYPES: Final = {
    1: np.dtype("i1"),
    2: np.dtype("S1"),
    3: np.dtype(">i2"),
    4: np.dtype(">i4"),
    5: np.dtype(">f4"),
    6: np.dtype(">f8"),
    7: np.dtype("u1"),
    8: np.dtype(">u2"),
    9: np.dtype(">u4"),
    10: np.dtype(">i8"),
    11: np.dtype(">u8"),
}
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_STREAMING: Final = 2**32 - 1
"""The number of records of a file whose writer did not know it."""
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
    """Parse a file; no variable is loaded yet.

    Raises
    ------
    FormatError
        If the file is damaged or cut off.
    """
    if request.group:
        raise NodeNotFoundError(
            f"{source.url}: there is no group {request.group!r}: NetCDF3 files have none",
            kind=ErrorKind.NODE_NOT_FOUND,
        )
    size = request.source.size_bytes or 0
    wanted = min(_FIRST_BYTES, size)
    while True:
        try:
            return _Header(source.fetch(0, wanted), request).parse()
        except _EndOfBytesError:
            if wanted >= min(size, _MAX_HEADER_BYTES):
                raise FormatError(
                    f"is cut off: its header does not end within its {size} bytes",
                    file=source.url,
                    kind=ErrorKind.INVALID_FILE_FORMAT,
                ) from None
            wanted = min(wanted * 8, size)


class _EndOfBytesError(Exception):
    """The header goes on behind the bytes that were fetched."""


class _Header:
    def __init__(self, data: bytes, request: ParseRequest) -> None:
        self._data = data
        self._at = 4
        self._request = request
        version = data[3]
        # CDF-2 has wide offsets, CDF-5 wide counts as well.
        self._count = ">q" if version == 5 else ">i"
        self._offset = ">i" if version == 1 else ">q"

    def parse(self) -> VirtualDataset:
        num_records = self._number(self._count)
        dims = [(self._text(), self._number(self._count)) for _ in range(self._list_of(_DIMENSION))]
        attributes = self._attributes()
        variables = [self._variable() for _ in range(self._list_of(_VARIABLE))]
        if any(not 0 <= dim < len(dims) for one in variables for dim in one.dims):
            raise self._damaged("a variable has a dimension that the file has not")
        return self._dataset(num_records, dims, attributes, variables)

    def _dataset(
        self,
        num_records: int,
        dims: list[tuple[str, int]],
        attributes: dict[str, Any],
        variables: list[_Variable],
    ) -> VirtualDataset:
        def is_record(one: _Variable) -> bool:
            return bool(one.dims) and dims[one.dims[0]][1] == 0

        def row_bytes(one: _Variable) -> int:
            sizes = [dims[dim][1] for dim in one.dims[1:]]
            return int(np.prod(sizes, dtype=np.int64)) * one.dtype.itemsize

        records = [one for one in variables if is_record(one)]
        # A record is padded to four bytes for each variable, unless it is the only one.
        sizes = [row_bytes(one) for one in records]
        stride = sizes[0] if len(sizes) == 1 else sum(-(-size // 4) * 4 for size in sizes)
        if num_records in {_STREAMING, -1}:
            begin = min((one.begin for one in records), default=0)
            num_records = max(0, (self._request.source.size_bytes or 0) - begin) // (stride or 1)
        refs = FileRefs(self._request.source, self._request.checksum)
        arrays = {}
        for one in variables:
            if self._request.is_dropped(one.name):
                continue
            lengths = [dims[dim][1] for dim in one.dims]
            if is_record(one):
                shape, chunk = [num_records, *lengths[1:]], [1, *lengths[1:]]
                offsets = one.begin + stride * np.arange(num_records, dtype=np.int64)
                coords = np.zeros((num_records, len(shape)), np.uint32)
                coords[:, 0] = np.arange(num_records)
            else:
                shape = chunk = lengths
                offsets = np.array([one.begin], np.int64)
                coords = np.zeros((1, len(shape)), np.uint32)
            size = int(np.prod(chunk, dtype=np.int64)) * one.dtype.itemsize
            found = refs.of(coords, offsets, np.full(len(offsets), size))
            metadata = array_metadata(
                array_template(one.dtype, [], None, len(shape)),
                shape=shape,
                chunk_shape=chunk,
                dimension_names=[dims[dim][0] for dim in one.dims],
                attributes=one.attributes,
            )
            arrays[one.name] = VirtualArray(metadata, found if size else refs.none(len(shape)))
        return VirtualDataset((self._request.source,), {"": attributes}, dict(arrays))

    def _variable(self) -> _Variable:
        name = self._text()
        dims = tuple(self._number(self._count) for _ in range(self._length()))
        attributes = self._attributes()
        dtype = self._type()
        self._number(self._count)  # the size, which is not reliable for large variables
        begin = self._number(self._offset)
        if begin < 0:
            raise self._damaged(f"the variable {name} starts before the file")
        if "_FillValue" in attributes:
            value = attributes["_FillValue"]
            attributes["_FillValue"] = fill_value_attribute(value, dtype)
        return _Variable(name, dims, attributes, dtype, begin)

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._list_of(_ATTRIBUTE)):
            name = self._text()
            dtype = self._type()
            length = self._length()
            data = self._take(length * dtype.itemsize, padded=True)
            if dtype.kind == "S":
                found[name] = data.decode("utf-8", "replace").rstrip("\0")
            else:
                values = np.frombuffer(data, dtype).tolist()
                found[name] = values[0] if length == 1 else values
        return found

    def _list_of(self, tag: int) -> int:
        found, count = self._number(">i"), self._length()
        if found not in {tag, 0} or (found == 0 and count):
            raise self._damaged(f"its header has tag {found} where a list is expected")
        return count

    def _type(self) -> np.dtype[Any]:
        number = self._number(">i")
        if number not in _TYPES:
            raise self._damaged(f"it has values of a type {number}, which does not exist")
        return _TYPES[number]

    def _text(self) -> str:
        return self._take(self._length(), padded=True).decode("utf-8", "replace")

    def _length(self) -> int:
        number = self._number(self._count)
        if number < 0:
            raise self._damaged("its header has a negative length")
        return number

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, length: int, *, padded: bool = False) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise _EndOfBytesError
        data = self._data[self._at : end]
        self._at = end + (-length % 4 if padded else 0)
        return data

    def _damaged(self, what: str) -> FormatError:
        return FormatError(
            f"is damaged: {what}", file=self._request.url, kind=ErrorKind.INVALID_FILE_FORMAT
        )
