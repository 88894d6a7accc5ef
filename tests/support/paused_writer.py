"""A writer that stops before it publishes a staged file, until a line comes on its input.

Arguments: the directory and the key. Prints ``staged`` when it stops.
"""

from __future__ import annotations

import os
import sys

from icefloe.storage import LocalStorage

_rename = os.rename


def pause_and_rename(source: str, target: str) -> None:
    sys.stdout.write("staged\n")
    sys.stdout.flush()
    sys.stdin.readline()
    _rename(source, target)


if __name__ == "__main__":
    os.rename = pause_and_rename  # type: ignore[assignment]
    LocalStorage(sys.argv[1]).put(sys.argv[2], b"written")
