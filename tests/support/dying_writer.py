"""A writer that is killed before each of its system calls in turn; run by `test_local_crashes`.

Arguments: the directory, and the kind of put. Prints, as JSON, what a survivor finds after each
death: the content of the object, what is listed, and whether the survivor can write.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.storage import Create, Fresh, LocalStorage, Overwrite, UpdateIfMatch, write_back

if TYPE_CHECKING:
    from types import ModuleType

KEY = "refs/branch.main/ref.json"
OLD, NEW, LATER = b"old" * 1000, b"new" * 2000, b"later"
CALLS = ("open", "write", "utime", "fsync", "close", "link", "rename", "unlink", "mkdir", "stat")


def die_before_call(number: int) -> None:
    """Let this process be killed when it is about to make its call of that number."""
    made = count()

    def dying(module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        def call(*args: object, **kwargs: object) -> object:
            if next(made) == number:
                if name == "write":
                    original(args[0], bytes(args[1])[:100])  # type: ignore[call-overload]
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(module, name, call)

    for name in CALLS:
        dying(os, name)
    dying(write_back, "sync_file_system")


def main(root: Path, kind: str) -> None:
    found = []
    for number in count():
        shutil.rmtree(root, ignore_errors=True)
        storage = LocalStorage(root)
        version = None if kind in {"create", "fresh"} else storage.put(KEY, OLD)
        child = os.fork()
        if child == 0:
            storage = LocalStorage(root)
            die_before_call(number)
            match kind:
                case "create":
                    storage.put(KEY, NEW, Create())
                case "fresh":
                    storage.put(KEY, NEW, Fresh())
                case "overwrite":
                    storage.put(KEY, NEW, Overwrite())
                case _:
                    assert version is not None
                    storage.put(KEY, NEW, UpdateIfMatch(version))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        survivor = LocalStorage(root)
        listed = [info.key for info in survivor.list()]
        content = bytes(survivor.get(KEY).data) if listed else b""
        if listed:
            survivor.put(KEY, LATER, UpdateIfMatch(survivor.head(KEY).version))
        else:
            survivor.put(KEY, LATER, Create())
        found.append(
            {
                "killed": os.WIFSIGNALED(status),
                "content": content[:3].decode(),
                "size": len(content),
                "listed": listed,
                "later": bytes(survivor.get(KEY).data) == LATER,
            }
        )
        if not os.WIFSIGNALED(status):
            break
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
