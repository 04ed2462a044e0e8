"""How long saves go on in the background, and how much slower training is meanwhile, seen from outside the ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from resilient_launch.job.page import Page
from resilient_launch.policy.auto_interval import NUM_COSTS

SHORTEST_S = 0.5
"""What is left of a save after its blocking part is a drain only if it is longer: looks are a part of that apart."""
MIN_STEPS = 3
"""So many steps, at least, say how fast training was."""


class Drains:
    """Looks at the pages of one worker group at every tick. Times are seconds, by the monotonic clock."""

    def __init__(self, drains_s: Sequence[float] = (), slowdown: float = 0.0) -> None:
        """Both values as an earlier attempt left them."""
        self.drains_s: list[float] = list(drains_s)[-NUM_COSTS:]
        self._slowdowns: deque[float] = deque([slowdown] if drains_s else (), maxlen=NUM_COSTS)
        self._free: tuple[float, int] | None = None
        self._begun: tuple[float, int] | None = None

    @property
    def slowdown(self) -> float:
        """The share of speed that is lost during a drain, 0 to 1."""
        return median(self._slowdowns) if self._slowdowns else 0.0

    def group_started(self) -> None:
        """Whatever was under way went with the group before."""
        self._free = self._begun = None

    def look(self, now: float, pages: Sequence[Page]) -> None:
        """Note where training is, and whether a save is under way."""
        step, is_writing = min(page.step for page in pages), any(page.writing for page in pages)
        if is_writing and self._begun is None:
            self._begun = (now, step)
        elif not is_writing and self._begun is not None:
            self._note(now, step, max(page.blocked_s for page in pages), *self._begun)
            self._begun, self._free = None, (now, step)
        elif self._free is None:
            self._free = (now, step)

    def _note(self, now: float, step: int, blocked_s: float, begun_s: float, begun_step: int) -> None:
        drain_s = now - begun_s - blocked_s
        if drain_s < SHORTEST_S:
            return
        self.drains_s = [*self.drains_s, drain_s][-NUM_COSTS:]
        if self._free is None:
            return
        free_s, free_step = self._free
        if min(step - begun_step, begun_step - free_step) >= MIN_STEPS and begun_s > free_s:
            usual = (begun_step - free_step) / (begun_s - free_s)
            self._slowdowns.append(min(max(1.0 - (step - begun_step) / drain_s / usual, 0.0), 1.0))
