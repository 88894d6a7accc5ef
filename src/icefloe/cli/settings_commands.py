"""The commands ``init`` and ``config``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from icefloe.cli import output
from icefloe.cli.arguments import AsJson, RepositoryArgument  # noqa: TC001 - typer reads them
from icefloe.cli.confirmation import DryRun  # noqa: TC001 - typer reads it
from icefloe.cli.output import print_json, print_renderable
from icefloe.cli.repositories import open_repository
from icefloe.display import escape_unsafe
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.config_tree import flatten_variants, from_tree, to_tree
from icefloe.format.generation import GENERATIONS
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_section import ConfigSection, get_field_types, remove_none
from icefloe.refs import open_refs
from icefloe.repository import Repository
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Settings"


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe init weather\n\n"
    "  icefloe init s3://bucket/weather --generation v2",
)
def init(
    repository: RepositoryArgument,
    *,
    generation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Generation of the format: {', '.join(GENERATIONS)}; default v1."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty repository; refuse a place that has other files."""
    created = Repository.create(storage_from_url(repository), generation=generation)
    snapshot_id = created.lookup_branch("main")
    url = created.storage.url
    if as_json:
        description = {"url": url, "generation": created.generation, "snapshot_id": snapshot_id}
        print_json(description)
    else:
        output.print_result(f"created {url}, generation {created.generation}", dry_run=False)


@commands.command(
    rich_help_panel=_PANEL,
    epilog="Examples:\n\n"
    "  icefloe config weather\n\n"
    "  icefloe config weather get caching.num_bytes_chunks\n\n"
    "  icefloe config weather set inline_chunk_threshold_bytes 1024\n\n"
    "  icefloe config weather containers",
)
def config(
    repository: RepositoryArgument,
    action: Annotated[
        str,
        typer.Argument(
            metavar="[ACTION]",
            help="list (the default), get KEY, set KEY VALUE, unset KEY, containers, "
            "add-container PREFIX, or remove-container PREFIX_OR_NAME.",
        ),
    ] = "list",
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY [VALUE]]", help="Such as caching.num_bytes_chunks."),
    ] = None,
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show or change the persisted configuration of a repository.

    Values are JSON. Only settings that are set are listed; get shows null for others.
    """
    arguments = words or []
    num_arguments = {"get": 1, "set": 2, "unset": 1, "add-container": 1, "remove-container": 1}
    if action not in {"list", "containers", *num_arguments}:
        raise typer.BadParameter(
            f"unknown action {action!r}; expected list, containers, {', '.join(num_arguments)}"
        )
    if len(arguments) != num_arguments.get(action, 0):
        raise typer.BadParameter(
            f"{action} takes {num_arguments.get(action, 0)} more arguments, got {len(arguments)}"
        )
    if action == "containers":
        _print_containers(repository, as_json=as_json)
        return
    opened = open_refs(storage_from_url(repository))
    before = opened.config or RepositoryConfig()
    match action, arguments:
        case "list", _:
            _print_settings(before, as_json=as_json)
            return
        case "get", (key,):
            _require_key(key)
            print_json(_get(_to_json(before), key.split(".")))
            return
        case "set", (key, text):
            after = _replace(before, key, _parse_value(text))
        case "unset", (key,):
            after = _replace(before, key, None)
        case "add-container", (prefix,):
            from icefloe.pipeline.opening import create_container  # noqa: PLC0415 - imports zarr

            after = before.copy()
            after.set_virtual_chunk_container(create_container(prefix))
        case _, (name,):
            after = before.copy()
            after.remove_virtual_chunk_container(name)
    if not dry_run:
        opened.refs.save_config(after, expected=opened.config)
    if as_json:
        print_json({"config": dict(_flatten(_to_json(after))), "dry_run": dry_run})
    else:
        output.print_result(f"saved the configuration of {repository}", dry_run=dry_run)


def _print_settings(settings: RepositoryConfig, *, as_json: bool) -> None:
    found = dict(_flatten(_to_json(settings)))
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        output.print_result(text, dry_run=False)


def _print_containers(repository: str, *, as_json: bool) -> None:
    accesses = open_repository(repository).list_virtual_chunk_containers()
    if as_json:
        print_json(
            {
                "name": access.container.name,
                "url_prefix": access.container.url_prefix,
                "is_default": access.is_default,
                "is_authorized": access.is_authorized,
            }
            for access in accesses
        )
        return
    table = output.make_table("prefix", "name", "")
    for access in accesses:
        table.add_row(
            Text(escape_unsafe(access.container.url_prefix), "cyan"),
            Text(escape_unsafe(access.container.name or "")),
            Text("default" if access.is_default else "", "dim"),
        )
    print_renderable(table)


def _to_json(settings: RepositoryConfig) -> dict[str, Any]:
    found = flatten_variants(to_tree(settings))
    assert isinstance(found, dict)  # noqa: S101 - the tree of a section
    return found


def _flatten(
    tree: Mapping[str, Any], section: Any = RepositoryConfig, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the settings that are set, by dotted key; values that are not sections stay whole."""
    hints = get_field_types(section)
    for name, value in tree.items():
        hint = remove_none(hints.get(name))
        if value is None:
            continue
        if isinstance(hint, type) and issubclass(hint, ConfigSection) and isinstance(value, dict):
            yield from _flatten(value, hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _require_key(key: str) -> None:
    """Raise `InvalidInputError` if there is no such setting, with the names that exist."""
    section: Any = RepositoryConfig
    path: list[str] = []
    for name in key.split("."):
        is_section = isinstance(section, type) and issubclass(section, ConfigSection)
        hints: Mapping[str, Any] = get_field_types(section) if is_section else {}
        if name not in hints:
            where = f" in {'.'.join(path)}" if path else ""
            names = f"; there are: {', '.join(hints)}" if hints else ""
            raise InvalidInputError(f"there is no setting {name!r}{where}{names}")
        section = remove_none(hints[name])
        path.append(name)


def _get(tree: Any, names: Sequence[str]) -> Any:
    for name in names:
        tree = None if tree is None else tree.get(name)
    return tree


def _replace(settings: RepositoryConfig, key: str, value: Any) -> RepositoryConfig:
    """Return a configuration with another value of one setting."""
    _require_key(key)
    tree: dict[str, Any] = _to_json(settings)
    *sections, name = key.split(".")
    parent = tree
    for section in sections:
        if parent.get(section) is None:
            parent[section] = {}
        parent = parent[section]
    parent[name] = value
    try:
        return from_tree(tree, file="the new configuration")
    except FormatError as error:
        raise InvalidInputError(f"{key} cannot be {json.dumps(value)}: {error.message}") from error


def _parse_value(text: str) -> Any:
    """Parse JSON; other text is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
