"""One run's account: each attempt's allocation shared out, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from resilient_launch.cluster.base import JobRow
from resilient_launch.config import load
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, read_attempts, read_ends
from resilient_launch.policy import partition
from resilient_launch.policy.assembly import AttemptTold, SavedCheckpoint, StepBand, assemble
from resilient_launch.policy.failure_rate import Rate
from resilient_launch.policy.partition import AttemptTimes, Label, Span
from resilient_launch.policy.told import Curves, Damage
from resilient_launch.report.allocation import Allocation, allocations
from resilient_launch.report.reading import EventFile, event_files, read_file
from resilient_launch.report.resumes import Difference, GroupResume, differences, group_resumes

INTERRUPTIONS = frozenset(
    {Cause.PREEMPTED, Cause.MAINTENANCE, Cause.NODE_FAILURE, Cause.HANG, Cause.OUT_OF_MEMORY, Cause.CRASH}
)
"""Causes that count as failures; the others are normal ends."""
LEVEL = 0.9
_NO_END = "no end was recorded"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run beside its directory: when it was created, its jobs and Slurm's accounting of them.

    ``is_live`` says that its last attempt may still be running; ``now`` is wall-clock seconds.
    """

    paths: RunPaths
    created_at: float | None
    rows: Mapping[str, Sequence[JobRow]]
    is_live: bool
    now: float


