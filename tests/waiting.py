"""Waiting for a condition, as tests of real processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.05


def wait_for(condition: Callable[[], T | None], timeout_s: float = 90.0, what: str | Callable[[], str] = "") -> T:
    """The first true value of ``condition``; fails the test at the deadline, with ``what`` it waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what() if callable(what) else what or condition}")
        time.sleep(POLL_S)
