"""Which jobs start, which must make room, and why the others wait. Values in, values out: no clock, no I/O.

Jobs are taken in order of tier, then age. One that does not fit now gets a reservation at the earliest time its nodes
come free; a later one may start only where it ends before, or beside, every reservation (conservative backfill).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilient_launch.cluster import hostlist

RESERVED = "ReqNodeNotAvail, May be reserved for other job"
"""Slurm's reason for a job whose time limit would reach into a reservation of some nodes; of all, it is this:"""
ALL_RESERVED = "ReqNodeNotAvail, Reserved for maintenance"
UNAVAILABLE = "ReqNodeNotAvail, UnavailableNodes:"
TOO_FEW_UP = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
_INSTANT_S = 0.001
MAX_RESERVATIONS = 50
"""Blocked jobs that get a reservation; the ones behind them wait without one, as Slurm's bf_max_job_test does."""


@dataclass(frozen=True)
class Amount:
    """Resources on one node."""

    cpus: int = 0
    memory_mb: int = 0
    gpus: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cpus + other.cpus, self.memory_mb + other.memory_mb, self.gpus + other.gpus)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cpus - other.cpus, self.memory_mb - other.memory_mb, self.gpus - other.gpus)

    def covers(self, other: Amount) -> bool:
        return self.cpus >= other.cpus and self.memory_mb >= other.memory_mb and self.gpus >= other.gpus


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node: what it has, and whether jobs may start there."""

    name: str
    total: Amount
    is_usable: bool = True


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A pending job. ``needs`` maps a number of nodes to what each of them must give, best choice first."""

    job_id: int
    partition: str
    tier: int
    needs: tuple[tuple[int, Amount], ...]
    limit_s: float = math.inf
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A job that has nodes. ``end`` is when it gives them back at the latest; ``is_ending``: it is on its way out."""

    job_id: int
    tier: int
    start: float
    end: float
    use: Mapping[str, Amount]
    is_preemptable: bool = False
    is_ending: bool = False


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Nodes that are nobody's between ``start`` and ``end``."""

    start: float
    end: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do now. ``starts`` maps a job to its nodes, ``expected`` a blocked job to its foreseen start."""

    starts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    preempt: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    expected: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Claim:
    """Resources taken from ``start`` to ``end``."""

    start: float
    end: float
    use: Mapping[str, Amount]


def fits_empty(job: Waiting, machines: Sequence[Machine]) -> bool:
    """Whether the job could ever run here, were every node up and idle."""
    whole = [Machine(name=machine.name, total=machine.total) for machine in machines]
    return _fit(job, whole, {machine.name: machine.total for machine in whole}) is not None


def plan(
    now: float,
    machines: Sequence[Machine],
    holding: Sequence[Holding],
    waiting: Sequence[Waiting],
    reserved: Sequence[Reserved] = (),
) -> Plan:
    """Decide for every waiting job, which come in the order of their right to start."""
    result = Plan()
    closed = [_Claim(each.start, each.end, _whole(each.nodes, machines)) for each in reserved]
    current = [_Claim(-math.inf, max(held.end, now + 1), held.use) for held in holding]
    current += [claim for claim in closed if claim.start <= now]
    ahead = [claim for claim in closed if claim.start > now]
    free_now = _free(machines, current, now, now + _INSTANT_S)
    ending = {held.job_id for held in holding if held.is_ending}
    blocked_shapes: set[object] = set()
    # Hundreds of jobs of as many lengths ask for few kinds of gangs, and what is free only grows less here.
    unfit: set[object] = set()
    obstacles: dict[object, str] = {}
    blocked_partitions: set[str] = set()
    num_reservations = 0
    for job in waiting:
        gang = (job.needs, job.exclusive, job.nodelist, job.exclude)
        shape = (gang, job.limit_s)
        if shape in blocked_shapes:
            result.reasons[job.job_id] = "Priority"
            continue
        nodes = None if gang in unfit else _fit(job, machines, free_now)
        if nodes is None:
            unfit.add(gang)
        elif ahead:
            # What fits at this moment may still reach into a claim that lies ahead.
            nodes = _fit(job, machines, _free(machines, [*current, *ahead], now, now + job.limit_s))
        if nodes is not None:
            result.starts[job.job_id] = nodes
            use = _use(job, nodes, machines)
            current.append(_Claim(now, now + job.limit_s, use))
            free_now |= {name: free_now[name] - amount for name, amount in use.items()}
            continue
        blocked_shapes.add(shape)
        asked = shape if closed else gang
        if asked not in obstacles:
            obstacles[asked] = _obstacle(job, machines, closed, now)
        if obstacle := obstacles[asked]:
            result.reasons[job.job_id] = obstacle
        else:
            result.reasons[job.job_id] = "Priority" if job.partition in blocked_partitions else "Resources"
            blocked_partitions.add(job.partition)
        claims = [*current, *ahead]
        victims = _victims(job, machines, holding, ending, result.starts, claims, now)
        result.preempt.extend(victims)
        ending.update(victims)
        if num_reservations < MAX_RESERVATIONS:
            found = _earliest(job, machines, claims, now)
            if found is not None:
                start, nodes = found
                ahead.append(_Claim(start, start + job.limit_s, _use(job, nodes, machines)))
                result.expected[job.job_id] = start
                num_reservations += 1
    return result


def _obstacle(job: Waiting, machines: Sequence[Machine], closed: Sequence[_Claim], now: float) -> str:
    """Why not even an idle cluster could take the job now, in Slurm's words; empty where it could."""
    if _fit(job, machines, {machine.name: machine.total for machine in machines}) is None:
        unusable = [machine.name for machine in machines if not machine.is_usable and machine.name in job.nodelist]
        return UNAVAILABLE + hostlist.compress(unusable) if unusable else TOO_FEW_UP
    if not closed:
        return ""
    free = _free(machines, closed, now, now + job.limit_s)
    if _fit(job, machines, free) is not None:
        return ""
    return RESERVED if any(free[machine.name] == machine.total for machine in machines) else ALL_RESERVED


