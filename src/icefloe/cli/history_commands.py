"""The commands ``log``, ``show``, ``diff`` and ``history``."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from icefloe import inspection
from icefloe.cli import output
from icefloe.cli.arguments import AsJson, Ref, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.output import print_json, print_line, print_renderable
from icefloe.cli.repositories import OpenedFiles, open_files
from icefloe.display import (
    draw_lanes,
    escape_unsafe,
    format_count,
    format_first_line,
    format_time,
    lay_out,
    summarize_diff,
)
from icefloe.errors import InvalidInputError
from icefloe.inspection.ancestry import fetch_commits
from icefloe.inspection.diff import count_changes, describe_diff, fetch_diff
from icefloe.inspection.metadata_file import describe_snapshot_info
from icefloe.model.ids import SnapshotId
from icefloe.snapshots import Diff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.display import Commit
    from icefloe.model.snapshot import SnapshotInfo

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "History"
_SHORT_ID_LENGTH = 8
_INDENT = "    "

_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of commits.")]
_Stat = Annotated[bool, typer.Option("--stat", help="Count the changes of each kind.")]


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe log weather\n\n"
    "  icefloe log weather --ref v1.0 --oneline -n 20\n\n"
    "  icefloe log weather --stat --json",
)
def log(
    repository: RepositoryArgument,
    *,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref",
            "-r",
            metavar="NAME",
            help="Branch, tag or snapshot id; by default all branches and tags.",
        ),
    ] = None,
    limit: _Limit = 100,
    oneline: Annotated[bool, typer.Option("--oneline", help="Print one line per commit.")] = False,
    stat: _Stat = False,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a repository as a graph, newest first."""
    files = open_files(repository)
    start = None if ref is None else files.resolve(ref)
    commits = fetch_commits(files.refs, start, limit=limit + 1)
    has_more = len(commits) > limit
    graph = lay_out(commits[:limit])
    if as_json:
        print_json(
            _describe_commit(files, row.commit, with_changes=stat)
            | {"branches": list(row.commit.branches), "tags": list(row.commit.tags)}
            for row in graph.rows
        )
    else:
        for row, (lanes, more_lanes) in zip(graph.rows, draw_lanes(graph), strict=True):
            diff = _fetch_changes(files, row.commit.id, row.commit.parent_id) if stat else None
            lines = _format_commit(row.commit, diff, is_short=oneline)
            print_line(Text.from_ansi(lanes) + next(lines))
            for line in lines:
                print_line(Text.from_ansi(more_lanes) + line)
    if has_more:
        output.print_note(f"newest {format_count(limit, 'commit')}; use --limit for more")


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe show weather\n\n"
    "  icefloe show weather v1.0 --stat\n\n"
    "  icefloe show weather dev --chunks --json",
)
def show(
    repository: RepositoryArgument,
    ref: Annotated[
        str, typer.Argument(metavar="[REF]", help="Branch, tag or snapshot id.")
    ] = "main",
    *,
    stat: _Stat = False,
    chunks: Annotated[bool, typer.Option("--chunks", help="List every changed chunk.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a commit: its message, metadata and changes."""
    files = open_files(repository)
    (entry,) = islice(inspection.fetch_history(files.refs, ref), 1)
    info = entry.info
    diff = _fetch_changes(files, info.id, info.parent_id)
    if as_json:
        print_json(
            describe_snapshot_info(info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            | {"changes": _describe_changes(diff, stat=stat)}
        )
        return
    _print_line("commit", str(info.id), style="yellow")
    if info.parent_id is not None:
        _print_line("parent", str(info.parent_id))
    _print_line("date", f"{info.flushed_at:%Y-%m-%d %H:%M:%S} UTC")
    for label, names in (("branches", entry.branches), ("tags", entry.tags)):
        if names:
            _print_line(label, ", ".join(map(escape_unsafe, names)))
    for key, value in info.metadata.items():
        _print_line("metadata", f"{escape_unsafe(key)} = {escape_unsafe(repr(value))}")
    sys.stdout.write("\n")
    for line in info.message.split("\n"):
        sys.stdout.write(f"{_INDENT}{escape_unsafe(line)}".rstrip() + "\n")
    sys.stdout.write("\n")
    _print_diff(diff, stat=stat, chunks=chunks)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe diff weather v1.0\n\n"
    "  icefloe diff weather v1.0 dev --stat\n\n"
    "  icefloe diff weather v1.0..dev --chunks",
)
def diff(
    repository: RepositoryArgument,
    before: Annotated[
        str, typer.Argument(metavar="FROM", help="Branch, tag or snapshot id, or FROM..TO.")
    ],
    after: Annotated[
        str | None, typer.Argument(metavar="[TO]", help="Branch, tag or snapshot id; default main.")
    ] = None,
    *,
    stat: _Stat = False,
    chunks: Annotated[bool, typer.Option("--chunks", help="List every changed chunk.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the changes from one snapshot to another, down to chunks."""
    files = open_files(repository)
    if after is None:
        before, _, after = before.partition("..")
    if not before:
        raise InvalidInputError("FROM is empty: name a branch, tag or snapshot id")
    ids = [files.resolve(before), files.resolve(after or "main")]
    found = fetch_diff(files.refs, files.assets, *ids)
    if as_json:
        print_json({"from": str(ids[0]), "to": str(ids[1])} | _describe_changes(found, stat=stat))
        return
    _print_diff(found, stat=stat, chunks=chunks)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Example:  icefloe history s3://bucket/weather --ref main --limit 20",
)
def history(
    repository: RepositoryArgument,
    *,
    ref: Ref = "main",
    limit: _Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a branch, tag or snapshot as a table, newest first; see also log."""
    entries = islice(inspection.fetch_history(open_files(repository).refs, ref), limit)
    if as_json:
        print_json(
            describe_snapshot_info(entry.info)
            | {"branches": list(entry.branches), "tags": list(entry.tags)}
            for entry in entries
        )
        return
    table = output.make_table("snapshot", "written at (UTC)", "refs", "message")
    for entry in entries:
        names = [Text(escape_unsafe(name), "green") for name in entry.branches]
        names += [Text(escape_unsafe(name), "yellow") for name in entry.tags]
        table.add_row(
            Text(str(entry.info.id), "cyan"),
            f"{entry.info.flushed_at:%Y-%m-%d %H:%M:%S}",
            Text(" ").join(names),
            Text(escape_unsafe(entry.info.message)),
        )
    print_renderable(table)


def _fetch_changes(
    files: OpenedFiles, snapshot_id: SnapshotId | str, parent_id: SnapshotId | str | None
) -> Diff:
    """Fetch the changes of a commit; the first one has none."""
    if parent_id is None:
        return Diff()
    ids = (SnapshotId.parse(parent_id), SnapshotId.parse(snapshot_id))
    return fetch_diff(files.refs, files.assets, *ids)


def _format_commit(commit: Commit, diff: Diff | None, *, is_short: bool) -> Iterator[Text]:
    """Yield the lines of a commit."""
    names = [Text(escape_unsafe(name), "bold green") for name in commit.branches]
    names += [Text(f"tag: {escape_unsafe(name)}", "bold yellow") for name in commit.tags]
    refs = Text.assemble(" (", Text(", ").join(names), ")") if names else Text()
    when = format_time(commit.written_at)
    if is_short:
        short_id = Text(commit.id[:_SHORT_ID_LENGTH], "yellow")
        message = format_first_line(commit.message)
        yield Text.assemble(short_id, f" {when}", refs, f" {message}")
    else:
        yield Text.assemble(Text(f"commit {commit.id}", "yellow"), refs)
        yield Text(f"{when} UTC", "dim")
        for line in commit.message.split("\n"):
            yield Text(f"{_INDENT}{escape_unsafe(line)}")
    if diff is not None:
        yield Text(f"{_INDENT}{summarize_diff(diff)}", "cyan")
    if not is_short:
        yield Text()


def _print_line(label: str, text: str, style: str = "") -> None:
    print_renderable(Text.assemble(f"{label:<9}", (text, style)))


def _print_diff(diff: Diff, *, stat: bool, chunks: bool) -> None:
    if stat:
        sys.stdout.write(f"{summarize_diff(diff)}\n")
        return
    if not chunks:
        sys.stdout.write(f"{diff}\n")
        return
    without_chunks = Diff(
        **{name: getattr(diff, name) for name in Diff.__slots__ if name != "updated_chunks"}
    )
    if not without_chunks.is_empty() or not diff.updated_chunks:
        sys.stdout.write(f"{without_chunks}\n")
    for path, indices in sorted(diff.updated_chunks.items()):
        for index in indices:
            sys.stdout.write(f"{escape_unsafe(path)} {index}\n")


def _describe_commit(files: OpenedFiles, commit: Commit, *, with_changes: bool) -> dict[str, Any]:
    info: SnapshotInfo = files.refs.fetch_snapshot_info(SnapshotId.parse(commit.id))
    description = describe_snapshot_info(info)
    if with_changes:
        diff = _fetch_changes(files, commit.id, commit.parent_id)
        description["changes"] = count_changes(diff)
    return description


def _describe_changes(diff: Diff, *, stat: bool) -> dict[str, Any]:
    return count_changes(diff) if stat else describe_diff(diff)
