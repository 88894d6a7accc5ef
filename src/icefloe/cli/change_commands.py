"""The commands ``mv``, ``rm``, ``attrs`` and ``restore``: changes of groups and arrays.

Each makes one commit. If another writer commits in the meantime, nothing changes and the exit code
is 4.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import output
from icefloe.cli.arguments import AsJson, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.confirmation import DryRun, Yes, require_confirmation
from icefloe.cli.output import print_json
from icefloe.cli.repositories import open_repository, resolve_snapshot_id
from icefloe.display import summarize_diff
from icefloe.errors import InvalidInputError
from icefloe.inspection.diff import count_changes
from icefloe.inspection.metadata_file import parse_json_or_base64
from icefloe.model.ids import SnapshotId
from icefloe.session import contents
from icefloe.session.restoring import restore_nodes

if TYPE_CHECKING:
    from icefloe.session import Session

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Changes"

_Branch = Annotated[
    str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to commit to.")
]
_Message = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="Commit message.")
]


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe mv weather t2m surface/t2m\n\n"
    "  icefloe mv weather /old /new --branch dev -m 'Rename a group'",
)
def mv(
    repository: RepositoryArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Path of a group or array.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New path.")],
    *,
    branch: _Branch = "main",
    message: _Message = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move or rename a group or an array; no chunk is copied."""
    session = open_repository(repository).rearrange_session(branch)
    session.move(source, target)
    default = f"Move {session.path(source)} to {session.path(target)}"
    _commit(session, message or default, dry_run=dry_run, as_json=as_json)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe rm weather t2m --dry-run\n\n"
    "  icefloe rm weather /forecast --recursive --yes",
)
def rm(
    repository: RepositoryArgument,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Paths of groups and arrays.")
    ],
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Delete groups with all their contents.")
    ] = False,
    branch: _Branch = "main",
    message: _Message = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups and arrays, in a new commit; older snapshots keep them."""
    session = open_repository(repository).writable_session(branch)
    parsed = [session.path(path) for path in paths]
    for path in parsed:
        contents.require_node(session, path)
        if path.is_root:
            raise InvalidInputError("the root group cannot be deleted: name its contents")
        if not recursive and contents.has_children(session, path):
            raise InvalidInputError(f"{path} is a group with contents: pass --recursive")
    for path in parsed:
        contents.delete_node(session, path)
    if not dry_run:
        require_confirmation(f"Commit to {branch!r}: {summarize_diff(session.status())}?", yes=yes)
    default = f"Delete {', '.join(map(str, parsed))}"
    _commit(session, message or default, dry_run=dry_run, as_json=as_json)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe attrs weather t2m\n\n"
    "  icefloe attrs weather t2m --set units=K --set valid_range=[150,350]\n\n"
    "  icefloe attrs weather --unset history -m 'Drop the history'",
)
def attrs(
    repository: RepositoryArgument,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Path of a group or array.")] = "/",
    *,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref", "-r", metavar="NAME", help="Branch, tag or snapshot id to show; default main."
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Attribute to set, as JSON or text; repeatable."
        ),
    ] = None,
    removals: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Attribute to remove; repeatable."),
    ] = None,
    branch: _Branch = "main",
    message: _Message = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show the attributes of a group or an array, or change some in a new commit."""
    opened = open_repository(repository)
    if not assignments and not removals:
        snapshot_id = resolve_snapshot_id(opened, branch if ref is None else ref)
        session = opened.readonly_session(snapshot_id=snapshot_id)
        attributes = _get_document(session, path).get("attributes", {})
        if as_json:
            print_json(attributes)
            return
        for key, value in attributes.items():
            text = f"{key}: {json.dumps(value, ensure_ascii=False)}"
            output.print_result(text, dry_run=False)
        return
    if ref is not None:
        raise typer.BadParameter("--ref shows attributes; pass --branch to change them")
    changes = dict(map(_parse_assignment, assignments or ()))
    session = opened.writable_session(branch)
    document = _get_document(session, path)
    attributes = {**document.get("attributes", {}), **changes}
    for key in removals or ():
        if key not in attributes:
            names = ", ".join(attributes) or "none"
            raise InvalidInputError(f"{path} has no attribute {key!r}; it has: {names}")
        del attributes[key]
    new_document = json.dumps({**document, "attributes": attributes}).encode()
    contents.set_metadata(session, session.path(path), new_document)
    default = f"Change attributes of {session.path(path)}"
    _commit(session, message or default, dry_run=dry_run, as_json=as_json)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe restore weather v1.0\n\n"
    "  icefloe restore weather v1.0 t2m /forecast --dry-run",
)
def restore(
    repository: RepositoryArgument,
    ref: Annotated[
        str, typer.Argument(metavar="REF", help="Branch, tag or snapshot id to restore.")
    ],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH...]", help="Groups and arrays; by default everything."),
    ] = None,
    *,
    branch: _Branch = "main",
    message: _Message = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Restore an old state, or parts of it, as a new commit; history stays as it is."""
    opened = open_repository(repository)
    snapshot_id = resolve_snapshot_id(opened, ref)
    session = opened.writable_session(branch)
    for path in paths or ["/"]:
        restore_nodes(session, SnapshotId.parse(snapshot_id), session.path(path))
    what = ", ".join(str(session.path(path)) for path in paths or ["/"])
    _commit(session, message or f"Restore {what} of {ref}", dry_run=dry_run, as_json=as_json)


def _commit(session: Session, message: str, *, dry_run: bool, as_json: bool) -> None:
    """Commit the changes of a session and print them; exit normally if there are none."""
    diff = session.status()
    branch = session.branch
    snapshot_id = None
    if session.has_uncommitted_changes and not dry_run:
        snapshot_id = session.commit(message)
    if as_json:
        print_json(
            {
                "branch": branch,
                "snapshot_id": snapshot_id,
                "changes": count_changes(diff),
                "dry_run": dry_run,
            }
        )
        return
    where = f"{branch} is at {snapshot_id}: " if snapshot_id is not None else ""
    output.print_result(f"{where}{summarize_diff(diff)}", dry_run=dry_run)


def _get_document(session: Session, path: str) -> dict[str, Any]:
    node = contents.require_node(session, session.path(path))
    document = parse_json_or_base64(node.user_data)
    if not isinstance(document, dict):
        raise InvalidInputError(f"the metadata of {node.path} is not a JSON object")
    return document


def _parse_assignment(text: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``; a value that is not JSON is text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--set")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
