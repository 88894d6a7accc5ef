"""The command ``inspect``: metadata files as JSON."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from icefloe import inspection
from icefloe.cli.output import print_json
from icefloe.errors import InvalidInputError
from icefloe.storage import LocalStorage, Storage, storage_from_url

commands = typer.Typer(rich_markup_mode="rich")


@commands.command(
    rich_help_panel="Files",
    epilog="Examples:\n\n"
    "  icefloe inspect weather/refs/branch.main/ref.json\n\n"
    "  icefloe inspect weather/state.json\n\n"
    "  icefloe inspect s3://bucket/weather/snapshots/1CECHNKREP0F1RSTCMT0 | jq .nodes",
)
def inspect(
    file: Annotated[
        str, typer.Argument(metavar="FILE_OR_URL", help="Metadata file of a repository.")
    ],
    *,
    refs: Annotated[
        bool, typer.Option(help="List all chunk references, or only count them.")
    ] = True,
) -> None:
    """Print a metadata file of a repository as JSON, or report what is wrong with it.

    Accepts all files of every generation except chunks: snapshots, manifests, attributes,
    transaction logs, references, config.yaml, state.json, conversion.json, and the repo file and
    its backups.
    """

    def read_file(file: str) -> bytes | memoryview:
        storage, name = _resolve_file(file)
        return inspection.fetch_metadata_file(storage, name, file)

    data = read_file(file)
    description = inspection.describe_layout_file(data, file, refs=refs, read_file=read_file)
    print_json(description or inspection.describe_file(data, file, refs=refs))


def _resolve_file(file: str) -> tuple[Storage, str]:
    """Return the storage that contains a file, and its key there."""
    scheme, separator, host_and_path = file.partition("://")
    # The options of a URL may contain slashes.
    location, options = file, ""
    if separator:
        location, mark, options = file.partition("?")
        options = mark + options
        host_and_path = location.partition("://")[2]
    root, slash, name = location.rpartition("/")
    if os.path.isdir(file):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        raise InvalidInputError(
            f"{file} is a directory; pass a file in it, or list the commits with: "
            f"icefloe log {file}"
        )
    if not name or (separator and "/" not in host_and_path.strip("/")):
        raise InvalidInputError(
            f"{file!r} is not a file: pass a file of a repository, such as weather/repo or "
            "s3://bucket/weather/repo"
        )
    if separator and scheme != "file":
        storage_from_url(file)  # rejects query strings: errors would print their signatures
        return storage_from_url(root + options), name
    # Symbolic links are followed, because the user named the file.
    path = file if not separator else storage_from_url(file).url.removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return LocalStorage(folder or slash or ".", follow_symlinks=True), name
