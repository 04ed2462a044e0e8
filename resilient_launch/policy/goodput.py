"""Where the GPU-seconds of a run went, told from its events and from what the scheduler gave.

Durations come from monotonic clocks, and the allocation's bounds, which are the scheduler's, are never left: the labels
add up to it whatever the clocks and the files say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilient_launch.policy.assembly import AttemptTold, assemble
from resilient_launch.policy.partition import AttemptTimes, Label, partition
from resilient_launch.policy.told import Damage, Listener

__all__ = ["Allocation", "Label", "Partition", "account", "fitting"]


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What the scheduler gave one attempt: ``num_gpus`` from ``start_s`` to ``end_s``, wall clock.

    ``queued_s`` is when the wait for it began, None where that is not known.
    """

    attempt: int
    start_s: float
    end_s: float
    num_gpus: int
    queued_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """GPU-seconds by label, and the seconds in the queue, which are nobody's GPU time."""

    gpu_s: Mapping[Label, float]
    queue_wait_s: float

    @property
    def allocated_gpu_s(self) -> float:
        return math.fsum(self.gpu_s.values())

    @property
    def goodput(self) -> float:
        """Useful GPU-seconds over allocated ones; 0 where nothing was allocated."""
        allocated = self.allocated_gpu_s
        return self.gpu_s[Label.USEFUL] / allocated if allocated > 0 else 0.0


def account(events: Iterable[Mapping[str, Any]], allocations: Sequence[Allocation]) -> Partition:
    """Label every GPU-second of ``allocations``. Duplicate events change nothing.

    Events of attempts without an allocation count only for which steps had been done before.
    """
    damage = Damage()
    listeners: dict[int, dict[tuple[int, int, int], Listener]] = defaultdict(dict)
    for event in events:
        rank = event.get("rank")
        restart = None if rank is None else int(event.get("restart", 0))
        node = int(event.get("node", 0))
        key = (-1, -1, node) if restart is None else (restart, int(rank or 0), 0)
        of_attempt = listeners[int(event.get("attempt", 0))]
        if key not in of_attempt:
            of_attempt[key] = Listener(restart, rank, node, damage)
        of_attempt[key].take(event)
    given = {allocation.attempt: allocation for allocation in allocations}
    parts: dict[Label, list[float]] = defaultdict(list)
    high_water, first = 0, min([*given, *listeners], default=0)
    for number in sorted(given.keys() | listeners.keys()):
        told = [listener.told() for _, listener in sorted(listeners[number].items())]
        restarts = sorted({each.restart for each in told if each.restart is not None})
        groups = [[each for each in told if each.restart == restart] for restart in restarts]
        attempt = assemble(number, [each for each in told if each.restart is None], groups)
        allocation = given.get(number)
        start_s, end_s = (allocation.start_s, allocation.end_s) if allocation else (-math.inf, math.inf)
        shift_s = _fit(attempt, allocation) if allocation else 0.0
        times = AttemptTimes(
            start_s=start_s - shift_s, end_s=end_s - shift_s, groups=attempt.groups, is_first=number == first
        )
        shares = partition(times, high_water)
        high_water = shares.high_water
        for label, seconds in shares.seconds.items() if allocation else ():
            parts[label].append(seconds * (allocation.num_gpus if allocation else 0))
    waits = [max(each.start_s - each.queued_s, 0.0) for each in allocations if each.queued_s is not None]
    return Partition(gpu_s={label: math.fsum(parts[label]) for label in Label}, queue_wait_s=math.fsum(waits))


def fitting(begun_s: float, ended_s: float, start_s: float, end_s: float) -> tuple[float, float]:
    """The least shift that puts [``begun_s``, ``ended_s``] inside [``start_s``, ``end_s``], and what does not fit.

    The two are on different clocks. Both values are seconds; the second is 0 where the shift is enough.
    """
    least_s, most_s = start_s - begun_s, end_s - ended_s
    if least_s > most_s:
        return (least_s + most_s) / 2, least_s - most_s
    return min(max(0.0, least_s), most_s), 0.0


def _fit(attempt: AttemptTold, allocation: Allocation) -> float:
    if attempt.begun_s is None or attempt.last_s is None:
        return 0.0
    return fitting(attempt.begun_s, attempt.last_s, allocation.start_s, allocation.end_s)[0]
