"""Options of jobs: given as values or as keywords, never both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.errors import InvalidInputError
from icefloe.pipeline import CommitOptions, Plan, RunOptions, rechunk
from icefloe.pipeline.options import JobOptions, merge_options
from support.array_repositories import write_weather

if TYPE_CHECKING:
    import icefloe


def test_keywords_and_values_give_the_same_options() -> None:
    run, commit = RunOptions(task_bytes=7), CommitOptions(branch="dev", message="m")
    expected = JobOptions(run, commit)
    assert merge_options(run, commit, {}) == expected
    assert merge_options(run, None, {"branch": "dev", "message": "m"}) == expected
    assert merge_options(None, None, {"task_bytes": 7, "branch": "dev", "message": "m"}) == expected


def test_task_bytes_may_be_a_float() -> None:
    options = merge_options(None, None, {"task_bytes": 1e9})
    assert isinstance(options.run.task_bytes, int)


def test_a_value_is_given_once() -> None:
    with pytest.raises(InvalidInputError, match="branch: pass commit_options or keywords"):
        merge_options(None, CommitOptions(), {"branch": "dev"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'brunch'"):
        merge_options(None, None, {"brunch": "dev"})


def test_invalid_options_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="task_bytes"):
        RunOptions(task_bytes=0)
    with pytest.raises(InvalidInputError, match="transaction_id is empty"):
        CommitOptions(transaction_id="")


def test_a_job_takes_both_forms(repository: icefloe.Repository) -> None:
    write_weather(repository)
    plan = rechunk(None, repository, "air", (20, 1, 1), dry_run=True)
    assert isinstance(plan, Plan)
    assert (
        rechunk(None, repository, "air", (20, 1, 1), run_options=RunOptions(dry_run=True)) == plan
    )
    with pytest.raises(TypeError, match="brunch"):
        rechunk(None, repository, "air", (20, 1, 1), brunch="main")  # type: ignore[call-arg]
