"""Slurm's reasons for holding a job, as squeue and scontrol of several versions write them."""

from __future__ import annotations

import pytest

from resilient_launch.policy.holds import explain


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("JobHoldMaxRequeue", "MaxBatchRequeue"),
        ("launch_failure_limit_exceeded_requeued_held", "MaxBatchRequeue"),
        ("launch failed requeued held", "prolog"),
        ("launch_failed_requeued_held", "rlaunch requeue"),
        ("JobHeldUser", "held by its user"),
        ("job_requeued_in_held_state", "held by its user"),
        ("JobHeldAdmin", "administrator"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance window"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "--fit-maintenance"),
        ("BadConstraints", "no node has what it asks for"),
        ("PartitionTimeLimit", "shorter time"),
        ("DependencyNeverSatisfied", "depends on"),
    ],
)
def test_what_holds_a_job_is_explained(reason: str, words: str) -> None:
    assert words in explain(reason)


@pytest.mark.parametrize("reason", ["", "None", "BeginTime", "Priority", "Resources"])
def test_an_ordinary_wait_needs_no_words(reason: str) -> None:
    assert explain(reason) == ""
