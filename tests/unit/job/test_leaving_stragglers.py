"""Slow nodes are left only where that was asked for, and where the run can go on without them."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import pytest

from resilient_launch.core.causes import Cause
from resilient_launch.job.stragglers import Stragglers


@pytest.mark.parametrize(
    ("enabled", "scope", "may_leave", "is_asked", "is_told"),
    [
        (True, "rank", True, True, True),
        (True, "node", True, True, True),
        (True, "node", False, True, False),
        (True, "all", True, False, False),
        (False, "node", True, False, False),
    ],
)
def test_when_a_node_is_left(enabled: bool, scope: str, may_leave: bool, is_asked: bool, is_told: bool) -> None:
    asked: queue.Queue[Sequence[str]] = queue.Queue()
    told: queue.Queue[Sequence[str]] = queue.Queue()

    def answer(nodes: Sequence[str]) -> bool:
        asked.put(nodes)
        return may_leave

    stragglers = Stragglers(enabled=enabled, may_leave=answer, tell=told.put)
    stragglers.consider(scope, ["n3"])
    if is_asked:
        assert asked.get(timeout=60) == ["n3"]
    if is_told:
        notice = stragglers.leave(told.get(timeout=60))
        assert (notice.cause, notice.deadline) == (Cause.YIELDED, None) and "n3" in notice.source
        assert stragglers.left == ("n3",)
    assert asked.empty() and told.empty()
