"""Step times of two nodes compared over a real store; ranks write their pages as the step loop does."""

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.job.local_work import LocalWork
from resilient_launch.job.page import Page
from resilient_launch.job.step_times import StepTimes


class Rig:
    """Two nodes with two ranks each; ``window`` lets every rank finish a window with the given local times."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.pages = [Page.private() for _ in range(4)]
        self._window = 0
        self.nodes = [self._node(index) for index in range(2)]

    def _node(self, index: int) -> StepTimes:
        client = TCPStore("localhost", self.server.port, is_master=False, wait_for_workers=False)
        mine = slice(2 * index, 2 * index + 2)
        return StepTimes(
            PrefixStore("g", client),
            node=f"n{index}",
            node_index=index,
            num_nodes=2,
            ranks=list(range(4))[mine],
            pages=self.pages[mine],
            emit=lambda kind, fields: self.events.append(fields),
        )

    def window(self, *local_s: float, number: int | None = None) -> None:
        window = self._window if number is None else number
        self._window = window + 1
        for page, value in zip(self.pages, local_s, strict=True):
            page.floats[Page.window_medians_s[window % 8]] = value
            page.newest_window = window
        for node in reversed(self.nodes):
            node.exchange()


def test_a_slow_rank_is_reported_once() -> None:
    rig = Rig()
    for _ in range(6):
        rig.window(1.0, 1.0, 1.5, 1.0)
    (event,) = rig.events
    assert (event["scope"], event["ranks"], event["nodes"], event["ratio"]) == ("rank", [2], ["n1"], 1.5)
    assert event["window"] == 2
    for _ in range(3):
        rig.window(1.0, 1.0, 1.0, 1.0)
    for _ in range(3):
        rig.window(1.0, 1.0, 1.5, 1.0)
    assert len(rig.events) == 2, "it recovered, and became slow again"


def test_everything_being_slower_names_nobody() -> None:
    rig = Rig()
    for _ in range(6):
        rig.window(1.0, 1.0, 1.0, 1.0)
    for _ in range(3):
        rig.window(1.6, 1.6, 1.6, 1.6)
    (event,) = rig.events
    assert (event["scope"], event["ranks"], event["ratio"]) == ("all", [], 1.6)


def test_a_window_that_is_missing_somewhere_is_passed_over() -> None:
    rig = Rig()
    rig.window(1.0, 1.0, 1.5, 1.0, number=10)
    rig.window(1.0, 1.0, 1.5, 1.0)
    assert not rig.events, "slots of windows before the resume hold nothing"
    rig.window(1.0, 1.0, 1.5, 1.0)
    assert len(rig.events) == 1


def test_the_store_does_not_grow() -> None:
    rig = Rig()
    rig.window(1.0, 1.0, 1.0, 1.0)
    before = rig.server.num_keys()
    for _ in range(20):
        rig.window(1.0, 1.0, 1.0, 1.0)
    assert rig.server.num_keys() == before


@pytest.mark.parametrize("start", [0, 30])
def test_local_work_leaves_the_median_of_each_window(start: int) -> None:
    """From step 30 on, the first window has 20 steps, which is too few; none is left for the window in progress."""
    page = Page.private()
    work = LocalWork(page)
    busy: Callable[[], int] = lambda: sum(range(200))  # noqa: E731
    for step in range(start, 101):
        with work:
            busy()
        with work:  # both parts of a step's own work count
            busy()
        work.close_step(step + 1)
    medians = [page.floats[slot] for slot in Page.window_medians_s]
    assert page.newest_window == 1 and medians[1] > 0.0 and (medians[0] > 0.0) == (start == 0)
    assert medians[2:] == [0.0] * 6
    assert all(value < 0.1 for value in medians)


def test_steps_without_local_work_leave_nothing() -> None:
    page = Page.private()
    work = LocalWork(page)
    for step in range(120):
        work.close_step(step + 1)
    assert page.newest_window == -1
    assert work.take() == (0, [])


def test_local_work_is_told_step_by_step() -> None:
    """A step that was not timed is told as 0, and nothing is told twice."""
    work = LocalWork(Page.private())
    for step in range(7, 12):
        if step != 9:
            with work:
                sum(range(20_000))
        work.close_step(step + 1)
    first, told_s = work.take()
    assert first == 7 and [value > 0.0 for value in told_s] == [True, True, False, True, True]
    assert work.take()[1] == []
    with work:
        sum(range(20_000))
    work.close_step(13)
    assert [work.take()[0], *work.take()[1]] == [12]
