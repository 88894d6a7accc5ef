"""HDF5 and NetCDF4 files: one walk through h5py's low-level interface.

VirtualiZarr's parser gives the same result, at several times the cost for a file of usual size (it
opens every object several times, and asks zarr for each array); and it leaves out what this has to
refuse or to read: compact storage, chunks that skip filters, external files. What HDF5's filters
are to Zarr is still its word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5g, h5l, h5o, h5p, h5r, h5s, h5t
from virtualizarr.parsers.hdf.filters import codecs_from_dataset

from icefloe.errors import ErrorKind, FormatError, IcefloeError, NodeNotFoundError
from icefloe.virtual.dataset import LoadedArray, VirtualArray, VirtualDataset
from icefloe.virtual.file_refs import FileRefs, chunk_coords
from icefloe.virtual.parsers.array_metadata import (
    array_metadata,
    array_template,
    fill_value_attribute,
    unsupported,
)
from icefloe.virtual.sources import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest
    from icefloe.virtual.dataset import AnyArray
    from icefloe.virtual.request import ParseRequest
    from icefloe.virtual.sources import OpenSource

_HIDDEN: Final = frozenset(
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
"""How HDF5 and the NetCDF4 library keep dimensions: no attributes of the user's."""
_NO_VARIABLE: Final = b"This is a netCDF dimension but not a netCDF variable"
_PLAIN_ATTRIBUTES: Final = frozenset({h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM})


def parse(source: OpenSource, request: ParseRequest) -> VirtualDataset:
    """Parse a file.

    Raises
    ------
    FormatError
        If the file is damaged or cut off.
    InvalidInputError
        If a variable cannot be referenced.
    """
    refs = FileRefs(request.source, request.checksum)
    try:
        if source.path is not None:
            file = _opened(source.path)
            try:
                return _Walk(file, request, refs).parse()
            finally:
                file.close()
        with (
            source.reader(request.source.size_bytes or 0) as reader,
            h5py.File(reader, "r") as opened,
        ):
            return _Walk(opened.id, request, refs).parse()
    except IcefloeError:
        raise
    except FileNotFoundError as error:
        raise missing(source.url) from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        # What h5py raises where bytes make no sense is of many kinds.
        raise FormatError(
            f"is damaged or cut off: {error}", file=source.url, kind=ErrorKind.INVALID_FILE_FORMAT
        ) from error


def _opened(path: str) -> Any:
    # Other processes may have it open, and a read-only file system has no locks.
    alone = h5p.create(h5p.FILE_ACCESS)
    alone.set_fclose_degree(h5f.CLOSE_STRONG)
    alone.set_file_locking(False, True)
    try:
        return h5f.open(path.encode(), h5f.ACC_RDONLY, alone)
    except OSError as error:
        if "match" not in str(error):
            raise
        # This process has it open in another way, as xarray keeps files open: then in that way.
        return h5f.open(path.encode(), h5f.ACC_RDONLY)


