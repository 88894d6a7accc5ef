"""``make demo``: what icefloe can do so far, on a repository that the real Icechunk 2.3 wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from icefloe.assets import Assets
from icefloe.model.node import ArrayNodeData
from icefloe.refs import open_refs
from icefloe.storage import local_filesystem_storage

ROOT = Path(__file__).parents[1]
REPOSITORY = Path("tests/golden/v2-by-2.3.0/repo")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def show(title: str, *command: str) -> None:
    """Print a command and run it."""
    console.print(f"\n[bold]{title}[/]")
    console.print(f"[dim]$ icefloe {' '.join(command)}[/]")
    icefloe = Path(sys.executable).with_name("icefloe")
    subprocess.run([icefloe, *command], cwd=ROOT, check=True)


def count_chunks() -> None:
    """Open the repository in Python and follow it from a branch to the chunks of its arrays."""
    storage = local_filesystem_storage(ROOT / REPOSITORY)
    refs = open_refs(storage).refs
    assets = Assets(storage, refs.spec_version)
    snapshot = assets.fetch_snapshot(refs.fetch_branches()["main"])
    arrays = [node for node in snapshot.nodes if isinstance(node.node_data, ArrayNodeData)]
    manifests = [assets.fetch_manifest(info.id) for info in snapshot.manifest_files]
    console.print("\n[bold]The same from Python: branch, snapshot, manifests, chunks[/]")
    console.print(
        f"main is snapshot {snapshot.id}: {len(arrays)} arrays, {len(manifests)} manifests, "
        f"{sum(map(len, manifests))} chunk references"
    )
    console.print(max((manifest.payloads for manifest in manifests), key=len))


def main() -> None:
    """Show everything there is."""
    show("The history of a repository", "history", str(REPOSITORY))
    show("What was in it at the tag v1.0", "tree", str(REPOSITORY), "--ref", "v1.0")
    log = "transactions/RM8S67FW7N50D4TGH2S0"
    show("Any file of it as JSON: what one commit changed", "inspect", f"{REPOSITORY}/{log}")
    count_chunks()
    console.print(
        "\nThis is all there is so far: icefloe reads and writes the format of Icechunk, versions "
        "1 and 2, on every storage.\nSessions, commits and the pipeline on Spark come next. "
        "`icefloe --help` and README.md say more."
    )


if __name__ == "__main__":
    main()
