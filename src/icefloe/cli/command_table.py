"""The names of all commands and the modules that define them, and words that mean a command."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

_MODULES: Final = {
    "history_commands": ("log", "show", "diff", "history"),
    "ref_commands": ("branch", "tag", "reset"),
    "tree_commands": ("ls", "info", "tree"),
    "change_commands": ("mv", "rm", "attrs", "restore"),
    "settings_commands": ("init", "config"),
    "doctor_command": ("doctor",),
    "maintenance_commands": ("gc", "expire", "stats", "upgrade"),
    "virtual_commands": ("dependencies", "dependents", "locations"),
    "inspect_command": ("inspect",),
    "pipeline_commands": (
        "virtualize",
        "ingest",
        "append",
        "rechunk",
        "materialize",
        "compact",
        "pyramid",
        "export",
        "compute",
    ),
    "convert_command": ("convert",),
    "sql_command": ("sql",),
}

COMMAND_MODULES: Final = {
    command: f"icefloe.cli.{module}" for module, names in _MODULES.items() for command in names
}
"""The module of each command, in the order of the help."""

# Words of git, shells, databases and related tools.
_MEANINGS: Final = {
    "ancestry": "log",
    "archive": "export",
    "attributes": "attrs",
    "branches": "branch",
    "cat": "inspect",
    "checkout": "restore",
    "changes": "diff",
    "check": "doctor",
    "clean": "gc",
    "debug": "doctor",
    "commits": "log",
    "compare": "diff",
    "containers": "config",
    "create": "init",
    "del": "rm",
    "delete": "rm",
    "describe": "info",
    "dir": "ls",
    "du": "stats",
    "graph": "log",
    "import": "ingest",
    "list": "ls",
    "metadata": "attrs",
    "migrate": "upgrade",
    "move": "mv",
    "new": "init",
    "prune": "gc",
    "query": "sql",
    "remove": "rm",
    "rename": "mv",
    "repack": "compact",
    "revert": "restore",
    "rollback": "reset",
    "select": "sql",
    "settings": "config",
    "size": "stats",
    "status": "info",
    "summary": "info",
    "switch": "branch",
    "tags": "tag",
    "undo": "restore",
    "vacuum": "gc",
}


def suggest_commands(name: str) -> list[str]:
    """Return the commands that a user may mean with an unknown one, the likeliest first."""
    meaning = _MEANINGS.get(name.lower())
    if meaning is not None:
        return [meaning]
    return get_close_matches(name.lower(), COMMAND_MODULES, n=3)
