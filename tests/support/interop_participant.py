"""One who changes and reads a repository through the public API, with icefloe or with Icechunk.

Both have the same names, so that one text serves both. ``python participant.py`` is Icechunk, as a
process that reads requests and writes answers, a line of JSON each; `Wheel` is its other end. In a
test process the same class works with icefloe.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Json = dict[str, Any]


class Participant:
    """Changes and reads the repository at one place.

    Parameters
    ----------
    library
        What has ``Repository``, ``RepositoryConfig``, ``ManifestConfig`` and so on.
    open_storage
        Makes a storage of that library from a path.
    """

    def __init__(self, library: Any, open_storage: Callable[[str], Any]) -> None:
        self._library = library
        self._open_storage = open_storage

    def major_version(self) -> int:
        """Tell the first number of the library's version."""
        return int(self._library.__version__.split(".")[0])

    def create(self, root: str, spec_version: int) -> None:
        """Create a repository."""
        arguments = {"spec_version": spec_version} if self._has_versions else {}
        self._library.Repository.create(self._open_storage(root), **arguments)

    def change(
        self,
        root: str,
        *,
        branch: str,
        edits: list[list[Any]],
        commit: str | None,
        settings: Json,
        message: str = "",
    ) -> Json:
        """Make edits in a session; tell what it says of them, and commit if this is our turn.

        Parameters
        ----------
        edits
            A method of `_Edits` and its arguments each. A failed one is noted, and the next made.
        commit
            ``commit``, ``amend``, or None to forget everything again.
        settings
            How the repository is opened; see `_config`.
        """
        repository = self._open(root, settings)
        moving = any(name == "move" for name, *_ in edits)
        begin = repository.rearrange_session if moving else repository.writable_session
        session = begin(branch)
        editor = _Edits(session)
        failed = [not editor.succeeds(name, arguments) for name, *arguments in edits]
        found = {
            "failed": failed,
            "changed": session.has_uncommitted_changes,
            "status": _diff(session.status()),
            "content": self._content(session),
        }
        if commit is None:
            session.discard_changes()
            found["left"] = session.has_uncommitted_changes
        elif found["changed"]:
            metadata = {"by": self._library.__name__, "edits": len(edits)}
            try:
                made = getattr(session, commit)(message, metadata=metadata)
            except Exception as error:  # noqa: BLE001 - both sides refuse the same commits
                return found | {"refused": str(error)}
            # The session shows the commit from now on.
            found |= {"snapshot": made, "after": self._content(session)}
        return found

    def refer(self, root: str, name: str, arguments: list[str]) -> bool:
        """Change a branch or a tag; tells whether that was possible."""
        repository = self._open(root, {})
        if name in {"create_branch", "create_tag", "reset_branch"}:
            # The last argument says how many commits before the tip of main it shall point.
            *arguments, back = arguments
            history = [info.id for info in repository.ancestry(branch="main")]
            arguments.append(history[min(int(back), len(history) - 1)])
        return _succeeds(lambda: getattr(repository, name)(*arguments))

    def save_config(self, root: str, settings: Json) -> None:
        """Persist settings for all."""
        self._open(root, settings).save_config()

    def rewrite_manifests(self, root: str, settings: Json) -> str:
        """Rewrite all manifests of main."""
        repository = self._open(root, settings)
        made: str = repository.rewrite_manifests("rewritten", branch="main")
        return made

    def report(self, root: str) -> Json:
        """Read all that can be read at the tips of all branches, and their histories."""
        repository = self._open(root, {})
        branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
        return {
            "branches": branches,
            "tags": {name: repository.lookup_tag(name) for name in repository.list_tags()},
            "inline": repository.config.inline_chunk_threshold_bytes,
            "lines": {name: self._line(repository, name) for name in branches},
            **self._report_v2(repository),
        }

    def _line(self, repository: Any, branch: str) -> Json:
        history = list(repository.ancestry(branch=branch))
        session = repository.readonly_session(branch)
        return {
            "history": [_info(info) for info in history],
            "content": self._content(session),
            "last": _diff_of(repository, history[1], history[0]) if len(history) > 1 else None,
            "all": _diff_of(repository, history[-1], history[0]) if len(history) > 1 else None,
        }

    def _content(self, session: Any) -> Json:
        content = _content(session)
        if self._library.__name__ == "icechunk" and self.major_version() < 2:
            # It may list a chunk twice after rules of splitting changed.
            content["keys"] = sorted(set(content["keys"]))
        return content

    def _report_v2(self, repository: Any) -> Json:
        if not self._has_versions or int(repository.spec_version) < 2:
            return {}
        return {"metadata": repository.metadata}

    @property
    def _has_versions(self) -> bool:
        return hasattr(self._library.Repository, "spec_version")

    def _open(self, root: str, settings: Json) -> Any:
        return self._library.Repository.open(
            self._open_storage(root), config=self._config(settings)
        )

    def _config(self, settings: Json) -> Any:
        """Make a configuration.

        ``inline``: up to how many bytes chunks are inlined. ``split``: how many chunks a manifest
        spans along the first dimension. ``pack``: whether small chunks share objects, which only
        icefloe does.
        """
        library = self._library
        config = library.RepositoryConfig(inline_chunk_threshold_bytes=settings.get("inline"))
        if (size := settings.get("split")) is not None:
            axis = library.ManifestSplitDimCondition.Axis(0)
            rules = {library.ManifestSplitCondition.AnyArray(): {axis: size}}
            splitting = library.ManifestSplittingConfig.from_dict(rules)
            config.manifest = library.ManifestConfig(splitting=splitting)
        if settings.get("pack") and hasattr(library, "PackingConfig"):
            config.packing = library.PackingConfig(max_chunk_bytes=4096, target_object_bytes=8192)
        return config


