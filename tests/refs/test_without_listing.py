"""Repositories work without permission to list objects, except in the generation sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
import zarr

import icefloe
from icefloe.errors import AbsentOrDeniedError, ObjectNotFoundError, PermissionDeniedError
from icefloe.format.generation import SEQUENCE
from icefloe.storage import MemoryStorage
from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.format.generation import Generation

T = TypeVar("T")


class UnlistableStorage(ForwardingStorage):
    """Responds like S3 to a user without permission to list the bucket."""

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        if request.name in ("list", "list_first"):
            raise AbsentOrDeniedError("may not list")
        try:
            return run()
        except ObjectNotFoundError as error:
            raise AbsentOrDeniedError(f"{request.keys[0]}: may not read") from error


def test_everything_but_listing(generation: Generation) -> None:
    """Creating, committing, branches, tags and time travel need no listing, and no 404.

    The generation ``sequence`` lists branches, so that opening is refused.
    """
    inner = MemoryStorage()
    storage = UnlistableStorage(inner)
    assert not icefloe.Repository.exists(storage)
    if generation is SEQUENCE:
        icefloe.Repository.create(inner, generation=generation.name)
        with pytest.raises(PermissionDeniedError):
            icefloe.Repository.open(storage)
        return
    icefloe.Repository.create(storage, generation=generation.name)
    repo = icefloe.Repository.open(storage)
    assert repo.generation == generation.name
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 7
    first = repo.lookup_branch("main")
    repo.create_branch("other", first)
    repo.create_tag("v1", first)
    again = icefloe.Repository.open(storage)
    for session in (
        again.readonly_session("main"),
        again.readonly_session("other"),
        again.readonly_session(tag="v1"),
        again.readonly_session(snapshot_id=first),
    ):
        assert zarr.open_array(session.store, path="a", mode="r")[0] == 7
    repo.delete_tag("v1")
    with pytest.raises(icefloe.RefNotFoundError):
        repo.lookup_tag("v1")


def test_without_permission_to_read() -> None:
    """Without permission to read, the error is not `RepositoryNotFoundError`."""
    with pytest.raises(PermissionDeniedError, match="repo"):
        icefloe.Repository.open(UnlistableStorage(MemoryStorage()))
