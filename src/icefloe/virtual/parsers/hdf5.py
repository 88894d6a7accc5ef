"""Parser of HDF5 and NetCDF4 files: one pass through h5py's low-level API.

Several times faster than VirtualiZarr's parser, which opens each object several times and builds
zarr metadata per array. It also handles compact storage, and refuses chunks that skip filters and
external files. The conversion of HDF5 filters to codecs is VirtualiZarr's.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5g, h5l, h5o, h5p, h5r, h5s, h5t
from virtualizarr.parsers.hdf.filters import codecs_from_dataset

from icefloe.errors import IcefloeError, InvalidInputError, NodeNotFoundError
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.file_refs import FileRefBuilder, compute_chunk_indices
from icefloe.virtual.parse_errors import format_error, unsupported_error
from icefloe.virtual.parsers.array_metadata import (
    build_array_metadata,
    encode_fill_value,
    get_array_template,
)
from icefloe.virtual.sources import not_found_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_INTERNAL_ATTRIBUTES: Final = frozenset(
    {
        b"REFERENCE_LIST",
        b"CLASS",
        b"DIMENSION_LIST",
        b"NAME",
        b"DIMENSION_LABELS",
        b"_Netcdf4Dimid",
        b"_Netcdf4Coordinates",
        b"_nc3_strict",
        b"_NCProperties",
    }
)
"""Attributes in which HDF5 and the NetCDF4 library store dimensions, not user attributes."""
_NO_VARIABLE: Final = b"This is a netCDF dimension but not a netCDF variable"
_DEFLATE: Final = 1
_SHUFFLE: Final = 2
_LAST_BUILTIN_FILTER: Final = 255
"""Filters with a greater number are plugins."""
_ATTRIBUTE_CLASSES: Final = frozenset({h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM})


def parse(source: OpenSource, request: ParseRequest) -> VirtualDataset:
    """Parse a file.

    Raises `FormatError` if it is damaged, `InvalidInputError` if a variable cannot be referenced.
    """
    refs = FileRefBuilder(request.source, request.checksum)
    try:
        if source.path is not None:
            with closing(_open_file(source.path)) as file:
                return _Walk(file, request, refs).parse()
        with (
            source.open_reader(request.source.size_bytes or 0) as reader,
            h5py.File(reader, "r") as opened,
        ):
            return _Walk(opened.id, request, refs).parse()
    except IcefloeError:
        raise
    except FileNotFoundError as error:
        raise not_found_error(source.url) from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        # h5py raises many kinds of errors for invalid bytes.
        raise format_error(source.url, f"is damaged or truncated: {error}") from error


def _open_file(path: str) -> Any:
    # Without locks: other processes may have it open, and read-only file systems have none.
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_file_locking(False, True)
    try:
        return h5f.open(path.encode(), h5f.ACC_RDONLY, access)
    except OSError as error:
        if "match" not in str(error):
            raise
        # This process, for example xarray, has it open with other settings: use those.
        return h5f.open(path.encode(), h5f.ACC_RDONLY)


class _Walk:
    """One pass over an open file."""

    def __init__(self, file: Any, request: ParseRequest, refs: FileRefBuilder) -> None:
        self._file = file
        self._request = request
        self._refs = refs
        self._groups: dict[str, dict[str, Any]] = {}
        self._arrays: dict[str, AnyArray] = {}
        self._netcdf_dims: dict[int, str] | None = None

    def _unsupported_error(self, path: str, what: str, instead: str = "") -> InvalidInputError:
        return unsupported_error(self._request.url, path, what, instead)

    def parse(self) -> VirtualDataset:
        path = self._request.group
        try:
            root = h5o.open(self._file, f"/{path}".encode())
        except KeyError as error:
            if not path:
                raise OSError("its root group cannot be read") from error
            root = None
        if not isinstance(root, h5g.GroupID):
            raise NodeNotFoundError(f"{self._request.url}: there is no group {path!r} in the file")
        self._walk(root, "", frozenset())
        return VirtualDataset((self._request.source,), self._groups, self._arrays)

    def _walk(self, group: Any, path: str, above: frozenset[object]) -> None:
        """Parse a group and the groups below it, except cycles."""
        address = h5o.get_info(group).addr
        if address in above:
            return
        self._groups[path] = self._read_attributes(group)
        phony: list[int] = []
        groups: list[tuple[str, Any]] = []
        datasets: dict[str, Any] = {}
        for raw_name in group:
            # NetCDF4 adds the prefix to a variable named like a dimension that is not its
            # coordinate.
            name = raw_name.decode("utf-8", "replace").removeprefix("_nc4_non_coord_")
            below = f"{path}/{name}" if path else name
            if self._request.is_dropped(below):
                continue
            if group.links.get_info(raw_name).type != h5l.TYPE_HARD:
                continue  # external links have offsets of other files; soft links are aliases
            found = h5o.open(group, raw_name)
            if isinstance(found, h5g.GroupID):
                groups.append((below, found))
            elif isinstance(found, h5d.DatasetID):
                array = self._parse_array(found, below, phony)
                if array is not None:
                    self._arrays[below] = array
                    datasets[below] = found
        for below in self._request.find_bounds_to_load(self._arrays, datasets):
            found = datasets[below]
            values = _read_values(found, found.shape, found.dtype)
            self._arrays[below] = LoadedArray.of(self._arrays[below].metadata, values)
        for below, found in groups:
            self._walk(found, below, above | {address})

    def _parse_array(self, dataset: Any, path: str, phony: list[int]) -> AnyArray | None:
        is_scale = h5ds.is_scale(dataset)
        if is_scale and _is_only_dimension(dataset):
            return None
        if dataset.get_space().get_simple_extent_type() == h5s.NULL:
            raise self._unsupported_error(path, "it has no shape and no values")
        dtype, shape = dataset.dtype, dataset.shape
        create = dataset.get_create_plist()
        layout = create.get_layout()
        attributes = self._read_attributes(dataset, dtype)
        dims = self._find_dims(dataset, path.rpartition("/")[2], shape, phony, is_scale=is_scale)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        is_loadable = self._request.is_loadable(path, dims, size_bytes)
        if h5t.check_string_dtype(dtype) is not None and dtype.kind == "O":
            if not is_loadable:
                raise self._unsupported_error(
                    path,
                    "variable-length strings are in a heap of the file and cannot be referenced",
                    f"copy their values with loadable_variables=[{path!r}, …], or ",
                )
            return self._load_strings(dataset, attributes, dims)
        if dtype.kind in "OV" or dtype.names is not None:
            what = f"values of type {_format_type(dtype)} cannot be stored"
            raise self._unsupported_error(path, what)
        chunk = create.get_chunk() if layout == h5d.CHUNKED else shape
        template = self._build_template(dataset, create, dtype, path, len(shape))
        metadata = build_array_metadata(
            template, shape=shape, chunk_shape=chunk, dims=dims, attributes=attributes
        )
        # Compact storage is part of the object header, without an address.
        if is_loadable or layout == h5d.COMPACT:
            return LoadedArray.of(metadata, _read_values(dataset, shape, dtype))
        return VirtualArray(metadata, self._collect_refs(dataset, create, layout, chunk, path))

    def _build_template(
        self, dataset: Any, create: Any, dtype: np.dtype[Any], path: str, ndim: int
    ) -> dict[str, Any]:
        codecs: list[dict[str, Any]] = []
        for number in range(create.get_nfilters()):
            code, _, values, name = create.get_filter(number)
            # Nearly all files have these two; VirtualiZarr converts everything else.
            if code == _SHUFFLE:
                codecs.append({"id": "shuffle", "elementsize": int(values[0])})
            elif code == _DEFLATE:
                codecs.append({"id": "zlib", "level": int(values[0])})
            else:
                codecs = self._convert_filters(dataset, path, code, name)
                break
        try:
            return get_array_template(dtype, codecs, _read_fill_value(create, dtype), ndim)
        except Exception as error:
            kind = _format_type(dtype)
            what = f"zarr cannot represent its data type or codecs ({kind}): {error}"
            raise self._unsupported_error(path, what) from error

    def _convert_filters(
        self, dataset: Any, path: str, code: int, name: bytes
    ) -> list[dict[str, Any]]:
        try:
            return [codec.get_config() for codec in codecs_from_dataset(h5py.Dataset(dataset))]
        except Exception as error:
            hint = "install hdf5plugin and imagecodecs, or " if code > _LAST_BUILTIN_FILTER else ""
            what = f"HDF5 filter {code} ({name.decode(errors='replace')}) has no codec here"
            raise self._unsupported_error(path, what, hint) from error

    def _collect_refs(
        self, dataset: Any, create: Any, layout: int, chunk_shape: Sequence[int], path: str
    ) -> ArrayManifest:
        if layout == h5d.VIRTUAL or create.get_external_count():
            raise self._unsupported_error(path, "its values are in other files")
        ndim = len(chunk_shape)
        if layout != h5d.CHUNKED:
            offset, size = dataset.get_offset(), dataset.get_storage_size()
            if offset is None or not size:
                return self._refs.empty(ndim)
            return self._refs.build(np.zeros((1, ndim), np.uint32), [offset], [size])
        found: list[Any] = []
        if dataset.get_num_chunks():
            dataset.chunk_iter(found.append)
        if any(info.filter_mask for info in found):
            raise self._unsupported_error(path, "some of its chunks skip filters")
        starts = np.array([info.chunk_offset for info in found], np.int64).reshape(-1, ndim)
        coords = compute_chunk_indices(starts, chunk_shape)
        offsets, sizes = [info.byte_offset for info in found], [info.size for info in found]
        return self._refs.build(coords, offsets, sizes)

    def _load_strings(
        self, dataset: Any, attributes: dict[str, Any], dims: Sequence[str]
    ) -> AnyArray:
        found = h5py.Dataset(dataset).asstr()[...]
        attributes.pop("_FillValue", None)  # unused by readers, and not valid JSON for zarr
        template, shape = get_array_template(np.dtype("i1"), [], 0, len(dims)), dataset.shape
        metadata = build_array_metadata(
            template, shape=shape, chunk_shape=shape, dims=dims, attributes=attributes
        )
        return LoadedArray.of(metadata, np.asarray(found, dtype=object))

    def _read_attributes(self, node: Any, dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index in range(h5a.get_num_attrs(node)):
            attribute = h5a.open(node, index=index)
            if attribute.name in _INTERNAL_ATTRIBUTES:
                continue
            if attribute.get_type().get_class() not in _ATTRIBUTE_CLASSES:
                continue  # object references and structures are meaningless outside the file
            name, value = attribute.name.decode(), _decode_attribute(attribute)
            if name == "_FillValue" and dtype is not None:
                value = encode_fill_value(value, dtype)
            found[name] = value
        return found

    def _find_dims(
        self, dataset: Any, name: str, shape: Sequence[int], phony: list[int], *, is_scale: bool
    ) -> list[str]:
        """Return dimension names: those of the attached dimension scales."""
        if is_scale and len(shape) == 1:
            return [name]
        if is_scale and h5a.exists(dataset, b"_Netcdf4Coordinates"):
            ids = _read_attribute(h5a.open(dataset, b"_Netcdf4Coordinates")).tolist()
            names = self._index_netcdf_dims()
            if len(ids) == len(shape) and all(dim_id in names for dim_id in ids):
                return [names[dim_id] for dim_id in ids]
        dims: list[str | None] = [None] * len(shape)
        if h5a.exists(dataset, b"DIMENSION_LIST"):
            for axis, scales in enumerate(_read_attribute(h5a.open(dataset, b"DIMENSION_LIST"))):
                if len(scales):
                    path = h5r.get_name(scales[0], self._file)
                    dims[axis] = None if path is None else path.decode().rpartition("/")[2]
        taken: set[int] = set()
        return [
            self._name_phony_dim(length, phony, taken) if name is None else name
            for name, length in zip(dims, shape, strict=True)
        ]

    def _index_netcdf_dims(self) -> dict[int, str]:
        """Return NetCDF dimension names by id, needed for scales with several axes."""
        if self._netcdf_dims is None:
            names: dict[int, str] = {}

            def visit(path: bytes, _: object) -> None:
                node = h5o.open(self._file, path)
                is_scale = isinstance(node, h5d.DatasetID) and h5ds.is_scale(node)
                if is_scale and h5a.exists(node, b"_Netcdf4Dimid"):
                    number = int(_read_attribute(h5a.open(node, b"_Netcdf4Dimid")).reshape(-1)[0])
                    names[number] = path.decode().rpartition("/")[2]

            h5o.visit(self._file, visit, info=True)
            self._netcdf_dims = names
        return self._netcdf_dims

    @staticmethod
    def _name_phony_dim(length: int, known: list[int], taken: set[int]) -> str:
        """Name an unnamed dimension as NetCDF does: one name per length."""
        unused = (index for index in range(len(known)) if index not in taken)
        number = next((index for index in unused if known[index] == length), len(known))
        if number == len(known):
            known.append(length)
        taken.add(number)
        return f"phony_dim_{number}"


def _read_attribute(attribute: Any) -> NDArray[Any]:
    found = np.empty(attribute.shape, attribute.dtype)
    attribute.read(found)
    return found


def _is_only_dimension(scale: Any) -> bool:
    """Whether NetCDF4 wrote a dimension scale for a dimension without a variable."""
    found = _read_attribute(h5a.open(scale, b"NAME")) if h5a.exists(scale, b"NAME") else np.empty(0)
    value = found.item() if found.size == 1 else None
    label = value.encode() if isinstance(value, str) else value
    return isinstance(label, bytes) and label.startswith(_NO_VARIABLE)


def _decode_attribute(attribute: Any) -> Any:
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return ""
    found = _read_attribute(attribute)
    if found.dtype.kind in "SO":
        texts = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            for text in found.reshape(-1).tolist()
        ]
        return texts[0] if found.size == 1 else texts
    return found.reshape(-1).tolist()[0] if found.size == 1 else found.tolist()


def _read_fill_value(create: Any, dtype: np.dtype[Any]) -> Any:
    found = np.zeros((), dtype)
    create.get_fill_value(found)
    return found.item()


def _read_values(dataset: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.empty(shape, dtype)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values)
    return values.astype(dtype.newbyteorder("="))


def _format_type(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return f"compound ({', '.join(dtype.names)})"
    if dtype.kind == "O":
        return "variable length or reference"
    return str(dtype)
