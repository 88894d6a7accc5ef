"""FlexBuffers codec of JSON values, for metadata and configuration of generation v2.

A FlexBuffer is read from its end: the last two bytes are the type and width of the root, and
offsets point backwards. Offsets may form cycles or share values, so a few bytes can encode an
infinite or exponentially large value. The reader therefore limits the depth and the number of
values, and checks each offset and count before use: for any bytes, `loads` returns a value or
raises `FormatError` in linear time.

The writer makes the same bytes as Icechunk's, the Rust crate `flexbuffers`: some readers do not
support every combination of types and widths. The writer of the `flatbuffers` package fails for
floats beyond single precision and for integers from 2**63, and loses track of the keys that it has
written.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from icefloe.errors import ErrorKind, FormatError, InvalidInputError

MAX_DEPTH: Final = 100
"""The maximum nesting depth."""

BUDGET_PER_BYTE: Final = 4
"""The maximum number of values per byte; unshared values take at least one byte."""

_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING = range(6)
_INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT, _MAP, _VECTOR = range(6, 11)
_FIRST_TYPED, _LAST_TYPED = 11, 15  # vectors of int, uint, float, key, string
_FIRST_FIXED, _LAST_FIXED = 16, 24  # two, three or four of int, uint, float
_BLOB, _BOOL, _VECTOR_BOOL = 25, 26, 36

_WIDTHS: Final = (1, 2, 4, 8)
_FORMAT_CHARACTERS: Final = {
    _INT: {1: "b", 2: "h", 4: "i", 8: "q"},
    _UINT: {1: "B", 2: "H", 4: "I", 8: "Q"},
    _BOOL: {1: "B", 2: "H", 4: "I", 8: "Q"},
    _FLOAT: {2: "e", 4: "f", 8: "d"},
}


def loads(data: bytes | memoryview, *, file: str | None = None, blobs: bool = False) -> Any:
    """Decode a FlexBuffer; raise `FormatError` if it is invalid or exceeds a limit.

    ``file`` is used in errors. Blobs, which JSON lacks, are accepted only with ``blobs``.
    """
    return _Reader(bytes(data), file=file, blobs=blobs).read_root()


def dumps(value: Any) -> bytes:
    """Encode a JSON value: None, bool, int, float, str, list or tuple, dict with string keys.

    Raises `InvalidInputError` for other values, integers outside ``[-2**63, 2**64)``, keys with a
    zero byte, and values that are nested too deeply.
    """
    return _Writer().write_root(value)


class _Reader:
    __slots__ = ("_blobs", "_budget", "_data", "_file", "_key_vectors", "_size", "_texts")

    def __init__(self, data: bytes, *, file: str | None, blobs: bool) -> None:
        self._data = data
        self._size = len(data)
        self._file = file
        self._blobs = blobs
        self._budget = BUDGET_PER_BYTE * len(data)
        # Shared keys and strings are decoded once.
        self._texts: dict[tuple[int, int], str] = {}
        self._key_vectors: dict[tuple[int, int, int], list[str]] = {}

    def read_root(self) -> Any:
        if self._size < 3:
            raise self._make_error("fewer than three bytes")
        packed_type, width = self._data[-2:]
        if width not in _WIDTHS:
            raise self._make_error(f"the root has an invalid width of {width} bytes")
        return self._read_value(self._size - 2 - width, width, packed_type, 0)

    def _make_error(self, reason: str) -> FormatError:
        return FormatError(f"invalid FlexBuffer: {reason}", file=self._file)

    def _spend_budget(self, amount: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise self._make_error("too many shared or overlapping values")

    def _read_uint(self, position: int, width: int) -> int:
        end = position + width
        if position < 0 or end > self._size:
            raise self._make_error(f"position {position} is outside the {self._size} bytes")
        return int.from_bytes(self._data[position:end], "little")

    def _read_scalar(self, position: int, width: int, kind: int) -> Any:
        letter = _FORMAT_CHARACTERS[kind].get(width)
        if letter is None:
            raise self._make_error(f"invalid width of a float: {width} byte")
        if position < 0 or position + width > self._size:
            raise self._make_error(f"position {position} is outside the {self._size} bytes")
        return struct.unpack_from("<" + letter, self._data, position)[0]

    def _read_value(self, position: int, parent_width: int, packed_type: int, depth: int) -> Any:
        self._spend_budget(1)
        kind = packed_type >> 2
        if kind == _UINT:
            return self._read_uint(position, parent_width)
        if kind == _NULL:
            return None
        if kind in (_INT, _FLOAT):
            return self._read_scalar(position, parent_width, kind)
        if kind == _BOOL:
            return self._read_uint(position, parent_width) != 0
        target = position - self._read_uint(position, parent_width)
        width = 1 << (packed_type & 3)
        if kind == _STRING:
            return self._read_string(target, width)
        if kind == _KEY:
            return self._read_key(target)
        if kind == _MAP:
            return self._read_map(target, width, depth)
        if kind == _VECTOR:
            count = self._read_count(target, width)
            return self._read_elements(target, width, count, depth)
        if _FIRST_TYPED <= kind <= _LAST_TYPED or kind == _VECTOR_BOOL:
            count = self._read_count(target, width)
            element = _BOOL if kind == _VECTOR_BOOL else kind - _FIRST_TYPED + _INT
            return self._read_typed(target, width, count, element)
        if _FIRST_FIXED <= kind <= _LAST_FIXED:
            pairs, element = divmod(kind - _FIRST_FIXED, 3)
            return self._read_typed(target, width, pairs + 2, _INT + element)
        if _INDIRECT_INT <= kind <= _INDIRECT_FLOAT:
            return self._read_scalar(target, width, kind - _INDIRECT_INT + _INT)
        if kind == _BLOB:
            return self._read_blob(target, width)
        raise self._make_error(f"unknown type {kind}")

    def _read_count(self, target: int, width: int) -> int:
        """Read the number of elements or bytes, which precedes a value."""
        count = self._read_uint(target - width, width)
        if count > self._size - target:
            raise self._make_error(f"{count} elements or bytes at {target} exceed the buffer")
        return count

    def _read_blob(self, target: int, width: int) -> bytes:
        if not self._blobs:
            raise self._make_error("expected JSON, got a blob")
        count = self._read_count(target, width)
        self._spend_budget(count)
        return self._data[target : target + count]

    def _read_string(self, target: int, width: int) -> str:
        text = self._texts.get((target, width))
        if text is None:
            count = self._read_count(target, width)
            self._spend_budget(count)
            text = self._decode(self._data[target : target + count])
            self._texts[target, width] = text
        return text

    def _read_key(self, target: int) -> str:
        text = self._texts.get((target, 0))
        if text is None:
            end = self._data.find(0, target) if target >= 0 else -1
            if end < 0:
                raise self._make_error(f"unterminated key at {target}")
            self._spend_budget(end - target)
            text = self._decode(self._data[target:end])
            self._texts[target, 0] = text
        return text

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self._make_error("a string is not valid UTF-8") from error

    def _read_elements(self, target: int, width: int, count: int, depth: int) -> list[Any]:
        if depth == MAX_DEPTH:
            raise self._make_error(f"nested more than {MAX_DEPTH} levels deep")
        types = target + count * width
        if types + count > self._size:
            raise self._make_error(f"{count} elements at {target} exceed the buffer")
        values = []
        for i in range(count):
            values.append(  # noqa: PERF401 - a comprehension adds a frame to a deep stack
                self._read_value(target + i * width, width, self._data[types + i], depth + 1)
            )
        return values

    def _read_typed(self, target: int, width: int, count: int, kind: int) -> list[Any]:
        if target < 0 or target + count * width > self._size:
            raise self._make_error(f"{count} elements at {target} exceed the buffer")
        self._spend_budget(count)
        if kind in _FORMAT_CHARACTERS:
            letter = _FORMAT_CHARACTERS[kind].get(width)
            if letter is None:
                raise self._make_error(f"invalid width of floats: {width} byte")
            values = list(struct.unpack_from(f"<{count}{letter}", self._data, target))
            return [v != 0 for v in values] if kind == _BOOL else values
        positions = range(target, target + count * width, width)
        targets = [position - self._read_uint(position, width) for position in positions]
        if kind == _KEY:
            return [self._read_key(t) for t in targets]
        # This deprecated type does not store the width of string lengths, which is 1.
        return [self._read_string(t, 1) for t in targets]

    def _read_map(self, target: int, width: int, depth: int) -> dict[str, Any]:
        count = self._read_count(target, width)
        keys_at = target - 3 * width
        keys_target = keys_at - self._read_uint(keys_at, width)
        keys_width = self._read_uint(target - 2 * width, width)
        if keys_width not in _WIDTHS:
            raise self._make_error(f"keys have an invalid width of {keys_width} bytes")
        keys = self._key_vectors.get((keys_target, keys_width, count))
        if keys is None:
            if self._read_count(keys_target, keys_width) != count:
                raise self._make_error(f"a map of {count} values has a different number of keys")
            keys = self._read_typed(keys_target, keys_width, count, _KEY)
            self._key_vectors[keys_target, keys_width, count] = keys
        values = self._read_elements(target, width, count, depth)
        result = dict(zip(keys, values, strict=True))
        if len(result) != count:
            raise self._make_error("a map has a duplicate key")
        return result


_TYPED_VECTORS: Final = {
    kind: _VECTOR_BOOL if kind == _BOOL else _FIRST_TYPED + kind - _INT
    for kind in (_INT, _UINT, _FLOAT, _KEY, _BOOL)
}

# A written value: its type, its width (0 to 3 for 1 to 8 bytes), and either the bits to store in
# the parent or the position that the parent points to.
_Stored = tuple[int, int, int]
_INLINE: Final = frozenset((_NULL, _INT, _UINT, _FLOAT, _BOOL))


class _Writer:
    __slots__ = ("_buffer", "_keys")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._keys: dict[bytes, int] = {}

    def write_root(self, value: Any) -> bytes:
        root = self._store(value, 0)
        width = self._find_width([root], prefix=[])
        self._align(width)
        self._append(root, width)
        self._buffer += bytes((self._pack_type(root, width), 1 << width))
        return bytes(self._buffer)

    def _store(self, value: Any, depth: int) -> _Stored:
        if value is None:
            return _NULL, 0, 0
        if isinstance(value, bool):
            return _BOOL, 0, int(value)
        if isinstance(value, str):
            return self._store_text(value)
        if isinstance(value, int):
            return _store_int(value)
        if isinstance(value, float):
            return (
                _FLOAT,
                _get_float_width(value),
                int.from_bytes(struct.pack("<d", value), "little"),
            )
        if depth == MAX_DEPTH:
            raise _unsupported_error(f"nesting more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            return self._store_map(value, depth)
        if isinstance(value, list | tuple):
            return self._store_vector([self._store(item, depth + 1) for item in value])
        raise _unsupported_error(f"a value of type {type(value).__qualname__}")

    def _store_text(self, value: str) -> _Stored:
        text = _encode(value)
        width = _get_width(len(text))
        self._align(width)
        self._buffer += len(text).to_bytes(1 << width, "little")
        position = len(self._buffer)
        self._buffer += text
        self._buffer.append(0)
        return _STRING, width, position

    def _store_map(self, value: dict[Any, Any], depth: int) -> _Stored:
        entries: list[tuple[bytes, Any]] = []
        for key, item in value.items():
            if not isinstance(key, str) or "\0" in key:
                raise _unsupported_error("a key that is not a string or has a zero byte")
            entries.append((_encode(key), item))
        entries.sort(key=lambda entry: entry[0])
        stored = [(self._store_key(name), self._store(item, depth + 1)) for name, item in entries]
        keys = self._store_vector([key for key, _ in stored])
        return self._store_vector([item for _, item in stored], keys=keys)

    def _store_key(self, name: bytes) -> _Stored:
        position = self._keys.get(name)
        if position is None:
            position = self._keys[name] = len(self._buffer)
            self._buffer += name
            self._buffer.append(0)
        return _KEY, 0, position

    def _store_vector(self, elements: list[_Stored], *, keys: _Stored | None = None) -> _Stored:
        """Write a vector, or with ``keys`` the values of a map."""
        kind = _MAP if keys is not None else _find_vector_kind(elements)
        prefix = [_store_int(len(elements))]
        if keys is not None:
            prefix = [keys, _store_int(1 << keys[1]), *prefix]
        elif _FIRST_FIXED <= kind <= _LAST_FIXED:
            prefix = []
        width = self._find_width(elements, prefix=prefix)
        self._align(width)
        for item in prefix:
            self._append(item, width)
        position = len(self._buffer)
        for item in elements:
            self._append(item, width)
        if kind in (_VECTOR, _MAP):
            self._buffer += bytes(self._pack_type(item, width) for item in elements)
        return kind, width, position

    def _find_width(self, elements: list[_Stored], *, prefix: list[_Stored]) -> int:
        """Return the smallest width that fits all elements and offsets."""
        items = [*prefix, *elements]
        width = max((item[1] for item in items if item[0] in _INLINE), default=0)
        while width < 3:
            start = len(self._buffer) + (-len(self._buffer) & ((1 << width) - 1))
            limit = 1 << (8 << width)
            if all(
                kind in _INLINE or start + (i << width) - position < limit
                for i, (kind, _, position) in enumerate(items)
            ):
                break
            width += 1
        return width

    def _align(self, width: int) -> None:
        self._buffer += bytes(-len(self._buffer) & ((1 << width) - 1))

    def _append(self, item: _Stored, width: int) -> None:
        kind, _, bits = item
        if kind not in _INLINE:
            bits = len(self._buffer) - bits
        elif kind == _INT:
            bits &= (1 << (8 << width)) - 1
        elif kind == _FLOAT and width < 3:
            (number,) = struct.unpack("<d", bits.to_bytes(8, "little"))
            bits = int.from_bytes(struct.pack("<f", number), "little")
        self._buffer += bits.to_bytes(1 << width, "little")

    @staticmethod
    def _pack_type(item: _Stored, parent_width: int) -> int:
        kind, width, _ = item
        return kind << 2 | (parent_width if kind in _INLINE else width)


def _get_width(value: int) -> int:
    return 0 if value < 1 << 8 else 1 if value < 1 << 16 else 2 if value < 1 << 32 else 3


def _store_int(value: int) -> _Stored:
    if 0 <= value < 1 << 64:
        return _UINT, _get_width(value), value
    if -(1 << 63) <= value < 0:
        # One more bit for the sign.
        return _INT, _get_width(2 * ~value), value
    raise _unsupported_error("an integer outside -2**63 to 2**64 - 1")


def _get_float_width(value: float) -> int:
    """Return 2, single precision, if it has the same value, else 3."""
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return 3
    return 2 if single == value else 3


def _find_vector_kind(elements: list[_Stored]) -> int:
    """Return the type of a vector, which includes the type of its elements if all have the same."""
    kinds = {kind for kind, _, _ in elements}
    kind = kinds.pop() if len(kinds) == 1 else _NULL
    if kind in (_INT, _UINT, _FLOAT) and 2 <= len(elements) <= 4:
        return _FIRST_FIXED + 3 * (len(elements) - 2) + kind - _INT
    return _TYPED_VECTORS.get(kind, _VECTOR)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _unsupported_error("a string with a lone surrogate") from error


def _unsupported_error(feature: str) -> InvalidInputError:
    return InvalidInputError(f"metadata must not have {feature}", kind=ErrorKind.BAD_METADATA)
