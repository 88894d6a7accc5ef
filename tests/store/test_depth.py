"""The work for a deeply nested node is proportional to its depth."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from support import zarr_documents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import FrameType

SHALLOW, DEEP = 200, 1100
GROUP = cpu.Buffer.from_bytes(zarr_documents.group())


def count_calls(function: Callable[[], object]) -> int:
    """Return how many Python functions a call runs in this thread."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def count_by_step(depth: int, generation: str) -> dict[str, int]:
    """Create, commit, list, read, compare, move and delete groups inside each other."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), generation=generation)
    counts: dict[str, int] = {}
    folders = ["group/" * level for level in range(depth + 1)]
    array = cpu.Buffer.from_bytes(zarr_documents.array((1,)))

    def run(step: str, make: Callable[[], Awaitable[object]]) -> None:
        async def wait() -> None:
            await make()

        counts[step] = count_calls(lambda: asyncio.run(wait()))

    async def consume(keys: AsyncIterator[str]) -> int:
        return len([key async for key in keys])

    session = repository.writable_session("main")
    store = session.store

    async def create() -> None:
        for folder in folders:
            await store.set(f"{folder}zarr.json", GROUP)
        await store.set(f"{folders[-1]}a/zarr.json", array)
        await store.set(f"{folders[-1]}a/c/0", cpu.Buffer.from_bytes(b"\1"))

    run("create", create)
    counts["commit"] = count_calls(lambda: session.commit("nested"))
    reading = repository.readonly_session("main").store

    async def read() -> None:
        for key in [*(f"{folder}zarr.json" for folder in folders), f"{folders[-1]}a/c/0"]:
            assert await reading.get(key, default_buffer_prototype()) is not None

    async def list_folders() -> None:
        for folder in folders:
            assert await consume(reading.list_dir(folder.rstrip("/"))) == 2

    async def list_all() -> None:
        assert await consume(reading.list()) == depth + 3

    run("read", read)
    run("list folders", list_folders)
    run("list", list_all)
    first, last = (list(repository.ancestry(branch="main"))[index].id for index in (-1, 0))
    counts["diff"] = count_calls(
        lambda: repository.diff(from_snapshot_id=first, to_snapshot_id=last)
    )
    moving = repository.rearrange_session("main")
    counts["move"] = count_calls(lambda: moving.move("/group", "/moved"))
    counts["commit of a move"] = count_calls(lambda: moving.commit("moved"))
    deleting = repository.writable_session("main")
    run("delete", lambda: deleting.store.delete_dir("moved"))
    counts["status"] = count_calls(deleting.status)
    counts["commit of a deletion"] = count_calls(lambda: deleting.commit("deleted"))
    return counts


def test_work_is_proportional_to_depth(generation: str) -> None:
    """In every step, the calls grow at most with the depth, which exceeds the recursion limit."""
    count_by_step(2, generation)  # imports and caches
    shallow, deep = (count_by_step(depth, generation) for depth in (SHALLOW, DEEP))
    limit = 1.1 * DEEP / SHALLOW
    assert {step: deep[step] for step in deep if deep[step] > limit * shallow[step]} == {}
