"""A group of commands that imports the module of a command when it is needed."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer.main
from typer.core import TyperGroup

from icefloe.cli.command_table import COMMAND_MODULES, suggest_commands

if TYPE_CHECKING:
    from collections.abc import Mapping


_MAX_NAMES: Final = 5
_LINE_BREAK: Final = re.compile(r"(?<!\n)\n(?!\n)")


class LazyGroup(TyperGroup):
    """The commands of `command_table`: running one imports its module only.

    The help of the group imports all modules.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, in the order of the help."""
        return list(COMMAND_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a command, or return None if there is none of this name."""
        module = COMMAND_MODULES.get(cmd_name)
        return None if module is None else _load_commands(module)[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command to run; suggest others if there is none of this name."""
        name = args[0]
        if name not in COMMAND_MODULES and not name.startswith("-"):
            suggestions = " or ".join(f"`icefloe {command}`" for command in suggest_commands(name))
            hint = f"did you mean {suggestions}?" if suggestions else "see `icefloe --help`"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if it lacks an option, name the commands that have it."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of the error for unknown options
            if isinstance(option, str) and (names := self._find_commands_with(ctx, option)):
                more = ["…"] if len(names) > _MAX_NAMES else []
                error.message = (  # type: ignore[attr-defined]
                    f"`icefloe {ctx.invoked_subcommand}` has no option {option}; commands that "
                    f"have it: {', '.join([*names[:_MAX_NAMES], *more])}."
                )
            raise

    def _find_commands_with(self, ctx: Any, option: str) -> list[str]:
        return [
            name
            for name in COMMAND_MODULES
            if any(option in parameter.opts for parameter in self.get_command(ctx, name).params)
        ]


@cache
def _load_commands(module: str) -> Mapping[str, Any]:
    commands = typer.main.get_group(import_module(module).commands).commands
    for command in commands.values():
        # Paragraphs are wrapped to the terminal, not as in the source.
        command.help = _LINE_BREAK.sub(" ", command.help or "")
    return commands
