"""A committer that is killed before each of its storage calls in turn; run by `test_killed`.

``python dying_committer.py PLACE SCENARIO GENERATION SETTINGS`` prints, as JSON, what a survivor
finds after each death; PLACE is a directory, or the arguments of ``s3_storage`` as JSON. Everything
happens in children, because clients of S3 have threads, which do not survive a fork, and goes
through the synchronous methods of the store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import AlreadyExistsError
from icefloe.format.generation import get_generation
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.refs import creation_claim
from icefloe.repository import Repository
from icefloe.storage import Fresh, LocalStorage, Overwrite, s3_storage
from icefloe.storage.forwarding import ForwardingStorage, Request

sys.path.append(str(Path(__file__).parents[1]))

from support import zarr_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session
    from icefloe.storage import PutMode, Storage, Version

T = TypeVar("T")
Content = dict[str, str]

CHUNKS, INLINE_BYTES = 4, 8


class DyingStorage(ForwardingStorage):
    """Another storage, whose user is killed before its call of a number, or in the middle of it."""

    def __init__(self, inner: Storage, deadly: int, *, torn: bool) -> None:
        super().__init__(inner)
        self._deadly, self._torn = deadly, torn
        self._numbers = count()

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        if not self._torn and next(self._numbers) == self._deadly:
            die()
        return run()

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write an object, or only a part of it: a put under a fresh name is not atomic."""
        if self._torn and isinstance(mode, Fresh) and next(self._numbers) == self._deadly:
            self._inner.put(key, bytes(data)[: len(data) // 2], mode)
            die()
        return super().put(key, data, mode)


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def config_of(settings: str) -> RepositoryConfig:
    """Make the configuration of a variant."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=INLINE_BYTES)
    if "packed" in settings:
        config.packing = PackingConfig(max_chunk_bytes=1000, target_object_bytes=60)
    if "split" in settings:
        rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): 2}}
        config.manifest = ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    return config


def write(session: Session, content: Content) -> None:
    """Make the hierarchy of a session exactly this."""
    store = session.store
    for key in set(read(session)) - content.keys():
        store.delete_sync(key)
    for key in sorted(content, key=lambda key: not key.endswith("zarr.json")):
        value = default_buffer_prototype().buffer.from_bytes(content[key].encode())
        store.set_sync(key, value)


def read(session: Session) -> Content:
    """Read everything of a session."""
    found = {}
    for key in session.store._iter_keys(""):
        value = session.store.get_sync(key)
        assert value is not None, key
        found[key] = value.to_bytes().decode()
    return found


def array(chunks: int) -> str:
    return zarr_nodes.array([chunks * 4], [4]).decode()


def group(**attributes: Any) -> str:
    return zarr_nodes.group(**attributes).decode()


def chunks_of(path: str, word: str) -> Content:
    """Make chunks of an array; every other one is small enough to be inlined."""
    return {
        f"{path}/c/{number}": word * (1 + 10 * (number % 2)) + str(number)
        for number in range(CHUNKS)
    }


OLD: Content = {
    "zarr.json": group(),
    "g/zarr.json": group(old=True),
    "g/a/zarr.json": array(CHUNKS),
    "gone/zarr.json": array(CHUNKS),
    **chunks_of("g/a", "old"),
    **chunks_of("gone", "x"),
}
NEW: Content = {
    "zarr.json": group(),
    "g/zarr.json": group(old=False),
    "g/a/zarr.json": array(CHUNKS),
    "g/new/zarr.json": array(CHUNKS + 1),
    **chunks_of("g/a", "new"),
    **chunks_of("g/new", "y"),
}
LATER: Content = {**NEW, "zarr.json": group(later=True), **chunks_of("g/a", "later")}
NAMES = {
    json.dumps(content, sort_keys=True): name for name, content in (("old", OLD), ("new", NEW))
}


def open_place(place: str, name: str) -> Storage:
    """Return the storage of one repository below a place."""
    if place.startswith("{"):
        arguments = json.loads(place)
        return s3_storage(**(arguments | {"prefix": f"{arguments['prefix']}/{name}"}))
    return LocalStorage(Path(place) / name, durable=False)


def copy(source: Storage, target: Storage) -> None:
    """Copy all files of a repository."""
    for info in source.list():
        target.put(info.key, source.get(info.key).data)


def run_in_child(act: Callable[[], object]) -> tuple[bool, Any]:
    """Run a function in a child; returns whether the child was killed, and what it returned."""
    answer, answers = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        os.write(answers, json.dumps(act()).encode())
        os._exit(0)
    os.close(answers)
    with os.fdopen(answer) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status), json.loads(text) if text else None


def prepare(storage: Storage, generation: str, config: RepositoryConfig) -> None:
    """Make a repository with the old content in its second commit."""
    repository = Repository.create(storage, config, generation=generation)
    for message, content in (("base", {"zarr.json": group()}), ("old", OLD)):
        session = repository.writable_session("main")
        write(session, content)
        session.commit(message)


def commit(storage: Storage, method: str) -> None:
    session = Repository.open(storage).writable_session("main")
    write(session, NEW)
    getattr(session, method)("new")


def survey(storage: Storage) -> dict[str, Any]:
    """Tell what a survivor finds, and whether it can go on."""
    repository = Repository.open(storage)
    found = read(repository.readonly_session("main"))
    history = [info.message for info in repository.ancestry(branch="main")]
    session = repository.writable_session("main")
    write(session, LATER)
    session.commit("later")
    again = Repository.open(storage)
    later = [info.message for info in again.ancestry(branch="main")]
    return {
        "content": NAMES.get(json.dumps(found, sort_keys=True), "something else"),
        "history": history,
        "goes_on": read(again.readonly_session("main")) == LATER and later == ["later", *history],
    }


def create(storage: Storage, generation: str, config: RepositoryConfig) -> None:
    Repository.create(storage, config, generation=generation)


def survey_creation(storage: Storage, generation: str, config: RepositoryConfig) -> dict[str, Any]:
    """Tell whether there is a repository, and whether one can be created where there is none."""
    exists = Repository.exists(storage)
    other = RepositoryConfig(inline_chunk_threshold_bytes=INLINE_BYTES + 1)
    try:
        Repository.create(storage, other, generation=generation)
    except AlreadyExistsError:
        created = False
    else:
        created = True
    repository = Repository.open(storage)
    expected = other if created else config
    inline_bytes = repository.config.inline_chunk_threshold_bytes
    session = repository.writable_session("main")
    write(session, OLD)
    session.commit("old")
    return {
        "content": "new" if exists else "old",
        "history": [],
        "goes_on": created is not exists
        and inline_bytes == expected.inline_chunk_threshold_bytes
        and read(Repository.open(storage).readonly_session("main")) == OLD,
    }


def main(place: str, scenario: str, generation: str, settings: str) -> None:
    config = config_of(settings)
    # Imported once for all children; pyarrow imports pandas when it is first used.
    _ = get_generation(generation).codec
    if generation == "draft":
        import_module("pandas")
    creation_claim.PATIENCE_S = 0.1
    creates = scenario == "create"
    if not creates:
        run_in_child(lambda: prepare(open_place(place, "prepared"), generation, config))

    def work(name: str, number: int, *, torn: bool) -> None:
        storage = open_place(place, name)
        if not creates:
            copy(open_place(place, "prepared"), storage)
        dying = DyingStorage(storage, number, torn=torn)
        if creates:
            create(dying, generation, config)
        else:
            commit(dying, scenario)

    def look(name: str) -> dict[str, Any]:
        storage = open_place(place, name)
        return survey_creation(storage, generation, config) if creates else survey(storage)

    found = []
    # Objects of S3 are written whole or not at all.
    for torn in (False,) if place.startswith("{") else (False, True):
        for number in count():
            name = f"{torn}-{number}"
            killed, _ = run_in_child(lambda: work(name, number, torn=torn))  # noqa: B023
            _, survivor = run_in_child(lambda: look(name))  # noqa: B023
            found.append({"torn": torn, "killed": killed, **survivor})
            if not killed:
                break
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
