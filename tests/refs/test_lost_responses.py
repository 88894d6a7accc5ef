"""A change whose response was lost is found in the history, or its outcome is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.errors import OutcomeUnknownError
from icefloe.format.generation import SEQUENCE, V2
from icefloe.refs import create_refs, open_refs
from icefloe.storage import MemoryStorage, Overwrite
from icefloe.storage.interface import UpdateIfMatch
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.format.generation import Generation
    from icefloe.refs import Refs
    from icefloe.storage import PutMode, Version


class LossyStorage(MemoryStorage):
    """Loses the response to the next change of a ref, after an action of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.on_update: Callable[[Callable[[], Version]], object] | None = None

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        on_update, self.on_update = self.on_update, None
        is_change = isinstance(mode, UpdateIfMatch) or key.startswith("r/")
        if on_update is None or not is_change:
            self.on_update = on_update
            return super().put(key, data, mode)
        on_update(lambda: super(LossyStorage, self).put(key, data, mode))
        raise OutcomeUnknownError("the response was lost")


@pytest.fixture
def storage() -> LossyStorage:
    return LossyStorage()


def test_the_commit_took_effect(storage: LossyStorage, generation: Generation) -> None:
    """The commit took effect: success."""
    refs = create_refs(storage, generation=generation)
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, generation, parent, "ours")
    storage.on_update = lambda put: put()
    refs.commit("main", parent, info)
    assert refs.fetch_branch("main") == info.id


def test_the_commit_took_effect_with_an_older_state(
    storage: LossyStorage, generation: Generation
) -> None:
    """The state at opening is not used to find out whether the commit took effect."""
    create_refs(storage, generation=generation)
    opening_refs = open_refs(storage).opening_refs
    parent = opening_refs.fetch_branch("main")
    info = write_snapshot(storage, generation, parent, "ours")
    storage.on_update = lambda put: put()
    opening_refs.commit("main", parent, info)
    assert open_refs(storage).refs.fetch_branch("main") == info.id


def test_the_commit_took_effect_before_others(
    storage: LossyStorage, generation: Generation
) -> None:
    """The commit is an ancestor of later commits: success, and it is not repeated."""
    refs = create_refs(storage, generation=generation)
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, generation, parent, "ours")
    theirs = write_snapshot(storage, generation, info.id, "theirs")

    def land_and_go_on(put: Callable[[], Version]) -> None:
        put()
        open_refs(storage).refs.commit("main", info.id, theirs)

    storage.on_update = land_and_go_on
    refs.commit("main", parent, info)
    history = [info.message for info in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert history == ["theirs", "ours", "Repository initialized"]


def test_the_commit_may_still_take_effect(storage: LossyStorage, generation: Generation) -> None:
    """Nothing changed so far, but the request may be in flight: the outcome is unknown."""
    refs = create_refs(storage, generation=generation)
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, generation, parent, "ours")
    storage.on_update = lambda _: None
    with pytest.raises(OutcomeUnknownError):
        refs.commit("main", parent, info)
    assert refs.fetch_branch("main") == parent


def test_a_reset_is_not_mistaken_for_success(storage: LossyStorage, generation: Generation) -> None:
    """A reset to an ancestor that did not take effect is not mistaken for a success."""
    refs = create_refs(storage, generation=generation)
    first = refs.fetch_branch("main")
    second = write_snapshot(storage, generation, first, "second")
    refs.commit("main", first, second)
    third = write_snapshot(storage, generation, second.id, "third")
    storage.on_update = lambda _: open_refs(storage).refs.commit("main", second.id, third)
    if generation is SEQUENCE:
        # The file of the other commit proves that the reset did not take effect: it is repeated.
        refs.reset_branch("main", first)
        assert refs.fetch_branch("main") == first
        return
    with pytest.raises(OutcomeUnknownError):
        refs.reset_branch("main", first)
    assert refs.fetch_branch("main") == third.id


class TestGeneration2:
    """Changes that only version 2 has."""

    @pytest.fixture
    def refs(self, storage: LossyStorage) -> Refs:
        refs = create_refs(storage, generation=V2)
        first = refs.fetch_branch("main")
        refs.commit("main", first, write_snapshot(storage, V2, first, "first"))
        return refs

    def test_an_amendment_that_took_effect(self, storage: LossyStorage, refs: Refs) -> None:
        """The amendment is not repeated, which would conflict with itself."""
        tip = refs.fetch_branch("main")
        amended = write_snapshot(storage, V2, tip, "amended")
        storage.on_update = lambda put: put()
        refs.amend("main", tip, amended)
        assert refs.fetch_branch("main") == amended.id

    def test_metadata_that_took_effect(self, storage: LossyStorage, refs: Refs) -> None:
        """Later changes of other writers are kept."""

        def land_and_go_on(put: Callable[[], Version]) -> None:
            put()
            open_refs(storage).refs.update_metadata({"a": 2})

        storage.on_update = land_and_go_on
        assert refs.update_metadata({"a": 1}) == {"a": 1}
        assert refs.fetch_metadata() == {"a": 2}

    def test_a_snapshot_that_may_still_take_effect(self, storage: LossyStorage, refs: Refs) -> None:
        """The outcome is unknown."""
        detached = write_snapshot(storage, V2, refs.fetch_branch("main"), "detached")
        storage.on_update = lambda _: None
        with pytest.raises(OutcomeUnknownError):
            refs.add_snapshot(detached)
