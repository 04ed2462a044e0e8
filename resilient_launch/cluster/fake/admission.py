"""From the jobs' records to the scheduler's values, and from its plan back to the jobs."""

from __future__ import annotations

import math

from resilient_launch.cluster.fake import dependency
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, JobRequest
from resilient_launch.cluster.fake.schedule import Amount, Holding, Machine, Reserved, Waiting, fits_empty, plan
from resilient_launch.cluster.fake.spec import FakeSpec


def can_ever_run(spec: FakeSpec, request: JobRequest) -> bool:
    """Whether the cluster, whole and idle, could hold the job."""
    return fits_empty(_waiting(spec, 0, request), _machines_of(spec))


def schedule(life: Lifecycle, now: float) -> None:
    """Start, preempt and explain, for every job that may run now."""
    queue = [job for job in list(life.jobs.values()) if _may_start(life, job, now)]
    queue = _within_limits(life, queue)
    if not queue:
        return
    spec = life.spec
    waiting = [_waiting(spec, job.job_id, job.request, job.time_limit_s) for job in queue]
    priority = {job.job_id: job.priority for job in queue}
    waiting.sort(key=lambda item: (-item.tier, -priority[item.job_id], _age(life.jobs[item.job_id])))
    result = plan(now, _machines(life), _holdings(life), waiting, _reserved(life))
    for job_id, nodes in result.starts.items():
        life.start(life.jobs[job_id], nodes, now)
    for job_id in result.preempt:
        life.preempt(life.jobs[job_id], now)
    for job_id, reason in result.reasons.items():
        _explain(life, life.jobs[job_id], reason)


def _may_start(life: Lifecycle, job: Job, now: float) -> bool:
    """Whether nothing but nodes is missing; otherwise the job says what."""
    if not job.is_pending or job.completing:
        return False
    waits_for = ""
    if job.dependency:
        before = job.dependency
        job.dependency, waits_for = dependency.resolve(job, life.find, lambda each: _has_namesake(life, each))
        if job.dependency != before:
            life.changed.add(job.job_id)
    if waits_for == dependency.NEVER and job.request.kill_on_invalid_dependency:
        _explain(life, job, waits_for)
        life.cancel(job, job.request.uid, now)
        return False
    if job.held:
        return False
    is_too_wide = job.request.min_nodes > life.spec.num_nodes
    reason = waits_for or ("BeginTime" if job.begin > now else "PartitionNodeLimit" if is_too_wide else "")
    if reason:
        _explain(life, job, reason)
    return not reason


def _has_namesake(life: Lifecycle, job: Job) -> bool:
    return any(_same_owner(other, job) and other.job_id < job.job_id for other in life.jobs.values())


def _within_limits(life: Lifecycle, queue: list[Job]) -> list[Job]:
    """Without the tasks of arrays that run as many at once as they may."""
    room: dict[int, int] = {}
    for job in life.jobs.values():
        if job.array is not None and job.array.limit:
            room.setdefault(job.array.array_id, job.array.limit)
            room[job.array.array_id] -= job.is_running or job.completing
    kept = []
    for job in sorted(queue, key=_age):
        if job.array is not None and job.array.limit:
            room[job.array.array_id] -= 1
            if room[job.array.array_id] < 0:
                _explain(life, job, "JobArrayTaskLimit")
                continue
        kept.append(job)
    return kept


def _age(job: Job) -> tuple[int, int]:
    """The order of submission: of tasks of one array by their number, for the last one has the array's own id."""
    return (job.job_id, 0) if job.array is None else (job.array.array_id, job.array.index)


def foresee(life: Lifecycle, request: JobRequest, now: float) -> tuple[float, tuple[str, ...]] | None:
    """When and where a job submitted now would start, the others permitting; None where that can't be told."""
    spec = life.spec
    newcomer = _waiting(spec, 0, request, request.time_limit_s)
    result = plan(now, _machines(life), _holdings(life), [newcomer], _reserved(life))
    if 0 in result.starts:
        return now, result.starts[0]
    return (result.expected[0], ()) if 0 in result.expected else None


def _machines(life: Lifecycle) -> list[Machine]:
    return [Machine(name=node.name, total=_total(life.spec), is_usable=node.is_usable) for node in life.nodes.values()]


def _holdings(life: Lifecycle) -> list[Holding]:
    running = (job for job in life.jobs.values() if job.nodes and (job.is_running or job.completing))
    return [_holding(life.spec, job) for job in running]


def _reserved(life: Lifecycle) -> list[Reserved]:
    return [Reserved(start=each.start, end=each.end, nodes=each.nodes) for each in life.reservations]


def _explain(life: Lifecycle, job: Job, reason: str) -> None:
    if job.reason != reason:
        job.reason = reason
        life.changed.add(job.job_id)


def _same_owner(other: Job, job: Job) -> bool:
    same = other.request.name == job.request.name and other.request.uid == job.request.uid
    return same and not other.is_over


def _total(spec: FakeSpec) -> Amount:
    return Amount(spec.cpus, spec.memory_mb, spec.gpus)


def _machines_of(spec: FakeSpec) -> list[Machine]:
    return [Machine(name=name, total=_total(spec)) for name in spec.node_names]


def _waiting(spec: FakeSpec, job_id: int, request: JobRequest, limit_s: int | None = None) -> Waiting:
    partition = spec.partition(request.partition)
    return Waiting(
        job_id=job_id,
        partition=request.partition,
        tier=partition.tier if partition else 0,
        needs=tuple((count, _need(request, count)) for count in _node_counts(spec, request)),
        limit_s=math.inf if limit_s is None else limit_s,
        exclusive=request.exclusive,
        nodelist=request.nodelist,
        exclude=request.exclude,
    )


def _node_counts(spec: FakeSpec, request: JobRequest) -> list[int]:
    """The gang sizes that would do, the best first: as many nodes as the range allows, or as few as the tasks need."""
    if not request.nodes_given and (request.num_tasks or 0) > 1:
        return list(range(max(1, len(request.nodelist)), spec.num_nodes + 1))
    low = max(request.min_nodes, len(request.nodelist))
    return list(range(min(request.max_nodes, spec.num_nodes), low - 1, -1))


def _need(request: JobRequest, num_nodes: int) -> Amount:
    cpus = max(request.tasks_on(num_nodes)) * request.cpus_per_task
    return Amount(cpus, request.memory_mb + request.memory_per_cpu_mb * cpus, request.gpus)


def _holding(spec: FakeSpec, job: Job) -> Holding:
    partition = spec.partition(job.request.partition)
    use = {}
    for name in job.nodes:
        memory_mb = job.request.memory_mb + job.request.memory_per_cpu_mb * job.cpus[name]
        use[name] = _total(spec) if job.request.exclusive else Amount(job.cpus[name], memory_mb, len(job.gpus[name]))
    end = job.end or math.inf
    return Holding(
        job_id=job.job_id,
        tier=partition.tier if partition else 0,
        start=job.start,
        end=max(end, job.kill_at) if job.completing else end,
        use=use,
        is_preemptable=bool(partition and partition.preempt_mode != "off") and job.is_running,
        is_ending=bool(job.preempt) or job.completing,
    )