@dataclass(frozen=True, kw_only=True)
class AttemptAccount:
    """One attempt's share-out. ``seconds`` by label are the gang's wall-clock seconds; times ``units``, GPU-seconds.

    ``begins_s`` is wall clock; ``number`` is None for an allocation that never claimed an attempt.
    """

    number: int | None
    job_id: str
    slurm_restart_count: int
    torchelastic_restart_count: int
    cause: str
    why: str
    begins_s: float
    seconds: Mapping[Label, float]
    spans: tuple[Span, ...]
    queue_wait_s: float
    resume_step: int | None
    end_step: int | None
    rework_steps: int
    nodes: tuple[str, ...]
    units: int
    step_s: float | None
    source: str
    own_s: float
    disagreement: str

    @property
    def allocated_s(self) -> float:
        return math.fsum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures:
    """Checkpoints in one figure each. Seconds, bytes, bytes a second; None where nothing is known."""

    num_durable: int
    num_failed: int
    num_emergency: int
    blocking_mean_s: float | None
    blocking_max_s: float | None
    drain_mean_s: float | None
    size_bytes: int | None
    bandwidth: float | None
    interval_s: float | None


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The account of one run. ``unit`` is GPU, CPU or node: what ``units`` of an attempt count."""

    name: str
    unit: str
    attempts: tuple[AttemptAccount, ...]
    checkpoints: CheckpointFigures
    saves: tuple[SavedCheckpoint, ...]
    num_interruptions: int
    exposure_s: float
    mtbf_range_s: tuple[float, float]
    elapsed_s: float
    is_running: bool
    damage: Damage
    warnings: tuple[str, ...]
    has_local_times: bool
    config: LaunchConfig | None
    bands: Mapping[int, Sequence[StepBand]] = field(default_factory=dict)
    curves: Sequence[tuple[int, Curves]] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    group_resumes: Sequence[GroupResume] = ()
    differences: Sequence[Difference] = ()

    @property
    def unit_seconds(self) -> dict[Label, float]:
        """GPU-seconds (or CPU-seconds) by label, over all attempts."""
        return partition.total(
            {
                **{label: seconds * each.units for label, seconds in each.seconds.items()},
                Label.QUEUE_WAIT: each.queue_wait_s,
            }
            for each in self.attempts
        )

    @property
    def allocated(self) -> float:
        """GPU-seconds (or CPU-seconds) that the run was given."""
        return math.fsum(each.allocated_s * each.units for each in self.attempts)

    @property
    def goodput(self) -> float | None:
        """Useful GPU-seconds over allocated ones; None where nothing was allocated."""
        return self.unit_seconds[Label.USEFUL] / self.allocated if self.allocated > 0 else None

    @property
    def ettr(self) -> float | None:
        """Productive time over wall-clock time, the queue included (Kokolis et al. 2024)."""
        useful_s = math.fsum(each.seconds[Label.USEFUL] for each in self.attempts)
        return useful_s / self.elapsed_s if self.elapsed_s > 0 else None

    @property
    def mtbf_s(self) -> float | None:
        """Mean allocated time between interruptions; None where there was none."""
        return self.exposure_s / self.num_interruptions if self.num_interruptions else None


def run_report(facts: RunFacts, *, since_s: float = -math.inf, in_full: bool = False) -> RunReport:
    """Account for the run's attempts that began at ``since_s`` (wall clock) or later.

    Reads every event file once, a worker group at a time. ``in_full`` also keeps what a drawing needs.
    """
    paths, damage, warnings = facts.paths, Damage(), list[str]()
    config, unit, units_per_node = _units(paths, warnings)
    attempts, ends, files = read_attempts(paths), read_ends(paths), event_files(paths)
    spent = allocations(attempts, facts.rows)
    accounts: list[AttemptAccount] = []
    told_all: list[AttemptTold] = []
    high_water, before_s = 0, facts.created_at
    for index, attempt in enumerate(attempts):
        told = _read(attempt.number, files.pop(attempt.number, []), damage, in_full=in_full)
        is_running = facts.is_live and index == len(attempts) - 1 and attempt.number not in ends and not told.end_cause
        account, high_water = _account(
            attempt,
            ends.get(attempt.number),
            told,
            spent.by_attempt.get(attempt.number),
            facts,
            high_water=high_water,
            before_s=before_s,
            units=units_per_node * max(len(attempt.nodes), 1),
            is_running=is_running,
        )
        before_s = account.begins_s + account.allocated_s
        if account.begins_s >= since_s:
            accounts.append(account)
            told_all.append(told)
    accounts += [
        _unclaimed(row, units_per_node, facts.now) for row in spent.unclaimed if (row.start_time or 0) >= since_s
    ]
    accounts.sort(key=lambda each: each.begins_s)
    if files:
        warnings.append(f"events of {len(files)} attempts without a claim are left out: {sorted(files)[:5]}")
    saves = tuple(save for told in told_all for save in told.checkpoints)
    interruptions = sum(each.cause in INTERRUPTIONS for each in accounts)
    interruptions += sum(each.torchelastic_restart_count for each in accounts)
    exposure_s = math.fsum(each.allocated_s for each in accounts)
    begins_s = min([each.begins_s - each.queue_wait_s for each in accounts], default=0.0)
    ends_s = max([each.begins_s + each.allocated_s for each in accounts], default=0.0)
    return RunReport(
        name=paths.name,
        unit=unit,
        attempts=tuple(accounts),
        checkpoints=_checkpoint_figures(saves),
        saves=saves,
        num_interruptions=interruptions,
        exposure_s=exposure_s,
        # Jeffreys' prior: half an event, no exposure.
        mtbf_range_s=Rate(events=interruptions + 0.5, exposure_s=max(exposure_s, 1e-9)).mtbf_range_s(LEVEL),
        elapsed_s=ends_s - begins_s,
        is_running=any(each.cause == "running" for each in accounts),
        damage=damage,
        warnings=tuple(warnings),
        has_local_times=any(told.has_local_times for told in told_all),
        config=config,
        bands={told.number: told.bands for told in told_all},
        curves=tuple((told.number, curves) for told in told_all for curves in told.curves),
        decisions=tuple(decision for told in told_all for decision in told.decisions),
        group_resumes=group_resumes(resume for told in told_all for resume in told.resumes),
        differences=differences(record for told in told_all for record in told.rework),
    )


def _read(number: int, files: Sequence[EventFile], damage: Damage, *, in_full: bool) -> AttemptTold:
    """Read an attempt's files, a rank at a time."""
    agents = [read_file(file, damage) for file in files if file.rank is None]
    ranks = sorted((file for file in files if file.rank is not None), key=lambda file: (file.restart, file.rank))
    groups = (
        [file for file in ranks if file.restart == restart] for restart in sorted({file.restart or 0 for file in ranks})
    )
    return assemble(
        number,
        agents,
        ((read_file(file, damage, with_metrics=in_full and file.rank == 0) for file in group) for group in groups),
        in_full=in_full,
    )


def _units(paths: RunPaths, warnings: list[str]) -> tuple[LaunchConfig | None, str, int]:
    try:
        config = load(paths.config, frozen=True)
    except RlaunchError as error:
        warnings.append(f"the configuration cannot be read ({error.what}): time is counted in node-seconds")
        return None, "node", 1
    if config.gpus_per_node:
        return config, "GPU", config.gpus_per_node
    return config, "CPU", config.cpus_per_node


