"""Two who change one repository in turns, and must agree on everything after each turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from icefloe.model import config
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from interop.participant import Participant

if TYPE_CHECKING:
    from pathlib import Path

    from interop.participant import Wheel

Side = Literal["us", "them"]

_LIBRARY = SimpleNamespace(
    __name__="icefloe",
    Repository=Repository,
    **{name: getattr(config, name) for name in config.__all__},
)


def icefloe_participant() -> Participant:
    """Take part with icefloe."""
    # Nothing here survives a power failure, and need not.
    return Participant(_LIBRARY, lambda root: LocalStorage(root, durable=False))


@dataclass
class Alternation:
    """One repository, icefloe on one side and Icechunk on the other."""

    root: Path
    spec_version: int
    theirs: Wheel
    ours: Participant = field(default_factory=icefloe_participant)
    last: dict[str, Any] = field(default_factory=dict)
    turns: int = 0

    def create(self, by: Side) -> None:
        """Create the repository."""
        self._side(by).create(str(self.root), self.spec_version)
        self.agree()

    def change(
        self,
        by: Side,
        *edits: list[Any],
        branch: str = "main",
        how: str = "commit",
        must_succeed: bool = True,
        **settings: Any,
    ) -> None:
        """Let one side commit edits; the other makes them too, says what it sees, and forgets them.

        Before the commit both sessions have the same status and show the same content; after it
        both sides read the same, and the commit shows what its session did.
        """
        self.turns += 1
        found: dict[str, Any] = {}
        arguments = {"branch": branch, "edits": list(edits), "settings": settings}
        message = f"{self.turns} by {by}"
        for side in ("them", "us") if by == "us" else ("us", "them"):
            commit = how if side == by else None
            found[side] = self._side(side).change(
                str(self.root), commit=commit, message=message, **arguments
            )
        ours, theirs = found["us"], found["them"]
        what = f"{by}: {edits} with {settings}"
        assert ours["failed"] == theirs["failed"], what
        assert ours["changed"] == theirs["changed"], what
        assert ours["status"] == theirs["status"], what
        assert _same_content(ours["content"], theirs["content"]), what
        assert found["them" if by == "us" else "us"]["left"] is False
        if must_succeed:
            assert not any(ours["failed"]), what
            assert ours["changed"], what
        self.agree(what)
        if "snapshot" in found[by]:
            line = self.last["lines"][branch]
            assert line["history"][0]["id"] == found[by]["snapshot"]
            assert line["history"][0]["message"] == message
            assert line["content"] == found[by]["content"] == found[by]["after"], what

    def refer(self, by: Side, name: str, *arguments: str, must_succeed: bool = True) -> None:
        """Let one side change a branch or a tag."""
        done = self._side(by).refer(str(self.root), name, list(arguments))
        assert done or not must_succeed, (by, name, arguments)
        self.agree(f"{by}: {name}{arguments}")

    def save_config(self, by: Side, **settings: Any) -> None:
        """Let one side persist settings."""
        self._side(by).save_config(str(self.root), settings)
        self.agree(f"{by}: save_config {settings}")

    def rewrite_manifests(self, by: Side, **settings: Any) -> None:
        """Let one side make all manifests anew."""
        before = self.last["lines"]["main"]["content"]
        self._side(by).rewrite_manifests(str(self.root), settings)
        self.agree(f"{by}: rewrite_manifests {settings}")
        assert self.last["lines"]["main"]["content"] == before

    def agree(self, what: str = "") -> None:
        """Require that both sides report the same of the whole repository."""
        ours, theirs = self.ours.report(str(self.root)), self.theirs.report(str(self.root))
        # Whether a repository has its own metadata is known only to those who know version 2.
        for name in theirs.keys() & ours.keys():
            assert ours[name] == theirs[name], f"after {what}"
        self.last = ours

    def _side(self, by: str) -> Any:
        return self.ours if by == "us" else self.theirs


def _same_content(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two uncommitted sessions show the same; documents are as their own Zarr wrote them.

    Two versions of Zarr may write one document differently.
    """
    keys = ("keys", "values")
    return all(one[key] == other[key] for key in keys) and _chunk_sizes(one) == _chunk_sizes(other)


def _chunk_sizes(content: dict[str, Any]) -> dict[str, int]:
    return {
        key: size for key, size in content["sizes"].items() if key not in content["documents"]
    }
