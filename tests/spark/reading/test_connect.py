from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from support import SUPPORT
from support.connect_port import hold_connect_port
from support.spark_tables import commit

if TYPE_CHECKING:
    import xarray as xr


@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_status") is None,
    reason="SPARK CONNECT IS NOT TESTED ON THIS MACHINE: pip install 'pyspark[connect]'",
)
def test_spark_connect_reads_the_same(written: Path, dataset: xr.Dataset, tmp_path: Path) -> None:
    """In another process, because classic sessions and Connect do not mix in one."""
    moving = tmp_path / "moving"
    commit(Repository.create(local_filesystem_storage(moving)), dataset[["day"]])
    with hold_connect_port():
        ran = subprocess.run(
            [
                sys.executable,
                str(SUPPORT / "connect_reader.py"),
                str(written),
                str(moving),
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(
                    [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
                ),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert "connect" in answer["kind"]
    assert answer["by_format"] == dataset["t2m"].size
    selected = dataset["t2m"].sel(time=slice("2020-01-30", "2020-01-31"))
    assert answer["rows"] == selected.size
    np.testing.assert_allclose(answer["sum"], selected.astype("f8").sum())
    assert answer["types"][0] == ["time", "timestamp_ntz"]
    assert answer["chunks"] == 3 * 2 * 2
    assert answer["refs"] == [["main", "BRANCH"]]
    assert answer["nodes"] == 12
    assert answer["stays"] == [10, 10, 1]
    assert "did you mean 'branch'" in answer["refused"]
    assert "icefloe" in answer["plan"]
    assert not answer["shows_secret"]
