"""One simulated stretch of one cluster: who computes, writes, waits, reads and loses work, event by event.

Every job is always in one state, and time is booked when the state changes. Failures come from one stream that is the
same for every strategy of a seed, so that strategies are compared under the same luck. What is decided, when and in
which order, is decided by ``policy.stagger``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from resilient_launch.core.units import DAY_S
from resilient_launch.lab.cluster_sim.beliefs import Beliefs
from resilient_launch.lab.cluster_sim.strategies import PERFECT, Imperfections, Strategy
from resilient_launch.lab.cluster_sim.workload import Workload
from resilient_launch.policy import stagger

WARM_UP_S = 15 * DAY_S


class State(IntEnum):
    """What a job does; a job that waits without blocking computes."""

    COMPUTE = 0
    WAIT = 1
    WRITE = 2
    READ = 3


class Tracer(Protocol):
    """Is told what happens, in order of time (seconds since the start of the simulation)."""

    def on_save(self, t: float, job: int, status: str, work_s: float) -> None: ...
    def on_failure(self, t: float, job: int, work_s: float) -> None: ...
    def on_resume(self, t: float, job: int, work_s: float) -> None: ...
    def on_compute(self, began: float, ended: float, job: int, work_s: float) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Where all jobs' node time went, as shares that add up to 1; ``waste`` is all but ``useful``.

    ``expected_rework`` is what ``rework`` comes to on average, given when jobs had how much work at risk.
    """

    useful: float
    rework: float
    wait: float
    write: float
    read: float
    expected_rework: float
    num_failures: int
    num_saves: int

    @property
    def waste(self) -> float:
        return 1.0 - self.useful

    def without_luck(self) -> Shares:
        """The same with the rework that was to be expected in place of what the drawn failures hit.

        Failures are Poisson and strike whatever the age, so ∫ age/MTBF dt has the mean of the ages at failures (their
        compensator) and little of the spread: with a few hundred failures, luck would hide differences of per cents.
        """
        return replace(self, useful=self.useful + self.rework - self.expected_rework, rework=self.expected_rework)


class _Kind(IntEnum):
    DUE = 0
    EARLY = 1
    LOOK = 2
    EXPIRE = 3


def simulate(
    workload: Workload,
    strategy: Strategy,
    *,
    seed: int,
    days: float,
    imperfections: Imperfections = PERFECT,
    tracer: Tracer | None = None,
) -> Shares:
    """What ``days`` of the steady state look like. The same arguments give the same answer."""
    return _Simulation(workload, strategy, seed, days, imperfections, tracer).run()


