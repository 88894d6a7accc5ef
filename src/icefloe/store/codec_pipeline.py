"""Small chunks of a session on this machine, coded one after the other where they are.

Zarr lets an event loop and threads share the work on chunks. For large ones, and for those behind
a network, that is right; a chunk of some kilobytes on a local disk is read and decoded in less time
than it takes to hand it to a thread. `SmallChunkPipeline` is Zarr's own pipeline but for those.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import zarr
from zarr.core.codec_pipeline import BatchedCodecPipeline, fill_value_or_default
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.store import IcechunkStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zarr.abc.store import ByteGetter, ByteSetter
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.indexing import SelectorTuple

__all__ = ["SmallChunkPipeline", "install"]

# In bytes. Up to here coding takes no longer than Zarr's threads take to hand a chunk over; where
# nothing is compressed, it is a copy.
SMALL = 32 * 1024
SMALL_PLAIN = 1024 * 1024
_CHUNKS_BETWEEN_TURNS = 64  # others who use the event loop wait for so many
_SETTING = "codec_pipeline.path"
_ZARRS_OWN = f"{BatchedCodecPipeline.__module__}.{BatchedCodecPipeline.__qualname__}"


@dataclass(frozen=True)
class SmallChunkPipeline(BatchedCodecPipeline):
    """Zarr's pipeline, with a direct way for small chunks of `IcechunkStore`."""

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read chunks into a buffer; in newer Zarr, return which there were."""
        batch: list[Any] = list(batch_info)
        store = self._direct_store(batch)
        if store is None:
            return await super().read(batch, out, drop_axes)
        found = []
        for number, (getter, spec, chunk_selection, out_selection, _) in enumerate(batch, 1):
            encoded = store.get_sync(getter.path, prototype=spec.prototype)
            if encoded is None:
                out[out_selection] = fill_value_or_default(spec)
            else:
                part = self._decode_chunk(encoded, spec)[chunk_selection]
                out[out_selection] = part.squeeze(axis=drop_axes) if drop_axes else part
            found.append({"status": "missing" if encoded is None else "present"})
            if number % _CHUNKS_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
        return tuple(found)

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write parts of a buffer as chunks."""
        batch: list[Any] = list(batch_info)
        store = None if drop_axes or not value.shape else self._direct_store(batch)
        if store is None:
            return await super().write(batch, value, drop_axes)
        others = []
        for number, item in enumerate(batch, 1):
            setter, spec, _, out_selection, is_complete = item
            part = value[out_selection] if is_complete else None
            # A chunk that is written in part, or reaches over the edge, has more to it.
            if part is None or part.shape != spec.shape:
                others.append(item)
                continue
            encoded = None if _is_left_out(part, spec) else self._encode_chunk(part, spec)
            if encoded is None:
                store.delete_sync(setter.path)
            else:
                store.set_sync(setter.path, encoded)
            if number % _CHUNKS_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
        if others:
            await super().write(others, value, drop_axes)
        return None

    def _direct_store(self, batch: list[tuple[Any, ...]]) -> IcechunkStore | None:
        """Return the store of some chunks, if all that is to be done can be done right here."""
        if not batch or self.supports_partial_decode:
            return None
        place, spec, *_ = batch[0]
        store = place.store if isinstance(place, StorePath) else None
        if not (isinstance(store, IcechunkStore) and store.answers_directly):
            return None
        dtype = spec.dtype.to_native_dtype()
        if dtype.hasobject or not all(map(_codes_directly, self)):
            return None
        limit = SMALL if self.bytes_bytes_codecs else SMALL_PLAIN
        is_small = prod(spec.shape) * dtype.itemsize <= limit
        return store if is_small or zarr.config.get("threading.max_workers") == 1 else None

    def _decode_chunk(self, encoded: Buffer, spec: ArraySpec) -> NDBuffer:
        codecs: list[Any] = list(self)
        specs = [spec]
        for codec in codecs[:-1]:
            specs.append(codec.resolve_metadata(specs[-1]))
        value: Any = encoded
        while codecs:
            value = codecs.pop()._decode_sync(value, specs.pop())  # noqa: SLF001 - as Zarr names its protocol
        array: NDBuffer = value
        return array

    def _encode_chunk(self, array: NDBuffer, spec: ArraySpec) -> Buffer | None:
        codecs: list[Any] = list(self)
        value: Any = array
        for codec in codecs:
            value = codec._encode_sync(value, spec)  # noqa: SLF001 - likewise
            if value is None:
                return None
            spec = codec.resolve_metadata(spec)
        encoded: Buffer = value
        return encoded


def _codes_directly(codec: Any) -> bool:
    has_both = hasattr(codec, "_decode_sync") and hasattr(codec, "_encode_sync")
    return has_both and getattr(codec, "_sync_capable", True)


def _is_left_out(part: NDBuffer, spec: ArraySpec) -> bool:
    """Whether a chunk need not be written, because nothing but the fill value is in it."""
    if spec.config.write_empty_chunks:
        return False
    fill = fill_value_or_default(spec)
    array: Any = part.as_ndarray_like()
    first = array[(0,) * array.ndim]
    # One item tells of nearly every chunk; NaN, which differs from itself, needs a closer look.
    is_other = first == first and first != fill  # noqa: PLR0124
    return not is_other and part.all_equal(fill)


def install() -> None:
    """Let Zarr use the pipeline, unless it was told to use another than its own."""
    register_pipeline(SmallChunkPipeline)
    if zarr.config.get(_SETTING) == _ZARRS_OWN:
        name = f"{SmallChunkPipeline.__module__}.{SmallChunkPipeline.__qualname__}"
        zarr.config.set({_SETTING: name})
