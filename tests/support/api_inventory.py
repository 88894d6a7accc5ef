"""What a package offers: its modules, their names, and how each callable is called.

``python inventory.py icechunk > icechunk-2.3.0.json`` writes down what an installed Icechunk has,
for machines where it is not installed.
"""

from __future__ import annotations

import builtins
import enum
import importlib
import inspect
import json
import sys
from typing import Any

MODULES = (
    "",
    ".config",
    ".conflicts",
    ".credentials",
    ".dask",
    ".distributed",
    ".ops",
    ".repository",
    ".session",
    ".snapshots",
    ".storage",
    ".store",
    ".types",
    ".virtual",
    ".xarray",
)
# Names of the top level that Icechunk leaves out of `__all__`, and classes that only its compiled
# module has and that its methods return.
UNLISTED = ("supported_spec_versions", "upgrade_icechunk_repository")
COMPILED = ("ChunkStorageStats", "LatencyStorage", "RepoUpdateRetryConfig", "StorageObjectInfo")

Inventory = dict[str, dict[str, Any]]


def inventory(package: str) -> Inventory:
    """List the public names of a package by module; the value tells what stands behind each."""
    found: Inventory = {}
    for suffix in MODULES:
        try:
            module = importlib.import_module(package + suffix)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith(package):
                raise
            continue  # xarray or dask is not installed
        names = getattr(module, "__all__", None) or defined_names(module)
        if not suffix:
            names = [*names, *UNLISTED]
        described = found.get(".", {})  # and so need not be told again
        found[suffix or "."] = {
            name: None if name in described else describe(getattr(module, name))
            for name in sorted(names)
        }
    compiled = importlib.import_module(f"{package}._icechunk_python")
    found["compiled"] = {name: describe(getattr(compiled, name)) for name in COMPILED}
    return found


def defined_names(module: Any) -> list[str]:
    """List the public functions and classes that a module without ``__all__`` defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def describe(value: Any) -> Any:
    """Describe a class by its members, a function by its parameters, anything else not at all."""
    if inspect.isclass(value):
        members = {name: _describe_member(value, name) for name in public_members(value)}
        call = None if issubclass(value, enum.Enum) else parameters(value)
        return {"call": call, "members": members}
    if inspect.isroutine(value):
        return {"call": parameters(value)}
    return None


def public_members(cls: type) -> list[str]:
    """List what a class has by itself and by its own bases, not by those of Python and Zarr."""
    foreign = [base for base in vars(builtins).values() if inspect.isclass(base)]
    names = {
        name
        for base in cls.__mro__
        if base not in foreign and base.__module__.partition(".")[0] not in {"abc", "enum", "zarr"}
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if not name.startswith("_")
    }
    return sorted(names)


def _describe_member(cls: type, name: str) -> Any:
    value = getattr(cls, name, None)  # what only instances have is declared, and has no value
    if inspect.isclass(value):  # a variant, whose base may be the class that it stands in
        members = {own: None for own in sorted(vars(value)) if not own.startswith("_")}
        return {"call": parameters(value), "members": members}
    return {"call": parameters(value)} if callable(value) else None


def parameters(function: Any) -> list[list[str]] | None:
    """List name, kind and default of each parameter; None where a callable does not tell."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    return [
        [
            parameter.name,
            parameter.kind.name,
            "" if parameter.default is parameter.empty else _shown(parameter.default),
        ]
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]


def _shown(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return repr(default)


def dumps(found: Inventory) -> str:
    """Write an inventory as JSON that can be read and compared: one line for each callable."""
    return _dumps(found, "") + "\n"


def _dumps(value: Any, indent: str) -> str:
    if not isinstance(value, dict) or set(value) == {"call"}:
        return json.dumps(value)
    deeper = indent + " "
    items = (f"{deeper}{json.dumps(key)}: {_dumps(item, deeper)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}" if value else "{}"


if __name__ == "__main__":
    sys.stdout.write(dumps(inventory(sys.argv[1])))
