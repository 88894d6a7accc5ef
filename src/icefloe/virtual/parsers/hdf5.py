"""Parser of HDF5 and NetCDF4 files: one pass with the low-level API of h5py.

Several times faster than VirtualiZarr's parser, which opens each object several times and builds
zarr metadata per array. This parser also supports compact storage, and rejects external files and
chunks that skip filters. VirtualiZarr converts HDF5 filters other than shuffle and deflate.
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
from icefloe.virtual.parse_errors import file_format_error, unsupported_error
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
"""Attributes in which HDF5 and the NetCDF4 library store dimensions and their own properties."""
_DIMENSION_ONLY: Final = b"This is a netCDF dimension but not a netCDF variable"
_DEFLATE: Final = 1
_SHUFFLE: Final = 2
_LAST_BUILTIN_FILTER: Final = 255
"""Filters with a larger number are plugins."""
_ATTRIBUTE_CLASSES: Final = frozenset({h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM})


def parse(source: OpenSource, request: ParseRequest) -> VirtualDataset:
    """Parse a file.

    Raises `FormatError` if it is damaged, `InvalidInputError` if a variable is not supported.
    """
    refs = FileRefBuilder(request.source, request.checksum)
    try:
        if source.path is not None:
            with closing(_open_file(source.path)) as file_id:
                return _FileParser(file_id, request, refs).parse()
        with (
            source.open_reader(request.source.size_bytes or 0) as reader,
            h5py.File(reader, "r") as file,
        ):
            return _FileParser(file.id, request, refs).parse()
    except IcefloeError:
        raise
    except FileNotFoundError as error:
        raise not_found_error(source.url) from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        # h5py raises many kinds of errors for invalid bytes.
        raise file_format_error(source.url, f"is damaged or truncated: {error}") from error


def _open_file(path: str) -> Any:
    # Without file locks: other processes may hold one, and some file systems do not support them.
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_file_locking(False, True)
    try:
        return h5f.open(path.encode(), h5f.ACC_RDONLY, access)
    except OSError as error:
        if "match" not in str(error):
            raise
        # This process, for example xarray, has the file open with the default settings: use those.
        return h5f.open(path.encode(), h5f.ACC_RDONLY)


class _FileParser:
    """Parses an open file in one pass."""

    def __init__(self, file: Any, request: ParseRequest, refs: FileRefBuilder) -> None:
        self._file = file
        self._request = request
        self._refs = refs
        self._groups: dict[str, dict[str, Any]] = {}
        self._arrays: dict[str, AnyArray] = {}
        self._netcdf_dims: dict[int, str] | None = None

    def _unsupported_error(self, path: str, problem: str, hint: str = "") -> InvalidInputError:
        return unsupported_error(self._request.url, path, problem, hint)

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
        self._parse_group(root, "", frozenset())
        return VirtualDataset((self._request.source,), self._groups, self._arrays)

    def _parse_group(self, group: Any, path: str, ancestors: frozenset[object]) -> None:
        """Parse a group and the groups below it, except a group that is its own ancestor."""
        address = h5o.get_info(group).addr
        if address in ancestors:
            return
        self._groups[path] = self._read_attributes(group)
        phony: list[int] = []
        groups: list[tuple[str, Any]] = []
        datasets: dict[str, Any] = {}
        for raw_name in group:
            # NetCDF4 adds this prefix to a variable that has the name of a dimension but is not its
            # coordinate.
            name = raw_name.decode("utf-8", "replace").removeprefix("_nc4_non_coord_")
            child_path = f"{path}/{name}" if path else name
            if self._request.is_dropped(child_path):
                continue
            if group.links.get_info(raw_name).type != h5l.TYPE_HARD:
                continue  # external links refer to other files; soft links are aliases
            child = h5o.open(group, raw_name)
            if isinstance(child, h5g.GroupID):
                groups.append((child_path, child))
            elif isinstance(child, h5d.DatasetID):
                array = self._parse_array(child, child_path, phony)
                if array is not None:
                    self._arrays[child_path] = array
                    datasets[child_path] = child
        for child_path in self._request.find_bounds_to_load(self._arrays, datasets):
            dataset = datasets[child_path]
            values = _read_values(dataset, dataset.shape, dataset.dtype)
            self._arrays[child_path] = LoadedArray.of(self._arrays[child_path].metadata, values)
        for child_path, child in groups:
            self._parse_group(child, child_path, ancestors | {address})

    def _parse_array(self, dataset: Any, path: str, phony: list[int]) -> AnyArray | None:
        is_scale = h5ds.is_scale(dataset)
        if is_scale and _is_only_dimension(dataset):
            return None
        if dataset.get_space().get_simple_extent_type() == h5s.NULL:
            raise self._unsupported_error(path, "it has no shape and no values")
        dtype, shape = dataset.dtype, dataset.shape
        creation = dataset.get_create_plist()
        layout = creation.get_layout()
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
            problem = f"values of type {_format_type(dtype)} cannot be stored"
            raise self._unsupported_error(path, problem)
        chunk = creation.get_chunk() if layout == h5d.CHUNKED else shape
        template = self._build_template(dataset, creation, dtype, path, len(shape))
        metadata = build_array_metadata(
            template, shape=shape, chunk_shape=chunk, dims=dims, attributes=attributes
        )
        # Compact storage is in the object header and has no address to refer to.
        if is_loadable or layout == h5d.COMPACT:
            return LoadedArray.of(metadata, _read_values(dataset, shape, dtype))
        return VirtualArray(metadata, self._collect_refs(dataset, creation, layout, chunk, path))

    def _build_template(
        self, dataset: Any, creation: Any, dtype: np.dtype[Any], path: str, ndim: int
    ) -> dict[str, Any]:
        codecs: list[dict[str, Any]] = []
        for number in range(creation.get_nfilters()):
            code, _, values, name = creation.get_filter(number)
            # Nearly all files have only these two; VirtualiZarr converts all filters otherwise.
            if code == _SHUFFLE:
                codecs.append({"id": "shuffle", "elementsize": int(values[0])})
            elif code == _DEFLATE:
                codecs.append({"id": "zlib", "level": int(values[0])})
            else:
                codecs = self._convert_filters(dataset, path, code, name)
                break
        try:
            return get_array_template(dtype, codecs, _read_fill_value(creation, dtype), ndim)
        except Exception as error:
            kind = _format_type(dtype)
            problem = f"zarr cannot represent its data type or codecs ({kind}): {error}"
            raise self._unsupported_error(path, problem) from error

    def _convert_filters(
        self, dataset: Any, path: str, code: int, name: bytes
    ) -> list[dict[str, Any]]:
        try:
            return [codec.get_config() for codec in codecs_from_dataset(h5py.Dataset(dataset))]
        except Exception as error:
            hint = "install hdf5plugin and imagecodecs, or " if code > _LAST_BUILTIN_FILTER else ""
            problem = f"no codec for HDF5 filter {code} ({name.decode(errors='replace')})"
            raise self._unsupported_error(path, problem, hint) from error

    def _collect_refs(
        self, dataset: Any, creation: Any, layout: int, chunk_shape: Sequence[int], path: str
    ) -> ArrayManifest:
        if layout == h5d.VIRTUAL or creation.get_external_count():
            raise self._unsupported_error(path, "its values are in other files")
        ndim = len(chunk_shape)
        if layout != h5d.CHUNKED:
            offset, size = dataset.get_offset(), dataset.get_storage_size()
            if offset is None or not size:
                return self._refs.build_empty(ndim)
            return self._refs.build(np.zeros((1, ndim), np.uint32), [offset], [size])
        chunks: list[Any] = []
        if dataset.get_num_chunks():
            dataset.chunk_iter(chunks.append)
        if any(chunk.filter_mask for chunk in chunks):
            raise self._unsupported_error(path, "some of its chunks skip filters")
        starts = np.array([chunk.chunk_offset for chunk in chunks], np.int64).reshape(-1, ndim)
        coords = compute_chunk_indices(starts, chunk_shape)
        offsets, sizes = [chunk.byte_offset for chunk in chunks], [chunk.size for chunk in chunks]
        return self._refs.build(coords, offsets, sizes)

    def _load_strings(
        self, dataset: Any, attributes: dict[str, Any], dims: Sequence[str]
    ) -> AnyArray:
        values = h5py.Dataset(dataset).asstr()[...]
        attributes.pop("_FillValue", None)  # unused, and zarr cannot encode it as JSON
        template, shape = get_array_template(np.dtype("i1"), [], 0, len(dims)), dataset.shape
        metadata = build_array_metadata(
            template, shape=shape, chunk_shape=shape, dims=dims, attributes=attributes
        )
        return LoadedArray.of(metadata, np.asarray(values, dtype=object))

    def _read_attributes(self, node: Any, dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for index in range(h5a.get_num_attrs(node)):
            attribute = h5a.open(node, index=index)
            if attribute.name in _INTERNAL_ATTRIBUTES:
                continue
            if attribute.get_type().get_class() not in _ATTRIBUTE_CLASSES:
                continue  # object references and structures are meaningless outside the file
            name, value = attribute.name.decode(), _decode_attribute(attribute)
            if name == "_FillValue" and dtype is not None:
                value = encode_fill_value(value, dtype)
            attributes[name] = value
        return attributes

    def _find_dims(
        self, dataset: Any, name: str, shape: Sequence[int], phony: list[int], *, is_scale: bool
    ) -> list[str]:
        """Return dimension names: those of the dimension scales, phony names without a scale."""
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
        used: set[int] = set()
        return [
            self._name_phony_dim(length, phony, used) if name is None else name
            for name, length in zip(dims, shape, strict=True)
        ]

    def _index_netcdf_dims(self) -> dict[int, str]:
        """Return NetCDF dimension names by id, for dimension scales with several axes."""
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
    def _name_phony_dim(length: int, phony: list[int], used: set[int]) -> str:
        """Name a dimension by its length as NetCDF does; ``phony`` are the lengths in the group."""
        unused = (index for index in range(len(phony)) if index not in used)
        number = next((index for index in unused if phony[index] == length), len(phony))
        if number == len(phony):
            phony.append(length)
        used.add(number)
        return f"phony_dim_{number}"


def _read_attribute(attribute: Any) -> NDArray[Any]:
    values = np.empty(attribute.shape, attribute.dtype)
    attribute.read(values)
    return values


def _is_only_dimension(scale: Any) -> bool:
    """Return whether a dimension scale is a NetCDF4 dimension without a variable."""
    names = _read_attribute(h5a.open(scale, b"NAME")) if h5a.exists(scale, b"NAME") else np.empty(0)
    value = names.item() if names.size == 1 else None
    label = value.encode() if isinstance(value, str) else value
    return isinstance(label, bytes) and label.startswith(_DIMENSION_ONLY)


def _decode_attribute(attribute: Any) -> Any:
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return ""
    values = _read_attribute(attribute)
    if values.dtype.kind in "SO":
        texts = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            for text in values.reshape(-1).tolist()
        ]
        return texts[0] if values.size == 1 else texts
    return values.reshape(-1).tolist()[0] if values.size == 1 else values.tolist()


def _read_fill_value(creation: Any, dtype: np.dtype[Any]) -> Any:
    value = np.zeros((), dtype)
    creation.get_fill_value(value)
    return value.item()


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