class _Walk:
    """One pass over a file that is open."""

    def __init__(self, file: Any, request: ParseRequest, refs: FileRefs) -> None:
        self._file = file
        self._request = request
        self._refs = refs
        self._groups: dict[str, dict[str, Any]] = {}
        self._arrays: dict[str, AnyArray] = {}
        self._names_of_dims: dict[int, str] | None = None

    def parse(self) -> VirtualDataset:
        path = self._request.group
        try:
            root = h5o.open(self._file, f"/{path}".encode())
        except KeyError as error:
            if not path:
                raise OSError("its root group cannot be read") from error
            root = None
        if not isinstance(root, h5g.GroupID):
            raise NodeNotFoundError(
                f"{self._request.url}: there is no group {path!r} in the file",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        self._walk(root, "", frozenset())
        return VirtualDataset((self._request.source,), self._groups, self._arrays)

    def _walk(self, group: Any, path: str, above: frozenset[object]) -> None:
        """Take a group and those below it, but for one that contains itself."""
        address = h5o.get_info(group).addr
        if address in above:
            return
        self._groups[path] = self._attributes(group)
        phony: list[int] = []
        groups: list[tuple[str, Any]] = []
        datasets: dict[str, Any] = {}
        for raw_name in group:
            # A variable that has the name of a dimension, and is not its coordinate.
            name = raw_name.decode("utf-8", "replace").removeprefix("_nc4_non_coord_")
            below = f"{path}/{name}" if path else name
            if self._request.is_dropped(below):
                continue
            if group.links.get_info(raw_name).type != h5l.TYPE_HARD:
                # What lies in another file has other offsets; what a soft link names is elsewhere
                # in this one.
                continue
            found = h5o.open(group, raw_name)
            if isinstance(found, h5g.GroupID):
                groups.append((below, found))
            elif isinstance(found, h5d.DatasetID):
                array = self._array(found, below, phony)
                if array is not None:
                    self._arrays[below] = array
                    datasets[below] = found
        for below in self._request.bounds_to_load(self._arrays, datasets):
            found = datasets[below]
            values = _read(found, found.shape, found.dtype)
            self._arrays[below] = LoadedArray.of(self._arrays[below].metadata, values)
        for below, found in groups:
            self._walk(found, below, above | {address})

    def _array(self, dataset: Any, path: str, phony: list[int]) -> AnyArray | None:
        is_scale = h5ds.is_scale(dataset)
        if is_scale and h5a.exists(dataset, b"NAME"):
            label = _text(dataset, b"NAME")
            if label is not None and label.startswith(_NO_VARIABLE):
                return None
        if dataset.get_space().get_simple_extent_type() == h5s.NULL:
            raise unsupported(self._request.url, path, "it has no shape and no values")
        dtype, shape = dataset.dtype, dataset.shape
        create = dataset.get_create_plist()
        layout = create.get_layout()
        attributes = self._attributes(dataset, dtype)
        dims = self._dims(dataset, path.rpartition("/")[2], shape, phony, is_scale=is_scale)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        wanted = self._request.is_loadable(path, dims, size_bytes)
        if h5t.check_string_dtype(dtype) is not None and dtype.kind == "O":
            if not wanted:
                raise unsupported(
                    self._request.url,
                    path,
                    "strings of variable length lie in a heap of the file, where nothing can refer "
                    "to them",
                    f"copy their values with loadable_variables=[{path!r}, …], or ",
                )
            return self._strings(dataset, attributes, dims)
        if dtype.kind in "OV" or dtype.names is not None:
            raise unsupported(
                self._request.url, path, f"values of type {_type_name(dtype)} cannot be stored"
            )
        chunk_shape = create.get_chunk() if layout == h5d.CHUNKED else shape
        template = self._template(dataset, create, dtype, path, len(shape))
        metadata = array_metadata(
            template,
            shape=shape,
            chunk_shape=chunk_shape,
            dimension_names=dims,
            attributes=attributes,
        )
        # Compact storage is a part of the dataset's own header, without an address.
        if wanted or layout == h5d.COMPACT:
            return LoadedArray.of(metadata, _read(dataset, shape, dtype))
        return VirtualArray(metadata, self._chunks(dataset, create, layout, chunk_shape, path))

    def _template(
        self, dataset: Any, create: Any, dtype: np.dtype[Any], path: str, ndim: int
    ) -> dict[str, Any]:
        codecs: list[dict[str, Any]] = []
        for number in range(create.get_nfilters()):
            code, _, values, name = create.get_filter(number)
            # The two that nearly all files have; for others VirtualiZarr looks at all of them.
            if code == _SHUFFLE:
                codecs.append({"id": "shuffle", "elementsize": int(values[0])})
            elif code == _DEFLATE:
                codecs.append({"id": "zlib", "level": int(values[0])})
            else:
                codecs = self._other_codecs(dataset, path, code, name)
                break
        try:
            return array_template(dtype, codecs, _fill_value(create, dtype), ndim)
        except Exception as error:
            raise unsupported(
                self._request.url,
                path,
                f"zarr has no codec or no type for it ({_type_name(dtype)}): {error}",
            ) from error

    def _other_codecs(
        self, dataset: Any, path: str, code: int, name: bytes
    ) -> list[dict[str, Any]]:
        try:
            return [codec.get_config() for codec in codecs_from_dataset(h5py.Dataset(dataset))]
        except Exception as error:
            hint = "install hdf5plugin and imagecodecs, or " if code > _LAST_OWN_FILTER else ""
            raise unsupported(
                self._request.url,
                path,
                f"HDF5 filter {code} ({name.decode(errors='replace')}) has no codec here",
                hint,
            ) from error

    def _chunks(
        self, dataset: Any, create: Any, layout: int, chunk_shape: Sequence[int], path: str
    ) -> ArrayManifest:
        if layout == h5d.VIRTUAL or create.get_external_count():
            raise unsupported(self._request.url, path, "its values lie in other files")
        ndim = len(chunk_shape)
        if layout != h5d.CHUNKED:
            offset = dataset.get_offset()
            size = dataset.get_storage_size()
            if offset is None or not size:
                return self._refs.none(ndim)
            return self._refs.of(np.zeros((1, ndim), np.uint32), [offset], [size])
        found: list[Any] = []
        if dataset.get_num_chunks():
            dataset.chunk_iter(found.append)
        if any(info.filter_mask for info in found):
            raise unsupported(
                self._request.url, path, "some of its chunks skip filters that others have"
            )
        starts = np.array([info.chunk_offset for info in found], np.int64).reshape(-1, ndim)
        return self._refs.of(
            chunk_coords(starts, chunk_shape),
            [info.byte_offset for info in found],
            [info.size for info in found],
        )

    def _strings(self, dataset: Any, attributes: dict[str, Any], dims: Sequence[str]) -> AnyArray:
        found = h5py.Dataset(dataset).asstr()[...]
        attributes.pop("_FillValue", None)  # of no use to readers, and no JSON in Zarr's eyes
        metadata = array_metadata(
            array_template(np.dtype("i1"), [], 0, len(dims)),
            shape=dataset.shape,
            chunk_shape=dataset.shape,
            dimension_names=dims,
            attributes=attributes,
        )
        return LoadedArray.of(metadata, np.asarray(found, dtype=object))

    def _attributes(self, node: Any, dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index in range(h5a.get_num_attrs(node)):
            attribute = h5a.open(node, index=index)
            raw_name = attribute.name
            if raw_name in _HIDDEN:
                continue
            kind = attribute.get_type().get_class()
            if kind not in _PLAIN_ATTRIBUTES:
                continue  # references and structures mean something inside of this file only
            name = raw_name.decode()
            value = _attribute(attribute)
            if name == "_FillValue" and dtype is not None:
                value = fill_value_attribute(value, dtype)
            found[name] = value
        return found

    def _dims(
        self, dataset: Any, name: str, shape: Sequence[int], phony: list[int], *, is_scale: bool
    ) -> list[str]:
        """Tell the names of the dimensions: those of the scales that are attached to them."""
        if is_scale and len(shape) == 1:
            return [name]
        if is_scale and h5a.exists(dataset, b"_Netcdf4Coordinates"):
            ids = _values(h5a.open(dataset, b"_Netcdf4Coordinates")).tolist()
            names = self._dims_of_file()
            if len(ids) == len(shape) and all(one in names for one in ids):
                return [names[one] for one in ids]
        found: list[str | None] = [None] * len(shape)
        if h5a.exists(dataset, b"DIMENSION_LIST"):
            for axis, scales in enumerate(_values(h5a.open(dataset, b"DIMENSION_LIST"))):
                if len(scales):
                    path = h5r.get_name(scales[0], self._file)
                    found[axis] = None if path is None else path.decode().rpartition("/")[2]
        taken: set[int] = set()
        return [
            self._phony(length, phony, taken) if one is None else one
            for one, length in zip(found, shape, strict=True)
        ]

    def _dims_of_file(self) -> dict[int, str]:
        """Tell the NetCDF dimensions by their numbers: needed where a scale has several axes."""
        if self._names_of_dims is None:
            names: dict[int, str] = {}

            def note(path: bytes, _: object) -> None:
                node = h5o.open(self._file, path)
                if isinstance(node, h5d.DatasetID) and _is_scale(node):
                    number = int(_values(h5a.open(node, b"_Netcdf4Dimid")).reshape(-1)[0])
                    names[number] = path.decode().rpartition("/")[2]

            h5o.visit(self._file, note, info=True)
            self._names_of_dims = names
        return self._names_of_dims

    @staticmethod
    def _phony(length: int, known: list[int], taken: set[int]) -> str:
        """Name a dimension that has no name, as NetCDF does: one for each length."""
        for number, one in enumerate(known):
            if one == length and number not in taken:
                taken.add(number)
                return f"phony_dim_{number}"
        known.append(length)
        taken.add(len(known) - 1)
        return f"phony_dim_{len(known) - 1}"


_DEFLATE: Final = 1
_SHUFFLE: Final = 2
_LAST_OWN_FILTER: Final = 255
"""Filters with a greater number are registered by others, as plugins."""


def _is_scale(node: Any) -> bool:
    return bool(h5ds.is_scale(node)) and bool(h5a.exists(node, b"_Netcdf4Dimid"))


def _values(attribute: Any) -> NDArray[Any]:
    found = np.empty(attribute.shape, attribute.dtype)
    attribute.read(found)
    return found


def _text(node: Any, name: bytes) -> bytes | None:
    found = _values(h5a.open(node, name))
    value = found.item() if found.size == 1 else None
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


def _attribute(attribute: Any) -> Any:
    if attribute.get_space().get_simple_extent_type() == h5s.NULL:
        return ""
    found = _values(attribute)
    if found.dtype.kind in "SO":
        texts = [
            one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one)
            for one in found.reshape(-1).tolist()
        ]
        return texts[0] if found.size == 1 else texts
    return found.reshape(-1).tolist()[0] if found.size == 1 else found.tolist()


def _fill_value(create: Any, dtype: np.dtype[Any]) -> Any:
    found = np.zeros((), dtype)
    create.get_fill_value(found)
    return found.item()


def _read(dataset: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.empty(shape, dtype)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values)
    return values.astype(dtype.newbyteorder("="))


def _type_name(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return f"compound ({', '.join(dtype.names)})"
    if dtype.kind == "O":
        return "variable length or reference"
    return str(dtype)