class _Simulation:
    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        seed: int,
        days: float,
        imperfections: Imperfections,
        tracer: Tracer | None,
    ) -> None:
        self.strategy, self.rough, self.tracer = strategy, imperfections, tracer
        self.end_s = WARM_UP_S + days * DAY_S
        sharers = workload.sharers
        self.num_jobs = n = len(sharers)
        self.weight = [job.weight for job in sharers]
        self.write_s = [job.write_s for job in sharers]
        self.mtbf_s = [job.mtbf_s for job in sharers]
        self.slots = workload.writers if strategy.turns else n
        self._draw_failures(np.random.default_rng([seed, 0]), [1 / job.mtbf_s for job in sharers])
        # Its own stream: what a strategy draws must not change the failures.
        self.random = np.random.default_rng([seed, 1])
        self.beliefs = Beliefs(sharers, strategy, imperfections, self.random)

        self.state = [State.COMPUTE] * n
        self.since = [0.0] * n
        self.at_risk = [0.0] * n  # work since the newest durable save
        self.in_flight = [0.0] * n  # the part of it that the save in flight holds
        self.work = [0.0] * n  # kept so far
        self.booked = [[0.0] * 4 for _ in range(n)]
        self.lost = [0.0] * n
        self.expected_lost = [0.0] * n
        self.must_read = [False] * n
        self.doomed = [False] * n
        self.version = [0] * n
        self.num_failures = self.num_saves = 0

        self.waiting: dict[int, float] = {}  # job -> arrival
        self.active: dict[int, float] = {}  # job -> its finish in virtual time, of which w seconds are one of weight w
        self.active_weight = 0.0
        self.virtual, self.now = 0.0, 0.0
        self.began: dict[int, float] = {}
        self.dead_slots = 0
        self.holds: deque[tuple[float, float]] = deque(maxlen=32)  # (began, ended) of slots given back lately
        self.heap: list[tuple[float, int, int, int]] = []
        for job in range(n):
            self._schedule(job, 0.0, self.beliefs.work_s(job) * self.random.random())

    def _draw_failures(self, rng: np.random.Generator, rates: list[float]) -> None:
        total = sum(rates)
        count = int(total * self.end_s + 10 * math.sqrt(total * self.end_s) + 20)
        self.failures_at: list[float] = np.cumsum(rng.exponential(1 / total, count)).tolist()
        self.failures_of: list[int] = rng.choice(len(rates), count, p=np.array(rates) / total).tolist()

    # The loop.

    def run(self) -> Shares:
        next_failure, base, end_s, heap = 0, None, self.end_s, self.heap
        while True:
            now, event, job = self.failures_at[next_failure], 0, -1
            if self.active:
                first = min(self.active, key=self.active.__getitem__)
                done = self.now + (self.active[first] - self.virtual) * self.active_weight
                if done < now:
                    now, event, job = done, 1, first
            while heap and heap[0][1] < _Kind.LOOK and self.version[heap[0][2]] != heap[0][3]:
                heapq.heappop(heap)
            if heap and heap[0][0] < now:
                now, event = heap[0][0], 2
            if base is None and now >= WARM_UP_S:
                base = self._totals(WARM_UP_S)
            if now >= end_s:
                break
            if self.active:
                self.virtual += (now - self.now) / self.active_weight
            self.now = now
            if event == 0:
                self._fail(self.failures_of[next_failure])
                next_failure += 1
            elif event == 1:
                self._finish(job)
            else:
                self._wake(*heapq.heappop(heap))
        return self._shares(base or [0.0] * 6)

    def _totals(self, at: float) -> list[float]:
        """Weighted seconds in every state, of lost work, and of the loss that was to be expected, up to ``at``."""
        sums = [0.0] * 6
        for job, weight in enumerate(self.weight):
            for state in State:
                sums[state] += weight * self.booked[job][state]
            sums[self.state[job]] += weight * (at - self.since[job])
            sums[4] += weight * self.lost[job]
            sums[5] += weight * (self.expected_lost[job] + self._expected_loss_s(job, at - self.since[job]))
        return sums

    def _shares(self, base: list[float]) -> Shares:
        total = sum(self.weight) * (self.end_s - WARM_UP_S)
        ended = self._totals(self.end_s)
        shares = ((end - start) / total for end, start in zip(ended, base, strict=True))
        compute, wait, write, read, lost, expected = shares
        return Shares(
            useful=compute - lost,
            rework=lost,
            wait=wait,
            write=write,
            read=read,
            expected_rework=expected,
            num_failures=self.num_failures,
            num_saves=self.num_saves,
        )

    # What happens to one job.

    def _enter(self, job: int, state: State) -> None:
        before, began = self.state[job], self.since[job]
        self.booked[job][before] += self.now - began
        self.expected_lost[job] += self._expected_loss_s(job, self.now - began)
        if before is State.COMPUTE:
            self.at_risk[job] += self.now - began
            if self.tracer is not None:
                self.tracer.on_compute(began, self.now, job, self.work[job] + self.at_risk[job])
        self.state[job], self.since[job] = state, self.now

    def _expected_loss_s(self, job: int, length_s: float) -> float:
        """The work that a failure loses in ``length_s`` seconds of the present state, times how likely one is."""
        mean_age_s = self.at_risk[job] + (length_s / 2 if self.state[job] is State.COMPUTE else 0.0)
        return mean_age_s * length_s / self.mtbf_s[job]

    def _age_s(self, job: int) -> float:
        running = self.now - self.since[job] if self.state[job] is State.COMPUTE else 0.0
        return self.at_risk[job] + running

    def _schedule(self, job: int, age_s: float, work_s: float) -> None:
        """Wake ``job`` when it will have done ``work_s`` of work since its last save."""
        self.version[job] += 1
        heapq.heappush(self.heap, (self.now + work_s - age_s, _Kind.DUE, job, self.version[job]))
        if self.strategy.early:
            early_s = self.beliefs.early_share * work_s
            heapq.heappush(self.heap, (self.now + early_s - age_s, _Kind.EARLY, job, self.version[job]))

    def _wake(self, at: float, kind: int, job: int, version: int) -> None:
        if kind == _Kind.EXPIRE:
            self.dead_slots -= 1
            self._look_soon()
        elif kind == _Kind.DUE:
            self.version[job] += 1
            self.waiting[job] = at
            if self.strategy.blocking:
                self._enter(job, State.WAIT)
            self._look()
        else:
            self._look()

    def _fail(self, job: int) -> None:
        self._enter(job, State.WAIT)
        self.num_failures += 1
        if self.tracer is not None:
            self.tracer.on_failure(self.now, job, self.work[job] + self.at_risk[job])
        self.lost[job] += self.at_risk[job]
        self.at_risk[job] = 0.0
        self.version[job] += 1
        self.must_read[job] = True
        self.beliefs.on_failure(job, self.now)
        if self.active.pop(job, None) is not None:
            self._give_back(job)
        self.waiting[job] = self.now
        self._look()

    def _begin(self, job: int) -> None:
        self.waiting.pop(job, None)
        self.version[job] += 1
        service_s = self.write_s[job]
        self._enter(job, State.READ if self.must_read[job] else State.WRITE)
        if not self.must_read[job]:
            self.in_flight[job] = self.at_risk[job]
            if self.tracer is not None:
                self.tracer.on_save(self.now, job, "begin", self.work[job] + self.at_risk[job])
            if self.rough.crash_share and self.random.random() < self.rough.crash_share:
                self.doomed[job] = True
                service_s *= self.random.random()
        self.active_weight += self.weight[job]
        self.active[job] = self.virtual + service_s / self.weight[job]
        self.began[job] = self.now

    def _finish(self, job: int) -> None:
        del self.active[job]
        self._enter(job, State.COMPUTE)
        if self.must_read[job]:
            self.must_read[job] = False
            self._give_back(job)
            if self.tracer is not None:
                self.tracer.on_resume(self.now, job, self.work[job])
        elif self.doomed[job]:
            self.dead_slots += 1
            heapq.heappush(self.heap, (self.now + self.rough.expiry_s, _Kind.EXPIRE, job, 0))
            self._give_back(job)
            if self.tracer is not None:
                self.tracer.on_save(self.now, job, "failed", self.work[job] + self.in_flight[job])
        else:
            self.num_saves += 1
            self.work[job] += self.in_flight[job]
            self.at_risk[job] -= self.in_flight[job]
            self.beliefs.on_save(job, self.now)
            self._give_back(job)
            if self.tracer is not None:
                self.tracer.on_save(self.now, job, "durable", self.work[job])
        self._schedule(job, self.at_risk[job], self.beliefs.work_s(job))
        self._look_soon()

    def _give_back(self, job: int) -> None:
        self.holds.append((self.began.pop(job), self.now + (self.rough.expiry_s if self.doomed[job] else 0.0)))
        self.doomed[job] = False
        # Floats that come and go leave dust behind, which an empty set must not keep.
        self.active_weight = self.active_weight - self.weight[job] if self.active else 0.0

    # Who goes next.

    def _look_soon(self) -> None:
        if self.rough.listing_age_s:
            delay_s = self.rough.listing_age_s * self.random.random()
            heapq.heappush(self.heap, (self.now + delay_s, _Kind.LOOK, -1, 0))
        else:
            self._look()

    def _look(self) -> None:
        """Give every slot that is seen to be free to the next in order."""
        age_s = self.rough.listing_age_s * self.random.random() if self.rough.listing_age_s else 0.0
        seen = self.now - age_s
        while self._num_holders(seen) < self.slots:
            job = self._choose([job for job, arrived in self.waiting.items() if arrived <= seen])
            if job is None and not self.waiting and self.strategy.early:
                job = self._choose([job for job in range(self.num_jobs) if self._may_go_early(job)])
            if job is None:
                break
            self._begin(job)
            if age_s:
                break
        if age_s and self.waiting and len(self.active) + self.dead_slots < self.slots:
            self._look_soon()

    def _num_holders(self, seen: float) -> int:
        if seen == self.now:
            return len(self.active) + self.dead_slots
        return sum(began <= seen for began in self.began.values()) + sum(
            began <= seen < ended for began, ended in self.holds
        )

    def _may_go_early(self, job: int) -> bool:
        return self.state[job] is State.COMPUTE and stagger.is_due(
            self._age_s(job), self.beliefs.work_s(job), self.beliefs.early_share
        )

    def _choose(self, jobs: list[int]) -> int | None:
        if not jobs:
            return None
        if self.strategy.order == "arrival":
            return min(jobs, key=self.waiting.__getitem__)
        return max(jobs, key=self._urgency)

    def _urgency(self, job: int) -> float:
        write_s = self.beliefs.write_s[job]
        if self.must_read[job]:
            return stagger.restore_urgency(self.weight[job], write_s)
        return stagger.save_urgency(self.weight[job], write_s, self.beliefs.mtbf_s[job], self._age_s(job))
