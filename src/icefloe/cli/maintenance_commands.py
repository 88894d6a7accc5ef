"""The commands ``gc``, ``expire``, ``stats`` and ``upgrade``."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from icefloe.cli import output
from icefloe.cli.arguments import AsJson, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.confirmation import DryRun, Yes, require_confirmation
from icefloe.cli.output import print_json, print_renderable
from icefloe.cli.progress import show_phases
from icefloe.cli.repositories import open_repository
from icefloe.display import escape_unsafe, format_count, format_size
from icefloe.maintenance.upgrade import upgrade_icechunk_repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.maintenance import GCSummary

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Maintenance"

_AGE: Final = re.compile(r"(\d{1,6})\s*(min|[hdw])")
_UNITS: Final = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_COUNTED: Final = ("snapshots", "transaction_logs", "manifests", "attributes", "chunks")
_OlderThan = Annotated[
    str,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="Age such as 30min, 12h, 14d or 2w, or a time such as 2026-01-31T12:00Z (a date means "
        "midnight in UTC).",
    ),
]


def parse_time(text: str, now: datetime) -> datetime:
    """Return the time of an age such as ``14d``, or of an ISO 8601 time (UTC if no zone)."""
    match = _AGE.fullmatch(text.strip().lower())
    try:
        if match is not None:
            return now - int(match[1]) * _UNITS[match[2]]
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"expected an age such as 14d or a time such as 2026-01-31, got {text!r}",
            param_hint="--older-than",
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe gc weather --dry-run\n\n"
    "  icefloe gc weather --older-than 30d --yes",
)
def gc(
    repository: RepositoryArgument,
    *,
    older_than: _OlderThan = "14d",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that no branch or tag needs.

    Keeps newer files than --older-than, because nothing refers to the files of a session before it
    commits: choose an age longer than any session lasts.
    """
    cutoff = parse_time(older_than, datetime.now(UTC))
    opened = open_repository(repository)
    if not yes or dry_run:
        with show_phases() as progress:
            summary = opened.garbage_collect(cutoff, dry_run=True, progress=progress)
        if dry_run or not _count_files(summary):
            _print_summary(summary, dry_run=dry_run, as_json=as_json)
            return
        question = f"Delete {_format_summary(summary)} older than {cutoff:%Y-%m-%d %H:%M} UTC?"
        require_confirmation(question, yes=False)
    with show_phases() as progress:
        summary = opened.garbage_collect(cutoff, progress=progress)
    _print_summary(summary, dry_run=False, as_json=as_json)
    if summary.objects_failed_to_delete or summary.skipped_phases:
        raise typer.Exit(1)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe expire weather --older-than 30d --dry-run\n\n"
    "  icefloe expire weather --older-than 2026-01-01 --yes && icefloe gc weather --yes",
)
def expire(
    repository: RepositoryArgument,
    *,
    older_than: _OlderThan,
    delete_branches: Annotated[
        bool,
        typer.Option("--delete-branches", help="Delete branches, except main, whose tip expires."),
    ] = False,
    delete_tags: Annotated[
        bool, typer.Option("--delete-tags", help="Delete tags whose snapshot expires.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove old snapshots from history; gc then deletes their files.

    The first snapshot and the tips of branches and tags stay.
    """
    cutoff = parse_time(older_than, datetime.now(UTC))
    opened = open_repository(repository)

    def run(*, dry_run: bool) -> set[str]:
        return opened.expire_snapshots(
            cutoff,
            delete_expired_branches=delete_branches,
            delete_expired_tags=delete_tags,
            dry_run=dry_run,
        )

    expired = run(dry_run=True) if dry_run or not yes else set()
    if not dry_run:
        if expired and not yes:
            refs = " and the branches and tags at them" if delete_branches or delete_tags else ""
            snapshots = format_count(len(expired), "snapshot")
            require_confirmation(f"Remove {snapshots}{refs} from history?", yes=False)
        expired = run(dry_run=False) if expired or yes else expired
    if as_json:
        print_json({"expired": sorted(expired), "dry_run": dry_run})
        return
    output.print_result(f"expired {format_count(len(expired), 'snapshot')}", dry_run=dry_run)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe stats weather\n\n"
    "  icefloe stats weather --json | jq .native_bytes",
)
def stats(repository: RepositoryArgument, *, as_json: AsJson = False) -> None:
    """Sum the sizes of all chunks in the history of branches and tags.

    A byte range that several chunks refer to counts once.
    """
    opened = open_repository(repository)
    with show_phases() as progress:
        found = opened.chunk_storage_stats(progress=progress)
    if as_json:
        print_json(asdict(found) | {"total_bytes": found.total_bytes()})
        return
    table = output.make_table("chunks", "size")
    rows = (
        ("native", found.native_bytes),
        ("inline", found.inlined_bytes),
        ("virtual", found.virtual_bytes),
        ("total", found.total_bytes()),
    )
    for name, num_bytes in rows:
        table.add_row(Text(name), format_size(num_bytes))
    print_renderable(table)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n  icefloe upgrade weather --dry-run\n\n  icefloe upgrade weather --yes",
)
def upgrade(
    repository: RepositoryArgument,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade a repository from format version 1 to 2, in place.

    Stop all writers first. For other conversions see convert.
    """
    opened = open_repository(repository)
    url, before = opened.storage.url, opened.generation
    if not dry_run and before == "v1":
        require_confirmation(
            f"Upgrade {url} to version 2? Libraries that only read version 1 cannot open it then, "
            "and commits of other writers during the upgrade may be lost.",
            yes=yes,
        )
    upgraded = upgrade_icechunk_repository(opened, dry_run=dry_run)
    after = "v2" if dry_run else upgraded.generation
    if as_json:
        print_json({"url": url, "from": before, "to": after, "dry_run": dry_run})
    else:
        output.print_result(f"upgraded {url} from {before} to {after}", dry_run=dry_run)


def _count_files(summary: GCSummary) -> int:
    return sum(_get_counts(summary).values())


def _get_counts(summary: GCSummary) -> Mapping[str, int]:
    return {name: getattr(summary, f"{name}_deleted") for name in _COUNTED}


def _format_summary(summary: GCSummary) -> str:
    counts = [
        format_count(count, name.removesuffix("s").replace("_", " "))
        for name, count in _get_counts(summary).items()
        if count
    ]
    return f"{', '.join(counts) or 'nothing'} ({format_size(summary.bytes_deleted)})"


def _print_summary(summary: GCSummary, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary) | {"dry_run": dry_run})
        return
    output.print_result(f"deleted {_format_summary(summary)}", dry_run=dry_run)
    for message in summary.delete_errors:
        sys.stdout.write(f"failed: {escape_unsafe(message)}\n")
