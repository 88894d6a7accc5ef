"""Two who change one repository in turns, and must agree on everything after each turn."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import icefloe
from icefloe.storage import LocalStorage
from support.interop_participant import Participant

if TYPE_CHECKING:
    from pathlib import Path

    from support.interop_participant import Wheel

Side = Literal["us", "them"]


def icefloe_participant() -> Participant:
    """Take part with icefloe."""
    # Nothing here survives a power failure, and need not.
    return Participant(icefloe, lambda root: LocalStorage(root, durable=False))


@dataclass(frozen=True)
class Setting:
    """Who the other side is, and the version of the format."""

    wheel: Wheel
    spec_version: int


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
        what = f"{how} by {by}: {edits} with {settings}"
        if self.theirs.version < 2 or not must_succeed:
            for side in (ours, theirs):
                _forget_chunks_outside(side["status"], side["content"])
        for name in ("failed", "changed", "status"):
            require_same(ours[name], theirs[name], f"{name} of {what}")
        _require_same_content(ours["content"], theirs["content"], what)
        assert found["them" if by == "us" else "us"]["left"] is False
        if must_succeed:
            assert not any(ours["failed"]), what
            assert ours["changed"], what
            assert "refused" not in found[by], what
        self.agree(what)
        if "snapshot" in found[by]:
            line = self.last["lines"][branch]
            assert line["history"][0]["id"] == found[by]["snapshot"]
            assert line["history"][0]["message"] == message
            for moment in ("content", "after"):
                require_same(line["content"], found[by][moment], f"{moment} of {what}")

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
        """Let one side rewrite all manifests."""
        before = self.last["lines"]["main"]["content"]
        self._side(by).rewrite_manifests(str(self.root), settings)
        self.agree(f"{by}: rewrite_manifests {settings}")
        assert self.last["lines"]["main"]["content"] == before

    def agree(self, what: str = "") -> None:
        """Require that both sides report the same of the whole repository."""
        ours, theirs = self.ours.report(str(self.root)), self.theirs.report(str(self.root))
        # Whether a repository has its own metadata is known only to those who know version 2.
        for name in theirs.keys() & ours.keys():
            require_same(ours[name], theirs[name], f"{name} after {what}")
        self.last = ours

    def _side(self, by: str) -> Any:
        return self.ours if by == "us" else self.theirs


def require_same(ours: Any, theirs: Any, what: str) -> None:
    """Require that two values of JSON are equal; says where they differ first."""
    if ours == theirs:
        return
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key in ours:
            require_same(ours[key], theirs[key], f"{key!r} in {what}")
    raise AssertionError(f"{what}\n  icefloe:  {ours}\n  Icechunk: {theirs}")


def _require_same_content(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    """Require that two uncommitted sessions show the same.

    Documents are as their own Zarr wrote them, and two versions of it write them differently.
    """
    for name in ("keys", "values"):
        require_same(ours[name], theirs[name], f"{name} of {what}")
    require_same(_chunk_sizes(ours), _chunk_sizes(theirs), f"sizes of {what}")


def _forget_chunks_outside(status: dict[str, Any], content: dict[str, Any]) -> None:
    """Leave out chunks that a resizing cut off.

    Icechunk 1 has none of them in its status, and Icechunk 2 those as well that never were written.
    """
    kept: dict[str, list[list[int]]] = {}
    for path, chunks in status["updated_chunks"].items():
        document = json.loads(content["documents"].get(f"{path[1:]}/zarr.json", "{}"))
        if "chunk_grid" in document:
            sizes = document["chunk_grid"]["configuration"]["chunk_shape"]
            grid = [-(-n // size) for n, size in zip(document["shape"], sizes, strict=True)]
            inside = [
                index for index in chunks if all(i < n for i, n in zip(index, grid, strict=True))
            ]
            kept |= {path: inside} if inside else {}
    status["updated_chunks"] = kept


def _chunk_sizes(content: dict[str, Any]) -> dict[str, int]:
    return {key: size for key, size in content["sizes"].items() if key not in content["documents"]}
