"""When a run that stands still hangs, and which rank it waits for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FACTOR = 5.0
"""A phase may stand still for this many times the longest gap that was ever seen in it."""
PATIENCE = 2.0
"""A gang without a stopped process is ended only after so many times its timeout: it may be slow as never before."""
WARM_UP_GAPS = 3
"""Steps that must be seen before they say anything of the steps to come: the first ones compile and fill caches."""
_LEFT = "leave"
_WAITS_FOR_PEERS = ("/torch/autograd/", "/torch/distributed/", "/torch/nn/parallel/")
"""Where a rank's innermost Python line is while it waits in a collective: the backward pass, or a call of its own."""
_RENAMED = (
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of every hang timeout, in seconds. ``ceiling_s`` also stands in until something was seen."""

    floor_s: float = 10.0
    ceiling_s: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One rank at one look.

    ``state`` is the letter that /proc gives its process, empty where there is none (any more); ``attached`` whether it
    has joined the run; ``idle_s`` the time since its last sign of life; ``location`` its innermost Python line, where
    its stack is known.
    """

    rank: int
    node: str
    phase: str
    step: int
    idle_s: float
    timeout_s: float
    state: str
    attached: bool = True
    location: str = ""

    @property
    def is_expired(self) -> bool:
        """Whether it stands still for longer than it may. A process that is gone is not hanging."""
        return bool(self.state) and self.idle_s > self.timeout_s

    @property
    def is_late(self) -> bool:
        """Whether it is expired and ought to move: it has joined the run, or was stopped before it could.

        A process under a tracer (state t) that has not joined may be anywhere in its imports.
        """
        return self.is_expired and (self.attached or self.state == "T")


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The rank that the others wait for, and how one can tell; ``rank`` and ``node`` are None where none stands out."""

    rank: int | None
    node: str | None
    why: str


def timeout_s(phase: str, *, largest_gap_s: float, num_gaps: int, limits: Limits, is_stopped: bool = False) -> float:
    """How long a rank may stand still in ``phase``, given the largest of ``num_gaps`` gaps seen there.

    What follows the last step (phase leave) is the script's own affair and has no limit, unless its process is stopped.
    """
    if phase == _LEFT:
        return limits.ceiling_s if is_stopped else math.inf
    if largest_gap_s <= 0.0 or (phase == "step" and num_gaps < WARM_UP_GAPS):
        return limits.ceiling_s
    return min(max(limits.floor_s, FACTOR * largest_gap_s), limits.ceiling_s)


def is_hung(views: Sequence[RankView]) -> bool:
    """Whether a gang hangs: a rank's time is over, and it is not waiting for one whose own time is not.

    One may wait for a rank that is no step ahead, and inside a long phase, or new in its step: one that evaluated alone
    is there afterwards like those that wait for it. A stopped process waits for nobody, and it is in vain to wait for
    one, or for one that has left its loop. Scripts that never join the run are never said to hang, unless they are
    stopped.
    """
    busy = [view for view in views if view.state and view.phase != _LEFT and not view.is_expired]
    busy = [view for view in busy if view.state not in "Tt"]
    return any(
        view.state in "Tt" or not any(_is_waited_for(other, view) for other in busy) for view in views if view.is_late
    )


def _is_waited_for(busy: RankView, late: RankView) -> bool:
    # One that has stood in its step for as long as the late one may is waiting itself, with more patience.
    return busy.step <= late.step and (busy.phase != "step" or busy.idle_s <= late.timeout_s)


def seconds_to_proof(views: Sequence[RankView]) -> float:
    """How long a hung gang must still stand until it may be ended; 0 when it is proven to hang.

    A stopped process is proof. Any other gang may yet move: with tails as heavy as a Pareto distribution's with
    alpha = 3, a step beyond five times the largest one before it comes once in about forty runs of 10^6 steps, and one
    beyond ten times once in three hundred.
    """
    if any(view.state in "Tt" for view in views if view.state):
        return 0.0
    late = (PATIENCE * view.timeout_s - view.idle_s for view in views if view.is_expired and view.attached)
    return max(min(late, default=0.0), 0.0)


def blame(views: Sequence[RankView]) -> Blame:
    """Which rank the gang waits for: one that is stopped, else one that is behind, else one that stands elsewhere.

    What is done between two steps comes before the step: a rank still saving is behind one that is in its step.
    """
    alive = [view for view in views if view.state and view.phase != _LEFT]
    stopped = [view for view in views if view.state == "T" or (view in alive and view.state == "t")]
    if stopped:
        return _name(stopped[0], "its process is stopped (state T)")
    if not alive:
        return Blame(rank=None, node=None, why="no rank is left")
    behind, ahead = min(alive, key=_progress), max(alive, key=_progress)
    if _progress(behind) < _progress(ahead):
        return _name(behind, f"it is {_where(behind)}, others are {_where(ahead)}")
    absent = [view for view in alive if view.location and not _waits_for_peers(view)]
    if absent and any(map(_waits_for_peers, alive)):
        return _name(absent[0], f"it is at {absent[0].location}, others wait in a collective")
    odd = _odd_one_out(alive)
    if odd is not None:
        return _name(odd, f"it is at {odd.location}, most others are elsewhere")
    dead = min(alive, key=lambda view: view.state != "D")
    if dead.state == "D":
        return _name(dead, "it is in uninterruptible sleep (state D: a device or a file server does not answer)")
    return Blame(rank=None, node=None, why="every rank waits alike; their stacks tell more")


def _waits_for_peers(view: RankView) -> bool:
    return any(part in view.location for part in _WAITS_FOR_PEERS)


def _odd_one_out(views: Sequence[RankView]) -> RankView | None:
    """The rank that stands at a line where hardly any other does, while most share one."""
    counts = Counter(view.location for view in views if view.location)
    if len(counts) < 2:
        return None
    (_, most), *_others = counts.most_common(1)
    rarest = min((view for view in views if view.location), key=lambda view: counts[view.location])
    return rarest if 2 * most > len(views) and counts[rarest.location] < most else None


def _progress(view: RankView) -> tuple[int, bool]:
    return view.step, view.phase == "step"


def _where(view: RankView) -> str:
    return f"at step {view.step}" + ("" if view.phase == "step" else f" in phase {view.phase}")


def _name(view: RankView, why: str) -> Blame:
    return Blame(rank=view.rank, node=view.node, why=f"rank {view.rank} on {view.node}: {why}")


def collective_settings(
    env: Mapping[str, str], *, ceiling_s: float, trace_prefix: str, pipe_prefix: str
) -> dict[str, str]:
    """What to add to ``env`` so that torch's collectives fail rather than wait for ever, and leave a trace.

    What the user set stays, under either of its names where torch renamed it. NCCL's own monitor gets longer than any
    hang timeout, so that stacks are taken before it ends a process. From torch's notes on ProcessGroupNCCL environment
    variables.
    """
    settings = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(math.ceil(ceiling_s) + 60),
        "TORCH_NCCL_DESYNC_DEBUG": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": trace_prefix,
        "TORCH_FR_DUMP_TEMP_FILE": trace_prefix,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe_prefix,
    }
    return {
        name: value for name, value in settings.items() if not any(known in env for known in _names_of_setting(name))
    }


def _names_of_setting(name: str) -> tuple[str, ...]:
    return next((names for names in _RENAMED if name in names), (name,))