class _Edits:
    """Changes through Zarr, or through the session where Zarr knows no such change."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._store = session.store

    def succeeds(self, name: str, arguments: list[Any]) -> bool:
        return _succeeds(lambda: getattr(self, name)(*arguments))

    def group(self, path: str, attributes: Json) -> None:
        zarr.create_group(self._store, path=path, attributes=attributes)

    def array(self, path: str, shape: list[int], chunks: list[int], dtype: str) -> None:
        zarr.create_array(
            self._store,
            name=path or None,
            shape=shape,
            chunks=tuple(chunks),
            dtype=dtype,
            fill_value=7,
            compressors=None,
            dimension_names=[f"dim{axis}" for axis in range(len(shape))],
        )

    def write(self, path: str, box: list[list[int]], seed: int) -> None:
        """Write pseudo-random values into a box: the same for everybody, and never empty chunks."""
        array = zarr.open_array(self._store, path=path, mode="r+")
        where = tuple(slice(start, stop) for start, stop in box)[: array.ndim]
        shape = [len(range(*part.indices(size))) for part, size in zip(where, array.shape)]  # noqa: B905 - fewer
        shape += array.shape[len(shape) :]
        array[where] = np.random.default_rng(seed).integers(10, 100, shape).astype(array.dtype)

    def resize(self, path: str, shape: list[int]) -> None:
        array = zarr.open_array(self._store, path=path, mode="r+")
        array.resize(shape[: array.ndim])

    def attributes(self, path: str, attributes: Json) -> None:
        zarr.open(self._store, path=path, mode="r+").update_attributes(attributes)

    def delete(self, path: str) -> None:
        if path not in zarr.open_group(self._store, mode="r"):
            raise KeyError(path)
        sync(self._store.delete_dir(path))

    def delete_key(self, key: str) -> None:
        """Delete a chunk that is there; Icechunk counts other deletions as changes, icefloe not."""
        if not sync(self._store.exists(key)):
            raise KeyError(key)
        sync(self._store.delete(key))

    def move(self, source: str, target: str) -> None:
        self._session.move(source, target)

    def shift(self, path: str, offset: list[int]) -> None:
        self._session.shift_array(path, offset)


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it is, the other side must refuse too
        return False
    return True


def _content(session: Any) -> Json:
    """Read everything a session shows: keys, documents, values, and where chunks are."""
    store = session.store

    async def keys() -> list[str]:
        return sorted([key async for key in store.list()])

    async def document(key: str) -> str:
        value = await store.get(key, default_buffer_prototype())
        return str(value.to_bytes().decode())

    listed = sync(keys())
    names = [key for key in listed if key.split("/")[-1] == "zarr.json"]
    documents = {key: sync(document(key)) for key in names}
    return {
        "keys": listed,
        "documents": documents,
        "sizes": {key: sync(store.getsize(key)) for key in listed},
        "values": {
            key: _digest(store, key.removesuffix("zarr.json").strip("/"))
            for key, text in documents.items()
            if json.loads(text)["node_type"] == "array"
        },
    }


def _digest(store: Any, path: str) -> str:
    data = np.ascontiguousarray(zarr.open_array(store, path=path, mode="r")[...])
    return hashlib.sha256(data.tobytes()).hexdigest()


def _info(info: Any) -> Json:
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "message": info.message,
        "metadata": dict(info.metadata),
        "written_at": info.written_at.isoformat(),
    }


def _diff_of(repository: Any, older: Any, newer: Any) -> Json:
    return _diff(repository.diff(from_snapshot_id=older.id, to_snapshot_id=newer.id))


def _diff(diff: Any) -> Json:
    return {
        **{
            f"{change}_{kind}": sorted(getattr(diff, f"{change}_{kind}"))
            for change in ("new", "deleted", "updated")
            for kind in ("groups", "arrays")
        },
        "updated_chunks": {
            path: sorted(list(index) for index in chunks)
            for path, chunks in sorted(diff.updated_chunks.items())
        },
        "moved_nodes": [list(move) for move in getattr(diff, "moved_nodes", [])],
    }


class Wheel:
    """The other end of a process that takes part with Icechunk."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version: int = self.major_version()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([name, args, kwargs]) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            assert "error" not in answer, f"Icechunk failed at {name}: {answer['error']}"
            return answer["value"]

        return call


@contextmanager
def start_wheel(python: Path) -> Iterator[Wheel]:
    """Run Icechunk in an environment that has it, for as many requests as are needed."""
    with subprocess.Popen(
        [python, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Wheel(process)
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    """Answer requests until there are no more."""
    icechunk: Any = import_module("icechunk")
    if hasattr(icechunk, "set_logs_filter"):
        icechunk.set_logs_filter("error")
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may come between
    participant = Participant(icechunk, icechunk.local_filesystem_storage)
    for line in sys.stdin:
        name, args, kwargs = json.loads(line)
        answer: Json
        try:
            answer = {"value": getattr(participant, name)(*args, **kwargs)}
        except Exception as error:  # noqa: BLE001 - the test shows it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