def _whole(nodes: Sequence[str], machines: Sequence[Machine]) -> dict[str, Amount]:
    return {machine.name: machine.total for machine in machines if machine.name in nodes}


def _use(job: Waiting, nodes: tuple[str, ...], machines: Sequence[Machine]) -> dict[str, Amount]:
    need = dict(job.needs)[len(nodes)]
    if not job.exclusive:
        return dict.fromkeys(nodes, need)
    return _whole(nodes, machines)


def _free(machines: Sequence[Machine], claims: Sequence[_Claim], start: float, end: float) -> dict[str, Amount]:
    """What every node has to give through the whole of [start, end)."""
    # Plain numbers: this is where the time goes when hundreds of jobs wait.
    free = {machine.name: [machine.total.cpus, machine.total.memory_mb, machine.total.gpus] for machine in machines}
    for claim in claims:
        if claim.start < end and claim.end > start:
            for name, amount in claim.use.items():
                if name in free:
                    left = free[name]
                    left[0] -= amount.cpus
                    left[1] -= amount.memory_mb
                    left[2] -= amount.gpus
    return {name: Amount(*left) for name, left in free.items()}


def _fit(job: Waiting, machines: Sequence[Machine], free: Mapping[str, Amount]) -> tuple[str, ...] | None:
    """The nodes that the job gets out of ``free``, or None: all of its gang or nothing."""
    for num_nodes, need in job.needs:
        able = [
            machine.name
            for machine in machines
            if machine.is_usable
            and machine.name not in job.exclude
            and free[machine.name].covers(machine.total if job.exclusive else need)
            and machine.total.covers(need)
        ]
        if not set(job.nodelist) <= set(able) or len(able) < num_nodes:
            continue
        chosen = {*job.nodelist, *[name for name in able if name not in job.nodelist][: num_nodes - len(job.nodelist)]}
        return tuple(name for name in able if name in chosen)
    return None


def _earliest(
    job: Waiting, machines: Sequence[Machine], claims: Sequence[_Claim], now: float
) -> tuple[float, tuple[str, ...]] | None:
    for start in sorted({claim.end for claim in claims if now < claim.end < math.inf}):
        nodes = _fit(job, machines, _free(machines, claims, start, start + job.limit_s))
        if nodes is not None:
            return start, nodes
    return None


def _victims(
    job: Waiting,
    machines: Sequence[Machine],
    holding: Sequence[Holding],
    ending: set[int],
    starts: Mapping[int, tuple[str, ...]],
    claims: Sequence[_Claim],
    now: float,
) -> list[int]:
    """Whom to preempt so that the job fits: the youngest of the lowest tier first, and none in vain."""
    candidates = sorted(
        (held for held in holding if held.is_preemptable and held.tier < job.tier and held.job_id not in ending),
        key=lambda held: (held.tier, -held.start, -held.job_id),
    )
    if not candidates:
        return []
    started = [claim for claim in claims if claim.start > -math.inf]

    def fits_without(gone: set[int]) -> bool:
        kept = [_Claim(-math.inf, math.inf, held.use) for held in holding if held.job_id not in gone]
        return _fit(job, machines, _free(machines, [*kept, *started], now, now + job.limit_s)) is not None

    chosen: list[int] = []
    gone = set(ending)
    for held in candidates:
        if fits_without(gone):
            break
        gone.add(held.job_id)
        chosen.append(held.job_id)
    if not fits_without(gone):
        return []
    for job_id in list(chosen):
        if fits_without(gone - {job_id}):
            gone.discard(job_id)
            chosen.remove(job_id)
    return chosen
