"""Spark as an executor of Python's, and of VirtualiZarr's."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.spark import SparkExecutor
from support.netcdf_files import write_files

if TYPE_CHECKING:
    from pathlib import Path


def test_results_come_in_order_and_errors_are_those_of_the_function(spark: Any) -> None:
    def divided(one: int, two: int) -> float:
        return one / two

    class UnpicklableError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fails(one: int) -> None:
        raise UnpicklableError(one, 2)

    with SparkExecutor(spark) as executor:
        assert list(executor.map(divided, [6, 9, 12], [3, 3, 3])) == [2, 3, 4]
        assert list(executor.map(divided, [], [])) == []
        assert executor.submit(divided, 1, two=4).result() == 0.25
        with pytest.raises(ZeroDivisionError):
            list(executor.map(divided, [1, 1], [1, 0]))
        with pytest.raises(RuntimeError, match="UnpicklableError: 1 and 2"):
            executor.submit(fails, 1).result()
        with pytest.raises(InvalidInputError, match="no timeout"):
            executor.map(divided, [1], [1], timeout=1)
    assert executor.submit(divided, 1, 1).exception() is not None
    with pytest.raises(RuntimeError, match="was shut down"):
        executor.map(divided, [1], [1])


def test_virtualizarr_opens_files_on_spark(spark: Any, tmp_path: Path) -> None:
    """It makes an executor of the class by itself, which finds the session that runs."""
    import obstore.store  # noqa: PLC0415 - as VirtualiZarr's users do
    import xarray as xr  # noqa: PLC0415
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415
    from virtualizarr import open_virtual_mfdataset  # noqa: PLC0415
    from virtualizarr.parsers import HDFParser  # noqa: PLC0415

    files = [f"file://{path}" for path in write_files(tmp_path)]
    registry = ObjectStoreRegistry({"file://": obstore.store.LocalStore()})

    def opened(parallel: Any) -> Any:
        return open_virtual_mfdataset(
            files,
            registry=registry,
            parser=HDFParser(),
            parallel=parallel,
            combine="nested",
            concat_dim="time",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            loadable_variables=["time", "lat", "lon"],
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about libraries
        found = [opened(SparkExecutor), opened(parallel=False)]
    assert dict(found[0].sizes) == dict(found[1].sizes)
    xr.testing.assert_identical(found[0][["time"]], found[1][["time"]])
    manifests = [dataset["t2m"].data.manifest for dataset in found]
    assert manifests[0] == manifests[1]
