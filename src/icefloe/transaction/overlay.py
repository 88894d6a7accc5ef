"""Columnar changes of chunk references: stacks them, and applies them to a manifest.

Changes are an `ArrayManifest` in which the kind `DELETED` marks deleted chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.chunk_index_columns import is_strictly_sorted
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import (
    NO_CODE,
    ROW_COLUMNS,
    ArrayManifest,
    ChunkPayloads,
    allocate_columns,
    match_id_sizes,
)
from icefloe.transaction.row_order import compute_row_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.strings import Strings

DELETED: Final = 0
"""The kind of a deleted chunk; it never occurs in manifest files."""


def mark_deleted(coords: NDArray[np.uint32]) -> ArrayManifest:
    """Make changes that delete chunks."""
    columns = allocate_columns(len(coords))  # of the kind DELETED
    return ArrayManifest.of(coords, replace(ChunkPayloads.of([]), **columns))


def stack(parts: Sequence[ArrayManifest]) -> ArrayManifest:
    """Merge changes; the last change of a chunk wins, and deletions remain as rows."""
    if len(parts) == 1:
        return parts[0]
    coords = np.concatenate([part.coords for part in parts])
    return deduplicate(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))


def deduplicate(coords: NDArray[np.uint32], payloads: ChunkPayloads) -> ArrayManifest:
    """Sort rows, and keep the last row of each chunk."""
    if is_strictly_sorted(coords):
        return ArrayManifest(coords, payloads)
    (keys,) = compute_row_keys([coords])
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    winners = order[np.append(ordered[1:] != ordered[:-1], [True])]
    return ArrayManifest(coords[winners], payloads.select_rows(winners))


def apply(base: ArrayManifest, changes: ArrayManifest) -> ArrayManifest:
    """Apply sorted changes to sorted references; the result is sorted.

    Copies the columns of ``base`` without sorting: usually few chunks of millions change.
    """
    if not len(changes):
        return base
    if not len(base):
        is_kept = changes.payloads.kind != DELETED
        return changes if is_kept.all() else select(changes, np.flatnonzero(is_kept))
    keys, changed_keys = compute_row_keys([base.coords, changes.coords])
    positions = np.searchsorted(keys, changed_keys)
    is_present = positions < len(keys)
    is_present[is_present] = keys[positions[is_present]] == changed_keys[is_present]
    is_deletion = changes.payloads.kind == DELETED
    payloads, added = _share_tables(base.payloads, changes.payloads)
    coords = base.coords

    replaced = np.flatnonzero(is_present & ~is_deletion)
    if len(replaced):
        payloads = _replace_rows(payloads, positions[replaced], added.select_rows(replaced))
    inserted = np.flatnonzero(~is_present & ~is_deletion)
    deleted = positions[is_present & is_deletion]
    if len(deleted) or len(inserted):
        # The rows of both, one after the other, in the order of the result.
        order = np.insert(np.arange(len(keys)), positions[inserted], len(keys) + inserted)
        if len(deleted):
            is_deleted = np.zeros(len(keys) + len(changes), bool)
            is_deleted[deleted] = True
            order = order[~is_deleted[order]]
        coords = np.concatenate([coords, changes.coords])[order]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(payloads, name), getattr(added, name)])[order]
            for name in ROW_COLUMNS
        }
        payloads = replace(payloads, **columns)
    return ArrayManifest(coords, payloads)


def select(refs: ArrayManifest, rows: NDArray[np.int64] | slice) -> ArrayManifest:
    """Select rows."""
    return ArrayManifest(refs.coords[rows], refs.payloads.select_rows(rows))


def is_inside(coords: NDArray[np.uint32], num_chunks: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of the rows inside a grid."""
    if coords.shape[1] != len(num_chunks):
        return np.zeros(len(coords), bool)
    return np.asarray(np.all(coords < np.array(num_chunks, np.uint64), axis=1))


