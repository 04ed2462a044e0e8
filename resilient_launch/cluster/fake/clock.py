"""When a job's limits fall due. What then happens is the lifecycle's business."""

from __future__ import annotations

from collections.abc import Iterator

from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job
from resilient_launch.cluster.fake.orders import Order


def tick(life: Lifecycle, now: float) -> None:
    """Enforce every limit that has passed."""
    life.must_schedule |= life.reservations.expire(now)
    for key in [key for key, moment in life.doomed.items() if now >= moment]:
        del life.doomed[key]
        life.orders.add(Order(do="kill", key=key))
    for job in list(life.jobs.values()):
        if job.completing:
            if job.kill_at and now >= job.kill_at:
                life.kill(job)
        elif job.is_running:
            _enforce(life, job, now)
        elif job.is_pending:
            life.must_schedule |= job.reason == "BeginTime" and job.begin <= now
        elif now >= job.run_end + life.spec.min_job_age_s:
            life.forget(job)


def _enforce(life: Lifecycle, job: Job, now: float) -> None:
    warn_at = _warn_at(job)
    if job.end and now >= job.end:
        if job.preempt:
            life.grace_over(job, now)
        else:
            life.time_out(job, now)
    elif warn_at and now >= warn_at:
        life.warn(job)


def deadlines(life: Lifecycle) -> Iterator[float]:
    """Every moment at which ``tick`` will have something to do."""
    yield from (each.end for each in life.reservations)
    yield from life.doomed.values()
    for job in life.jobs.values():
        if job.completing:
            if job.kill_at:
                yield job.kill_at
        elif job.is_running:
            if job.end:
                yield job.end
            if warn_at := _warn_at(job):
                yield warn_at
        elif job.is_pending:
            if job.reason == "BeginTime":
                yield job.begin
        else:
            yield job.run_end + life.spec.min_job_age_s


def _warn_at(job: Job) -> float:
    """When ``--signal`` is due: 0 for never. While a preemption is under way Slurm sends no such signal."""
    wanted = job.request.signal
    if wanted is None or job.warn_sent or job.preempt or not job.end:
        return 0.0
    return job.end - wanted.lead_s
