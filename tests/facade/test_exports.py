"""The top level has every name, and costs nothing until one is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import icefloe


def test_every_exported_name_is_there() -> None:
    """`__all__`, `dir` and attributes agree."""
    assert [name for name in icefloe.__all__ if not hasattr(icefloe, name)] == []
    assert set(icefloe.__all__) <= set(dir(icefloe))
    assert len(set(icefloe.__all__)) == len(icefloe.__all__)


def test_type_checkers_see_the_same_names() -> None:
    """Every import of the table re-exports, and the package imports the table for type checkers."""
    table = ast.parse(Path(str(icefloe.__file__)).with_name("_exports.py").read_text())
    imports = [node for node in table.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(table.body) - 1  # the docstring
    aliases = [alias for node in imports for alias in node.names if alias.name != "*"]
    assert [alias.name for alias in aliases if alias.asname != alias.name] == []
    package = Path(str(icefloe.__file__)).read_text()
    assert "if TYPE_CHECKING:" in package
    assert "from icefloe._exports import *" in package
    for name, module in icefloe._SEPARATE.items():
        assert f"from {module} import {name} as {name}\n" in package


@pytest.mark.parametrize("package", ["icefloe.storage", "icefloe.virtual"])
def test_import_star_gives_the_public_names(package: str) -> None:
    """`__all__` has the imported names, and no submodules."""
    module = import_module(package)
    table = ast.parse(Path(str(module.__file__)).read_text())
    imports = [
        alias for node in table.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    public = {alias.asname for alias in imports if alias.asname == alias.name} - {"factories"}
    public |= {*getattr(getattr(module, "credentials", None), "__all__", [])}
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)  # noqa: S102 - the statement under test
    assert names.keys() - {"__builtins__"} == set(module.__all__) == public
    assert public <= set(dir(module))


def test_importing_loads_nothing() -> None:
    """Neither numpy nor obstore until a name is used, and zarr with the first store."""
    code = (
        "import sys, icefloe\n"
        "slow = 'numpy', 'zarr', 'obstore', 'importlib.metadata', 'urllib.request', 'yaml'\n"
        "print(*(name for name in slow if name in sys.modules))\n"
        "repository = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=2)\n"
        "session = repository.readonly_session('main')\n"
        "print(*(name for name in slow if name in sys.modules))\n"
        "print(isinstance(session.store, icefloe.IcechunkStore), 'zarr' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "numpy obstore", "True True"]


def test_submodules_are_attributes() -> None:
    """As with `import icechunk`, `icechunk.storage` needs no import of its own."""
    code = "import icefloe; print(icefloe.storage.s3_storage.__name__, icefloe.ops.Update.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "s3_storage Update\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    """And says which."""
    with pytest.raises(AttributeError, match="no attribute 'Repositori'"):
        icefloe.Repositori  # noqa: B018


@pytest.mark.parametrize("name", ["dask", "xarray"])
def test_a_module_without_its_dependency_is_an_attribute_error(name: str) -> None:
    """`hasattr` is False, the error names the extra, and the import statement raises as usual."""
    code = f"""
import sys, icefloe
sys.modules[{name!r}] = None
print(hasattr(icefloe, {name!r}))
try:
    icefloe.{name}
except AttributeError as error:
    print(error)
try:
    from icefloe import {name}
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    absent, message, module = done.stdout.splitlines()
    assert (absent, module.split(".")[0]) == ("False", name)
    assert message.endswith(f"pip install 'icefloe[{name}]'")


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """What the library says of itself."""
    assert icefloe.spec_version() is icefloe.SpecVersion.v2
    assert icefloe.supported_spec_versions() == [2, 1]
    assert icefloe.user_agent() == f"icefloe-{icefloe.__version__}"
    icefloe.print_debug_info()
    assert f"icefloe:  {icefloe.__version__}\nzarr:  " in capsys.readouterr().out