def is_among(coords: NDArray[np.uint32], others: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return a mask of the rows that are also in another matrix."""
    if coords.shape[1] != others.shape[1]:
        return np.zeros(len(coords), bool)
    keys, other_keys = compute_row_keys([coords, others])
    return np.isin(keys, other_keys)


def compact(payloads: ChunkPayloads) -> ChunkPayloads:
    """Drop strings and inline bytes that no row uses."""
    location_codes, locations = drop_unused_strings(payloads.location_codes, payloads.locations)
    etag_codes, etags = drop_unused_strings(payloads.etag_codes, payloads.etags)
    offset, inline = payloads.offset, payloads.inline
    if len(inline):
        rows = np.flatnonzero(payloads.kind == ChunkKind.INLINE)
        starts, sizes = offset[rows].astype(np.int64), payloads.length[rows].astype(np.int64)
        if int(sizes.sum()) < len(inline):
            ends = np.cumsum(sizes)
            source = np.arange(int(sizes.sum())) + np.repeat(starts - (ends - sizes), sizes)
            inline = inline[source]
            offset = offset.copy()
            offset[rows] = ends - sizes
    payloads = replace(
        payloads,
        location_codes=location_codes,
        locations=locations,
        etag_codes=etag_codes,
        etags=etags,
    )
    return replace(payloads, offset=offset, inline=inline)


def drop_unused_strings(
    codes: NDArray[np.int32], table: Strings
) -> tuple[NDArray[np.int32], Strings]:
    """Return a table without the strings that no code refers to, and the codes into it."""
    if not len(table):
        return codes, table
    if len(codes) < len(table) // 8:
        # The cost must not depend on the size of the table: parts of a large array share it.
        used, inverse = np.unique(codes, return_inverse=True)
        is_code = used != NO_CODE
        renumber = np.where(is_code, np.cumsum(is_code) - 1, NO_CODE).astype(np.int32)
        return renumber[inverse], table.take(used[is_code].astype(np.int64))
    is_used = np.zeros(len(table) + 1, bool)
    is_used[codes] = True  # NO_CODE marks the spare last entry
    is_used[-1] = False
    if is_used[:-1].all():
        return codes, table
    kept = np.flatnonzero(is_used)
    renumber = np.full(len(table) + 1, NO_CODE, np.int32)
    renumber[kept] = np.arange(len(kept), dtype=np.int32)
    return renumber[codes], table.take(kept)


def _share_tables(
    base: ChunkPayloads, changes: ChunkPayloads
) -> tuple[ChunkPayloads, ChunkPayloads]:
    """Give both the same strings and inline bytes, so that their rows can be mixed."""
    base, changes = match_id_sizes([base, changes])
    if not len(changes.locations) and not len(changes.etags) and not len(changes.inline):
        shared = {name: getattr(base, name) for name in ("locations", "etags", "inline")}
        return base, replace(changes, **shared)
    if not len(changes.locations) and not len(changes.etags):
        offset = np.where(
            changes.kind == ChunkKind.INLINE,
            changes.offset + np.uint64(len(base.inline)),
            changes.offset,
        )
        inline = np.concatenate([base.inline, changes.inline])
        shared = {"locations": base.locations, "etags": base.etags, "inline": inline}
        return replace(base, inline=inline), replace(changes, offset=offset, **shared)
    both = ChunkPayloads.concatenate([base, changes])
    return both.select_rows(slice(0, len(base))), both.select_rows(slice(len(base), None))


def _replace_rows(
    payloads: ChunkPayloads, positions: NDArray[np.int64], rows: ChunkPayloads
) -> ChunkPayloads:
    columns = {}
    for name in ROW_COLUMNS:
        column, new = getattr(payloads, name), getattr(rows, name)
        if not np.array_equal(column[positions], new):
            columns[name] = column = column.copy()
            column[positions] = new
    return replace(payloads, **columns)
