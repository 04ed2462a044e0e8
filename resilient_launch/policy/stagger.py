"""Taking turns at shared storage: who goes first, who may go early, how often each should come, how many at once.

The model is the one of cooperative checkpointing (Herault et al., 2018): a job of weight ``q`` (its nodes or GPUs),
with mean time between failures ``M`` and undisturbed write time ``C``, loses q·(age + C)/M on average for each second
that its save comes late, and a turn costs everybody else ``C`` seconds of storage. Values in, values out: no clock, no
I/O.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

EARLIEST_SHARE = 0.8
"""No job saves before this share of its period is over, however idle the storage."""
STORAGE_SHARE = 1.0
"""The share of storage time that jointly optimal periods may fill with saves."""
HEAD_POLL_S = (1.0, 5.0)
"""Within which bounds the head of a queue looks again."""
MAX_POLL_S = 15.0
MIN_GAIN = 1.1
"""One writer more must raise the bandwidth of all together by this factor to be worth its interference."""
MIN_SAMPLES = 3
MAX_WRITERS = 64

Kind = Literal["restore", "save"]


@dataclass(frozen=True, kw_only=True)
class Want:
    """One job's wish for a turn, as of its arrival. ``age_s`` is the work that a failure would lose right then."""

    id: str
    kind: Kind
    weight: float
    write_s: float
    mtbf_s: float
    age_s: float
    period_s: float
    arrived: float
    """By the clock of the file server, as every time that is compared between jobs."""


@dataclass(frozen=True, kw_only=True)
class Sharer:
    """What the joint optimum needs to know of one job."""

    weight: float
    write_s: float
    mtbf_s: float


@dataclass(frozen=True, kw_only=True)
class WriteSample:
    """One measured write beside ``num_writers`` - 1 others."""

    num_writers: int
    seconds: float
    num_bytes: float


def save_urgency(weight: float, write_s: float, mtbf_s: float, age_s: float) -> float:
    """Expected loss for each second of storage that goes to somebody else first: q·(age + C)/(M·C)."""
    return weight * (age_s + write_s) / (mtbf_s * write_s)


def restore_urgency(weight: float, read_s: float) -> float:
    """The same for a job that stands still until it has read its checkpoint: q/C."""
    return weight / read_s


def is_due(age_s: float, period_s: float, early_share: float = 1.0) -> bool:
    """Whether a job has gone through its period, or through ``early_share`` of it."""
    return age_s >= early_share * period_s


def early_share(load: float) -> float:
    """The share of its period past which a job may save while storage is idle.

    ``load`` is the share of storage time that all jobs would fill if each kept its own optimal period. A full storage
    has no idle moment to waste: 0.8. With nobody about, an early save is merely one too many: towards 1.
    """
    return max(EARLIEST_SHARE, 1 - (1 - EARLIEST_SHARE) * load)


def rank(want: Want, now: float) -> tuple[int, float, float, str]:
    """Where ``want`` stands at ``now``: the smallest comes first.

    Saves that are due and restores compete by urgency, ahead of early saves; the one that came first wins a tie.
    """
    if want.kind == "restore":
        return 0, -restore_urgency(want.weight, want.write_s), want.arrived, want.id
    age_s = want.age_s + max(now - want.arrived, 0.0)
    urgency = save_urgency(want.weight, want.write_s, want.mtbf_s, age_s)
    return int(not is_due(age_s, want.period_s)), -urgency, want.arrived, want.id


def in_order(wants: Iterable[Want], now: float) -> list[Want]:
    """``wants``, the next to go first."""
    return sorted(wants, key=lambda want: rank(want, now))


def solo_load(sharers: Iterable[Sharer]) -> float:
    """The share of storage time that all would fill with saves, each at the period that is best for it alone."""
    return sum(job.write_s / young_period_s(job.write_s, job.mtbf_s) for job in sharers)


def young_period_s(write_s: float, mtbf_s: float) -> float:
    """√(2·C·M): the period of a job that has the storage to itself (Young, 1974)."""
    return math.sqrt(2 * write_s * mtbf_s)


