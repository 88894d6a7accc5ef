"""Columns of strings, in the memory layout of Arrow, and their vectorized dictionary encoding.

`factorize` encodes strings as codes into a table of distinct strings: a million virtual chunks may
refer to a thousand files.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.columns import freeze_columns, reduce_columns, to_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

# Rows per block, so that temporary arrays fit in the CPU cache.
_BLOCK_ROWS = 1 << 15
# Longer strings are encoded with a Python dictionary instead of vectorized hashing.
_MAX_HASHED_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """Concatenated UTF-8 strings: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_columns(self)

    @classmethod
    def of(cls, values: Sequence[str | bytes]) -> Strings:
        """Build a column from Python strings; raise `InvalidInputError` for lone surrogates."""
        pieces: list[bytes] = []
        lengths = np.zeros(len(values), np.int64)
        # Encoding block by block limits the memory for the encoded copies.
        for begin in range(0, len(values), _BLOCK_ROWS):
            block = values[begin : begin + _BLOCK_ROWS]
            encoded, block_lengths = _encode(block)
            pieces.append(encoded)
            lengths[begin : begin + len(block)] = block_lengths
        return cls(np.frombuffer(b"".join(pieces), np.uint8), to_offsets(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self.offsets[index], self.offsets[index + 1]
        return self.data[start:end].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for block in self._iterate_blocks():
            yield from block

    def tolist(self) -> list[str]:
        """Return all strings as a list."""
        return list(chain.from_iterable(self._iterate_blocks()))

    def _iterate_blocks(self) -> Iterator[list[str]]:
        for begin in range(0, len(self), _BLOCK_ROWS):
            offsets = self.offsets[begin : begin + _BLOCK_ROWS + 1]
            data = self.data[offsets[0] : offsets[-1]].tobytes()
            ends = (offsets - offsets[0]).tolist()
            if data.isascii():
                text = data.decode("ascii")
                yield [text[start:end] for start, end in pairwise(ends)]
            else:
                yield [data[start:end].decode() for start, end in pairwise(ends)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strings):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.data, other.data)

    def __hash__(self) -> int:
        return hash((self.data.tobytes(), self.offsets.tobytes()))

    def __repr__(self) -> str:
        preview = [repr(self[index]) for index in range(min(3, len(self)))]
        return f"<{len(self)} strings: {', '.join(preview)}{', …' if len(self) > 3 else ''}>"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each string in bytes."""
        return np.diff(self.offsets)

    def take(self, indices: NDArray[np.int64]) -> Strings:
        """Return the strings at the given indices."""
        lengths = self.lengths[indices]
        offsets = to_offsets(lengths)
        sources = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return Strings(self.data[sources], offsets)

    def unique(self) -> tuple[NDArray[np.int32], Strings]:
        """Return the code of each string, and the distinct strings; see `factorize`."""
        return factorize(self.data, self.offsets[:-1], self.lengths)


def _encode(values: Sequence[str | bytes]) -> tuple[bytes, NDArray[np.int64]]:
    """Return the concatenated UTF-8 of strings, and the length of each in bytes."""
    try:
        text = "".join(values)  # type: ignore[arg-type]
    except TypeError:  # some values are bytes
        text = None
    if text is not None and text.isascii():
        return text.encode("ascii"), np.fromiter(map(len, values), np.int64, len(values))
    try:
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{error.object!r} has a lone surrogate and cannot be stored as UTF-8"
        ) from error
    return b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))


EMPTY = Strings(np.zeros(0, np.uint8), np.zeros(1, np.int64))


class OverlapError(ValueError):
    """Different strings overlap in their buffer."""


def factorize(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], Strings]:
    """Return the codes of byte strings ``data[start:start + length]``, and the distinct strings.

    The strings must be inside ``data`` and may repeat. The order of the distinct strings depends
    only on the arguments. Raises `OverlapError` if different strings overlap so much that the work
    is not bounded by the size of ``data``.
    """
    if not len(starts):
        return np.zeros(0, np.int32), EMPTY
    # Adjacent rows often share a string: factorize only the first row of each run, its head.
    is_head = np.ones(len(starts), bool)
    # An empty string starts where the next string starts, so lengths are compared too.
    is_head[1:] = (starts[1:] != starts[:-1]) | (lengths[1:] != lengths[:-1])
    if is_head.all():
        return _factorize_spans(data, starts, lengths)
    heads = np.flatnonzero(is_head)
    codes, table = _factorize_spans(data, starts[heads], lengths[heads])
    return np.repeat(codes, np.diff(heads, append=len(starts))), table


def _factorize_spans(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], Strings]:
    # The work is proportional to the total length: bound it, if need be without repeated spans.
    if int(lengths.sum()) <= len(data):
        return _factorize_contents(data, starts, lengths)
    spans, inverse = np.unique(np.stack([starts, lengths], 1), axis=0, return_inverse=True)
    if int(spans[:, 1].sum()) > len(data):
        raise OverlapError("strings overlap")
    codes, table = _factorize_contents(data, spans[:, 0], spans[:, 1])
    return codes[inverse.reshape(-1)], table


def _factorize_contents(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], Strings]:
    """Factorize each length separately: strings of one length are rows of a matrix."""
    if (lengths == lengths[0]).all():
        codes, rows = _factorize_one_length(data, starts, int(lengths[0]))
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * int(lengths[0])
        return codes, Strings(rows.reshape(-1), offsets)
    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    bounds = np.flatnonzero(np.diff(sorted_lengths)) + 1
    codes = np.empty(len(starts), np.int32)
    pieces: list[NDArray[np.uint8]] = []
    piece_lengths: list[NDArray[np.int64]] = []
    num_distinct = 0
    for group in np.split(order, bounds):
        length = int(lengths[group[0]])
        group_codes, rows = _factorize_one_length(data, starts[group], length)
        codes[group] = group_codes + num_distinct
        num_distinct += len(rows)
        pieces.append(rows.reshape(-1))
        piece_lengths.append(np.full(len(rows), length, np.int64))
    return codes, Strings(np.concatenate(pieces), to_offsets(np.concatenate(piece_lengths)))


def _factorize_one_length(
    data: NDArray[np.uint8], starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    if length == 0:
        return np.zeros(len(starts), np.int32), np.zeros((1, 0), np.uint8)
    if length > _MAX_HASHED_BYTES or len(starts) <= length:
        return _factorize_by_dictionary(data, starts, length)
    # Equal strings are mostly adjacent, like chunks of one file: hash the first row of each run.
    heads = _find_run_heads(data, starts, length)
    hashes = np.empty(len(heads), np.uint64)
    for begin in range(0, len(heads), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        hashes[block] = _hash(data, starts[heads[block]], length)
    sorted_hashes = np.sort(hashes)
    if (sorted_hashes[1:] != sorted_hashes[:-1]).all():
        # All hashes differ, so all strings differ, as when each chunk is a separate file.
        codes = np.arange(len(heads), dtype=np.int32)
        if len(heads) == len(starts):
            return codes, _gather(data, starts, length)
        rows = _gather(data, starts[heads], length)
        return np.repeat(codes, np.diff(heads, append=len(starts))), rows
    _, firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # by first occurrence: the order must not depend on the hash
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    representatives = starts[heads[firsts[order]]]
    codes = ranks[inverse]
    if not _has_equal_contents(data, starts[heads], representatives, codes, length):
        codes, rows = _factorize_by_sorting(data, starts[heads], length)
    else:
        rows = _gather(data, representatives, length)
    return np.repeat(codes, np.diff(heads, append=len(starts))), rows


def _factorize_by_dictionary(
    data: NDArray[np.uint8], starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Factorize with a Python dictionary, which is faster for few or long strings."""
    strings: list[bytes] = _view_windows(data, np.dtype(f"V{length}"))[starts].tolist()
    distinct = dict.fromkeys(strings)
    codes = dict(zip(distinct, range(len(distinct)), strict=True))
    rows = np.frombuffer(b"".join(distinct), np.uint8).reshape(len(distinct), length)
    return np.fromiter(map(codes.__getitem__, strings), np.int32, len(strings)), rows


def _find_run_heads(
    data: NDArray[np.uint8], starts: NDArray[np.int64], length: int
) -> NDArray[np.int64]:
    """Find the rows that differ from the previous row; the first row is one of them."""
    dtype, offsets = _plan_words(length)
    windows = _view_windows(data, dtype)
    is_head = np.zeros(len(starts), bool)
    is_head[0] = True
    for begin in range(0, len(starts), _BLOCK_ROWS):
        # With the last row of the previous block, to compare the first row with.
        block_starts = starts[max(0, begin - 1) : begin + _BLOCK_ROWS]
        is_block_head = is_head[max(1, begin) : begin + _BLOCK_ROWS]
        for offset in offsets:
            words = windows[block_starts + offset]
            is_block_head |= words[1:] != words[:-1]
    return np.flatnonzero(is_head)


def _factorize_by_sorting(
    data: NDArray[np.uint8], starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Factorize by sorting, after a hash collision."""
    rows = _gather(data, starts, length)
    distinct, codes = np.unique(rows, axis=0, return_inverse=True)
    return codes.reshape(-1).astype(np.int32), distinct


def _view_windows(data: NDArray[np.uint8], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """View ``data`` as overlapping items, one at each byte."""
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))


def _gather(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    first = int(starts[0])
    if (starts[1:] - starts[:-1] == length).all():
        return data[first : first + len(starts) * length].reshape(len(starts), length)
    rows = _view_windows(data, np.dtype(f"V{length}"))[starts]
    return rows.view(np.uint8).reshape(len(starts), length)


def _plan_words(length: int) -> tuple[np.dtype[np.generic], list[int]]:
    """Return the type and offsets of the words of ``length`` bytes; the last two may overlap."""
    for size in (8, 4, 2, 1):
        if length >= size:
            offsets = list(range(0, length - size + 1, size))
            if length % size:
                offsets.append(length - size)
            return np.dtype(f"<u{size}"), offsets
    raise AssertionError("an empty string has no words")


# Random, so that an untrusted file cannot cause collisions. The last one mixes the running hash,
# the others are for words.
_MULTIPLIERS = np.random.default_rng().integers(0, 2**64, 1024, np.uint64)


def _hash(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    dtype, offsets = _plan_words(length)
    windows = _view_windows(data, dtype)
    total = np.zeros(len(starts), np.uint64)
    for index, offset in enumerate(offsets):
        word = windows[starts + offset].astype(np.uint64)
        word ^= word >> np.uint64(29)
        total = (total ^ (total >> np.uint64(31))) * _MULTIPLIERS[-1] if index else total
        total += word * (_MULTIPLIERS[index % (len(_MULTIPLIERS) - 1)] | np.uint64(1))
    return total


def _has_equal_contents(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    representatives: NDArray[np.int64],
    codes: NDArray[np.int32],
    length: int,
) -> bool:
    """Whether each string equals the representative of its code, which hashes do not guarantee."""
    dtype, offsets = _plan_words(length)
    windows = _view_windows(data, dtype)
    for begin in range(0, len(starts), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        actual, expected = starts[block], representatives[codes[block]]
        for offset in offsets:
            if not np.array_equal(windows[actual + offset], windows[expected + offset]):
                return False
    return True
