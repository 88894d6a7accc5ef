"""Keys of chunks in manifests: the number of the node and the chunk indices, as text.

Each number is written as one character for its number of digits, ``0`` to ``7``, followed by its
digits in Crockford base 32, without leading zeros: 0 is ``0``, 5 is ``15``, 31 is ``1Z``, 32 is
``210``, and 4294967295 is ``73ZZZZZZ``. The key is the number of the node followed by each
coordinate, without separators. Chunk (0, 33) of node 3 is ``130211``.

- The first character of a number tells its length: a key is read in only one way.
- A number with more digits is larger, and the digits are in ASCII order: keys are ordered as
  strings like (node, coordinates) as tuples.

Columns of keys are rows of bytes padded with NUL bytes anywhere, which are deleted at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.format.chunk_indices import MAX_DIMENSIONS
from icefloe.model.chunk_payload import MAX_U32

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MAX_DIGITS: Final = 7
MAX_NUMBERS: Final = 1 + MAX_DIMENSIONS
_DIGITS: Final = np.frombuffer(ALPHABET.encode(), np.uint8)
# Of each digit; with another character, seven digits are more than `MAX_U32` and do not overflow.
_VALUES: Final = np.full(256, 1 << 33, np.uint64)
_VALUES[_DIGITS] = np.arange(32)
_VALUES_BY_CHARACTER: Final = {character: value for value, character in enumerate(ALPHABET)}
_QUOTE: Final = ord('"')


def format_key(node_number: int, coords: tuple[int, ...]) -> str:
    """Return the key of a chunk."""
    return "".join(map(_format_number, (node_number, *coords)))


def parse_key(key: str) -> tuple[int, tuple[int, ...]] | None:
    """Return the node number and the coordinates, or None if the text is not a key."""
    numbers: list[int] = []
    position = 0
    while position < len(key) and len(numbers) <= MAX_NUMBERS:
        num_digits = _VALUES_BY_CHARACTER.get(key[position], MAX_DIGITS + 1)
        digits = key[position + 1 : position + 1 + num_digits]
        number = 0
        for digit in digits:
            number = number * 32 + _VALUES_BY_CHARACTER.get(digit, MAX_U32 + 1)
        if number > MAX_U32 or _format_number(number) != key[position] + digits:
            return None
        numbers.append(number)
        position += 1 + num_digits
    if not 1 <= len(numbers) <= MAX_NUMBERS:
        return None
    return numbers[0], tuple(numbers[1:])


def _format_number(number: int) -> str:
    digits = ""
    while number:
        digits = ALPHABET[number % 32] + digits
        number //= 32
    return f"{len(digits)}{digits}"


def format_numbers(numbers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Format a column of numbers; return a padded row of bytes for each."""
    if int(numbers.max(initial=0)) < len(_SHORT_NUMBERS):
        return _SHORT_NUMBERS[numbers].view(np.uint8).reshape(len(numbers), 4)
    return _format_long_numbers(numbers, MAX_DIGITS)


def _format_long_numbers(numbers: NDArray[np.uint32], max_digits: int) -> NDArray[np.uint8]:
    text = np.empty((len(numbers), 1 + max_digits), np.uint8)
    text[:, 0] = ord("0")
    for place in range(max_digits):
        rest = numbers >> np.uint32(5 * (max_digits - 1 - place))
        is_present = rest > 0
        text[:, 0] += is_present
        text[:, 1 + place] = _DIGITS[rest & np.uint32(31)] * is_present
    return text


# All numbers of up to three digits: four characters, as one integer.
_SHORT_NUMBERS: Final = (
    _format_long_numbers(np.arange(32**3, dtype=np.uint32), 3).view(np.uint32).reshape(-1)
)


def scan_keys(
    text: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]] | None:
    """Read the keys that start at each position and end before a quote.

    Returns a row of numbers for each key, how many of them are present, and the end of each key;
    or None if one is not a key. ``text`` must have at least eight bytes after the last start.
    """
    positions = starts.copy()
    counts = np.zeros(len(starts), np.int64)
    columns: list[NDArray[np.uint64]] = []
    limit = len(text) - 1 - MAX_DIGITS
    while len(columns) <= MAX_NUMBERS:
        first = text[positions]
        is_open = first != _QUOTE
        if not is_open.any():
            break
        num_digits = np.where(is_open, first - np.uint8(ord("0")), 0)
        max_digits = int(num_digits.max())
        if max_digits > MAX_DIGITS:
            return None
        number = np.zeros(len(starts), np.uint64)
        for place in range(max_digits):
            digit = _VALUES.take(text[positions + (1 + place)])
            if place == 0 and ((digit == 0) & (num_digits > 0)).any():
                return None
            number = np.where(place < num_digits, (number << np.uint64(5)) + digit, number)
        columns.append(number)
        counts += is_open
        positions += is_open * (1 + num_digits.astype(np.int64))
        if int(positions.max()) > limit:
            return None
    else:
        return None
    if not columns or not counts.all():
        return None
    numbers = np.stack(columns, 1)
    if int(numbers.max()) > MAX_U32:
        return None
    return numbers.astype(np.uint32), counts, positions
