"""Job commands: their effects, output and errors; mostly without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe as icefloe_package
from cli.test_commands import COMMAND, icefloe
from icefloe.pipeline import open_repository
from icefloe.pipeline.opening import create_container, deleting_if_failed, make_source_prefix
from support.netcdf_files import write_file, write_files
from support.web_servers import web_server

if TYPE_CHECKING:
    from pathlib import Path

HERE = "--no-spark"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_files(tmp_path / "archive")
    return tmp_path / "archive"


def values(repository: Path, path: str, archive: Path) -> Any:
    """Read an array at the tip of main."""
    opened = open_repository(repository, sources=[archive / "*.nc"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HDF5's filters are in no specification of Zarr
        store = opened.readonly_session("main").store
        return np.asarray(zarr.open_array(store, path=path, mode="r")[...])


def messages(repository: Path) -> list[str]:
    """List the messages of the commits on main, newest first, without the initial commit."""
    return [info.message for info in open_repository(repository).ancestry(branch="main")][:-1]


def test_files_that_changed_are_named_and_replaced(archive: Path, tmp_path: Path) -> None:
    repository, files = tmp_path / "repository", f"{archive}/*.nc"
    icefloe("ingest", repository, files, "-g", "native", "--create", HERE)
    icefloe("virtualize", repository, files, "-g", "virtual", "--container", archive, HERE)
    changed = archive / "part-001.nc"
    os.utime(changed, (2e9, 2e9))
    native = ("-g", "native", HERE)
    refused = icefloe("append", repository, files, *native, code=1).stderr
    assert "1 source changed since" in refused
    assert "with --changed replace, or keep the stored values with --changed keep" in refused
    assert f"{changed.as_uri()}: " in refused
    kept = icefloe("append", repository, files, *native, "--changed", "keep").stdout
    assert kept == "append: nothing to do\n"
    assert "in no authorized container" in icefloe("refresh", repository, *native, code=1).stderr
    plan = icefloe("refresh", repository, files, "--dry-run", *native).stdout
    assert f"replace the steps of 1 changed file: {changed.as_uri()}" in plan
    assert "1 file" in icefloe("refresh", repository, "--container", archive, *native).stdout
    assert icefloe("refresh", repository, files, *native).stdout == "refresh: nothing to do\n"
    options = ("-g", "virtual", "--container", archive, HERE)
    assert "1 file" in icefloe("refresh", repository, *options).stdout
    assert icefloe("refresh", repository, *options).stdout == "refresh: nothing to do\n"
    assert messages(repository)[:2] == ["replaced 1 file"] * 2


def test_from_files_to_exports(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, files = tmp_path / "repository", f"{archive}/part-00[0-2].nc"
    done = icefloe("virtualize", repository, files, "--create", "--container", archive, HERE)
    assert done.stdout.startswith("virtualize: committed ")
    assert "3 files" in done.stdout
    assert "append: committed" in icefloe("append", repository, f"{archive}/*.nc", HERE).stdout
    assert (
        icefloe("append", repository, f"{archive}/*.nc", HERE).stdout == "append: nothing to do\n"
    )

    chunks = ("--chunks", "time=4,lat=-1")
    icefloe("ingest", repository, files, "-g", "maps", *chunks, "-m", "maps", HERE)
    report = icefloe("append", repository, f"{archive}/*.nc", "-g", "maps", HERE, "--json").stdout
    assert json.loads(report)["files"] == 1
    expected = values(repository, "t2m", archive)
    assert expected.shape == (8, 6, 8)
    np.testing.assert_array_equal(values(repository, "maps/t2m", archive), expected)

    icefloe("rechunk", repository, "maps", "--chunks", "time=-1,lat=1", "--target", "series", HERE)
    np.testing.assert_array_equal(values(repository, "series/t2m", archive), expected)
    icefloe("materialize", repository, "t2m", "rain", "--container", archive, HERE)
    icefloe("compact", repository, HERE)
    icefloe("pyramid", repository, "maps/rain", "levels", "--levels", "1", HERE)
    assert values(repository, "levels/1/rain", archive).shape == (8, 3, 4)
    icefloe("export", repository, tmp_path / "out", "-g", "maps/rain", "--chunks", "8,6,8", HERE)
    exported = np.asarray(zarr.open_array(tmp_path / "out", mode="r")[:])
    np.testing.assert_array_equal(exported, values(repository, "rain", archive))

    (tmp_path / "some_functions.py").write_text("def twice(wet):\n    return wet * 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    icefloe("compute", repository, "some_functions:twice", "-i", "wet=rain", "-o", "twice", HERE)
    np.testing.assert_array_equal(values(repository, "twice", archive), exported * 2)
    assert messages(repository)[0] == "computed /twice"
    assert "maps" in messages(repository)


def test_on_spark(archive: Path, tmp_path: Path) -> None:
    """A Spark session is started and stopped, and its start is a phase."""
    pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")
    phases = "reading headers\nwriting references\ncopying\ncommitting\n"
    master = ("--master", "local[2]")
    for place, engine, start in (("spark", master, "starting Spark\n"), ("here", (HERE,), "")):
        done = icefloe("ingest", tmp_path / place, f"{archive}/*.nc", "--create", *engine)
        assert done.stderr == start + phases
    for path in ("t2m", "rain", "time"):
        np.testing.assert_array_equal(
            values(tmp_path / "spark", path, archive), values(tmp_path / "here", path, archive)
        )


@pytest.mark.usefixtures("spark")  # commands take the one that runs, and leave it
def test_sql(archive: Path, tmp_path: Path) -> None:
    """Two commands lead from files to the result of a query."""
    repository = tmp_path / "repository"
    icefloe("ingest", repository, f"{archive}/*.nc", "--create", HERE)
    query = "SELECT sum(rain) AS rain, count(*) AS cells FROM data"
    (row,) = json.loads(icefloe("sql", repository, query, "--json").stdout)
    assert row["cells"] == 8 * 6 * 8
    rain = values(repository, "rain", archive).sum(dtype="f8")
    assert row["rain"] == pytest.approx(float(rain))
    shown = icefloe("sql", repository, "SELECT 'a\nb' AS text FROM data", "--limit", "2")
    assert shown.stdout == "text\na\\nb\na\\nb\n"
    assert "use --limit for more" in shown.stderr
    for query, message in (("SELECT tm FROM data", "`tm`"), ("SELCT", "Syntax error")):
        refused = icefloe("sql", repository, query, code=1)
        assert message in refused.stderr
        assert refused.stderr.count("\n") == 1
    with open_repository(repository).transaction("main", message="other axes") as store:
        zarr.create_array(store, name="edges", shape=(2,), dtype="f4", dimension_names=["nv"])
    refused = icefloe("sql", repository, "SELECT 1", code=1)
    assert "--variable rain --variable t2m over (time, lat, lon)" in refused.stderr
    virtual = tmp_path / "virtual"
    files = f"{archive}/*.nc"
    icefloe("virtualize", virtual, files, "--create", "--container", archive, HERE)
    variable = ("--variable", "rain")
    refused = icefloe("sql", virtual, "SELECT * FROM data", *variable, code=1)
    assert refused.stderr.startswith(f"error: {archive.as_uri()}/part-000.nc: the virtual chunk")
    assert f"--container {archive.as_uri()}/\n" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_dry_run_writes_nothing(archive: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    arguments = (repository, f"{archive}/*.nc", "--create", "--dry-run", HERE)
    plan = icefloe("ingest", *arguments).stdout
    assert "parse 4 files" in plan
    assert not repository.exists()
    assert json.loads(icefloe("ingest", *arguments, "--json").stdout)["tasks"] > 0
    assert not repository.exists()


def test_a_transaction_id_commits_once(archive: Path, tmp_path: Path) -> None:
    arguments = (tmp_path / "repository", f"{archive}/*.nc", "--create", HERE)
    first = icefloe("ingest", *arguments, "--transaction-id", "nightly", "--json").stdout
    again = icefloe("ingest", *arguments, "--transaction-id", "nightly", "--json").stdout
    assert json.loads(first)["snapshot_id"] == json.loads(again)["snapshot_id"]
    assert not json.loads(again)["is_new"]


def test_all_failures_are_listed_and_may_be_skipped(archive: Path, tmp_path: Path) -> None:
    for number in range(30):
        (archive / f"bad-{number:02}.nc").write_bytes(b"no file of any kind")
    write_file(archive / "part-009.nc", 18, dtype="f4")
    arguments = ("ingest", tmp_path / "repository", f"{archive}/*.nc", "--create", HERE)
    failed = icefloe(*arguments, "--json", code=1)
    assert failed.stderr.count("\n  file://") == 31
    assert "--on-error skip" in failed.stderr
    assert len(json.loads(failed.stdout)["failures"]) == 31
    assert not (tmp_path / "repository").exists()
    report = json.loads(icefloe(*arguments, "--on-error", "skip", "--json").stdout)
    assert report["files"] == 4
    assert len(report["left_out"]) == 31


def test_errors_suggest_options(archive: Path, tmp_path: Path) -> None:
    repository, files = tmp_path / "repository", f"{archive}/*.nc"
    assert "--create" in icefloe("ingest", repository, files, HERE, code=1).stderr
    nothing = icefloe("ingest", repository, f"{archive}/*.cdf", "--create", HERE, code=1)
    assert "no file matches" in nothing.stderr
    assert not repository.exists()
    refused = icefloe("virtualize", repository, files, "--create", HERE, code=1)
    assert f"--container {archive.as_uri()}/" in refused.stderr
    assert not repository.exists()
    icefloe("ingest", repository, files, "--create", HERE)
    assert (
        "dimension 'level'"
        in icefloe("append", repository, files, "-d", "level", HERE, code=1).stderr
    )
    assert "256MB" in icefloe("compact", repository, "--task-bytes", "much", HERE, code=2).stderr
    assert "time=365" in icefloe("rechunk", repository, "t2m", "--chunks", "a=b", code=2).stderr
    missing = ("compute", repository, "nowhere:f", "-i", "t2m", "-o", "x", HERE)
    assert "No module named 'nowhere'" in icefloe(*missing, code=1).stderr
    assert (
        "not both"
        in icefloe(
            "compact", repository, "--master", "local[1]", "--remote", "sc://x", code=1
        ).stderr
    )


def test_reports_contain_only_what_the_job_did(archive: Path, tmp_path: Path) -> None:
    """Reports omit files that were not read and steps that did not run."""
    repository, files = tmp_path / "repository", f"{archive}/part-00[0-2].nc"
    named = ("--transaction-id", "once", HERE)
    report = icefloe("ingest", repository, files, "--create", *named).stdout
    assert re.fullmatch(
        r"ingest: committed \w{20}: 3 files, \d+ chunks, [\d.]+ k?B in .* s\n", report
    )
    report = icefloe("ingest", repository, files, *named).stdout
    assert re.fullmatch(r"ingest: already committed as \w{20}\n", report)
    report = icefloe("append", repository, f"{archive}/part-003.nc", HERE).stdout
    assert ": 1 file, " in report
    plan = icefloe("rechunk", repository, "t2m", "--chunks", "time=-1", "--dry-run", HERE).stdout
    assert "\n  1 task, at most " in plan
    report = icefloe("rechunk", repository, "t2m", "--chunks", "time=-1", HERE).stdout
    assert "file" not in report
    report = icefloe("export", repository, tmp_path / "out", HERE).stdout
    assert report.startswith("export: wrote snapshot ")
    assert "file" not in report
    plan = icefloe("append", repository, f"{archive}/*.nc", "--dry-run", HERE).stdout
    assert plan.endswith("  1. nothing to do: all files are in the repository\n")


def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    """Bash sources the completion script that the command prints, and calls it."""
    environment = {**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    show = [str(COMMAND), "--show-completion", "bash"]
    asked = {**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(show, env=asked, capture_output=True, text=True, check=True)
    lines = {
        "icefloe rech": "rechunk",
        "icefloe sq": "sql",
        "icefloe ingest weather x --on": "--on-error",
        "icefloe export weather x --format ": "zarr\nparquet",
    }
    for line, expected in lines.items():
        words = " ".join(f"'{word}'" for word in line.split(" "))
        call = f"COMP_WORDS=({words}); COMP_CWORD={line.count(' ')}; _icefloe_completion icefloe"
        done = subprocess.run(
            ["bash", "-c", f'{script.stdout}\n{call}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected, line


def test_containers_are_made_of_prefixes_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert make_source_prefix("s3://bucket/a/b/*.nc") == "s3://bucket/"
    assert make_source_prefix(f"{tmp_path}/a/**/*.nc") == f"{tmp_path.as_uri()}/a/"
    for prefix in ("s3://bucket/", "gs://bucket/", "az://container/", "https://example.com/a/"):
        assert create_container(prefix).url_prefix == prefix
    assert "127.0.0.1:9000" in str(create_container("s3://bucket/").store.options.endpoint_url)  # type: ignore[union-attr]


def test_data_types_and_tables_of_sources(archive: Path, tmp_path: Path) -> None:
    """Commands accept the same data types and tables of sources as functions."""
    repository = tmp_path / "repository"
    listed = tmp_path / "files.csv"
    listed.write_text("url\n" + "".join(f"{path}\n" for path in sorted(archive.glob("*.nc"))))
    packed = '{"rain": {"dtype": "int16", "scale_factor": 0.125}}'
    types = ("--dtype", "t2m=float64", "--pack", packed)
    creation = ("--create", "--spec-version", "2")
    icefloe("ingest", repository, "--table", listed, *types, *creation, HERE)
    assert open_repository(repository).spec_version == 2
    assert values(repository, "t2m", archive).dtype == np.float64
    assert values(repository, "rain", archive).dtype == np.int16
    assert icefloe("append", repository, "--table", listed, HERE).stdout == (
        "append: nothing to do\n"
    )
    for given in ((), (f"{archive}/*.nc", "--table", listed)):
        refused = icefloe("append", repository, *given, HERE, code=2)
        assert "expected either sources or --table" in refused.stderr
    bad = icefloe("append", repository, "--table", archive / "part-000.nc", HERE, code=1)
    assert "cannot be read as Parquet, or as CSV" in bad.stderr


def test_a_dry_run_names_the_repository_to_create(archive: Path, tmp_path: Path) -> None:
    place = tmp_path / "new"
    plan = icefloe("ingest", place, f"{archive}/*.nc", "--create", "--dry-run", HERE).stdout
    assert f"file://{place}" in plan
    assert not place.exists()


def test_a_job_that_fails_leaves_no_repository(archive: Path, tmp_path: Path) -> None:
    """That it created; a folder that existed stays, and so does a repository that existed."""
    new, folder, used = (tmp_path / name for name in ("new", "folder", "used"))
    folder.mkdir()
    icefloe("ingest", used, f"{archive}/*.nc", "--create", "-g", "a", HERE)
    before = sorted(used.rglob("*"))
    bad = ("--create", "--dim", "nowhere", HERE)
    for generation in ("draft", "sequence", "v1", "v2"):
        options = (*bad, "--generation", generation)
        icefloe("ingest", new, f"{archive}/*.nc", *options, code=1)
        assert not new.exists()
    icefloe("virtualize", folder, f"{archive}/*.nc", *bad, "--container", archive, code=1)
    assert list(folder.iterdir()) == []
    icefloe("ingest", used, f"{archive}/*.nc", *bad, "-g", "b", code=1)
    assert sorted(used.rglob("*")) == before


def test_a_repository_stays_if_the_outcome_of_its_commit_is_unknown(tmp_path: Path) -> None:
    """The commit may become visible later; and after a commit, errors delete nothing."""

    def fail(place: Path, error: BaseException, *, commit: bool) -> None:
        """Create a repository, commit, and raise an error."""
        with deleting_if_failed(place):
            repository = open_repository(place, create=True)
            if commit:
                repository.writable_session("main").commit("work", allow_empty=True)
            raise error

    lost = icefloe_package.OutcomeUnknownError("no response")
    for number, error in enumerate((lost, KeyboardInterrupt(), ValueError("late"))):
        place = tmp_path / str(number)
        with pytest.raises(type(error)):
            fail(place, error, commit=number == 2)
        assert len(list(open_repository(place).ancestry(branch="main"))) == 1 + (number == 2)


def test_a_container_may_be_the_folder_of_the_files(archive: Path, tmp_path: Path) -> None:
    """On a web server too, although a pattern there would list the server."""
    with web_server(tmp_path) as url:
        files = [f"{url}/archive/{path.name}" for path in sorted(archive.iterdir())]
        refused = icefloe("virtualize", tmp_path / "r", *files, "--create", HERE, code=1)
        option = f"--container {url}/archive/"
        assert option in refused.stderr
        icefloe("virtualize", tmp_path / "r", *files, "--create", *option.split(), HERE)


def test_ctrl_c_ends_with_one_line(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that nothing was committed, and how to go on."""
    (tmp_path / "interrupting.py").write_text("def f(t2m):\n    raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    repository = tmp_path / "repository"
    icefloe("ingest", repository, f"{archive}/*.nc", "--create", HERE)
    arguments = ("interrupting:f", "-i", "t2m", "-o", "x", "--dtype", "f4")
    done = icefloe("compute", repository, *arguments, HERE, code=130)
    assert done.stderr == (
        "error: compute: interrupted, nothing was committed: run the same command again "
        "to start over\n"
    )


def test_a_pipe_gets_a_line_per_phase(archive: Path, tmp_path: Path) -> None:
    """In which nothing mentions Spark, if there is none; a plan has no phases."""
    repository, files = tmp_path / "repository", f"{archive}/*.nc"
    phases = "reading headers\nwriting references\ncopying\ncommitting\n"
    assert icefloe("ingest", repository, files, "--create", HERE).stderr == phases
    assert icefloe("append", repository, files, HERE).stderr == ""
    rechunk = ("rechunk", repository, "rain", "--chunks", "time=8", HERE)
    assert icefloe(*rechunk, "--dry-run").stderr == ""
    assert icefloe(*rechunk).stderr == "copying\ncommitting\n"


RUN_COMMANDS = """
import json, sys
from icefloe.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["icefloe", *arguments]
    try:
        main()
    except SystemExit as end:
        print("code", end.code or 0, file=sys.stderr)
print("pyspark" in sys.modules, file=sys.stderr)
"""


def test_planning_starts_no_spark(archive: Path, tmp_path: Path) -> None:
    """Nor do errors in names, and nothing to do: PySpark is not imported.

    Commands that fail discard what they print later to stdout, so they come last.
    """
    repository, files = str(tmp_path / "repository"), f"{archive}/*.nc"
    icefloe("ingest", repository, files, "--create", HERE)
    commands = [
        (["ingest", repository, files, "--dry-run", "-g", "new"], 0, "about"),
        (["append", repository, files], 0, "nothing to do"),
        (["rechunk", repository, "rain", "--chunks", "time=8", "--dry-run"], 0, "task"),
        (["append", repository, files, "--dim", "tiem"], 1, "did you mean 'time'?"),
        (["rechunk", repository, "rian", "--chunks", "time=1"], 1, "did you mean /rain?"),
        (["rechunk", repository, "rain", "--chunks", "tiem=1"], 1, "did you mean 'time'?"),
        (["ingest", repository, f"{archive}/*.cdf", "-g", "new"], 1, "no file matches"),
        (["export", repository, f"{tmp_path}/out", "--variable", "rian"], 1, "mean 'rain'?"),
        (["sql", repository, "SELECT 1", "--variable", "rian"], 1, "did you mean 'rain'?"),
        (["sql", repository, "SELECT 1", "--group", "nowhere"], 1, "/nowhere"),
        (["compact", repository, "--master", "local[1]", "--remote", "sc://x"], 1, "not both"),
    ]
    encoded = json.dumps([arguments for arguments, _, _ in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN_COMMANDS, encoded],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"},
    )
    *outputs, last = re.split(r"code (\d+)\n", done.stdout)
    assert last == "False\n", done.stdout
    for (arguments, code, text), output, found in zip(
        commands, outputs[::2], outputs[1::2], strict=True
    ):
        assert (int(found), text in output) == (code, True), (arguments, output)
