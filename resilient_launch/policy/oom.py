"""Whether the kernel ran out of memory: told from the counters of the cgroup, never from the job's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryCounters:
    """What a cgroup has counted: ``num_kills`` processes killed for want of memory (None where the kernel does not
    say), ``num_limit_hits`` times at its limit."""

    num_kills: int | None
    num_limit_hits: int


def is_out_of_memory(
    before: MemoryCounters | None, after: MemoryCounters | None, exits: Mapping[int, int] | Iterable[int]
) -> bool:
    """Whether a worker group with these ``exits`` (rank -> code, negative for a signal) ended for want of memory.

    The kernel kills one process with SIGKILL: a worker, or a data loader whose worker then fails with a code of its
    own, so a new kill explains any failure. A kernel that does not count kills leaves a SIGKILL at the limit as proof.
    """
    codes = list(exits.values() if isinstance(exits, Mapping) else exits)
    if before is None or after is None or not any(codes):
        return False
    if after.num_kills is not None and before.num_kills is not None:
        return after.num_kills > before.num_kills
    return -9 in codes and after.num_limit_hits > before.num_limit_hits


def parse_v1(oom_control: str, failcnt: str) -> MemoryCounters:
    """From cgroup v1's memory.oom_control and memory.failcnt."""
    fields = dict(line.split(maxsplit=1) for line in oom_control.splitlines() if " " in line)
    kills = fields.get("oom_kill", "")
    return MemoryCounters(num_kills=int(kills) if kills.strip().isdigit() else None, num_limit_hits=int(failcnt or 0))


def parse_v2(events: str) -> MemoryCounters:
    """From cgroup v2's memory.events."""
    fields = dict(line.split(maxsplit=1) for line in events.splitlines() if " " in line)
    kills = fields.get("oom_kill")
    return MemoryCounters(num_kills=int(kills) if kills else None, num_limit_hits=int(fields.get("max", 0)))
