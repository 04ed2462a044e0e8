"""When the first node's agent asks for a save by itself: the clock says it is due, a turn that it may be made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.agreement import SaveRequest
from resilient_launch.job.attempt import Attempt
from resilient_launch.job.auto_interval import save_clock
from resilient_launch.job.context import Allocation
from resilient_launch.job.page import Action, Page, Reason
from resilient_launch.job.turns import turns_for


class DueSaves:
    """Asked at every tick; on the first node only."""

    def __init__(
        self, config: LaunchConfig, paths: RunPaths, attempt: Attempt, allocation: Allocation, events: EventWriter
    ) -> None:
        self._clock = save_clock(config, paths, attempt, allocation, partial(events.emit, flush=True))
        self._turns = turns_for(config, paths, allocation, events)
        self._reason = Reason.STEPS if config.checkpoint.every.steps is not None else Reason.TIME
        self._began = time.monotonic()
        self._asked_at = float("-inf")

    def group_started(self, pages: Sequence[Page]) -> None:
        """A worker group starts, and restores its state."""
        self._began = time.monotonic()
        self._clock.group_started()
        self._turns.group_started(pages)

    def next_wish(self, now: float, pages: Sequence[Page]) -> SaveRequest | None:
        """The save to ask for at ``now`` (monotonic), if one is due and its turn has come."""
        if not pages or min(page.step for page in pages) < 0:
            return None
        last = max(self._began, self._asked_at, *(page.saved_mono for page in pages))
        is_due = self._clock.is_due(now, last, pages)
        period_s, mtbf_s = self._clock.period_s(pages), self._clock.mtbf_s
        if not self._turns.may_ask(now, is_due=is_due, age_s=now - last, period_s=period_s, pages=pages, mtbf_s=mtbf_s):
            return None
        self._asked_at = now
        return SaveRequest(action=Action.SAVE, reason=self._reason)

    def close(self) -> None:
        """The attempt ends."""
        self._turns.close()
