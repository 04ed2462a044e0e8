"""How long this rank works in a step before it meets the others: medians of windows of steps, left on its page."""

from __future__ import annotations

import sys
import time
from collections import deque
from statistics import median
from types import TracebackType
from typing import Any

from resilient_launch.job.page import Page
from resilient_launch.policy.straggler import WINDOW_STEPS

_MIN_STEPS = WINDOW_STEPS // 2
_MAX_PENDING = 256


class LocalWork:
    """A context manager that adds up the time spent in it during each step.

    Where CUDA is in use the time between two events on the current stream is taken, and read only once both have
    passed, so that the step never waits for its own measurement; otherwise the monotonic clock's.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._began = 0.0
        self._began_event: Any = None
        self._events: list[tuple[Any, Any]] = []
        self._pending: deque[tuple[int, list[tuple[Any, Any]]]] = deque(maxlen=_MAX_PENDING)
        self._spent_s = 0.0
        self._window = -1
        self._steps_s: list[float] = []
        self._told_first = 0
        self._told_s: list[float] = []

    def __enter__(self) -> LocalWork:
        cuda = _cuda_in_use()
        if cuda is None:
            self._began = time.monotonic()
        else:
            self._began_event = cuda.Event(enable_timing=True)
            self._began_event.record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._began_event is None:
            self._spent_s += time.monotonic() - self._began
            return
        end = _cuda_in_use().Event(enable_timing=True)
        end.record()
        self._events.append((self._began_event, end))
        self._began_event = None

    def close_step(self, step: int) -> None:
        """Another step is complete, ``step`` in all."""
        if self._events:
            self._pending.append((step - 1, self._events))
            self._events = []
        elif self._spent_s > 0.0:
            self._add(step - 1, self._spent_s)
            self._spent_s = 0.0
        while self._pending and all(end.query() for _, end in self._pending[0][1]):
            index, events = self._pending.popleft()
            self._add(index, sum(begin.elapsed_time(end) for begin, end in events) / 1000.0)

    def take(self) -> tuple[int, list[float]]:
        """What steps cost since the last call, and the first one's index; 0 s for a step that was not timed.

        On CUDA the newest steps are still missing: they come with the next call.
        """
        first, told_s = self._told_first, self._told_s
        self._told_s = []
        return first, told_s

    def _add(self, index: int, spent_s: float) -> None:
        """``index`` is the step's, counted from 0: windows are the same steps on every rank."""
        missing = index - self._told_first - len(self._told_s)
        if not self._told_s or missing < 0:
            self._told_first, self._told_s, missing = index, [], 0
        self._told_s += [0.0] * missing
        self._told_s.append(round(spent_s, 6))
        window = index // WINDOW_STEPS
        if window != self._window:
            if len(self._steps_s) >= _MIN_STEPS:
                slots = Page.window_medians_s
                self._page.floats[slots[self._window % len(slots)]] = median(self._steps_s)
                self._page.newest_window = self._window
            self._window = window
            self._steps_s.clear()
        self._steps_s.append(spent_s)


def _cuda_in_use() -> Any:
    """torch.cuda where this process has a context on a device; None elsewhere. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
