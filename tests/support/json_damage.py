"""Damage to JSON files: bytes, and values of the right syntax in the wrong place."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    256,
    2**32,
    2**64,
    10**400,
    1.5,
    "",
    "Group",
    "\udc00",
    "/",
    [],
    [0] * 15,
    [256] * 16,
    {},
    {"Ref": {}},
    {"Array": [{}, []]},
)
_TOKENS = (b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"0", b"9", b"-", b"\xff", b"NaN", b"1e999")


def damage_json(data: bytes, random: random.Random) -> bytes:
    """Change some bytes of a file, or replace, remove or duplicate a value in it."""
    if random.random() < 0.5:
        return _damage_bytes(data, random)
    content = json.loads(data)
    places = list(_find_places(content))
    if not places:
        return _damage_bytes(data, random)
    owner, key = random.choice(places)
    if random.random() < 0.2:
        del owner[key]
    else:
        owner[key] = copy.deepcopy(random.choice((*_VALUES, owner, content)))
    return json.dumps(content, separators=random.choice([(",", ":"), (", ", ": ")])).encode()


def _find_places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _find_places(item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield value, index
            yield from _find_places(item)


def _damage_bytes(data: bytes, random: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        if not out:
            break
        at = random.randrange(len(out))
        match random.randrange(5):
            case 0:
                out[at] ^= 1 << random.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = random.choice(_TOKENS)
            case 3:
                out[at : at + 1] = random.choice(_TOKENS)
            case _:
                piece = out[at : at + random.choice((1, 4, 16, 64))]
                target = random.randrange(len(out))
                out[target:target] = piece
    return bytes(out)
