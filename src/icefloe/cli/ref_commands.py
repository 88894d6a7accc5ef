"""The commands ``branch``, ``tag`` and ``reset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from icefloe.cli import output
from icefloe.cli.arguments import AsJson, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.confirmation import DryRun, Yes, require_confirmation
from icefloe.cli.output import print_json, print_renderable
from icefloe.cli.repositories import open_files, open_repository, resolve_snapshot_id
from icefloe.display import escape_unsafe, format_count
from icefloe.refs.ref_errors import require_not_main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import SnapshotId

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Branches and tags"

_Start = Annotated[
    str | None,
    typer.Argument(metavar="[START]", help="Branch, tag or snapshot id; by default main."),
]


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe branch weather\n\n"
    "  icefloe branch weather fix v1.0\n\n"
    "  icefloe branch weather --delete dev",
)
def branch(
    repository: RepositoryArgument,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a branch.")] = None,
    start: _Start = None,
    *,
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Delete the branch.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List branches, create one, or delete one."""
    _check_options(name, start, delete=delete, dry_run=dry_run)
    if name is None:
        _print_refs(open_files(repository).refs.fetch_branches(), as_json=as_json)
        return
    opened = open_repository(repository)
    if delete:
        require_not_main(name)
        snapshot_id = opened.lookup_branch(name)
        question = (
            f"Delete the branch {name!r} at {snapshot_id}? Commits that no other branch or tag "
            "reaches are lost after the next garbage collection."
        )
        if not dry_run:
            require_confirmation(question, yes=yes)
            opened.delete_branch(name)
        _report("deleted", "branch", name, snapshot_id, dry_run=dry_run, as_json=as_json)
        return
    snapshot_id = resolve_snapshot_id(opened, start or "main")
    opened.create_branch(name, snapshot_id)
    _report("created", "branch", name, snapshot_id, as_json=as_json)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe tag weather\n\n"
    "  icefloe tag weather v1.1\n\n"
    "  icefloe tag weather --delete v1.0 --dry-run",
)
def tag(
    repository: RepositoryArgument,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a tag.")] = None,
    start: _Start = None,
    *,
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Delete the tag.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List tags, create one, or delete one."""
    _check_options(name, start, delete=delete, dry_run=dry_run)
    if name is None:
        _print_refs(open_files(repository).refs.fetch_tags(), as_json=as_json)
        return
    opened = open_repository(repository)
    if delete:
        snapshot_id = opened.lookup_tag(name)
        question = (
            f"Delete the tag {name!r} at {snapshot_id}? Its name cannot be used again, and commits "
            "that no branch or other tag reaches are lost after the next garbage collection."
        )
        if not dry_run:
            require_confirmation(question, yes=yes)
            opened.delete_tag(name)
        _report("deleted", "tag", name, snapshot_id, dry_run=dry_run, as_json=as_json)
        return
    snapshot_id = resolve_snapshot_id(opened, start or "main")
    opened.create_tag(name, snapshot_id)
    _report("created", "tag", name, snapshot_id, as_json=as_json)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe reset weather v1.0 --dry-run\n\n"
    "  icefloe reset weather main --branch dev --yes",
)
def reset(
    repository: RepositoryArgument,
    target: Annotated[
        str, typer.Argument(metavar="REF", help="Branch, tag or snapshot id to move to.")
    ],
    *,
    branch_name: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to move.")
    ] = "main",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a branch to another snapshot.

    The commits that leave the branch are listed first. To undo changes and keep history, use
    restore.
    """
    opened = open_repository(repository)
    before = opened.lookup_branch(branch_name)
    after = resolve_snapshot_id(opened, target)
    kept = {info.id for info in opened.ancestry(snapshot_id=after)}
    dropped = [info for info in opened.ancestry(snapshot_id=before) if info.id not in kept]
    if as_json:
        ids = [info.id for info in dropped]
        description = {"branch": branch_name, "from": before, "to": after, "dropped": ids}
    else:
        for info in dropped:
            message = escape_unsafe(info.message)
            print_renderable(Text.assemble("- ", (info.id, "yellow"), f" {message}"))
    if not dry_run:
        if dropped:
            commits = format_count(len(dropped), "commit")
            question = f"Move {branch_name!r} to {after}? {commits} would leave the branch."
            require_confirmation(question, yes=yes)
        opened.reset_branch(branch_name, after, from_snapshot_id=before)
    if as_json:
        print_json(description | {"dry_run": dry_run})
    else:
        output.print_result(f"{branch_name}: {before} -> {after}", dry_run=dry_run)


def _check_options(name: str | None, start: str | None, *, delete: bool, dry_run: bool) -> None:
    if delete and name is None:
        raise typer.BadParameter("--delete needs a NAME")
    if delete and start is not None:
        raise typer.BadParameter("--delete takes one NAME and no START")
    if dry_run and not delete:
        raise typer.BadParameter("--dry-run needs --delete")


def _print_refs(refs: Mapping[str, SnapshotId], *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "snapshot_id": str(refs[name])} for name in sorted(refs))
        return
    table = output.make_table("name", "snapshot")
    for name in sorted(refs):
        table.add_row(Text(escape_unsafe(name)), Text(str(refs[name]), "cyan"))
    if refs:
        print_renderable(table)


def _report(
    action: str, kind: str, name: str, snapshot_id: str, *, as_json: bool, dry_run: bool = False
) -> None:
    if as_json:
        print_json({"name": name, "snapshot_id": snapshot_id, "dry_run": dry_run})
    else:
        output.print_result(f"{action} {kind} {name}, at {snapshot_id}", dry_run=dry_run)