def _account(
    attempt: Attempt,
    end: AttemptRecord | None,
    told: AttemptTold,
    allocation: Allocation | None,
    facts: RunFacts,
    *,
    high_water: int,
    before_s: float | None,
    units: int,
    is_running: bool,
) -> tuple[AttemptAccount, int]:
    begun_s = attempt.claimed_at
    if told.begun_s is not None and abs(told.begun_s - begun_s) > 1.0:
        # The wall clock was set between the two: the events' median offset is the better guess.
        begun_s = told.begun_s
    ended_s = max([each for each in (told.ended_s, told.last_s) if each is not None], default=begun_s)
    if is_running:
        ended_s = max(ended_s, facts.now)
    elif end is not None and told.ended_s is None:
        ended_s = max(ended_s, end.ended_at)
    own_s = max(ended_s - begun_s, 0.0)
    start_s, end_s, disagreement, source = begun_s, max(ended_s, begun_s), "", "events"
    if allocation is not None:
        start_s, end_s, disagreement = allocation.around(begun_s, end_s, facts.now)
        source = "slurm"
    shared = partition.partition(
        AttemptTimes(
            start_s=start_s, end_s=end_s, groups=told.groups, is_first=attempt.number == 0, is_running=is_running
        ),
        high_water,
    )
    queue_wait_s = 0.0 if allocation is None else allocation.queue_wait_s
    if allocation is None and before_s is not None:
        queue_wait_s = max(start_s - before_s, 0.0)
    cause = end.cause if end else told.end_cause or ("running" if is_running else "unknown")
    resume = told.resumes[0]["resume_step"] if told.resumes else told.first_step
    known_end = end.end_step if end and end.end_step is not None else told.end_step
    return AttemptAccount(
        number=attempt.number,
        job_id=attempt.job_id,
        slurm_restart_count=attempt.slurm_restart_count,
        torchelastic_restart_count=max(len(told.groups) - 1, 0),
        cause=str(cause),
        why=end.why if end else "" if is_running else _NO_END,
        begins_s=start_s,
        seconds=shared.seconds,
        spans=shared.spans,
        queue_wait_s=queue_wait_s,
        resume_step=resume,
        end_step=max([step for step in (known_end, told.last_step) if step is not None], default=None),
        rework_steps=shared.rework_steps,
        nodes=attempt.nodes,
        units=units,
        step_s=told.step_s,
        source=source,
        own_s=own_s,
        disagreement=disagreement,
    ), shared.high_water


def _unclaimed(row: JobRow, units_per_node: int, now: float) -> AttemptAccount:
    """An allocation in which no attempt began."""
    start_s = float(row.start_time or 0)
    end_s = max(float(row.end_time or now), start_s)
    nodes = Allocation.of(row).nodes
    seconds = dict.fromkeys(partition.ALLOCATED, 0.0) | {Label.UNKNOWN: end_s - start_s}
    return AttemptAccount(
        number=None,
        job_id=row.job_id,
        slurm_restart_count=0,
        torchelastic_restart_count=0,
        cause=row.state.lower(),
        why="nodes were allocated, no attempt began",
        begins_s=start_s,
        seconds=seconds,
        spans=(Span(start_s=start_s, end_s=end_s, label=Label.UNKNOWN),) if end_s > start_s else (),
        queue_wait_s=max(start_s - (row.submit_time or start_s), 0.0),
        resume_step=None,
        end_step=None,
        rework_steps=0,
        nodes=nodes,
        units=units_per_node * max(len(nodes), 1),
        step_s=None,
        source="slurm",
        own_s=0.0,
        disagreement="",
    )


def _checkpoint_figures(saves: Sequence[SavedCheckpoint]) -> CheckpointFigures:
    durable = [save for save in saves if save.status == "durable"]
    blocking = [save.blocking_s for save in durable]
    drains = [save.drain_s for save in durable if save.drain_s is not None]
    sizes = [save.num_bytes for save in durable if save.num_bytes]
    written_s = math.fsum((save.drain_s or save.blocking_s) for save in durable if save.num_bytes)
    gaps = [
        later.at_s - earlier.at_s
        for earlier, later in pairwise(durable)
        if earlier.attempt == later.attempt and later.at_s > earlier.at_s and later.reason in ("time", "steps")
    ]
    return CheckpointFigures(
        num_durable=len(durable),
        num_failed=sum(save.status == "failed" for save in saves),
        num_emergency=sum(save.reason == "notice" for save in durable),
        blocking_mean_s=math.fsum(blocking) / len(blocking) if blocking else None,
        blocking_max_s=max(blocking, default=None),
        drain_mean_s=math.fsum(drains) / len(drains) if drains else None,
        size_bytes=sizes[-1] if sizes else None,
        bandwidth=sum(sizes) / written_s if written_s > 0 else None,
        interval_s=sorted(gaps)[len(gaps) // 2] if gaps else None,
    )
