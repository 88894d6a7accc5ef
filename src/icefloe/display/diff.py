"""What changed, in a line, in full, and as HTML."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from icefloe.display.html import Html, code, faint, folded, joined, panel, table
from icefloe.display.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.snapshots import Diff

_MAX_CHUNKS: Final = 10
_MAX_PATHS: Final = 50

_SECTIONS: Final = (
    ("new_groups", "new group"),
    ("new_arrays", "new array"),
    ("deleted_groups", "deleted group"),
    ("deleted_arrays", "deleted array"),
    ("updated_groups", "updated group"),
    ("updated_arrays", "updated array"),
)


def diff_summary(diff: Diff) -> str:
    """Count what changed."""
    counts = [counted(len(getattr(diff, name)), noun) for name, noun in _nonempty(diff)]
    if diff.updated_chunks:
        chunks = sum(map(len, diff.updated_chunks.values()))
        arrays = counted(len(diff.updated_chunks), "array")
        counts.append(f"{counted(chunks, 'updated chunk')} in {arrays}")
    if diff.moved_nodes:
        counts.append(counted(len(diff.moved_nodes), "moved node"))
    return ", ".join(counts) or "nothing changed"


def diff_text(diff: Diff) -> str:
    """List what changed; of many chunks only the first."""
    lines: list[str] = []
    for name, noun in _nonempty(diff):
        lines += [
            f"{noun.capitalize()}s:",
            *(f"    {_path(p)}" for p in sorted(getattr(diff, name))),
        ]
    if diff.updated_chunks:
        lines.append("Updated chunks:")
        for path, chunks in sorted(diff.updated_chunks.items()):
            lines.append(f"    {_path(path)}: {_chunks(chunks)}")
    if diff.moved_nodes:
        lines.append("Moved nodes:")
        lines += [f"    {_path(before)} -> {_path(after)}" for before, after in diff.moved_nodes]
    return "\n".join(lines) or "Nothing changed"


def diff_html(diff: Diff) -> str:
    """Show what changed, one row for each kind of change."""
    rows: list[tuple[object, object]] = []
    for name, noun in _nonempty(diff):
        paths = sorted(getattr(diff, name))
        rows.append((f"{noun}s", _listed([code(path) for path in paths[:_MAX_PATHS]], len(paths))))
    if diff.updated_chunks:
        shown = [
            Html(f"{code(path)} {faint(_chunks(chunks))}")
            for path, chunks in islice(sorted(diff.updated_chunks.items()), _MAX_PATHS)
        ]
        rows.append(("updated chunks", _listed(shown, len(diff.updated_chunks), "<br>")))
    if diff.moved_nodes:
        moves = [
            Html(f"{code(before)} → {code(after)}")
            for before, after in diff.moved_nodes[:_MAX_PATHS]
        ]
        rows.append(("moved nodes", _listed(moves, len(diff.moved_nodes), "<br>")))
    return panel(f"Diff: {diff_summary(diff)}", *([table(rows)] if rows else []))


def _nonempty(diff: Diff) -> Iterator[tuple[str, str]]:
    return ((name, noun) for name, noun in _SECTIONS if getattr(diff, name))


def _listed(shown: Sequence[Html], total: int, separator: str = " ") -> Html:
    pieces = joined(shown, separator)
    if total > len(shown):
        pieces = Html(f"{pieces}{separator}{faint(f'and {total - len(shown):,} more')}")
    return folded(counted(total, "node"), pieces) if total > _MAX_CHUNKS else pieces


def _path(path: str) -> str:
    return printable(path)


def _chunks(chunks: Sequence[Sequence[int]]) -> str:
    shown = " ".join(str(list(chunk)).replace(" ", "") for chunk in chunks[:_MAX_CHUNKS])
    more = len(chunks) - _MAX_CHUNKS
    return f"{shown} and {more:,} more" if more > 0 else shown
