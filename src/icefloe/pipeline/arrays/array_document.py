"""Array metadata (``zarr.json``) and edits of its chunks, codecs and data type. Pure.

Edits change nothing else: attributes, dimension names, fill value, codecs and fields of Zarr
extensions are kept. Zarr v3 core spec, "Array metadata".
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zarr
from zarr.core.metadata import ArrayV3Metadata
from zarr.errors import UnstableSpecificationWarning, ZarrUserWarning

from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays.boxes import format_shape
from icefloe.pipeline.arrays.number_attributes import (
    MISSING_VALUE_ATTRIBUTES,
    encode_float_fill,
    read_missing_numbers,
)
from icefloe.spark.option_parsing import suggest_name

if TYPE_CHECKING:
    from icefloe.errors import InvalidInputError
    from icefloe.model.node import NodeSnapshot

Shape = tuple[int, ...]
ChunkSpec = Mapping[str, int] | Sequence[int]
"""Lengths by dimension name (others are unchanged), or a tuple; -1 is a whole dimension."""

CODECS: Final = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
)
"""Default codecs of copied chunks, used instead of those of source files."""

_TEXT_BYTES: Final = 64
"""Assumed in-memory size of a variable-length item."""

_SHARDING: Final = "sharding_indexed"
_INDEX_CODECS: Final = [CODECS[0], {"name": "crc32c"}]
_TYPE_INDEPENDENT: Final = frozenset({"transpose", "zstd", "gzip", "crc32c", "blosc"})
"""Codecs that do not depend on the data type."""


@dataclass(frozen=True, slots=True)
class ArrayDocument:
    """The path of an array and its parsed ``zarr.json``, which is never modified."""

    path: str
    document: Mapping[str, Any]

    @classmethod
    def of(cls, node: NodeSnapshot) -> ArrayDocument:
        """Parse the metadata of a repository node."""
        return cls(node.path.value, json.loads(node.user_data))

    @classmethod
    def from_zarr(cls, path: str, array: Any) -> ArrayDocument:
        """Return the metadata of a Zarr array, with another path."""
        prototype = zarr.core.buffer.default_buffer_prototype()
        stored = array.metadata.to_buffer_dict(prototype)["zarr.json"].to_bytes()
        return cls(path, json.loads(stored))

    @property
    def shape(self) -> Shape:
        """The array shape."""
        return tuple(self.document["shape"])

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """The name of each dimension, None if unnamed."""
        return tuple(self.document.get("dimension_names") or (None,) * len(self.shape))

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimension names, with ``dim_N`` for unnamed ones."""
        return tuple(
            f"dim_{axis}" if name is None else name
            for axis, name in enumerate(self.dimension_names)
        )

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The user attributes."""
        return self.document.get("attributes") or {}

    @property
    def is_packed(self) -> bool:
        """Whether numbers are packed by ``scale_factor`` or ``add_offset``."""
        return bool({"scale_factor", "add_offset"} & self.attributes.keys())

    @property
    def is_coordinate(self) -> bool:
        """Whether this is a dimension coordinate: its only dimension has the name of the array."""
        return self.dimension_names == (self.path.rpartition("/")[2],)

    def select_lengths(self, spec: Any) -> Any:
        """Return only lengths of dimensions that the array has; a tuple is returned unchanged."""
        if not isinstance(spec, Mapping):
            return spec
        return {name: spec[name] for name in self.dimension_names if name in spec}

    @property
    def write_unit(self) -> Shape:
        """The shape of one stored object: a shard, or a chunk without sharding."""
        grid = self.document["chunk_grid"]
        if grid["name"] != "regular":
            raise array_error(
                f"{self.path}: chunk grid {grid['name']!r} is not supported: copy the array "
                "into a regular chunk grid first"
            )
        return tuple(grid["configuration"]["chunk_shape"])

    @property
    def shards(self) -> Shape | None:
        """The shard shape, None without sharding."""
        return None if self._sharding is None else self.write_unit

    @property
    def chunks(self) -> Shape:
        """The chunk shape; with sharding, the inner chunk shape."""
        inner = self._sharding
        return self.write_unit if inner is None else tuple(inner["configuration"]["chunk_shape"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The in-memory data type."""
        dtype: np.dtype[Any] = self.parse_metadata().dtype.to_native_dtype()
        return dtype

    @property
    def item_bytes(self) -> int:
        """The in-memory size of an item; an estimate for variable-length strings."""
        return get_item_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """The in-memory size of the array."""
        return prod(self.shape) * self.item_bytes

    def to_bytes(self) -> bytes:
        """Encode the document as JSON."""
        return json.dumps(self.document).encode()

    def parse_metadata(self) -> ArrayV3Metadata:
        """Parse the document with Zarr; raise `InvalidInputError` if Zarr rejects it."""
        try:
            with warnings.catch_warnings():
                # Zarr warned at creation, and the codecs of source files cannot be changed.
                warnings.simplefilter("ignore", UnstableSpecificationWarning)
                warnings.simplefilter("ignore", ZarrUserWarning)
                return ArrayV3Metadata.from_dict(dict(self.document))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise array_error(f"{self.path}: {error}") from error

    def with_path(self, path: str) -> ArrayDocument:
        """Return the same metadata at another path."""
        return replace(self, path=path)

    def with_shape(self, shape: Sequence[int]) -> ArrayDocument:
        """Return the metadata with another shape."""
        return replace(self, document={**self.document, "shape": list(shape)})

    def with_chunks(
        self,
        chunks: ChunkSpec | None = None,
        shards: ChunkSpec | bool | None = None,  # noqa: FBT001 - False means unsharded
        codecs: Sequence[Any] | None = None,
    ) -> ArrayDocument:
        """Return the metadata with other chunks, shards or codecs; None leaves them unchanged.

        ``shards`` is False for no sharding; ``codecs`` are Zarr codecs or their metadata. Raises
        `InvalidInputError` if the shapes do not fit the array or each other.
        """
        inner = (
            self.chunks if chunks is None else self._resolve_lengths("chunks", chunks, self.chunks)
        )
        outer = self.shards
        if shards is False:
            outer = None
        elif shards is not None and shards is not True:
            outer = self._resolve_lengths("shards", shards, outer or inner)
        if outer is not None and any(
            shard % chunk for shard, chunk in zip(outer, inner, strict=True)
        ):
            raise self._error(
                f"shards of {format_shape(outer)} are not a multiple of chunks of "
                f"{format_shape(inner)}; pass other shards, or shards=False for no sharding"
            )
        sharding = self._sharding
        chain = self.document["codecs"] if sharding is None else sharding["configuration"]["codecs"]
        if codecs is not None:
            chain = [codec if isinstance(codec, Mapping) else codec.to_dict() for codec in codecs]
        if outer is not None:
            settings = {} if sharding is None else sharding["configuration"]
            chain = [
                {
                    "name": _SHARDING,
                    "configuration": {
                        "index_codecs": _INDEX_CODECS,
                        "index_location": "end",
                        **settings,
                        "chunk_shape": list(inner),
                        "codecs": chain,
                    },
                }
            ]
        grid = {"name": "regular", "configuration": {"chunk_shape": list(outer or inner)}}
        changed = replace(
            self, document={**self.document, "chunk_grid": grid, "codecs": list(chain)}
        )
        changed.parse_metadata()
        return changed

    def with_dtype(self, dtype: Any) -> ArrayDocument:
        """Return the metadata with another data type of the same kind.

        The serializer becomes the default of the type. Raises `InvalidInputError` if the fill value
        does not fit, or a codec may depend on the data type.
        """
        try:
            target = np.dtype(dtype)
        except TypeError as error:
            raise self._error(f"{dtype!r} is not a data type: {error}") from error
        if target == self.dtype:
            return self
        if not np.can_cast(self.dtype, target, "same_kind"):
            raise self._error(
                f"cannot convert {self.dtype} to {target} without changing values; compute a new "
                "array instead"
            )
        fill = np.asarray(self.parse_metadata().fill_value)
        cast = fill.astype(target)
        if not np.array_equal(cast.astype(fill.dtype), fill, equal_nan=fill.dtype.kind in "fcmM"):
            raise self._error(f"fill value {fill[()]!r} does not fit {target}")
        attributes = self._retype_attributes(target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnstableSpecificationWarning)
            model = zarr.create_array(
                zarr.storage.MemoryStore(), shape=(1,), dtype=target, fill_value=cast[()]
            )
        template = ArrayDocument.from_zarr(self.path, model).document
        serializer = next(
            codec for codec in template["codecs"] if codec["name"] not in {"zstd", "transpose"}
        )
        sharding = self._sharding
        chain = self.document["codecs"] if sharding is None else sharding["configuration"]["codecs"]
        codecs = [self._retype_codec(codec, serializer, target.itemsize) for codec in chain]
        if sharding is not None:
            settings = {**sharding["configuration"], "codecs": codecs}
            codecs = [{**sharding, "configuration": settings}]
        changed = replace(
            self,
            document={
                **self.document,
                "attributes": attributes,
                "data_type": template["data_type"],
                "fill_value": template["fill_value"],
                "codecs": codecs,
            },
        )
        changed.parse_metadata()
        return changed

    def _retype_attributes(self, target: np.dtype[Any]) -> dict[str, Any]:
        """Return the attributes with missing values converted to another data type."""
        attributes = dict(self.attributes)
        if "_Unsigned" in attributes:
            raise self._error(
                "the attribute _Unsigned changes the signedness of values: keep the data type, "
                "or ingest as floating point"
            )
        for name in MISSING_VALUE_ATTRIBUTES if self.dtype.kind in "iuf" else ():
            numbers = read_missing_numbers({name: attributes.get(name)}, self.dtype, self.dtype)
            for number in numbers:
                with np.errstate(over="ignore"):
                    cast = np.array(number).astype(target)
                # Floats are rounded like the data.
                is_valid = np.isfinite(cast) == np.isfinite(number)
                if not is_valid or (self.dtype.kind != "f" and cast.astype(self.dtype) != number):
                    raise self._error(f"attribute {name} = {number!r} does not fit {target}")
                if target.kind == "f":
                    is_fill = name == "_FillValue"
                    attributes[name] = encode_float_fill(float(cast)) if is_fill else float(cast)
        return attributes

    @property
    def _sharding(self) -> Mapping[str, Any] | None:
        codecs = self.document["codecs"]
        if len(codecs) == 1 and codecs[0]["name"] == _SHARDING:
            sharding: Mapping[str, Any] = codecs[0]
            return sharding
        return None

    def _retype_codec(self, codec: Any, serializer: Any, item_bytes: int) -> Any:
        name = codec["name"]
        if name in {"bytes", "vlen-utf8", "vlen-bytes"}:
            return serializer
        settings = codec.get("configuration") or {}
        if name == "blosc" and "typesize" in settings:
            return {**codec, "configuration": {**settings, "typesize": item_bytes}}
        if name in _TYPE_INDEPENDENT:
            return codec
        raise self._error(
            f"codec {name!r} may depend on the data type: pass a replacement as codecs=[…]"
        )

    def _resolve_lengths(self, what: str, spec: ChunkSpec, current: Shape) -> Shape:
        shape, names = self.shape, self.dimension_names
        lengths: list[Any]
        if isinstance(spec, Mapping):
            unknown = [name for name in spec if name not in names]
            if unknown:
                hint = suggest_name(unknown[0], (str(name) for name in names))
                raise self._error(f"{what}: unknown dimension {unknown[0]!r}; {hint}")
            lengths = [
                spec.get(name, length) if name is not None else length
                for name, length in zip(names, current, strict=True)
            ]
        else:
            try:
                lengths = list(spec)
            except TypeError as error:
                raise self._error(
                    f"{what} must be a mapping of lengths by dimension or a tuple, not {spec!r}"
                ) from error
        if len(lengths) != len(shape):
            raise self._error(
                f"{what} {tuple(lengths)} do not match the {len(shape)} dimensions of the array"
            )
        for length in lengths:
            if isinstance(length, bool) or not isinstance(length, int | np.integer):
                raise self._error(f"{what} {tuple(lengths)} must be integers")
            if length < 1 and length != -1:
                raise self._error(
                    f"{what} {tuple(lengths)} must be positive, or -1 for a whole dimension"
                )
        return tuple(
            max(1, size) if length == -1 else int(length)
            for length, size in zip(lengths, shape, strict=True)
        )

    def _error(self, problem: str) -> InvalidInputError:
        return array_error(f"{self.path}: {problem}")


def get_item_bytes(dtype: np.dtype[Any]) -> int:
    """Return the in-memory size of an item; an estimate for variable-length strings."""
    return _TEXT_BYTES if dtype.kind in "OT" else max(1, dtype.itemsize)
