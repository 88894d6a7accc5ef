"""What the ``zarr.json`` of an array says about its chunks, and how it reads with other ones. Pure.

The document is edited, not made anew: attributes, dimension names, fill value, codecs and whatever
an extension of Zarr added stay as they are unless they are what is asked to change.
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

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.number_attributes import (
    MISSING,
    encode_float_fill,
    read_missing_numbers,
)

if TYPE_CHECKING:
    from icefloe.model.node import NodeSnapshot

Shape = tuple[int, ...]
ChunkSpec = Mapping[str, int] | Sequence[int]
"""Chunk lengths by the name of their dimension (others stay as they are), or one for each; -1
means the whole dimension."""

CODECS: Final = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
)
"""What native chunks are written with, unless somebody says otherwise: files have other codecs."""

_TEXT_BYTES: Final = 64
"""What an item of variable length is counted as in plans."""

_SHARDING: Final = "sharding_indexed"
_INDEX_CODECS: Final = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]


@dataclass(frozen=True, slots=True)
class ArrayDocument:
    """The metadata of one array.

    Parameters
    ----------
    path
        Where the array is.
    document
        Its ``zarr.json``, parsed; not to be changed.
    """

    path: str
    document: Mapping[str, Any]

    @classmethod
    def of(cls, node: NodeSnapshot) -> ArrayDocument:
        """Read the metadata of an array of a repository."""
        return cls(node.path.value, json.loads(node.user_data))

    @classmethod
    def from_zarr(cls, path: str, array: Any) -> ArrayDocument:
        """Read the metadata of an array of Zarr, for an array at a path."""
        prototype = zarr.core.buffer.default_buffer_prototype()
        stored = array.metadata.to_buffer_dict(prototype)["zarr.json"].to_bytes()
        return cls(path, json.loads(stored))

    @property
    def shape(self) -> Shape:
        """How many items there are along each dimension."""
        return tuple(self.document["shape"])

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """The name of each dimension, None where it has none."""
        return tuple(self.document.get("dimension_names") or (None,) * len(self.shape))

    @property
    def write_unit(self) -> Shape:
        """What is one object: a shard, or a chunk where there are no shards."""
        grid = self.document["chunk_grid"]
        if grid["name"] != "regular":
            raise InvalidInputError(
                f"{self.path}: its chunk grid is {grid['name']!r}; jobs work on arrays whose "
                "chunks all have one shape: copy it into one with a regular grid first",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return tuple(grid["configuration"]["chunk_shape"])

    @property
    def shards(self) -> Shape | None:
        """The shape of a shard, None where there are none."""
        return None if self._sharding is None else self.write_unit

    @property
    def chunks(self) -> Shape:
        """What is decoded at a time: a chunk, which may be inside of a shard."""
        inner = self._sharding
        return self.write_unit if inner is None else tuple(inner["configuration"]["chunk_shape"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the items in memory."""
        dtype: np.dtype[Any] = self.parse_metadata().dtype.to_native_dtype()
        return dtype

    @property
    def item_bytes(self) -> int:
        """How large an item is in memory, about so for texts."""
        dtype = self.dtype
        return _TEXT_BYTES if dtype.kind in "OT" else max(1, dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """How large the array is in memory."""
        return prod(self.shape) * self.item_bytes

    def to_bytes(self) -> bytes:
        """Write the document."""
        return json.dumps(self.document).encode()

    def parse_metadata(self) -> ArrayV3Metadata:
        """Let Zarr read the document.

        Raises
        ------
        InvalidInputError
            If Zarr refuses it.
        """
        try:
            with warnings.catch_warnings():
                # Whoever created the array was told already; of codecs that files have, nobody.
                warnings.simplefilter("ignore", UnstableSpecificationWarning)
                warnings.simplefilter("ignore", ZarrUserWarning)
                return ArrayV3Metadata.from_dict(dict(self.document))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidInputError(
                f"{self.path}: {error}", kind=ErrorKind.INVALID_ARRAY_METADATA
            ) from error

    def at(self, path: str) -> ArrayDocument:
        """Return the same metadata for another place."""
        return replace(self, path=path)

    def with_shape(self, shape: Sequence[int]) -> ArrayDocument:
        """Return the metadata of an array of another shape."""
        return replace(self, document={**self.document, "shape": list(shape)})

    def with_chunks(
        self,
        chunks: ChunkSpec | None = None,
        shards: ChunkSpec | bool | None = None,  # noqa: FBT001 - False is no flag, but no shards
        codecs: Sequence[Any] | None = None,
    ) -> ArrayDocument:
        """Return the metadata of the same array in other chunks.

        Parameters
        ----------
        chunks
            The new chunk shape; as it is if not given.
        shards
            The new shape of shards, False for none; as it is if not given.
        codecs
            The chain of codecs for each chunk, as objects of Zarr or as their metadata.

        Raises
        ------
        InvalidInputError
            If the shapes do not fit the array or each other.
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
            whole % part for whole, part in zip(outer, inner, strict=True)
        ):
            raise self._bad(
                f"shards of {_format_shape(outer)} do not consist of whole chunks of "
                f"{_format_shape(inner)}; give other shards, or shards=False for none"
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
        """Return the metadata of the same array with items of another data type.

        Filters that depend on the type are refused, and the serializer is the type's own.

        Raises
        ------
        InvalidInputError
            If the fill value or the filters do not fit.
        """
        try:
            wanted = np.dtype(dtype)
        except TypeError as error:
            raise self._bad(f"{dtype!r} is no data type: {error}") from error
        if wanted == self.dtype:
            return self
        if not np.can_cast(self.dtype, wanted, "same_kind"):
            raise self._bad(
                f"{self.dtype} does not become {wanted} without losing what it means; compute a "
                "new array instead"
            )
        fill = np.asarray(self.parse_metadata().fill_value)
        cast = fill.astype(wanted)
        if not np.array_equal(cast.astype(fill.dtype), fill, equal_nan=fill.dtype.kind in "fcmM"):
            raise self._bad(f"its fill value {fill[()]!r} does not fit {wanted}")
        attributes = self._retype_attributes(wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnstableSpecificationWarning)
            model = zarr.create_array(
                zarr.storage.MemoryStore(), shape=(1,), dtype=wanted, fill_value=cast[()]
            )
        told = ArrayDocument.from_zarr(self.path, model).document
        serializer = next(
            codec for codec in told["codecs"] if codec["name"] not in {"zstd", "transpose"}
        )
        own = self._sharding
        chain = self.document["codecs"] if own is None else own["configuration"]["codecs"]
        retyped = [self._retype_codec(codec, serializer, wanted.itemsize) for codec in chain]
        if own is not None:
            settings = {**own["configuration"], "codecs": retyped}
            retyped = [{**own, "configuration": settings}]
        changed = replace(
            self,
            document={
                **self.document,
                "attributes": attributes,
                "data_type": told["data_type"],
                "fill_value": told["fill_value"],
                "codecs": retyped,
            },
        )
        changed.parse_metadata()
        return changed

    def _retype_attributes(self, wanted: np.dtype[Any]) -> dict[str, Any]:
        """Return the attributes as they are with another data type: some name numbers of it."""
        attributes = dict(self.document.get("attributes") or {})
        if "_Unsigned" in attributes:
            raise self._bad(
                "by its attribute _Unsigned its numbers are other ones than are stored: leave its "
                "data type, or take floating point when it is ingested"
            )
        for name in MISSING if self.dtype.kind in "iuf" else ():
            numbers = read_missing_numbers({name: attributes.get(name)}, self.dtype, self.dtype)
            for number in numbers:
                with np.errstate(over="ignore"):
                    cast = np.array(number).astype(wanted)
                # Floats are rounded, as the data are.
                is_kept = np.isfinite(cast) == np.isfinite(number)
                if not is_kept or (self.dtype.kind != "f" and cast.astype(self.dtype) != number):
                    raise self._bad(f"its attribute {name} = {number!r} does not fit {wanted}")
                if wanted.kind == "f":
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
        if name in _INDEPENDENT:
            return codec
        raise self._bad(
            f"its codec {name!r} may depend on the data type: say with codecs=[…] what takes its "
            "place"
        )

    def _resolve_lengths(self, what: str, spec: ChunkSpec, present: Shape) -> Shape:
        shape, names = self.shape, self.dimension_names
        lengths: list[Any]
        if isinstance(spec, Mapping):
            unknown = [name for name in spec if name not in names]
            if unknown:
                raise self._bad(
                    f"{what} name the dimension {unknown[0]!r}, which is not one of "
                    f"{', '.join(str(name) for name in names) or 'none at all'}"
                )
            lengths = [
                spec.get(name, length) if name is not None else length
                for name, length in zip(names, present, strict=True)
            ]
        else:
            try:
                lengths = list(spec)
            except TypeError as error:
                raise self._bad(
                    f"{what} are lengths by dimension or a tuple of them, not {spec!r}"
                ) from error
        if len(lengths) != len(shape):
            raise self._bad(
                f"{what} {tuple(lengths)} do not fit an array of {len(shape)} dimensions"
            )
        for length in lengths:
            if isinstance(length, bool) or not isinstance(length, int | np.integer):
                raise self._bad(f"{what} {tuple(lengths)} are not whole numbers")
            if length < 1 and length != -1:
                raise self._bad(
                    f"{what} {tuple(lengths)} must be positive, or -1 for a whole dimension"
                )
        return tuple(
            max(1, size) if length == -1 else int(length)
            for length, size in zip(lengths, shape, strict=True)
        )

    def _bad(self, problem: str) -> InvalidInputError:
        return InvalidInputError(f"{self.path}: {problem}", kind=ErrorKind.INVALID_ARRAY_METADATA)


_INDEPENDENT: Final = frozenset({"transpose", "zstd", "gzip", "crc32c", "blosc"})
"""Codecs that work on bytes, or on items whatever they are."""


def _format_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))