def joint_periods_s(sharers: Sequence[Sharer], share: float = STORAGE_SHARE) -> list[float]:
    """The periods that waste least together, in the order of ``sharers``, in seconds.

    Each job's own optimum where storage has time for all of them. Otherwise all stretch by one shadow price Λ of
    storage time, the smallest that brings the load Σ C/P down to ``share``: P = √(2·C·M·(1 + Λ/q)) (Herault et al.,
    2018, with Λ in units of weight). A heavy job stretches less than a light one.
    """

    def periods(price: float) -> list[float]:
        return [young_period_s(job.write_s, job.mtbf_s) * math.sqrt(1 + price / job.weight) for job in sharers]

    def load(price: float) -> float:
        return sum(job.write_s / period_s for job, period_s in zip(sharers, periods(price), strict=True))

    if load(0.0) <= share:
        return periods(0.0)
    low, high = 0.0, max(job.weight for job in sharers)
    while load(high) > share:
        low, high = high, 4 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if load(middle) > share else (low, middle)
    return periods(high)


def bound_waste(sharers: Sequence[Sharer]) -> float:
    """First-order bound of the wasted share of all jobs' node time, at jointly optimal periods:

    Σ q·[C/P + (P/2 + C)/M] / Σ q (Herault et al., 2018). A simulation may beat it by a few per cent.
    """
    pairs = zip(sharers, joint_periods_s(sharers), strict=True)
    lost = sum(
        job.weight * (job.write_s / period_s + (period_s / 2 + job.write_s) / job.mtbf_s) for job, period_s in pairs
    )
    return lost / sum(job.weight for job in sharers)


def num_writers(samples: Sequence[WriteSample]) -> int:
    """How many may write at once, from what writes took so far.

    The bandwidth of all together at n writers is the median of n·bytes/seconds. One more writer is tried for as long as
    the last one paid; the number falls back to the best when it did not. 1 while nothing is known.
    """
    by_count: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.seconds > 0 and sample.num_bytes > 0 and sample.num_writers >= 1:
            by_count[sample.num_writers].append(sample.num_writers * sample.num_bytes / sample.seconds)
    known = {count: median(rates) for count, rates in sorted(by_count.items()) if len(rates) >= MIN_SAMPLES}
    best = 1
    while best < MAX_WRITERS:
        if best not in known:
            return best
        if best + 1 in known and known[best + 1] < MIN_GAIN * known[best]:
            return best
        best += 1
    return best


def mean_hold_s(samples: Sequence[WriteSample]) -> float:
    """How long a turn took on average; 0 when nothing is known."""
    return sum(sample.seconds for sample in samples) / len(samples) if samples else 0.0


def expected_wait_s(position: int, hold_s: float, writers: int) -> float:
    """How long the one at ``position`` (0 is the head) waits on average until its turn."""
    return (position + 1) * hold_s / max(writers, 1)


def poll_delay_s(position: int, hold_s: float, writers: int, jitter: float, lapse_s: float = math.inf) -> float:
    """When to look again, ±20 % by ``jitter``, a number from 0 to 1.

    The head looks often, so that storage is not idle for long. Whoever is behind looks when half of its way to the head
    should be done: the number of listings then grows with the logarithm of the queue's length alone. Where somebody
    ahead is silent, the first looks right after ``lapse_s``, when that one stops to count, the others a little later.
    """
    turn_s = hold_s / max(writers, 1)
    if position == 0:
        delay_s = min(max(turn_s / 20, HEAD_POLL_S[0]), HEAD_POLL_S[1])
    else:
        delay_s = min(max(position * turn_s / 2, HEAD_POLL_S[0] * (position + 1)), MAX_POLL_S)
    after_s = max(lapse_s, 0.0) + HEAD_POLL_S[0] * (position / max(writers, 1) + 0.1)
    return min(delay_s * (0.8 + 0.4 * jitter), max(after_s, 0.8 * HEAD_POLL_S[0]))
