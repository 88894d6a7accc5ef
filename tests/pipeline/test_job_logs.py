"""Jobs log their start, stages and commit at info level."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icefloe.pipeline import Report, rechunk
from support.array_repositories import write_weather

if TYPE_CHECKING:
    import pytest

    import icefloe


def test_a_job_logs_its_start_stages_and_commit(
    repository: icefloe.Repository, caplog: pytest.LogCaptureFixture
) -> None:
    write_weather(repository)
    with caplog.at_level(logging.INFO, logger="icefloe.pipeline"):
        report = rechunk(None, repository, "air", (20, 1, 1))
    assert isinstance(report, Report)
    start, stage, commit = (record.getMessage() for record in caplog.records)
    assert start.startswith("rechunk: started in this process, branch main at ")
    assert stage.startswith("rechunk: stage of 1 tasks took ")
    assert commit.startswith(f"rechunk: committed {report.snapshot_id} after ")
