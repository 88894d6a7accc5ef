from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from icefloe.compat.as_icechunk import install_as_icechunk
from icefloe.errors import ErrorKind, InvalidInputError
from support import SUPPORT

_VIRTUALIZARR = SUPPORT / "virtualizarr_writer.py"


def run(code: str | Path, *arguments: str | Path) -> str:
    """Run Python in a new process, which imports `icechunk` for the first time."""
    script = [code] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    done = subprocess.run(
        [sys.executable, *script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def test_every_way_to_import_finds_icefloe() -> None:
    run(
        """
        import icefloe
        icefloe.install_as_icechunk()

        import icechunk, icechunk.xarray, icechunk.session
        import icechunk.storage as storage
        from icechunk import IcechunkStore, Repository, config, local_filesystem_storage
        from icechunk.distributed import merge_sessions
        import icefloe.session, icefloe.store, icefloe.xarray, icefloe.distributed

        assert icechunk.session is icefloe.session and storage is icefloe.storage
        assert icechunk.xarray.to_icechunk is icefloe.xarray.to_icechunk
        assert IcechunkStore is icefloe.store.IcechunkStore is icechunk.IcechunkStore
        assert merge_sessions is icefloe.distributed.merge_sessions
        assert config is icefloe.config
        for name in ("config conflicts credentials dask distributed ops repository session "
                     "snapshots storage store types virtual xarray").split():
            module = __import__(f"icechunk.{name}", fromlist=["*"])
            assert module is getattr(icefloe, name) is getattr(icechunk, name), name
            assert module.__spec__.name == f"icefloe.{name}"
        exec("from icechunk import *")
        assert "Repository" in globals() and "Repository" in dir(icechunk)
        """
    )


def test_the_compiled_module_has_the_public_names() -> None:
    """Programs import some of Icechunk's classes from its compiled module."""
    run(
        """
        import icefloe
        icefloe.install_as_icechunk()

        import icechunk._icechunk_python as compiled
        from icechunk._icechunk_python import LatencyStorage, RepoUpdateRetryConfig, Storage
        import icechunk

        assert RepoUpdateRetryConfig is icefloe.RepoUpdateRetryConfig
        assert LatencyStorage is icefloe.LatencyStorage and Storage is icefloe.Storage
        assert icechunk._icechunk_python is compiled and "Conflict" in dir(compiled)
        try:
            from icechunk._icechunk_python import PyRepository
        except ImportError:
            pass
        else:
            raise AssertionError
        """
    )


def test_unknown_spec_version() -> None:
    """An unknown spec version is rejected, and nothing is installed."""
    for wrong in (7, 0, "2", None):
        with pytest.raises(InvalidInputError, match="1 or 2") as caught:
            install_as_icechunk(wrong)  # type: ignore[arg-type]
        assert caught.value.kind is ErrorKind.UNSUPPORTED_SPEC_VERSION


def test_versions_are_those_of_icechunk() -> None:
    """Module and distribution report the version of Icechunk, which libraries compare."""
    answer = run(
        """
        import icefloe
        icefloe.install_as_icechunk()
        import icechunk, importlib.metadata, importlib.util
        from packaging.version import Version
        assert importlib.util.find_spec("icechunk") is not None
        found = {icechunk.__version__, importlib.metadata.version("icechunk")}
        found.add(importlib.metadata.distribution("icechunk").metadata["Version"])
        print(*found, Version(icechunk.__version__).major, importlib.metadata.version("zarr")[0])
        """
    )
    assert answer == "2.3.0 2 3"


@pytest.mark.parametrize("arguments, expected", [("", 2), ("spec_version=1", 1)])
def test_default_spec_version_of_new_repositories(arguments: str, expected: int) -> None:
    answer = run(
        f"""
        import icefloe
        icefloe.install_as_icechunk({arguments})
        import icechunk
        print(int(icechunk.Repository.create(icechunk.in_memory_storage()).spec_version))
        """
    )
    assert answer == str(expected)


def test_install_is_idempotent_and_can_be_undone() -> None:
    run(
        """
        import sys
        from icefloe.compat.as_icechunk import install_as_icechunk, uninstall_as_icechunk
        from icefloe.compat.default_version import get_default_spec_version

        before = list(sys.meta_path)
        install_as_icechunk()
        import icechunk
        install_as_icechunk()
        assert len(sys.meta_path) == len(before) + 1
        assert sys.modules["icechunk"] is icechunk
        uninstall_as_icechunk()
        uninstall_as_icechunk()
        assert sys.meta_path == before and "icechunk" not in sys.modules
        assert get_default_spec_version() == 1
        """
    )


def test_errors_have_the_names_of_icechunk(tmp_path: Path) -> None:
    """Also in tracebacks; pickles of errors work in processes where nothing is installed."""
    answer = run(
        """
        import pickle, sys, traceback
        import icefloe
        icefloe.install_as_icechunk()
        import icechunk
        try:
            icechunk.Repository.open(icechunk.in_memory_storage())
        except icechunk.IcechunkError as error:
            with open(sys.argv[1], "wb") as file:
                pickle.dump([error, icechunk.IcechunkError("base")], file)
            shown = traceback.format_exception_only(error)[0]
        print(shown.partition(":")[0], repr(icechunk.IcechunkError("base")))
        """,
        tmp_path / "errors",
    )
    assert answer == "icechunk.RepositoryNotFoundError IcechunkError('base')"
    answer = run(
        """
        import pickle, sys
        import icefloe
        with open(sys.argv[1], "rb") as file:
            first, second = pickle.load(file)
        assert "icechunk" not in sys.modules
        print(type(first), first.kind, repr(second))
        """,
        tmp_path / "errors",
    )
    expected = "<class 'icefloe.errors.RepositoryNotFoundError'> repository-not-found"
    assert answer == f"{expected} IcefloeError('base')"


def test_unknown_names_are_import_errors() -> None:
    run(
        """
        import icefloe
        icefloe.install_as_icechunk()
        import icechunk
        for statement in ("import icechunk.vendor", "from icechunk import no_such_name"):
            try:
                exec(statement)
            except ImportError:
                continue
            raise AssertionError(statement)
        assert not hasattr(icechunk, "no_such_name")
        """
    )


def test_an_imported_icechunk_is_not_replaced() -> None:
    answer = run(
        """
        import icechunk, icefloe
        try:
            icefloe.install_as_icechunk()
        except icefloe.SessionStateError as error:
            print(error)
        assert icechunk.__file__
        """
    )
    assert "is already imported" in answer
    assert "call install_as_icechunk() before" in answer


def test_all_names_of_icechunk_exist() -> None:
    """All names of the installed Icechunk exist in icefloe."""
    names = run("import icechunk; print(*icechunk.__all__)").split()
    missing = run(
        f"""
        import icefloe
        icefloe.install_as_icechunk()
        import icechunk
        print(*[name for name in {names} if not hasattr(icechunk, name)])
        """
    )
    assert missing == ""


@pytest.mark.parametrize("spec_version", ["1", "2"])
def test_virtualizarr_writes_to_it(tmp_path: Path, spec_version: str) -> None:
    """VirtualiZarr's writer works unchanged, and xarray reads the data through the references."""
    for name in ("virtualizarr", "h5netcdf"):
        pytest.importorskip(name, reason=f"VIRTUALIZARR IS NOT TESTED: {name} is not installed")
    run(_VIRTUALIZARR, "write", tmp_path, spec_version)
    if spec_version == "1" or sys.version_info >= (3, 12):
        run(_VIRTUALIZARR, "read", tmp_path)
