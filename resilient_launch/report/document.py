"""The account of a run as JSON: what ``rlaunch report --json`` prints."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from resilient_launch.policy.partition import ALLOCATED, Label
from resilient_launch.report.accounts import AttemptAccount, RunReport
from resilient_launch.report.notes import notes

SCHEMA = 1


def as_json(report: RunReport) -> dict[str, Any]:
    """The whole account. Times are seconds, shares are of the allocation; keys are only ever added to a schema."""
    seconds, damage = report.unit_seconds, report.damage
    return {
        "schema": SCHEMA,
        "name": report.name,
        "is_running": report.is_running,
        "unit": report.unit,
        "goodput": report.goodput,
        "ettr": report.ettr,
        "allocated_unit_seconds": report.allocated,
        "elapsed_s": report.elapsed_s,
        "queue_wait_s": seconds[Label.QUEUE_WAIT],
        "partition": {
            label.value: {
                "unit_seconds": seconds[label],
                "share": seconds[label] / report.allocated if report.allocated > 0 else None,
            }
            for label in ALLOCATED
        },
        "has_local_times": report.has_local_times,
        "attempts": [_attempt(each) for each in report.attempts],
        "mtbf": {
            "num_interruptions": report.num_interruptions,
            "exposure_s": report.exposure_s,
            "mtbf_s": report.mtbf_s,
            "range_90_s": [bound if math.isfinite(bound) else None for bound in report.mtbf_range_s],
        },
        "checkpoints": asdict(report.checkpoints),
        "group_resumes": [asdict(each) for each in report.group_resumes],
        "rework_differences": [asdict(each) for each in report.differences],
        "notes": [asdict(note) for note in notes(report)],
        "warnings": list(report.warnings),
        "damage": {**asdict(damage), "unknown_kinds": dict(damage.unknown_kinds)},
    }


def _attempt(each: AttemptAccount) -> dict[str, Any]:
    return {
        "number": each.number,
        "job_id": each.job_id,
        "slurm_restart_count": each.slurm_restart_count,
        "torchelastic_restart_count": each.torchelastic_restart_count,
        "cause": each.cause,
        "why": each.why,
        "begins_at": each.begins_s,
        "allocated_s": each.allocated_s,
        "queue_wait_s": each.queue_wait_s,
        "units": each.units,
        "seconds": {label.value: each.seconds[label] for label in ALLOCATED},
        "resume_step": each.resume_step,
        "end_step": each.end_step,
        "rework_steps": each.rework_steps,
        "nodes": list(each.nodes),
        "step_s": each.step_s,
        "allocation_source": each.source,
        "own_s": each.own_s,
        "disagreement": each.disagreement,
    }
