"""Operations whose requests are counted, with the same code for both libraries.

``python request_operations.py LIBRARY SPEC_VERSION SERVER ENDPOINT_URL`` creates a repository at an
S3 server, whose options are JSON. For each operation it prepares what the operation needs, prints
``ready``, waits for a line, runs the operation at the endpoint where requests are counted, and
prints ``done``. The library is icefloe or icechunk.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import zarr

if TYPE_CHECKING:
    from collections.abc import Callable

COMMITS = 50
ITEMS = 4096  # of four bytes: too large for an inline chunk

os.environ.setdefault("ICECHUNK_LOG", "error")


class Scene:
    """A repository with two arrays and three branches and tags."""

    def __init__(
        self, library: Any, spec_version: int, server: dict[str, Any], endpoint_url: str
    ) -> None:
        self.library = library
        self._server, self._endpoint_url = server, endpoint_url
        storage = self._make_storage(server["endpoint_url"])
        self.writer = library.Repository.create(storage, spec_version=spec_version)
        session = self.writer.writable_session("main")
        group = zarr.create_group(session.store)
        for name in "ab":
            array = group.create_array(
                name, shape=(100 * ITEMS,), chunks=(ITEMS,), dtype="i4", compressors=None
            )
            array[:ITEMS] = 1
        self.first = session.commit("arrays")
        for name in ("x", "y", "z"):
            self.writer.create_branch(name, self.first)
            self.writer.create_tag(name, self.first)

    def _make_storage(self, endpoint_url: str) -> Any:
        return self.library.s3_storage(
            **self._server | {"endpoint_url": endpoint_url},
            region="us-east-1",
            allow_http=True,
            force_path_style=True,
        )

    def open(self) -> Any:
        """Open the repository with a new storage, where requests are counted."""
        return self.library.Repository.open(self._make_storage(self._endpoint_url))

    def commit(self, count: int) -> None:
        """Commit chunks of the first array, as another writer."""
        for number in range(count):
            session = self.writer.writable_session("main")
            write_chunk(session, "a", number)
            session.commit(f"chunk {number}")


def write_chunk(session: Any, name: str, number: int) -> None:
    """Write one chunk."""
    zarr.open_array(session.store, path=name)[number * ITEMS : (number + 1) * ITEMS] = number + 2


def prepare_open(scene: Scene) -> Callable[[], object]:
    return scene.open


def prepare_first_chunk(scene: Scene) -> Callable[[], object]:
    def read() -> None:
        session = scene.open().readonly_session("main")
        assert zarr.open_array(session.store, path="b", mode="r")[0] == 1

    return read


def prepare_commit(scene: Scene) -> Callable[[], object]:
    repository = scene.open()

    def commit() -> None:
        session = repository.writable_session("main")
        write_chunk(session, "b", 0)
        session.commit("chunk")

    return commit


def prepare_late_commit(scene: Scene) -> Callable[[], object]:
    session = scene.open().writable_session("main")
    write_chunk(session, "b", 0)
    scene.commit(1)
    return lambda: session.commit("chunk", rebase_with=scene.library.ConflictDetector())


def prepare_rebase(scene: Scene) -> Callable[[], object]:
    session = scene.open().writable_session("main")
    write_chunk(session, "b", 0)
    scene.commit(COMMITS)
    return lambda: session.rebase(scene.library.ConflictDetector())


def prepare_tag(scene: Scene) -> Callable[[], object]:
    repository = scene.open()
    return lambda: repository.create_tag("new", scene.first)


def prepare_branch(scene: Scene) -> Callable[[], object]:
    repository = scene.open()
    return lambda: repository.create_branch("new", scene.first)


def prepare_log(scene: Scene) -> Callable[[], object]:
    repository = scene.open()
    return lambda: list(repository.ancestry(branch="main"))


def prepare_diff(scene: Scene) -> Callable[[], object]:
    repository = scene.open()
    return lambda: repository.diff(from_snapshot_id=scene.first, to_branch="main")


def prepare_refs(scene: Scene) -> Callable[[], object]:
    repository = scene.open()
    return lambda: (repository.list_branches(), repository.list_tags())


# In this order: the first ones need a history of known length, and the last ones add refs.
OPERATIONS: dict[str, Callable[[Scene], Callable[[], object]]] = {
    f"rebase over {COMMITS} commits": prepare_rebase,
    f"diff over {COMMITS} commits": prepare_diff,
    f"log of {COMMITS + 2} commits": prepare_log,
    "list branches and tags": prepare_refs,
    "open": prepare_open,
    "open and read the first chunk": prepare_first_chunk,
    "write a chunk and commit": prepare_commit,
    "commit after another writer's": prepare_late_commit,
    "create a tag": prepare_tag,
    "create a branch": prepare_branch,
}


def main() -> None:
    """Run all operations."""
    library, spec_version, server, endpoint_url = sys.argv[1:]
    scene = Scene(
        importlib.import_module(library), int(spec_version), json.loads(server), endpoint_url
    )
    for prepare in OPERATIONS.values():
        operation = prepare(scene)
        announce("ready")
        sys.stdin.readline()
        operation()
        announce("done")


def announce(word: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
